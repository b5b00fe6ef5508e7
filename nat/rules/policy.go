package rules

import (
	"cmp"
	"net/netip"
	"strconv"

	"github.com/gaissmai/bart"
)

// The policy routing types mirror Liqo's RouteConfiguration.

// A PolicyTable is a routing table with the rules that lead to it. All its rules use all its
// routes.
type PolicyTable struct {
	Name  string
	Rules []PolicyRule
}

// A PolicyRule sends packets that match all of its selectors to the table. If the table has no
// route, the next rule is tried.
type PolicyRule struct {
	Destination, Source netip.Prefix // the zero Prefix: any
	In                  string       // the device that the packet came from; "": any
	// Out is the device to which a packet's sender has bound its socket. A forwarded packet has
	// none.
	Out  string
	Mark uint32 // the whole mark; 0: any
	// Priority orders rules, the lowest first, equal ones by position. 0 puts the rule before all
	// existing ones, as in the kernel.
	Priority int
	// Keep says that any node would do: a connection of the tunnel stays with the node by which it
	// leaves while that node is there. So the state that the node's own kernel has of it, such as a
	// masquerade, stays valid when another gateway with routes of its own takes over.
	Keep   bool `json:",omitempty"`
	Routes []PolicyRoute
}

// A PolicyRoute leads to a device, or to the device of a neighbour: a node's internal address or
// the peer's tunnel address. It is inactive while neither exists.
type PolicyRoute struct {
	Destination netip.Prefix
	Via         netip.Addr
	Device      string // preferred over Via
}

// mainPriority is the priority of the kernel's main table. A rule without priority gets one less
// than the lowest existing one.
const mainPriority = 32766

// firstNodeDevice stands in a PolicyRoute for the device of the first node, and firstNode for its
// link: a change of the first node then changes no route.
const (
	firstNodeDevice      = "first node"
	firstNode       Link = 0xfffb
)

// A nextHop is a result of routing.
type nextHop struct {
	link Link
	via  netip.Addr // the zero Addr: the destination itself
	rule *policyRule
}

// A policy is the compiled form of all policy tables. Rules with the same device and mark form a
// class. What remains of a rule is a destination and a table; they are merged into one table per
// class, in which each prefix knows the first rule in order that has a route for it. So the cost of
// a lookup does not depend on the number of rules and tables. A policy is immutable.
type policy struct {
	plain   *routes // of the class of all packets, which is also in classes
	classes cowMap[class, *routes]
	devices int // classes with a device selector
}

// A class is a packet's incoming link and whole mark, or 0 for any mark, in one word.
type class uint64

func (k class) hash() uint64 { return uint64(k) ^ uint64(k)>>32 }

func classOf(in Link, mark uint32) class { return class(in)<<32 | class(mark) }

func (k class) link() Link { return Link(k >> 32) }

// anyLink in a class stands for every link.
const anyLink Link = 0xfffc

// routes are the routes of a class: for any source, and for source prefixes.
type routes struct {
	all     *routeTable
	sources *bart.Table[*routeTable]
}

// A routeTable finds the best route for a destination by its longest prefix.
type routeTable = bart.Table[routeCell]

// A routeCell holds the routes of several rules for one prefix.
type routeCell struct {
	offers []*routeOffer // by order of their rules
	best   *routeOffer   // of these and those of all covering prefixes
}

// A routeOffer is a route that a policy rule has for the prefix at. Of the offers for a packet,
// that of the first rule counts.
type routeOffer struct {
	at   netip.Prefix
	rule *policyRule
	bits int // length of the route's prefix, which may be shorter than that of the rule's destination
	link Link
	via  netip.Addr
}

// A policyRule is a compiled PolicyRule without its routes: its place and its selectors.
type policyRule struct {
	in       string // of its table
	at       int32  // index in the table
	priority int
	given    int // priority as written: 0 means before all existing rules
	origin   *origin
	number   int32 // in the resource
	table    int32 // among Resource.Routing; -1: the resource stands for it
	class    class
	source   netip.Prefix
	keep     bool
}

// path names the rule: table/number.
func (r *policyRule) path() string { return r.in + "/" + strconv.Itoa(int(r.at)+1) }

// policyRoutes are a policyRule and its routes. Neither a rule nor an offer refers back to them, so
// a surviving offer does not keep its former neighbours in memory.
type policyRoutes struct {
	*policyRule
	offers []*routeOffer
}

// compareWritten orders rules by their position in the tables.
func compareWritten(r, o *policyRule) int {
	if r.origin != o.origin {
		if c := r.origin.compare(o.origin); c != 0 {
			return c
		}
	}
	return cmp.Compare(r.number, o.number)
}

// compareOffers orders offers for an address: the first rule's comes first.
func compareOffers(a, b *routeOffer) int {
	if a.rule.priority != b.rule.priority {
		return cmp.Compare(a.rule.priority, b.rule.priority)
	}
	return compareWritten(a.rule, b.rule)
}

// route returns where a packet goes, by policy rules and the longest prefix in their tables.
func (r *Ruleset) route(in Link, mark uint32, src, dst netip.Addr) (nextHop, bool) {
	p := &r.policy
	best := p.plain.best(src, dst, nil)
	if mark != 0 {
		best = p.best(classOf(anyLink, mark), src, dst, best)
	}
	if p.devices > 0 {
		best = p.best(classOf(in, 0), src, dst, best)
		if mark != 0 {
			best = p.best(classOf(in, mark), src, dst, best)
		}
	}
	if best == nil {
		return nextHop{}, false
	}
	hop := nextHop{best.link, best.via, best.rule}
	if hop.link == firstNode {
		hop.link = r.first
		return hop, r.first != 0
	}
	return hop, true
}

// Route returns where a packet goes.
func (r *Ruleset) Route(in Link, mark uint32, src, dst netip.Addr) (out Link, ok bool) {
	hop, ok := r.route(in, mark, src, dst)
	return hop.link, ok
}

// Keeps reports whether a connection stays with the node by which it leaves, whatever its route
// says by now.
func (r *Ruleset) Keeps(in Link, mark uint32, src, dst netip.Addr) bool {
	hop, ok := r.route(in, mark, src, dst)
	return ok && hop.rule.keep && in.Outside()
}

// best returns the better of the class's offer and other, by order of their rules.
func (p *policy) best(k class, src, dst netip.Addr, other *routeOffer) *routeOffer {
	r, _ := p.classes.get(k)
	return r.best(src, dst, other)
}

func (r *routes) best(src, dst netip.Addr, other *routeOffer) *routeOffer {
	if r == nil {
		return other
	}
	if r.all != nil {
		other = betterIn(r.all, dst, other)
	}
	if r.sources == nil {
		return other
	}
	for bits := src.BitLen(); bits >= 0; bits-- {
		at, table, ok := r.sources.LookupPrefixLPM(netip.PrefixFrom(src, bits))
		if !ok {
			break
		}
		other = betterIn(table, dst, other)
		bits = at.Bits()
	}
	return other
}

func betterIn(t *routeTable, dst netip.Addr, other *routeOffer) *routeOffer {
	if c, ok := t.Lookup(dst); ok && (other == nil || compareOffers(c.best, other) < 0) {
		return c.best
	}
	return other
}
