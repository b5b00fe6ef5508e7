package rules

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"
)

// addRouting compiles a policy table. What remains of a rule is its place, its class and its
// offers.
func (b *builder) addRouting(t *PolicyTable) {
	table := routesOfTable{}
	first := len(b.piece.routing)
	b.piece.routing = slices.Grow(b.piece.routing, len(t.Rules))
	for i := range t.Rules {
		r := &t.Rules[i]
		at := func() string { return fmt.Sprintf("routing table %s rule %d", t.Name, i+1) }
		if r.Priority < 0 {
			b.fault(at(), "priority %d is negative", r.Priority)
		}
		for _, p := range []netip.Prefix{r.Destination, r.Source} {
			if p.IsValid() && p.Addr().Is4In6() {
				b.fault(at(), "%s is IPv4 mapped into IPv6", p)
			}
		}
		for j := range r.Routes {
			b.addRoute(&table, &r.Routes[j], at)
		}
		compiled := &policyRoutes{policyRule: &policyRule{
			in: t.Name, at: int32(i), priority: r.Priority, given: r.Priority,
			origin: b.piece.origin, number: int32(len(b.piece.routing)), table: b.table,
			class: classOf(anyLink, r.Mark), source: r.Source, keep: r.Keep,
		}}
		if r.Source.IsValid() {
			compiled.source = r.Source.Masked() // unlike nftables, a policy rule ignores host bits
		}
		b.piece.routing = append(b.piece.routing, compiled)
	}
	for i := range t.Rules {
		r, compiled := &t.Rules[i], b.piece.routing[first+i]
		if r.In != "" {
			in := b.device(r.In)
			if in == unknownLink {
				continue
			}
			compiled.class = classOf(in, r.Mark)
		}
		if r.Out == "" { // no device is bound for a forwarded packet
			compiled.offer(r.Destination, &table)
		}
	}
}

// routesOfTable are the routes of one policy table. Most tables have one route.
type routesOfTable struct {
	one routeOffer
	// all of them, if there are several; pointers, because bart.Table is instantiated for them
	// anyway
	more *bart.Table[*routeOffer]
}

// add adds a route unless there is one to the same destination: the kernel refuses a second one.
func (t *routesOfTable) add(o routeOffer) {
	if !t.one.at.IsValid() {
		t.one = o
		return
	}
	if t.more == nil {
		t.more = new(bart.Table[*routeOffer])
		one := t.one
		t.more.Insert(one.at, &one)
	}
	if _, exists := t.more.Get(o.at); !exists {
		another := o
		t.more.Insert(o.at, &another)
	}
}

func (b *builder) addRoute(table *routesOfTable, r *PolicyRoute, at func() string) {
	dst := r.Destination
	switch {
	case !dst.IsValid():
		b.fault(at(), "a route needs a destination")
		return
	case dst != dst.Masked():
		b.fault(at(), "route to %s: host bits are set", dst)
		return
	case dst.Addr().Is4In6() || r.Via.Is4In6():
		b.fault(at(), "route to %s: an address is IPv4 mapped into IPv6", dst)
		return
	case !r.Via.IsValid() && r.Device == "":
		b.fault(at(), "route to %s: neither via nor device", dst)
		return
	}
	var link Link
	if r.Device != "" {
		link = b.device(r.Device)
	} else {
		link = b.link(r.Via)
	}
	if link != unknownLink {
		table.add(routeOffer{at: dst, bits: dst.Bits(), link: link, via: r.Via})
	}
}

// offer intersects the rule with the routes of its table, and adds the results to the rule's
// offers.
func (r *policyRoutes) offer(destination netip.Prefix, table *routesOfTable) {
	add := func(at netip.Prefix, from *routeOffer) {
		o := *from
		o.at, o.rule = at, r.policyRule
		r.offers = append(r.offers, &o)
	}
	if destination.IsValid() {
		destination = destination.Masked()
	}
	switch {
	case !table.one.at.IsValid():
	case table.more == nil:
		switch o := &table.one; {
		case !destination.IsValid() || destination.Overlaps(o.at) && o.bits > destination.Bits():
			add(o.at, o)
		case destination.Overlaps(o.at):
			add(destination, o)
		}
	case !destination.IsValid():
		for dst, o := range table.more.All() {
			add(dst, o)
		}
	default:
		if o, ok := table.more.LookupPrefix(destination); ok {
			add(destination, o)
		}
		for dst, o := range table.more.Subnets(destination) {
			if dst != destination {
				add(dst, o)
			}
		}
	}
}

// withPriority returns a copy of the rule with another priority.
func (r *policyRoutes) withPriority(n int) *policyRoutes {
	rule := *r.policyRule
	rule.priority = n
	c := &policyRoutes{&rule, make([]*routeOffer, len(r.offers))}
	for i, o := range r.offers {
		again := *o
		again.rule = &rule
		c.offers[i] = &again
	}
	return c
}
