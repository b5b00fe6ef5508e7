package services

import "culvert/gateway/configfile"

const required = configfile.Required

// Fields is the reference of the section, whose changes take effect by SIGHUP.
var Fields = []configfile.Field{
	{Path: "services.mode", Type: "one of tun, sockets", Default: "tun", Doc: "How Services are served: by a TUN device, routes and rules, which needs CAP_NET_ADMIN, or by sockets that listen at nodePort, and at externalIPs and loadBalancerIPs that are this machine's: without any privilege, over TCP and UDP, for endpoints that this machine's own routes lead to."},
	{Path: "services.interface", Type: "name of a link, 15 letters at most", Default: DefaultInterface, Doc: "Name of the TUN device that is made."},
	{Path: "services.addresses[]", Type: "IP address, at least one", Live: true, Doc: "This node's addresses at which node ports are; backends see the first of each family where they cannot see the client's."},
	{Path: "services.pods[]", Type: "CIDR", Live: true, Doc: "The cluster's pod CIDRs; without them backends see no client's address."},
	{Path: "services.bridged[]", Type: "CIDR", Live: true, Doc: "Pods that reach each other without this node's routing, as with a bridge: this node's pod CIDR."},
	{Path: "services.serviceCIDRs[]", Type: "CIDR", Live: true, Doc: "What cluster addresses are taken from; all of it is led to the device."},
	{Path: "services.clientPorts", Type: "range of ports, at least 64", Default: "61000-65534", Doc: "Source ports that clients get, by which answers are known; outside of net.ipv4.ip_local_port_range, of pods too."},
	{Path: "services.mtu", Type: "bytes, 1280 to 65535", Default: "1500", Doc: "Largest packet of the device: no more than the way to every endpoint carries."},
	{Path: "services.state", Type: "folder, from /", Doc: "Where connections are written, each second that brings new ones and at the end, and under Kubernetes the Services. Device, rules and routes then stay when this process ends, however it does, and the next one goes on with all; meanwhile packets for Services are lost. With --takeover the next one starts before this one ends, and none is lost. It need not outlive the machine: /run/culvert. To remove what stays: start and end this once without state."},
	{Path: "services.metrics", Type: "host:port, or empty", Doc: "Where /metrics and /healthz are served; empty is nowhere. /healthz fails while what leads to Services cannot be put back, or one of the node's addresses is gone."},
	{Path: "services.announce[]", Type: "CIDR", Live: true, Doc: "Which of loadBalancerIPs this node answers for at layer 2, by ARP and neighbour discovery. Name an address at one node alone. Under Kubernetes, write the same at all nodes, which choose one for each address; it comes and goes at a restart there."},
	{Path: "services.announceOn[]", Type: "name of a link", Live: true, Doc: "Links at which it answers; without it, all broadcast links that have an address with a network, but for members of a bridge or bond."},
	{Path: "services.serve[].name", Type: "text", Default: required, Live: true, Doc: "Name of the Service and its port, such as shop/web:http; it names the clients that affinity remembers."},
	{Path: "services.serve[].protocol", Type: "one of tcp, udp, sctp", Default: "tcp", Live: true, Doc: "Protocol of the port."},
	{Path: "services.serve[].clusterIP", Type: configfile.OneOrPair, Live: true, Doc: "Address for the cluster: pods and nodes."},
	{Path: "services.serve[].port", Type: "port, 1 to 65534", Default: required, Live: true, Doc: "Port at clusterIP, externalIPs and loadBalancerIPs."},
	{Path: "services.serve[].nodePort", Type: "port, 1 to 65534", Live: true, Doc: "Port at services.addresses."},
	{Path: "services.serve[].externalIPs[]", Type: "IP address", Live: true, Doc: "Addresses for hosts outside, which the network leads to this node."},
	{Path: "services.serve[].loadBalancerIPs[]", Type: "IP address", Live: true, Doc: "The same, for clients of sourceRanges only."},
	{Path: "services.serve[].sourceRanges[]", Type: "CIDR", Live: true, Doc: "Who may ask loadBalancerIPs; none means everybody."},
	{Path: "services.serve[].affinity", Type: "one of none, clientIP", Default: "none", Live: true, Doc: "clientIP keeps a client at its endpoint."},
	{Path: "services.serve[].affinityTimeout", Type: "duration, 0s to 24h", Default: "3h", Live: true, Doc: "For how long after its last connection."},
	{Path: "services.serve[].externalTrafficPolicy", Type: "one of Cluster, Local", Default: "Cluster", Live: true, Doc: "Local gives hosts outside endpoints of this node only, which see their addresses."},
	{Path: "services.serve[].internalTrafficPolicy", Type: "one of Cluster, Local", Default: "Cluster", Live: true, Doc: "Local gives clients of clusterIP endpoints of this node only."},
	{Path: "services.serve[].proxyProtocol", Type: "one of none, v2", Default: "none", Live: true, Doc: "v2 tells endpoints the client's address, whatever source they see: what a client sends begins with a PROXY protocol header, which they must expect. For new connections of TCP."},
	{Path: "services.serve[].endpoints[].address", Type: "IP address", Default: required, Live: true, Doc: "Address of an endpoint that is ready."},
	{Path: "services.serve[].endpoints[].port", Type: "port, 1 to 65534", Default: required, Live: true, Doc: "Its port."},
	{Path: "services.serve[].endpoints[].node", Type: "name", Live: true, Doc: "Name of the node where it is, as that node's file has it."},
	{Path: "services.serve[].endpoints[].weight", Type: "number, 1 to 1000", Default: "1", Live: true, Doc: "Its share of new clients, next to those of the others."},
}
