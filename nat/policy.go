package nat

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"
)

// The policy routing types mirror Liqo's RouteConfiguration.

// A PolicyTable is a routing table with the rules that lead to it. All routes of all its rules are in the one table.
type PolicyTable struct {
	Name  string
	Rules []PolicyRule
}

// A PolicyRule leads packets that fit all of its selectors to the table. When the table has no route, the next rule is tried.
type PolicyRule struct {
	Destination, Source netip.Prefix // the zero Prefix: any
	In                  string       // the device that the packet came from; "": any
	// Out is the device that a packet's sender has bound itself to. What a gateway forwards has no such device.
	Out  string
	Mark uint32 // the whole mark; 0: any
	// Priority orders rules, the lowest first and equal ones as they come. 0 puts the rule before all that are there, as the kernel
	// does.
	Priority int
	Routes   []PolicyRoute
}

// A PolicyRoute leads to a device, or to that of a neighbour: a node's internal address or the peer's tunnel address. While
// neither exists, the route does not.
type PolicyRoute struct {
	Destination netip.Prefix
	Via         netip.Addr
	Device      string // goes before Via
}

// mainPriority is that of the kernel's main table. A rule without priority gets one less than the least that is there.
const mainPriority = 32766

// A nextHop is where routing leads.
type nextHop struct {
	port Port
	via  netip.Addr // the zero Addr: the destination itself
	rule int32      // the policy rule that decided, for policy.names
}

// A policy is the compiled form of all policy tables. Rules with the same device and mark form a class. What is left of a rule
// then is a destination and a table; both are worked into one set of prefixes for the whole class, each with the first rule in
// order that has a route for it, so that a lookup does not depend on how many rules and tables there are.
type policy struct {
	classes map[class]*routes
	names   []string // of rules, in the order of evaluation: table/number
}

// A class is the port that packets come from and their whole mark, or 0 for any mark, in one word, which a map finds fastest.
type class uint64

func classOf(in Port, mark uint32) class { return class(in)<<32 | class(mark) }

// anyPort in a class stands for every port.
const anyPort Port = 0xfffc

// routes are those of a class: for any source, and for sources in a prefix.
type routes struct {
	all     *routeSet
	sources prefixIndex
	of      []*routeSet // by number in sources
}

// A routeSet is what remains of rules and routes with equal selectors: destinations.
type routeSet struct {
	index   prefixIndex
	entries []routeEntry // by number in index
	drafts  map[netip.Prefix]routeEntry
}

// A routeEntry is the best route for the addresses of a prefix that no longer prefix covers.
type routeEntry struct {
	order int32 // of the rule
	bits  int   // of the route, which may be wider than the rule's destination
	port  Port
	via   netip.Addr
}

// route returns where a packet goes.
func (p *policy) route(in Port, mark uint32, src, dst netip.Addr) (nextHop, bool) {
	best := routeEntry{order: math.MaxInt32}
	p.classes[classOf(in, 0)].best(src, dst, &best)
	p.classes[classOf(anyPort, 0)].best(src, dst, &best)
	if mark != 0 {
		p.classes[classOf(in, mark)].best(src, dst, &best)
		p.classes[classOf(anyPort, mark)].best(src, dst, &best)
	}
	return nextHop{best.port, best.via, best.order}, best.order != math.MaxInt32
}

// best replaces e by the class's route if its rule comes first.
func (r *routes) best(src, dst netip.Addr, e *routeEntry) {
	if r == nil {
		return
	}
	r.all.best(dst, e)
	for n := r.sources.find(src); n >= 0; n = r.sources.parent[n] {
		r.of[n].best(dst, e)
	}
}

func (s *routeSet) best(dst netip.Addr, e *routeEntry) {
	if s == nil {
		return
	}
	for n := s.index.find(dst); n >= 0; n = s.index.parent[n] {
		if s.entries[n].order < e.order { // of one rule, the longest prefix comes first
			*e = s.entries[n]
		}
	}
}

// route returns where a packet goes, by policy rules and the longest prefix in their tables.
func (r *ruleset) route(in Port, mark uint32, src, dst netip.Addr) (nextHop, bool) {
	return r.policy.route(in, mark, src, dst)
}

// A policyDraft is a policy while it is compiled.
type policyDraft struct {
	devices    map[string]Port
	neighbours map[netip.Addr]Port
	order      []orderedRule
	least      int // the least priority in order
	faults     []error
}

type orderedRule struct {
	priority int
	rule     *PolicyRule
	table    *bart.Table[routeEntry]
	name     string
}

// newPolicy compiles tables. Neighbours are the addresses that routes go via.
func newPolicy(tables []PolicyTable, devices map[string]Port, neighbours map[netip.Addr]Port) (policy, error) {
	d := policyDraft{devices: devices, neighbours: neighbours, least: mainPriority}
	names := map[string]bool{}
	for i := range tables {
		t := &tables[i]
		if names[t.Name] {
			d.fault("routing table "+t.Name, "there is another table of this name")
		}
		names[t.Name] = true
		d.addTable(t)
	}
	if len(d.faults) > 0 {
		return policy{}, errors.Join(d.faults...)
	}
	// A stable sort by priority keeps the order among equals: the kernel inserts after them.
	slices.SortStableFunc(d.order, func(a, b orderedRule) int { return a.priority - b.priority })
	return d.compile(), nil
}

func (d *policyDraft) fault(path, format string, args ...any) {
	d.faults = append(d.faults, fmt.Errorf("nat: %s: %s", path, fmt.Sprintf(format, args...)))
}

func (d *policyDraft) addTable(t *PolicyTable) {
	table := new(bart.Table[routeEntry])
	for i := range t.Rules {
		r := &t.Rules[i]
		path := fmt.Sprintf("routing table %s rule %d", t.Name, i+1)
		if r.Priority < 0 {
			d.fault(path, "priority %d is negative", r.Priority)
		}
		for _, p := range []netip.Prefix{r.Destination, r.Source} {
			if p.IsValid() && p.Addr().Is4In6() {
				d.fault(path, "%s is IPv4 mapped into IPv6", p)
			}
		}
		d.order = append(d.order, orderedRule{d.priority(r), r, table, fmt.Sprintf("%s/%d", t.Name, i+1)})
		for _, route := range r.Routes {
			d.addRoute(table, route, path)
		}
	}
}

// priority returns the rule's own, or what the kernel gives it (fib_default_rule_pref).
func (d *policyDraft) priority(r *PolicyRule) int {
	n := r.Priority
	if n == 0 {
		n = max(0, d.least-1)
	}
	d.least = min(d.least, n)
	return n
}

func (d *policyDraft) addRoute(table *bart.Table[routeEntry], r PolicyRoute, path string) {
	dst := r.Destination
	switch {
	case !dst.IsValid():
		d.fault(path, "a route needs a destination")
		return
	case dst != dst.Masked():
		d.fault(path, "route to %s: host bits are set", dst)
		return
	case dst.Addr().Is4In6() || r.Via.Is4In6():
		d.fault(path, "route to %s: an address is IPv4 mapped into IPv6", dst)
		return
	case !r.Via.IsValid() && r.Device == "":
		d.fault(path, "route to %s: neither via nor device", dst)
		return
	}
	port, ok := d.devices[r.Device]
	if r.Device == "" {
		port, ok = d.neighbours[r.Via]
	}
	if _, exists := table.Get(dst); ok && !exists { // the kernel refuses a second route to the same destination
		table.Insert(dst, routeEntry{bits: dst.Bits(), port: port, via: r.Via})
	}
}

func (d *policyDraft) compile() policy {
	p := policy{classes: map[class]*routes{}, names: make([]string, len(d.order))}
	sources := map[class]map[netip.Prefix]*routeSet{}
	for i, o := range d.order {
		p.names[i] = o.name
		in := anyPort
		if o.rule.In != "" {
			var ok bool
			if in, ok = d.devices[o.rule.In]; !ok {
				continue
			}
		}
		if o.rule.Out != "" {
			continue // a forwarded packet is bound to no device
		}
		k := classOf(in, o.rule.Mark)
		if sources[k] == nil {
			sources[k] = map[netip.Prefix]*routeSet{}
		}
		source := o.rule.Source
		if source.IsValid() {
			source = source.Masked() // unlike nftables, a policy rule ignores host bits
		}
		set := sources[k][source]
		if set == nil {
			set = &routeSet{drafts: map[netip.Prefix]routeEntry{}}
			sources[k][source] = set
		}
		set.add(int32(i), o.rule.Destination, o.table)
	}
	for k, of := range sources {
		p.classes[k] = newRoutes(of)
	}
	return p
}

// add works the routes of a rule's table into the set.
func (s *routeSet) add(order int32, destination netip.Prefix, table *bart.Table[routeEntry]) {
	if !destination.IsValid() {
		for dst, e := range table.All() {
			s.offer(dst, e, order)
		}
		return
	}
	destination = destination.Masked()
	if e, ok := table.LookupPrefix(destination); ok {
		s.offer(destination, e, order)
	}
	for dst, e := range table.Subnets(destination) {
		s.offer(dst, e, order)
	}
}

func (s *routeSet) offer(at netip.Prefix, e routeEntry, order int32) {
	e.order = order
	if old, ok := s.drafts[at]; !ok || order < old.order {
		s.drafts[at] = e
	}
}

func (s *routeSet) finish() {
	prefixes := make([]netip.Prefix, 0, len(s.drafts))
	for p := range s.drafts {
		prefixes = append(prefixes, p)
	}
	index, numbers := newPrefixIndex(prefixes)
	s.index, s.entries = index, make([]routeEntry, len(prefixes))
	for p, n := range numbers {
		s.entries[n] = s.drafts[p]
	}
	s.drafts = nil
}

func newRoutes(of map[netip.Prefix]*routeSet) *routes {
	r := &routes{}
	var prefixes []netip.Prefix
	for p, set := range of {
		set.finish()
		if p.IsValid() {
			prefixes = append(prefixes, p)
		} else {
			r.all = set
		}
	}
	index, numbers := newPrefixIndex(prefixes)
	r.sources, r.of = index, make([]*routeSet, len(prefixes))
	for p, n := range numbers {
		r.of[n] = of[p]
	}
	return r
}
