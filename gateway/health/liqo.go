package health

import "time"

// settles is how long something must last under Liqo before it is reported: Liqo's controllers and
// agents follow a new pod or node within seconds, and until then its packets find no rules.
const settles = 15 * time.Second

// masquerades is the remedy if the pod network masquerades this pod's packets to nodes.
const masquerades = " Where the network masquerades from pods to nodes, Liqo needs networking.fabric.config.gatewayMasqueradeBypass=true"

// makesTunnel is the question which program makes a node's tunnel. The gateway cannot know it.
const makesTunnel = "does liqo-fabric or, where the kernel has no Geneve, culvert-links"

// liqoWords is the wording of causes if Liqo's resources configure the gateway: there is no file
// and no culvert node. An empty text means the cause's own.
var liqoWords = map[*Cause]struct{ says, remedy string }{
	NoName: {"the endpoint {configured} of the GatewayClient has no address ({error})",
		"correct its spec.endpoint.addresses, or the cluster's name server; it is asked again every 5 s"},
	NoRouteThere: {"", "correct spec.endpoint of the GatewayClient, or add a route to this pod's network"},
	NoHost:       {"", "correct spec.endpoint of the GatewayClient, or start that machine"},
	Refused: {"",
		"start the peer's gateway, or make spec.endpoint.port of the GatewayClient the port of the peer's Service"},
	NoAnswer: {"",
		"is UDP {port} open there, does the peer's gateway run, and does the PublicKey here and there have the key of the other gateway? " +
			"A peer with another key says so in its log, and so does one that refuses this gateway because its clock went back"},
	BadAnswer: {"",
		"set spec.publicKey of the peer's PublicKey in this namespace to the key of its gateway; liqoctl network connect exchanges both"},
	AnswersLost: {"", // there is no pre-shared key
		"do answers reach it? A firewall or NAT must let UDP from port {listen} of this gateway through"},
	NobodyCalls: {"",
		"does the pod of the peer's GatewayClient run, is its spec.endpoint an address of this gateway's Service, and is UDP {listen} open here?"},
	PeerSilent: {"", "does its gateway run? One without traffic is silent, too"},

	ToNode: {"", "make a resource IP for the node if the peer is to reach it, or let the sender stop"},

	NeverThere:     {"", makesTunnel + " run there, and is UDP {port} open here and there?" + masquerades},
	NodeRefuses:    {"", makesTunnel + " run there, and what does its log say? culvert liqo check asks both"},
	NodeNobody:     {"", "compare the InternalNode with the node's address, or start that machine"},
	NodeUnroutable: {"", "compare the InternalNode with the node's address, or add a route to this pod's network"},
	NodeSilent: {"", "is it running, " + makesTunnel + " run there, and is UDP {port} open here and there?" +
		masquerades},
	NodeDeaf: {"", "does its firewall let UDP {port} of this pod in?" + masquerades},
	NoReturn: {"",
		"has liqo-fabric applied all RouteConfigurations there (their status says so), with routes via {gateway}, and does its firewall let pods' traffic pass?"},
	OneWay: {"",
		"if answers are due: has liqo-fabric applied all RouteConfigurations there (their status says so), with routes via {gateway}, " +
			"and does its firewall let pods' traffic pass? One-way traffic looks the same"},
	WrongUnderlay: {"",
		"compare the InternalNode with the address that the node sends from; the network in between may translate it." +
			masquerades},
	WrongVNI:     {"", "compare the GeneveTunnel with the node's link (ip -d link), which liqo-fabric makes"},
	WrongEncap:   {"", "Liqo's links are Geneve: look for what else sends to UDP {port} on that node"},
	WrongInner:   {"", "Liqo's links carry Ethernet frames: look for what else sends to UDP {port} on that node"},
	WrongAddress: {"", "compare the InternalNode with the address of the node's tunnel link, which liqo-fabric sets"},
	WrongGateway: {"",
		"compare spec.interface.gateway.ip of the InternalFabric with the node's routes, which liqo-fabric makes"},
	NoVia: {"", "give the routes of that node's RouteConfiguration a gateway, {gateway}"},

	ForeignSource: {"",
		"does the RouteConfiguration of its node (its name ends with -gw-node) have a route to it? Liqo's controllers write that"},
	SameRole: {"", "one side needs a GatewayServer, and the other a GatewayClient"},
	PeerSource: {"{count} packets of the peer dropped as bad-source: {source} is in no CIDR of the remote cluster",
		"compare the Configuration here with the peer's CIDRs"},
	NoSourceWanted: {"",
		"does the RouteConfiguration of its node (its name ends with -gw-node) have a route to it? Liqo's controllers write that"},
	NowhereRemote: {"", "compare the node's routes with spec.remoteCIDRs of the InternalFabric"},
	NowhereNode: {"",
		"does the RouteConfiguration of its node (its name ends with -gw-node) have a route to it? Liqo's controllers write that"},
	NowhereLocal: {"{count} packets of the peer to {destination} dropped as no-route: it is in no CIDR of the local cluster",
		"compare the Configurations of both clusters"},
	StandsForNothing: {"", "make a resource IP for it, or let the sender stop"},
	NotAdmitted:      {"", "let the sender stop"},
	NoBackend:        {"", "give its rule an address to go to"},
	TableFull: {"",
		"raise the memory limit in culvert's template, or find who opens so many (culvert connections)"},

	RuleDrops: {"", "change the FirewallConfiguration that has it if that is not meant"},
	SmallMSS: {"TCP is cut into segments of {mss} bytes, where {fits} fit",
		"change the FirewallConfiguration that clamps the MSS"},

	NarrowPeer: {"packets of more than {size} bytes vanish on the way {way} the peer ({address}), the gateways' MTU is {mtu}; senders are kept to what passes",
		"let IP packets of {wire} bytes pass there, or set spec.mtu: {size} of the GatewayServer and of the GatewayClient"},
	NarrowNode: {"packets of more than {size} bytes vanish on the way {way} {node} ({address}), the gateways' MTU is {mtu}; senders are kept to what passes",
		"let IP packets of {wire} bytes pass there, or set spec.mtu: {size} of the GatewayServer and of the GatewayClient"},
	PathWide: {"packets of the whole MTU pass to and from {node} again", ""},

	BusyProcs: {"", "set GOMAXPROCS: {more} in the environment of culvert's container, and compare"},

	StrangerGeneve: {"", "a new node gets a GeneveTunnel; keep others out by a NetworkPolicy"},
	StrangerMAC1: {"",
		"if it is the peer, set spec.publicKey of its PublicKey for us to {key}; liqoctl network connect exchanges both"},
	StrangerInitiator: {"{address} knows our public key, and has another one than the PublicKey here",
		"if it is the peer, exchange the keys anew by liqoctl network connect"},
}

// Liqo returns the cause with the wording for a gateway under Liqo, or c itself if that is the
// same.
func (c *Cause) Liqo() *Cause {
	words, other := liqoWords[c]
	if !other {
		return c
	}
	under := *c
	if words.says != "" {
		under.Says = words.says
	}
	under.Remedy = words.remedy
	return &under
}
