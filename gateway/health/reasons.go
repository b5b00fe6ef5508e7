package health

import "cmp"

// reason says what a drop reason means and what to do about it. If the gateway has an example of
// the drop, a Finding says more.
type reason struct{ means, remedy string }

// Remedies of several reasons.
const (
	nothingToDo = "" // nothing is wrong
	findSender  = "find who sends so: culvert capture --drops"
	nodesTunnel = "compare the node's tunnel with its entry in geneve.nodes: encap, inner, VNI"
	spoilt      = "look for what spoils packets on the way: a NIC's offloads, a path that cuts them"
	keepOut     = "keep it out by a firewall"
)

// reasons has every reason for which a packet can be dropped.
var reasons = map[string]reason{
	// Inner packets, both ways.
	"malformed":    {"A length, version or checksum in the packet is wrong.", spoilt},
	"source-route": {"The packet lists the routers that it wants to pass (source routing).", findSender},
	"bad-source": {"The sender's address may not come from there.",
		"give the CIDR to the node that its pods are on (podCIDRs in geneve.nodes), or correct network.remote"},
	"bad-destination": {"Multicast, broadcast, anycast, loopback or link-local addresses do not pass.", findSender},
	"to-node": {"The peer sends to a node's own address.",
		"give the node an address in nat.addresses or nat.services if the peer is to reach it"},
	"unknown-source": {"The sender is no pod, and nat.unknownSource is off.",
		"add its CIDR to network.local.podCIDRs, or leave out nat.unknownSource: off"},
	"no-mapping": {"The destination stands for nothing.",
		"add it to nat.addresses or nat.services, or let the sender stop"},
	"no-route": {"No node and no remote CIDR has the destination.",
		"add its CIDR to podCIDRs of its node, or make routes and remaps the same: culvert routes"},
	"ttl-exceeded": {"The packet has passed as many routers as it may; traceroute does so on purpose.",
		"look for a loop of routes if it goes on"},
	"too-big": {"The packet is larger than the path's MTU and may not be cut; its sender has been told.",
		"give pods the MTU of the gateway if it goes on"},
	"icmp-unrelated": {"An ICMP error about a packet that did not pass here.", nothingToDo},
	"icmp-type":      {"An ICMP message that routers do not forward.", nothingToDo},
	"port-exhausted": {"No source port is left towards the destination.",
		"spread the connections over more destinations or sources"},
	"port-share": {"The sender has its share of the ports towards the destination.",
		"find who opens so many: culvert connections"},
	"table-full": {"The connection table is full.", "raise nat.maxConnections and the memory limit"},
	"connection-share": {"The sender has its share of the connection table.",
		"find who opens so many: culvert connections"},
	"fragment": {"A fragment whose first one has not come.",
		"look for losses before the gateway, and for an MTU that is smaller there"},
	"fragment-overlap": {"Fragments of one packet overlap, as only attacks do, or come twice.", findSender},
	"fragment-limit": {"Too many packets in fragments at once.",
		"give senders a smaller MTU, so that they do not fragment"},
	"filtered": {"A rule drops it.", "culvert rules shows which; change it if that is not meant"},
	"rejected": {"A rule rejects it, and the sender has been told.",
		"culvert rules shows which; change it if that is not meant"},
	"mid-stream": {"TCP in mid-stream of a connection that the gateway does not know, to a server that gets a PROXY protocol header; its sender has been reset.", "nothing after a restart without a state folder (state); else let applications keep connections alive"},
	"not-admitted": {"The peer may not open this connection, because this cluster does not export its destination; or it was open when the export ended.",
		"add the destination to nat.exports if the peer is to reach it, or let the sender stop"},
	"no-backend": {"Its service has no backend.", "give the service in nat.services a backend"},

	// The gateway's own addresses.
	"no-service": {"It is for the gateway itself, where nothing answers.", nothingToDo},
	"bad-check": {"It is for the connection check, and no answer that the gateway waits for.",
		"make connectionCheck the same at both gateways"},
	"bad-exports": {"It is about Services that the peer exports, and of no use.",
		"upgrade the older gateway; status.conditions of the Peering says more"},
	"local-queue-full": {"The gateway's own answers came faster than they could be sent.", findSender},
	"output": {"A rule does not let the gateway's own packet out.",
		"culvert rules shows which; change it if that is not meant"},
	"standby": {"It came to a gateway that does not forward, because another one of its peering does.",
		"nothing if it ends within seconds of a switch; else see whom the node or the peer takes for the gateway: culvert status at both pods"},

	// Datagrams of nodes.
	"truncated": {"A datagram is shorter than its headers, or longer than the receive buffer.", spoilt},
	"unknown-node": {"No node has this VNI and outer source.",
		"add it to geneve.nodes, correct VNI or underlay there, or " + keepOut},
	"wrong-encap":      {"The node sends Geneve where VXLAN is configured, or the other way round.", nodesTunnel},
	"bad-version":      {"A Geneve version that nobody knows.", nodesTunnel},
	"bad-flags":        {"VXLAN without a VNI.", nodesTunnel},
	"bad-options":      {"Geneve options whose lengths do not add up.", spoilt},
	"control-packet":   {"A control message of Geneve, which has none for gateways.", nothingToDo},
	"critical-option":  {"A Geneve option that must be understood, and is not.", "turn it off at the node"},
	"unknown-protocol": {"Geneve that carries neither Ethernet nor IP.", nodesTunnel},
	"wrong-inner":      {"The node sends IP where Ethernet is configured, or the other way round.", nodesTunnel},
	"bad-train": {"Datagrams that the kernel has merged do not fit together.",
		"turn off UDP GRO on the interface of the nodes if it goes on"},
	"bad-mac":   {"The sender's MAC address is not that of a single station.", nodesTunnel},
	"other-mac": {"The frame is for another station.", nothingToDo},
	"multicast": {"A frame for many that is neither ARP nor neighbour discovery.", nothingToDo},
	"neighbour-discovery": {"IPv6 on the node's link looks for routers, groups or others with its addresses.",
		nothingToDo},
	"unknown-ethertype": {"A frame that is neither IP nor ARP.", nothingToDo},
	"bad-arp": {"ARP that contradicts itself, or claims the gateway's address.",
		"look for a second owner of geneve.gatewayAddress"},
	"other-arp": {"ARP that asks for another address than the gateway's.",
		"give that node's route a gateway (via geneve.gatewayAddress, onlink)"},
	"arp-rate": {"More ARP requests than are answered.", findSender},
	"bad-nd": {"IPv6 neighbour discovery that contradicts itself, or claims the gateway's address.",
		"look for a second owner of geneve.gatewayAddress"},
	"other-nd": {"IPv6 neighbour discovery for another address than the gateway's.",
		"give that node's route a gateway (via geneve.gatewayAddress, onlink)"},
	"nd-rate":    {"More neighbour solicitations than are answered.", findSender},
	"bad-length": {"The inner packet's length is wrong.", spoilt},
	"ecn": {"Congestion was marked on the way, on a packet that cannot say so (RFC 6040).",
		nothingToDo},

	// Packets to nodes.
	"unknown-tunnel": {"The node has been removed meanwhile.", nothingToDo},
	"bad-packet":     {"A packet to a node is not whole.", spoilt},
	"too-long":       {"The packet does not fit a datagram with the tunnel's headers.", "make mtu smaller"},
	"hold-full": {"The node's MAC address is not known, and enough packets wait for it.",
		"is the node's link up, and does it answer ARP, or neighbour discovery where there is no IPv4?"},
	"unresolved": {"The node has answered neither ARP nor neighbour discovery.",
		"is the node's link up, and does it have the address in geneve.nodes?"},
	"send-failed": {"The kernel refused a datagram.",
		"culvert status -o json says why (sockets, sendDrops); look at routes and firewall of this machine"},

	// WireGuard.
	"tunnel-discard": {"There was no session with the peer, or the message did not belong to one: forged, repeated or too late.", "if it goes on, see what is said of the peer"},
	"not-wireguard":  {"It is not a WireGuard message.", keepOut},
	"bad-mac1": {"A handshake from a sender that does not know this gateway's public key.",
		"if it is the peer, give it this gateway's public key; else " + keepOut},
	"handshake-rate": {"More handshakes than a peer needs.", keepOut},
	"stranger-data": {"Data of a session from another address than the peer's.",
		"if the peer has moved, wait for its next handshake; else " + keepOut},
}

// Remedies of several reasons under Liqo.
const (
	liqosTunnel = "compare the node's link (ip -d link), which liqo-fabric makes, with its GeneveTunnel and InternalNode"
	liqosOwner  = "look for a second owner of spec.interface.gateway.ip of the InternalFabric"
	liqosVia    = "give the routes of that node's RouteConfiguration a gateway, spec.interface.gateway.ip of the InternalFabric"
	liqosRoutes = "do the Configurations of both clusters agree, and does the RouteConfiguration of the pod's node have a route to it?"
)

// liqoReasons has the sentences that differ if Liqo's resources, not a file, configure the gateway.
// An empty sentence means the one in reasons.
var liqoReasons = map[string]reason{
	"bad-source":     {"", liqosRoutes},
	"to-node":        {"", "make a resource IP for the node if the peer is to reach it"},
	"unknown-source": {"The sender is no pod.", liqosRoutes},
	"no-mapping":     {"", "make a resource IP for it, or let the sender stop"},
	"no-route":       {"", liqosRoutes},
	"too-big":        {"", "give pods the MTU of the GatewayServer and GatewayClient (spec.mtu) if it goes on"},
	"table-full":     {"", "raise the memory limit in culvert's template"},
	"mid-stream": {"",
		"nothing after a restart without --state in culvert's template; else let applications keep connections alive"},
	"not-admitted":     {"", "let the sender stop"},
	"no-backend":       {"", "give its rule an address to go to"},
	"bad-check":        {"", "compare the versions of both gateways: they check each other as Liqo does"},
	"unknown-node":     {"", "a new node gets a GeneveTunnel; else keep it out by a NetworkPolicy"},
	"wrong-encap":      {"The node sends VXLAN, and Liqo's links are Geneve.", liqosTunnel},
	"bad-version":      {"", liqosTunnel},
	"bad-flags":        {"", liqosTunnel},
	"unknown-protocol": {"", liqosTunnel},
	"wrong-inner":      {"The node sends IP, and Liqo's links carry Ethernet frames.", liqosTunnel},
	"bad-mac":          {"", liqosTunnel},
	"bad-arp":          {"", liqosOwner},
	"other-arp":        {"", liqosVia},
	"bad-nd":           {"", liqosOwner},
	"other-nd":         {"", liqosVia},
	"too-long":         {"", "make spec.mtu of the GatewayServer and the GatewayClient smaller"},
	"unresolved":       {"", "is the node's link up, and has it the address of the InternalNode? liqo-fabric makes it"},
	"bad-mac1": {"",
		"if it is the peer, exchange the keys anew by liqoctl network connect; else keep it out by a NetworkPolicy"},
}

// By is what configures a gateway.
type By uint8

const (
	ByFile By = iota
	ByLiqo
	ByPeering
)

// Explain returns what a drop reason means ("" if there is no such reason) and the remedy ("" if
// none is needed), in the words of what configures the gateway.
func Explain(name string, by By) (means, remedy string) {
	r := reasons[name]
	if words, other := map[By]map[string]reason{ByLiqo: liqoReasons, ByPeering: peeringReasons}[by][name]; other {
		return cmp.Or(words.means, r.means), words.remedy
	}
	return r.means, r.remedy
}
