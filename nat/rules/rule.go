package rules

// The rule types mirror Liqo's FirewallConfiguration: tables of chains at the hooks of nftables,
// each rule the conjunction of its matches and one action. They mean what they mean in nftables as
// Liqo drives it, oddities included; match.go and ruleset.go say which.
//
// Three things differ from the kernel. Chains of equal priority run in the order of their tables;
// the kernel runs the last registered first. A direction of a connection keeps one packet's verdict
// until the configuration or the connection's mark changes; the kernel evaluates the filter chains
// for each packet. Packets of one direction differ for rules only in payload bytes that are read as
// ports where the protocol has none. And an ICMP error shares the verdict of its connection; the
// kernel uses the error's own addresses.

// A Table is a named set of chains for one address family.
type Table struct {
	Name   string
	Family Family
	Chains []Chain
}

// Family is the address family whose packets a table sees.
type Family string

// The families. ARP, BRIDGE and NETDEV tables are refused: they see frames, which end at a
// gateway's tunnels.
const (
	FamilyINET Family = "INET" // both
	FamilyIPv4 Family = "IPV4"
	FamilyIPv6 Family = "IPV6"
)

// A Chain is a list of rules for every packet at its hook. Chains of one hook run by ascending
// priority, those of equal priority in the order of their tables.
type Chain struct {
	Name     string
	Type     ChainType
	Hook     Hook
	Priority int32
	Policy   Policy // what becomes of a packet that no rule has decided; "" means accept
	Rules    []Rule
}

// ChainType says what a chain's rules may do.
type ChainType string

// The chain types. nftables' third one, route, re-routes a host's own packets and is refused.
const (
	ChainFilter ChainType = "filter" // sees every packet
	ChainNAT    ChainType = "nat"    // sees the first packet of each connection
)

// Hook is a point on a packet's path through the gateway.
type Hook string

// The hooks. Packets for the gateway's own addresses pass the filters of prerouting and input;
// packets that the gateway makes pass those of output and postrouting. Neither are tracked or
// translated. nftables' ingress belongs to a device driver and is refused.
const (
	HookPrerouting  Hook = "prerouting"
	HookInput       Hook = "input"
	HookForward     Hook = "forward"
	HookOutput      Hook = "output"
	HookPostrouting Hook = "postrouting"
)

// The priorities, from nf_ip_hook_priorities, that decide which form of a packet a filter chain
// sees.
const (
	PriorityRaw       = -300
	PriorityConntrack = -200 // chains with a lower priority run before connection tracking
	PriorityMangle    = -150
	PriorityDNAT      = -100 // prerouting filters with at least this priority see the translated destination
	PriorityFilter    = 0
	PrioritySNAT      = 100 // postrouting filters with at least this priority see the translated source
)

// Policy is a chain's default.
type Policy string

// The policies.
const (
	PolicyAccept Policy = "accept"
	PolicyDrop   Policy = "drop"
)

// A Rule acts on the packets for which all of its matches hold.
type Rule struct {
	Name   string
	Match  []Match
	Action Action
	// Value is the mark of ctmark and set-mark, or the MSS in bytes of tcpmssclamp, where 0 means
	// what the route's MTU allows.
	Value uint32
	// To is the target of snat and dnat: an address, or a CIDR for a 1:1 translation that keeps the
	// host bits. Liqo emits nothing for a range "a-b", so such a rule does nothing.
	To string
	// NoCounter excludes the rule from the counters.
	NoCounter bool
	// ProxyProtocol, on dnat, makes TCP connections start with a PROXY protocol header for the
	// server, version 2. On the snat for connections that the same server opens, it must be set
	// too. Liqo has no such field.
	ProxyProtocol bool `json:",omitempty"`
}

// Action is what a rule does with a packet.
type Action string

// The actions of filter chains. Accept ends the chain, drop and reject end the packet's path; after
// any other, the next rule follows.
const (
	ActionAccept         Action = "accept"
	ActionDrop           Action = "drop"
	ActionReject         Action = "reject"             // drop, and answer with ICMP net unreachable
	ActionCTMark         Action = "ctmark"             // the connection's mark := Value
	ActionMetaMarkFromCT Action = "metamarkfromctmark" // the packet's mark := the connection's
	ActionSetMark        Action = "set-mark"           // the packet's mark := Value
	ActionClampMSS       Action = "tcpmssclamp"        // lower the MSS option of SYN segments
	ActionNoTrack        Action = "notrack"            // create no connection; only before PriorityConntrack
)

// The actions of nat chains.
const (
	ActionDNAT Action = "dnat" // translate the destination; prerouting
	ActionSNAT Action = "snat" // translate the source; postrouting
	// translate the source to the gateway's own address on the way out; postrouting
	ActionMasquerade Action = "masquerade"
	// ActionRefuseSource drops a packet that needs U while U is not set. Liqo has no such action.
	ActionRefuseSource Action = "refuse-source"
)

// tunnelDevice is the name that rules use for the WireGuard tunnel.
const tunnelDevice = "liqo-tunnel"

// A Match compares fields of a packet; zero fields compare nothing. Op applies to each comparison
// separately: "neq" with two comparisons means A≠a AND B≠b.
type Match struct {
	Op    Op
	Proto string  // tcp, udp, sctp, icmp, icmpv6 or a number; always equality
	Dev   Operand // a device's full name; in or out
	IP    Operand // an address, a CIDR or a range "a-b"; src or dst
	Port  Operand // a port, or a range "a-b" that is compared for inclusion whatever Op says; src or dst
	// NoReturn matches packets to whose source no route leads back from the link they leave by.
	// Only nat chains at postrouting may use it. Liqo has no such match.
	NoReturn bool `json:",omitempty"`
}

// Op is equality or its negation.
type Op string

// The operators; "" means OpEqual.
const (
	OpEqual    Op = "eq"
	OpNotEqual Op = "neq"
)

// An Operand is the value with which a field of a packet is compared.
type Operand struct {
	Value    string
	Position Position
}

// Position selects the field.
type Position string

// The positions.
const (
	PositionSource      Position = "src"
	PositionDestination Position = "dst"
	PositionIn          Position = "in"
	PositionOut         Position = "out"
)
