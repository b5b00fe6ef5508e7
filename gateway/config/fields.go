package config

import (
	"slices"

	"culvert/gateway/configfile"
)

const required = configfile.Required

// fields is the reference of the configuration file. Tests compare it with the types, and each default with its effect.
var fields = []configfile.Field{
	{Path: "cluster", Type: "name", Default: required, Doc: "Name of this cluster, for logs and metrics. It must differ from peer."},
	{Path: "peer", Type: "name", Default: required, Doc: "Name of the remote cluster, for logs and metrics. Remaps that auto chose are remembered under it."},
	{Path: "mtu", Type: "bytes, 576 to 9000", Default: "1340", Doc: "Largest inner packet of both tunnels: at least 1280 with IPv6 inside. Outer packets are larger: by 50 bytes to nodes (70 over IPv6), by 60 to the peer (80 over IPv6). Nodes must use the same; of larger packets of pods, TCP is kept to it by mssClamp, and the others are refused by ICMP."},

	{Path: "wireguard.role", Type: "one of client, server", Default: required, Doc: "One gateway is the server, the other the client. The client knows the server's address and port (endpoint); the server learns the client's."},
	{Path: "wireguard.privateKeyFile", Type: "file", Default: required, Doc: "File with this gateway's private key, made by culvert keygen; relative to this file. A systemd credential (LoadCredential) of that name takes precedence."},
	{Path: "wireguard.peerPublicKey", Type: "WireGuard key in base64", Live: true, Doc: "The peer's public key, as culvert keygen printed it there."},
	{Path: "wireguard.peerPublicKeyFile", Type: "file", Live: true, Doc: "File with the peer's public key, instead of peerPublicKey."},
	{Path: "wireguard.listenPort", Type: "UDP port, 0 to 65535", Doc: "Port on which WireGuard listens. Without it, a server uses 51840, and a client any free port, as with 0."},
	{Path: "wireguard.endpoint", Type: "host:port", Live: true, Doc: "The server's address; required for a client, refused for a server."},
	{Path: "wireguard.keepalive", Type: "duration, 0s to 18h12m15s", Live: true, Doc: "How often an idle tunnel sends an empty message, to keep firewalls and NAT open. Without it: 25s for a client, 0s (off) for a server."},
	{Path: "wireguard.uapi", Type: "true or false", Default: "false", Doc: "Serve a socket in /var/run/wireguard, so that wg show shows the tunnel."},

	{Path: "geneve.listenPort", Type: "UDP port, 1 to 65535", Default: "6091", Doc: "Port on which Geneve and VXLAN arrive. They are sent to the same port of the nodes."},
	{Path: "geneve.gatewayAddress", Type: configfile.OneOrPair, Default: required, Live: true, Doc: "The gateway's internal address, which nodes use as next hop, such as 10.80.0.4 or [10.80.0.4, \"fd80::4\"]. No CIDR of this file may contain it."},
	{Path: "geneve.sourceCheck", Type: "one of node, cluster", Default: "node", Live: true, Doc: "node drops packets that a node sends with a source address of another node's pods; cluster accepts every local pod's address from any node."},
	{Path: "geneve.nodes[].name", Type: "name", Default: required, Live: true, Doc: "Name of the node, unique in this file."},
	{Path: "geneve.nodes[].vni", Type: "number, 0 to 16777215", Default: required, Live: true, Doc: "Number of the tunnel, which identifies the node. The node must use the same."},
	{Path: "geneve.nodes[].underlay", Type: "IP address", Default: required, Live: true, Doc: "The node's IPv4 or IPv6 address in the network that it shares with the gateway. Each node has its own."},
	{Path: "geneve.nodes[].address", Type: configfile.OneOrPair, Default: required, Live: true, Doc: "The node's internal address, inside the tunnel. It has the families of gatewayAddress."},
	{Path: "geneve.nodes[].podCIDRs[]", Type: "CIDR", Live: true, Doc: "Addresses of this node's pods, inside network.local.podCIDRs."},
	{Path: "geneve.nodes[].encap", Type: "one of auto, geneve, vxlan", Default: "auto", Live: true, Doc: "Encapsulation of the node's tunnel. auto uses whichever the node used first, and drops the other until the node has been silent for 60 s; geneve and vxlan always drop the other."},
	{Path: "geneve.nodes[].inner", Type: "one of ethernet, ip", Default: "ethernet", Live: true, Doc: "What the tunnel carries: Ethernet frames, or IP packets for links without Ethernet. Only Geneve can carry IP packets."},

	{Path: "network.local.podCIDRs[]", Type: "CIDR", Default: required, Live: true, Doc: "All pods of this cluster."},
	{Path: "network.local.externalCIDRs[]", Type: "CIDR", Live: true, Doc: "Addresses under which the peer sees everything in this cluster that is not a pod: mapped hosts, services, unknown sources. Choose any unused range. The peer's file has it in network.remote.externalCIDRs."},
	{Path: "network.remote.podCIDRs[].cidr", Type: "CIDR", Default: required, Live: true, Doc: "Pod addresses of the remote cluster, as used there."},
	{Path: "network.remote.podCIDRs[].remap", Type: "CIDR, or auto", Live: true, Doc: "CIDR of the same length under which this cluster sees those pods; auto chooses one and remembers it. Without it, they keep their own addresses."},
	{Path: "network.remote.externalCIDRs[].cidr", Type: "CIDR", Default: required, Live: true, Doc: "External CIDR of the remote cluster, as used there."},
	{Path: "network.remote.externalCIDRs[].remap", Type: "CIDR, or auto", Live: true, Doc: "CIDR of the same length under which this cluster sees it; auto chooses one and remembers it. Without it, it keeps its own addresses."},

	{Path: "nat.unknownSource", Type: "auto, off, or " + configfile.OneOrPair, Default: "auto", Live: true, Doc: "Source address that the peer sees for senders that are not pods. auto is the first address of the first external CIDR of each family; off drops their packets."},
	{Path: "nat.addresses[].external", Type: "auto, or " + configfile.OneOrPair, Default: required, Live: true, Doc: "Address of a local external CIDR that stands for one host; one for each family of internal. auto chooses addresses and remembers them."},
	{Path: "nat.addresses[].internal", Type: configfile.OneOrPair, Default: required, Live: true, Doc: "The host's own address."},
	{Path: "nat.addresses[].via", Type: "name of a node", Live: true, Doc: "The node through which a host outside the pod CIDRs is reached; without it, the first node."},
	{Path: "nat.addresses[].proxyProtocol", Type: "one of none, v2", Default: "none", Live: true, Doc: "v2 tells the host the client's address: each new TCP connection begins with a PROXY protocol header, which the host must expect on all its ports."},
	{Path: "nat.services[].name", Type: "name", Default: required, Live: true, Doc: "Name of the service, for logs and metrics."},
	{Path: "nat.services[].address", Type: "auto, or " + configfile.OneOrPair, Default: required, Live: true, Doc: "Address of a local external CIDR; one for each family of the backends. auto chooses addresses and remembers them."},
	{Path: "nat.services[].port", Type: "port, 1 to 65535", Default: required, Live: true, Doc: "The service's port, which clients connect to."},
	{Path: "nat.services[].protocol", Type: "one of tcp, udp, sctp", Default: "tcp", Live: true, Doc: "The service's protocol."},
	{Path: "nat.services[].balance", Type: "one of random, hash", Default: "random", Live: true, Doc: "How a backend is chosen: at random by weight, or by a consistent hash of the client's address and port."},
	{Path: "nat.services[].affinity", Type: "one of none, clientIP", Default: "none", Live: true, Doc: "clientIP keeps a client on its backend."},
	{Path: "nat.services[].affinityTimeout", Type: "duration, 0s to 24h", Default: "3h", Live: true, Doc: "How long after its last connection a client is kept on its backend."},
	{Path: "nat.services[].onRemoval", Type: "one of keep, reset", Default: "keep", Live: true, Doc: "What happens to connections of a backend that is removed from the list, or together with its service: keep leaves those of TCP and SCTP open, and UDP goes to another backend with its next packet, as with kube-proxy; reset closes them."},
	{Path: "nat.services[].proxyProtocol", Type: "one of none, v2", Default: "none", Live: true, Doc: "v2 tells backends the client's address: each new TCP connection begins with a PROXY protocol header, which they must expect."},
	{Path: "nat.services[].backends[].address", Type: "IP address", Default: required, Live: true, Doc: "Address of a host that serves."},
	{Path: "nat.services[].backends[].port", Type: "port, 1 to 65535", Default: required, Live: true, Doc: "Port of that host."},
	{Path: "nat.services[].backends[].weight", Type: "number, 1 to 1000", Default: "1", Live: true, Doc: "Weight of this backend; its share of the connections is proportional to it."},
	{Path: "nat.services[].backends[].via", Type: "name of a node", Live: true, Doc: "The node through which a host outside the pod CIDRs is reached; without it, the first node."},
	{Path: "nat.maxConnections", Type: "auto or a number, 1 to 16777216", Default: "auto", Live: true, Doc: "Largest number of tracked connections; auto derives it from the memory limit."},

	{Path: "rules[].name", Type: "name", Default: required, Live: true, Doc: "Name of the rule, for metrics. The first matching rule decides; packets that match none pass."},
	{Path: "rules[].from", Type: "one of remote, local", Live: true, Doc: "The cluster that the packet comes from; without it, either. Rules apply to replies too: a rule that drops everything from remote also drops replies to connections from local."},
	{Path: "rules[].src[]", Type: "CIDR", Live: true, Doc: "Source addresses before translation: for the remote cluster its own CIDRs, not their remaps. Without it, all."},
	{Path: "rules[].dst[]", Type: "CIDR", Live: true, Doc: "Destination addresses after translation: for the remote cluster its own CIDRs, for a service its backends. Without it, all."},
	{Path: "rules[].protocol", Type: "one of tcp, udp, sctp, icmp, icmpv6", Live: true, Doc: "Protocol; without it, all."},
	{Path: "rules[].ports", Type: "ports such as 22,8000-8080", Live: true, Doc: "Destination ports; needs protocol tcp, udp or sctp."},
	{Path: "rules[].action", Type: "one of accept, drop, reject", Default: required, Live: true, Doc: "What happens to the packet. reject drops it and answers with an error."},

	{Path: "state", Type: "folder", Doc: "Folder that keeps what a restarted gateway needs; relative to this file. In a subfolder with the peer's name, a gateway saves its connections (every 30 s and at exit), its port-selection key and its peer's address. Gateways of one cluster may share the folder. auto needs it, or ipam.file."},
	{Path: "ipam.pools[]", Type: "CIDR", Live: true, Doc: "Ranges from which auto chooses remaps. Without an IPv4 range: 10.0.0.0/8, 192.168.0.0/16 and 172.16.0.0/12. Without an IPv6 range, CIDRs that overlap nothing keep their addresses, and the others are remapped into fd63:756c::/32 (unique local, RFC 4193)."},
	{Path: "ipam.reserved[]", Type: "CIDR", Live: true, Doc: "Ranges that auto never chooses because something else uses them."},
	{Path: "ipam.file", Type: "file", Doc: "File that remembers what auto chose; without it, ipam.json in state."},

	{Path: "connectionCheck", Type: "true or false", Default: "false", Live: true, Doc: "Check the connection to the peer every two seconds, as Liqo's gateways do, for logs and metrics. Checks by the peer are always answered."},
	{Path: "mssClamp", Type: "auto, off or bytes, 216 to 8960", Default: "auto", Live: true, Doc: "Largest TCP segment size (MSS) that connections may negotiate. auto is mtu less 40, or less 60 for IPv6. off leaves it alone, unless a path turns out to carry less than mtu."},
	{Path: "control", Type: "auto, a file, or empty", Default: "auto", Doc: "Unix socket, mode 0600, through which culvert status and other commands reach this gateway; relative to this file. auto is CLUSTER-PEER.sock in $RUNTIME_DIRECTORY, which systemd sets, or else in the folder culvert of $XDG_RUNTIME_DIR, or of /run for root, or of /tmp/culvert-UID for others; if it cannot be made there, the gateway runs without it. Empty (\"\") is none."},
	{Path: "metrics", Type: "host:port, or empty", Default: "127.0.0.1:8082", Doc: "Address that serves /metrics, /healthz and /readyz; empty (\"\") serves them nowhere."},
	configfile.CPUsField,
	{Path: "log.level", Type: "one of error, warning, info, debug, trace", Default: "info", Live: true, Doc: "The least severe level that is logged."},
	{Path: "log.format", Type: "one of text, json", Default: "text", Doc: "Format of log lines."},
}

// Fields returns the reference of the configuration file.
func Fields() []configfile.Field { return slices.Clone(fields) }
