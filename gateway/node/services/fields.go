package services

import "culvert/gateway/configfile"

const required = configfile.Required

// Fields is the reference of the section, whose changes take effect by SIGHUP.
var Fields = []configfile.Field{
	{Path: "services.mode", Type: "one of tun, sockets", Default: "tun", Doc: "How Services are served. tun uses a TUN device, routes and rules, and needs CAP_NET_ADMIN. sockets listens at nodePort, and at those externalIPs and loadBalancerIPs that belong to this machine; it needs no privilege, and serves TCP and UDP for endpoints that this machine's own routes reach."},
	{Path: "services.interface", Type: "name of a link, 15 letters at most", Default: DefaultInterface, Doc: "Name of the TUN device."},
	{Path: "services.addresses[]", Type: "IP address", Live: true, Doc: "This node's addresses for node ports; at least one, unless Services come from Kubernetes, whose Node has them. Endpoints see the first of each family where they cannot see the client's."},
	{Path: "services.pods[]", Type: "CIDR", Live: true, Doc: "The cluster's pod CIDRs. Without them, endpoints never see clients' addresses."},
	{Path: "services.bridged[]", Type: "CIDR", Live: true, Doc: "Pod CIDRs, one for each node, whose pods reach each other without the node's routing, as on a bridge."},
	{Path: "services.serviceCIDRs[]", Type: "CIDR", Live: true, Doc: "CIDRs of cluster addresses; all of them are routed to the device."},
	{Path: "services.clientPorts", Type: "range of ports, at least 64", Default: "61000-65534", Doc: "Source ports for clients whose address is translated. They must lie outside net.ipv4.ip_local_port_range, also that of pods, or be among net.ipv4.ip_local_reserved_ports."},
	{Path: "services.mtu", Type: "bytes, 1280 to 65535", Default: "1500", Doc: "Largest packet of the device. The path to every endpoint must carry it."},
	{Path: "services.state", Type: "folder, from /", Doc: "Folder for what the next process needs: connections (written every second that brings new ones, and at exit) and, under Kubernetes, the Services. With it, device, rules and routes stay however this process ends, and the next one continues with all of them; meanwhile packets to Services are lost. With --takeover the next process starts before this one ends, and no packet is lost. The folder need not survive a reboot: /run/culvert will do. culvert node --remove removes device, rules and routes of an ended process."},
	{Path: "services.metrics", Type: "host:port, or empty", Doc: "Address that serves /metrics and /healthz; without it, they are served nowhere. /healthz fails while routes or rules to Services cannot be restored, or one of the node's addresses is missing."},
	{Path: "services.announce[]", Type: "CIDR", Live: true, Doc: "Which of loadBalancerIPs this node answers for at layer 2, by ARP and neighbour discovery. List an address at one node only. Under Kubernetes, write the same at all nodes, which choose one node for each address; there, adding or removing this field needs a restart."},
	{Path: "services.announceOn[]", Type: "name of a link", Live: true, Doc: "Links on which it answers. Without it: all broadcast links with an address that has a network, except members of a bridge or bond."},
	{Path: "services.serve[].name", Type: "text", Default: required, Live: true, Doc: "Name of the Service and its port, such as shop/web:http. Affinity remembers clients under it."},
	{Path: "services.serve[].protocol", Type: "one of tcp, udp, sctp", Default: "tcp", Live: true, Doc: "Protocol of the port."},
	{Path: "services.serve[].clusterIP", Type: configfile.OneOrPair, Live: true, Doc: "Address for pods and nodes of the cluster."},
	{Path: "services.serve[].port", Type: "port, 1 to 65534", Default: required, Live: true, Doc: "Port at clusterIP, externalIPs and loadBalancerIPs."},
	{Path: "services.serve[].nodePort", Type: "port, 1 to 65534", Live: true, Doc: "Port at services.addresses."},
	{Path: "services.serve[].externalIPs[]", Type: "IP address", Live: true, Doc: "Addresses for hosts outside, which the network routes to this node."},
	{Path: "services.serve[].loadBalancerIPs[]", Type: "IP address", Live: true, Doc: "Addresses of a load balancer for this Service, only for clients in sourceRanges."},
	{Path: "services.serve[].sourceRanges[]", Type: "CIDR", Live: true, Doc: "Clients that may use loadBalancerIPs; without it, all."},
	{Path: "services.serve[].affinity", Type: "one of none, clientIP", Default: "none", Live: true, Doc: "clientIP keeps a client on its endpoint."},
	{Path: "services.serve[].affinityTimeout", Type: "duration, 0s to 24h", Default: "3h", Live: true, Doc: "How long after its last connection a client is kept on its endpoint."},
	{Path: "services.serve[].externalTrafficPolicy", Type: "one of Cluster, Local", Default: "Cluster", Live: true, Doc: "Local gives hosts outside the cluster only endpoints on this node, which see their addresses."},
	{Path: "services.serve[].internalTrafficPolicy", Type: "one of Cluster, Local", Default: "Cluster", Live: true, Doc: "Local gives clients of clusterIP only endpoints on this node."},
	{Path: "services.serve[].proxyProtocol", Type: "one of none, v2", Default: "none", Live: true, Doc: "v2 tells endpoints the client's address, whatever source they see: each new TCP connection begins with a PROXY protocol header, which they must expect."},
	{Path: "services.serve[].endpoints[].address", Type: "IP address", Default: required, Live: true, Doc: "Address of an endpoint: a pod or host that serves."},
	{Path: "services.serve[].endpoints[].port", Type: "port, 1 to 65534", Default: required, Live: true, Doc: "Port of that endpoint."},
	{Path: "services.serve[].endpoints[].node", Type: "name", Live: true, Doc: "Node of that endpoint, by the name in that node's file; Local policies need it."},
	{Path: "services.serve[].endpoints[].weight", Type: "number, 1 to 1000", Default: "1", Live: true, Doc: "Weight of this endpoint; its share of new clients is proportional to it."},
}
