package rules

// The rule types mirror Liqo's FirewallConfiguration: tables of chains at the hooks of nftables, each rule the conjunction of its
// matches and one action. Their meaning is nftables' as Liqo drives it, oddities included; match.go and ruleset.go say which.
//
// Three things differ from the kernel. Chains of equal priority run in the order of their tables, where the kernel runs the one that
// was registered last first. A connection's direction keeps the verdict of one packet until the configuration or the connection's mark
// changes, where the kernel asks the filter chains about each; packets of one direction differ to rules only in what links look at
// where a protocol has none. And an ICMP error fares as its connection does, where the kernel looks at the error's own addresses.

// A Table is a named set of chains for one address family.
type Table struct {
	Name   string
	Family Family
	Chains []Chain
}

// Family is the address family whose packets a table sees.
type Family string

// The families. ARP, BRIDGE and NETDEV tables see frames, which end at a gateway's tunnels, and are refused.
const (
	FamilyINET Family = "INET" // both
	FamilyIPv4 Family = "IPV4"
	FamilyIPv6 Family = "IPV6"
)

// A Chain is a list of rules that every packet at its hook walks. Chains of one hook run by ascending priority, those of equal
// priority in the order of their tables.
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

// The chain types. The third of nftables, route, re-routes what a host itself sends; a gateway refuses it.
const (
	ChainFilter ChainType = "filter" // sees every packet
	ChainNAT    ChainType = "nat"    // sees the first packet of each connection
)

// Hook is a place on a packet's way through the gateway.
type Hook string

// The hooks. What is for the gateway's own addresses passes the filters of prerouting and input, and what the gateway itself makes those of
// output and postrouting; neither has connections or is translated. nftables' ingress belongs to a device driver and is refused.
const (
	HookPrerouting  Hook = "prerouting"
	HookInput       Hook = "input"
	HookForward     Hook = "forward"
	HookOutput      Hook = "output"
	HookPostrouting Hook = "postrouting"
)

// The priorities of nf_ip_hook_priorities that decide which form of a packet a filter chain sees.
const (
	PriorityRaw       = -300
	PriorityConntrack = -200 // chains before it run before the connection is known
	PriorityMangle    = -150
	PriorityDNAT      = -100 // prerouting filters from here on see the translated destination
	PriorityFilter    = 0
	PrioritySNAT      = 100 // postrouting filters from here on see the translated source
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
	// Value is the mark of ctmark and set-mark, or the MSS in bytes of tcpmssclamp, where 0 means what the route's MTU allows.
	Value uint32
	// To is where snat and dnat lead: an address, or a CIDR for a 1:1 translation that keeps the host bits. Liqo emits nothing for
	// a range "a-b", so such a rule does nothing.
	To string
	// NoCounter leaves the rule out of the counters.
	NoCounter bool
	// ProxyProtocol, of dnat, has TCP connections begin with a PROXY protocol header for the server, version 2. Of the snat by which the same
	// server speaks, it says so. It is no field of Liqo's.
	ProxyProtocol bool `json:",omitempty"`
}

// Action is what a rule does with a packet.
type Action string

// The actions of filter chains. Accept ends its chain, drop and reject end the packet; after the others the next rule follows.
const (
	ActionAccept         Action = "accept"
	ActionDrop           Action = "drop"
	ActionReject         Action = "reject"             // drop, and answer with ICMP net unreachable
	ActionCTMark         Action = "ctmark"             // the connection's mark := Value
	ActionMetaMarkFromCT Action = "metamarkfromctmark" // the packet's mark := the connection's
	ActionSetMark        Action = "set-mark"           // the packet's mark := Value
	ActionClampMSS       Action = "tcpmssclamp"        // lower the MSS option of SYN segments
	ActionNoTrack        Action = "notrack"            // keep no connection; only before PriorityConntrack
)

// The actions of nat chains.
const (
	ActionDNAT       Action = "dnat"       // translate the destination; prerouting
	ActionSNAT       Action = "snat"       // translate the source; postrouting
	ActionMasquerade Action = "masquerade" // translate the source to the gateway's own address on the way out; postrouting
	// ActionRefuseSource drops what would need the unknown source while there is none. It is no action of Liqo's.
	ActionRefuseSource Action = "refuse-source"
)

// tunnelDevice is the name that rules use for the WireGuard tunnel.
const tunnelDevice = "liqo-tunnel"

// A Match compares fields of a packet; the zero fields compare nothing. Op applies to each comparison by itself, so that "neq" over
// two of them means A≠a AND B≠b.
type Match struct {
	Op    Op
	Proto string  // tcp, udp, sctp, icmp, icmpv6 or a number; equality whatever Op says
	Dev   Operand // a device's full name; in or out
	IP    Operand // an address, a CIDR or a range "a-b"; src or dst
	Port  Operand // a port, or a range "a-b" that is compared for inclusion whatever Op says; src or dst
	// NoReturn holds for packets to whose source no route leads back from where they go. Only nat chains at postrouting may ask. It is no
	// match of Liqo's.
	NoReturn bool `json:",omitempty"`
}

// Op is equality or its negation.
type Op string

// The operators; "" means OpEqual.
const (
	OpEqual    Op = "eq"
	OpNotEqual Op = "neq"
)

// An Operand is the value that one field of a packet is compared with.
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
