package health

// peeringWords is the wording of causes if a Peering configures the gateway: its fields stand in
// for those of the file. An empty text means the cause's own. server is the remedy for the Server,
// which has no spec.endpoint.
var peeringWords = map[*Cause]struct{ says, remedy, server string }{
	NoName: {"spec.endpoint {configured} has no address ({error})",
		"correct the name, or the cluster's name server; it is asked again every 5 s", ""},
	NoRouteThere: {"", "correct spec.endpoint, or add a route to this pod's network",
		"add a route to this pod's network; the peer has called from there"},
	NoHost: {"", "correct spec.endpoint, or start that machine",
		"start that machine; the peer has called from there"},
	Refused: {"",
		"is the peer's gateway running, is the port of spec.endpoint that of its Service (its node port, where it has one), and does no firewall refuse it?",
		"the peer called from there, as its network shows it: is its gateway running, and can it send to this gateway's Service, spec.endpoint of its Peering? " +
			"A firewall must let UDP to there in"},
	NoAnswer: {"",
		"is the peer's gateway running, does its firewall let UDP {port} in, and is spec.publicKey here and there status.publicKey of the other " +
			"Peering? A peer with another key says so in its log, and so does one that refuses this gateway because its clock went back", ""},
	BadAnswer: {"",
		"make presharedKey the same in the Secrets of both gateways, or set spec.publicKey to status.publicKey of the peer's Peering", ""},
	NobodyCalls: {"",
		"is the peer's gateway running, with spec.role Client, is spec.endpoint of its Peering the address and port of this gateway's Service, " +
			"and does the firewall let UDP to there in?", ""},
	PeerSilent: {"", "is its gateway running? One without traffic is silent, too", ""},

	ToNode: {"", "export a Service if the peer is to reach it, or let the sender stop", ""},

	NodeRefuses:    {"", "is culvert's agent running on that node?", ""},
	NodeNobody:     {"", "start that machine; the address is of its TunnelNode", ""},
	NodeUnroutable: {"", "add a route to it to this pod's network; the address is of its TunnelNode", ""},
	WrongUnderlay: {"",
		"compare its TunnelNode with the address that it sends from; the network in between may translate it", ""},
	WrongVNI:     {"", "restart culvert's agent on that node; status.nodes of the Peering has the number", ""},
	WrongEncap:   {"", "look for what else sends to UDP {port} of this pod on that node", ""},
	WrongInner:   {"", "look for what else sends to UDP {port} of this pod on that node", ""},
	WrongAddress: {"", "restart culvert's agent on that node; status.nodes of the Peering has the address", ""},

	ForeignSource: {"", "if spec.podCIDRs of Nodes do not tell where pods are, set spec.podsFrom: Pods", ""},
	SameRole:      {"", "set spec.role to Server in one of the two Peerings, and to Client in the other", ""},
	PeerSource: {"{count} packets of the peer dropped as bad-source: {source} is in no cidr of spec.remote",
		"set spec.remote here to the peer's own CIDRs, spec.local of its Peering", ""},
	NoSourceWanted: {"",
		"add its CIDR to spec.local.podCIDRs, or set spec.local.externalCIDR, whose first address stands for all that are no pods", ""},
	NowhereRemote: {"", "make the node's routes and spec.remote the same", ""},
	NowhereNode: {"",
		"is there such a pod? If spec.podCIDRs of Nodes do not tell where pods are, set spec.podsFrom: Pods", ""},
	NowhereLocal: {"{count} packets of the peer to {destination} dropped as no-route: it is in no CIDR of spec.local",
		"set spec.remote of the peer's Peering to this cluster's own CIDRs, or correct spec.local here", ""},
	StandsForNothing: {"", "export a Service there, or let the sender stop", ""},
	NotAdmitted:      {"", "export the Service if the peer is to reach it, or set spec.admit to All", ""},
	NoBackend:        {"", "give the exported Service a ready endpoint", ""},
	TableFull: {"",
		"raise the memory limit of the gateway's container, or find who opens so many (culvert connections)", ""},
	RuleDrops: {}, // a Peering has no rules
	SmallMSS:  {"TCP is cut into segments of {mss} bytes, where {fits} fit", "", ""},

	NarrowPeer: {"packets of more than {size} bytes vanish on the way {way} the peer ({address}), spec.mtu allows {mtu}; senders are kept to what passes",
		"let IP packets of {wire} bytes pass there, or set spec.mtu: {size} in the Peerings of both clusters", ""},
	NarrowNode: {"packets of more than {size} bytes vanish on the way {way} {node} ({address}), spec.mtu allows {mtu}; senders are kept to what passes",
		"let IP packets of {wire} bytes pass there, or set spec.mtu: {size} in the Peerings of both clusters", ""},
	PathWide:  {"packets of the whole MTU pass to and from {node} again", "", ""},
	BusyProcs: {"", "set GOMAXPROCS: {more} in the environment of culvert's container, and compare", ""},

	StrangerGeneve: {"", "a new node gets a TunnelNode; keep others out by a NetworkPolicy", ""},
	StrangerMAC1:   {"", "if it is the peer, set spec.publicKey of its Peering to ours: {key}", ""},
	StrangerInitiator: {"{address} knows our public key, and has another one than spec.publicKey",
		"if it is the peer, set spec.publicKey here to status.publicKey of its Peering", ""},
}

// Remedies of several reasons in a Peering.
const (
	agents       = "restart culvert's agent on that node, which makes the link"
	peeringsPods = "if spec.podCIDRs of Nodes do not tell where pods are, set spec.podsFrom: Pods; else compare spec.local and spec.remote of both Peerings"
	givesGateway = "give that node's route a gateway (via the first address of spec.internalCIDR, onlink)"
)

// peeringReasons is liqoReasons for a Peering.
var peeringReasons = map[string]reason{
	"bad-source": {"", peeringsPods},
	"to-node":    {"", "export a Service if the peer is to reach it"},
	"unknown-source": {"The sender is no pod, and spec.local.externalCIDR is missing.",
		"add its CIDR to spec.local.podCIDRs, or set spec.local.externalCIDR"},
	"no-mapping":       {"", "export a Service there, or let the sender stop"},
	"no-route":         {"", peeringsPods},
	"too-big":          {"", "give pods an MTU of spec.mtu if it goes on"},
	"table-full":       {"", "raise the memory limit of the gateway's container"},
	"mid-stream":       {"", "nothing after a restart; else let applications keep connections alive"},
	"not-admitted":     {"", "export the Service if the peer is to reach it, or set spec.admit to All"},
	"no-backend":       {"", "give the exported Service a ready endpoint"},
	"bad-check":        {"", "compare the versions of both gateways"},
	"unknown-node":     {"", "a new node gets a TunnelNode; else keep it out by a NetworkPolicy"},
	"wrong-encap":      {"", agents},
	"bad-version":      {"", agents},
	"bad-flags":        {"", agents},
	"unknown-protocol": {"", agents},
	"wrong-inner":      {"", agents},
	"bad-mac":          {"", agents},
	"bad-arp":          {"", "look for a second owner of the first address of spec.internalCIDR"},
	"other-arp":        {"", givesGateway},
	"bad-nd":           {"", "look for a second owner of the first address of spec.internalCIDR"},
	"other-nd":         {"", givesGateway},
	"too-long":         {"", "make spec.mtu of both Peerings smaller"},
	"unresolved":       {"", "is the node's link up, and does culvert's agent run there?"},
	"bad-mac1": {"",
		"if it is the peer, set spec.publicKey of its Peering to status.publicKey of this one; else keep it out by a firewall"},
}

// Peering returns the cause with the wording for the gateway of a Peering, or c itself if that is
// the same.
func (c *Cause) Peering() *Cause {
	key := c
	if c.plain != nil {
		key = c.plain
	}
	words, other := peeringWords[key]
	if !other {
		return c
	}
	in := *c
	if words.says != "" {
		in.Says = words.says
	}
	if in.Remedy = words.remedy; c.plain != nil && words.server != "" {
		in.Remedy = words.server
	}
	return &in
}

// InPeering returns the finding in the words for the gateway of a Peering.
func (f Finding) InPeering() Finding {
	f.Text = f.peering
	return f
}
