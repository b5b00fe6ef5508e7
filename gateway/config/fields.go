package config

import (
	"slices"

	"culvert/gateway/configfile"
)

const required = configfile.Required

// fields is the reference of the configuration file. Tests compare it with the types, and each default with its effect.
var fields = []configfile.Field{
	{Path: "cluster", Type: "name", Default: required, Doc: "Name of this cluster: it stands in logs and metrics, and must differ from peer."},
	{Path: "peer", Type: "name", Default: required, Doc: "Name of the remote cluster, for logs, metrics and the memory of remaps."},
	{Path: "mtu", Type: "bytes, 576 to 9000", Default: "1340", Doc: "Largest inner packet of both tunnels, 1280 or more with IPv6 inside; the underlay carries 50 bytes more to nodes (70 over IPv6), 60 more to the peer (80 over IPv6). The same at nodes and pods."},

	{Path: "wireguard.role", Type: "one of client, server", Default: required, Doc: "The server listens on a known port and learns where its peer is; the client knows the server's endpoint. One of the two gateways is each."},
	{Path: "wireguard.privateKeyFile", Type: "file", Default: required, Doc: "This gateway's private key, made by culvert keygen; relative to this file, but a credential of systemd (LoadCredential) of that name comes first."},
	{Path: "wireguard.peerPublicKey", Type: "WireGuard key in base64", Live: true, Doc: "The public key that culvert keygen printed at the peer."},
	{Path: "wireguard.peerPublicKeyFile", Type: "file", Live: true, Doc: "File with the peer's public key, instead of peerPublicKey."},
	{Path: "wireguard.listenPort", Type: "UDP port, 0 to 65535", Doc: "Where WireGuard listens: 51840 for a server, any free port (0) for a client."},
	{Path: "wireguard.endpoint", Type: "host:port", Live: true, Doc: "Where the server is reached; required for a client, refused for a server."},
	{Path: "wireguard.keepalive", Type: "duration, 0s to 18h12m15s", Live: true, Doc: "How often a silent tunnel sends an empty message, which keeps firewalls and NAT open: 25s for a client, 0s (off) for a server."},
	{Path: "wireguard.uapi", Type: "true or false", Default: "false", Doc: "Serve the socket by which wg show reads the tunnel, in /var/run/wireguard."},

	{Path: "geneve.listenPort", Type: "UDP port, 1 to 65535", Default: "6091", Doc: "Where Geneve and VXLAN arrive, and the port at the nodes to which they are sent."},
	{Path: "geneve.gatewayAddress", Type: configfile.OneOrPair, Default: required, Live: true, Doc: "The gateway's own internal address, the next hop of all nodes, such as 10.80.0.4 or [10.80.0.4, \"fd80::4\"]. It lies in no other CIDR of this file."},
	{Path: "geneve.sourceCheck", Type: "one of node, cluster", Default: "node", Live: true, Doc: "node refuses what a node sends from another node's pods; cluster lets any node send from all local pods."},
	{Path: "geneve.nodes[].name", Type: "name", Default: required, Live: true, Doc: "Name of the node, once in this file."},
	{Path: "geneve.nodes[].vni", Type: "number, 0 to 16777215", Default: required, Live: true, Doc: "Number of the tunnel, the same at the node; it identifies the node."},
	{Path: "geneve.nodes[].underlay", Type: "IP address", Default: required, Live: true, Doc: "The node's address in the network that it shares with the gateway: IPv4 or IPv6, each node its own."},
	{Path: "geneve.nodes[].address", Type: configfile.OneOrPair, Default: required, Live: true, Doc: "The node's internal address, inside the tunnel, of the families of gatewayAddress."},
	{Path: "geneve.nodes[].podCIDRs[]", Type: "CIDR", Live: true, Doc: "The pods of this node, a part of network.local.podCIDRs."},
	{Path: "geneve.nodes[].encap", Type: "one of auto, geneve, vxlan", Default: "auto", Live: true, Doc: "What the node's tunnel speaks. auto answers in what the node is heard in first, and drops the other until the node has been silent for 60 s; the others refuse it for good."},
	{Path: "geneve.nodes[].inner", Type: "one of ethernet, ip", Default: "ethernet", Live: true, Doc: "What the tunnel carries: frames, or packets for links without Ethernet, which only Geneve carries."},

	{Path: "network.local.podCIDRs[]", Type: "CIDR", Default: required, Live: true, Doc: "All pods of this cluster."},
	{Path: "network.local.externalCIDRs[]", Type: "CIDR", Live: true, Doc: "Addresses by which the peer sees what is no pod of this cluster: mapped hosts, services, unknown sources. Free to choose; the peer names them in network.remote.externalCIDRs."},
	{Path: "network.remote.podCIDRs[].cidr", Type: "CIDR", Default: required, Live: true, Doc: "Pods of the remote cluster, as they are called there."},
	{Path: "network.remote.podCIDRs[].remap", Type: "CIDR, or auto", Live: true, Doc: "By which addresses this cluster sees them, of the same length: a CIDR, or auto to have one chosen and remembered; without it, by their own."},
	{Path: "network.remote.externalCIDRs[].cidr", Type: "CIDR", Default: required, Live: true, Doc: "External CIDR of the remote cluster, as it is called there."},
	{Path: "network.remote.externalCIDRs[].remap", Type: "CIDR, or auto", Live: true, Doc: "By which addresses this cluster sees it, of the same length: a CIDR, or auto to have one chosen and remembered; without it, by its own."},

	{Path: "nat.unknownSource", Type: "auto, off, or " + configfile.OneOrPair, Default: "auto", Live: true, Doc: "What sources that are no pods get: auto is the first address of the first external CIDR of each family, off drops their packets."},
	{Path: "nat.addresses[].external", Type: "auto, or " + configfile.OneOrPair, Default: required, Live: true, Doc: "An address of a local external CIDR that stands for one host, or one for each family of internal; auto chooses and remembers them."},
	{Path: "nat.addresses[].internal", Type: configfile.OneOrPair, Default: required, Live: true, Doc: "That host."},
	{Path: "nat.addresses[].via", Type: "name of a node", Live: true, Doc: "The node that leads to a host outside of the pod CIDRs; without it, the first."},
	{Path: "nat.addresses[].proxyProtocol", Type: "one of none, v2", Default: "none", Live: true, Doc: "v2 tells that host the client's address: what a client of TCP sends begins with a PROXY protocol header, which the host must expect on all its ports. For new connections."},
	{Path: "nat.services[].name", Type: "name", Default: required, Live: true, Doc: "Name of the service, for logs and metrics."},
	{Path: "nat.services[].address", Type: "auto, or " + configfile.OneOrPair, Default: required, Live: true, Doc: "An address of a local external CIDR, or one for the backends of each family; auto chooses and remembers them."},
	{Path: "nat.services[].port", Type: "port, 1 to 65535", Default: required, Live: true, Doc: "The port that stands for the backends."},
	{Path: "nat.services[].protocol", Type: "one of tcp, udp, sctp", Default: "tcp", Live: true, Doc: "Its protocol."},
	{Path: "nat.services[].balance", Type: "one of random, hash", Default: "random", Live: true, Doc: "How a backend is chosen: by weighted chance, or by a consistent hash of the client's address and port."},
	{Path: "nat.services[].affinity", Type: "one of none, clientIP", Default: "none", Live: true, Doc: "clientIP keeps a client on its backend."},
	{Path: "nat.services[].affinityTimeout", Type: "duration, 0s to 24h", Default: "3h", Live: true, Doc: "For how long after its last connection."},
	{Path: "nat.services[].onRemoval", Type: "one of keep, reset", Default: "keep", Live: true, Doc: "What becomes of connections to a backend that leaves the list: they go on, or are reset."},
	{Path: "nat.services[].proxyProtocol", Type: "one of none, v2", Default: "none", Live: true, Doc: "v2 tells backends the client's address: what a client sends begins with a PROXY protocol header, which they must expect. For new connections of TCP."},
	{Path: "nat.services[].backends[].address", Type: "IP address", Default: required, Live: true, Doc: "A host that serves."},
	{Path: "nat.services[].backends[].port", Type: "port, 1 to 65535", Default: required, Live: true, Doc: "Its port."},
	{Path: "nat.services[].backends[].weight", Type: "number, 1 to 1000", Default: "1", Live: true, Doc: "Its share of the connections."},
	{Path: "nat.services[].backends[].via", Type: "name of a node", Live: true, Doc: "The node that leads to a host outside of the pod CIDRs; without it, the first."},
	{Path: "nat.maxConnections", Type: "auto or a number, 1 to 16777216", Default: "auto", Live: true, Doc: "Cap of the connection table; auto follows the memory limit."},

	{Path: "rules[].name", Type: "name", Default: required, Live: true, Doc: "Name of the rule, for metrics. The first rule that matches decides; without any, packets pass."},
	{Path: "rules[].from", Type: "one of remote, local", Live: true, Doc: "From which cluster the packet comes; without it, both. Answers meet the rules, too: one that drops all from remote drops those to connections from local."},
	{Path: "rules[].src[]", Type: "CIDR", Live: true, Doc: "Sources, before they are translated: of the remote cluster its own CIDRs, not their remaps; without it, all."},
	{Path: "rules[].dst[]", Type: "CIDR", Live: true, Doc: "Destinations, after they are translated: of the remote cluster its own CIDRs, of a service its backends; without it, all."},
	{Path: "rules[].protocol", Type: "one of tcp, udp, sctp, icmp, icmpv6", Live: true, Doc: "Without it, all."},
	{Path: "rules[].ports", Type: "ports such as 22,8000-8080", Live: true, Doc: "Destination ports; needs protocol tcp, udp or sctp."},
	{Path: "rules[].action", Type: "one of accept, drop, reject", Default: required, Live: true, Doc: "What becomes of the packet; reject answers with an error."},

	{Path: "state", Type: "folder", Doc: "Where what outlives the process is kept; relative to this file. A gateway writes connections, the key of its port choice and where its peer is into a folder there of the peer's name, each 30 s and at its end, and goes on from that. Gateways of one cluster may share it. auto needs it, or ipam.file."},
	{Path: "ipam.pools[]", Type: "CIDR", Live: true, Doc: "What auto chooses remaps from. Without one of IPv4: 10.0.0.0/8, 192.168.0.0/16 and 172.16.0.0/12. Without one of IPv6, what overlaps nothing keeps its own addresses, and the rest moves to fd63:756c::/32 (unique local, RFC 4193)."},
	{Path: "ipam.reserved[]", Type: "CIDR", Live: true, Doc: "What auto never chooses, because something else has it."},
	{Path: "ipam.file", Type: "file", Doc: "The memory of what auto chose; without it, ipam.json in state."},

	{Path: "connectionCheck", Type: "true or false", Default: "false", Live: true, Doc: "Ask the peer every two seconds whether it is there, as Liqo's gateways do, for logs and metrics. Another gateway's questions are answered in any case."},
	{Path: "mssClamp", Type: "auto, off or bytes, 216 to 8960", Default: "auto", Live: true, Doc: "Largest TCP segment that connections may ask for: auto is mtu less 40, or less 60 for IPv6, off leaves it to them, unless a path is found that carries less than mtu."},
	{Path: "control", Type: "auto, a file, or empty", Default: "auto", Doc: "The Unix socket by which culvert status and the other commands reach this gateway, mode 0600; relative to this file. auto is CLUSTER-PEER.sock in $RUNTIME_DIRECTORY, which systemd sets, or else in the folder culvert in $XDG_RUNTIME_DIR, or else in /run for root; the gateway goes without it where it cannot be made. Empty is none."},
	{Path: "metrics", Type: "host:port, or empty", Default: "127.0.0.1:8082", Doc: "Where /metrics, /healthz and /readyz are served; empty is nowhere."},
	configfile.CPUsField,
	{Path: "log.level", Type: "one of error, warning, info, debug, trace", Default: "info", Live: true, Doc: "What is logged: this and what is worse."},
	{Path: "log.format", Type: "one of text, json", Default: "text", Doc: "How it is logged."},
}

// Fields returns the reference of the configuration file.
func Fields() []configfile.Field { return slices.Clone(fields) }
