package rules

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"
)

// maxAffected is how many prefixes are told apart before a commit is said to concern all.
const maxAffected = 1 << 12

// maxAdded is how many prefixes, and how many links and marks, Add takes over one by one: packets wait for it.
const maxAdded = 1 << 6

// An Affected says what a commit could matter to: connections with an address in Prefixes, a link in Links or a mark in Marks, or all.
type Affected struct {
	All      bool
	Prefixes bart.Lite
	Links    map[Link]struct{}
	Marks    map[uint32]struct{}

	// cover contains all Prefixes of IPv4, and of IPv6. Most connections are outside, which is soon told.
	cover [2]netip.Prefix
}

func newAffected(all bool) *Affected {
	return &Affected{All: all, Links: map[Link]struct{}{}, Marks: map[uint32]struct{}{}}
}

func (a *Affected) prefix(p netip.Prefix) {
	switch {
	case a.All:
	case p.Bits() == 0 || a.Prefixes.Size() == maxAffected:
		*a = Affected{All: true}
	default:
		a.Prefixes.Insert(p)
		c := &a.cover[family(p.Addr())]
		if !c.IsValid() {
			*c = p
		}
		for *c = netip.PrefixFrom(c.Addr(), min(c.Bits(), p.Bits())).Masked(); !c.Contains(p.Addr()); {
			*c = netip.PrefixFrom(c.Addr(), c.Bits()-1).Masked()
		}
	}
}

func family(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

// Contains reports whether an address is in one of Prefixes.
func (a *Affected) Contains(address netip.Addr) bool {
	return a.cover[family(address)].Contains(address) && a.Prefixes.Contains(address)
}

func (a *Affected) link(p Link) {
	if !a.All {
		a.Links[p] = struct{}{}
	}
}

// Add makes a say what o says too. Where that is much, a says more: all that covers the prefixes of o, or simply all.
func (a *Affected) Add(o *Affected) {
	switch {
	case a.All:
	case o.All, len(o.Links)+len(o.Marks) > maxAdded:
		*a = Affected{All: true}
	case o.Prefixes.Size() > maxAdded:
		for _, p := range o.cover {
			if p.IsValid() {
				a.prefix(p)
			}
		}
	default:
		for p := range o.Prefixes.All() {
			a.prefix(p)
		}
	}
	if a.All {
		return
	}
	if a.Links == nil {
		a.Links, a.Marks = map[Link]struct{}{}, map[uint32]struct{}{}
	}
	maps.Copy(a.Links, o.Links)
	maps.Copy(a.Marks, o.Marks)
}

// rule notes the packets that a rule could match.
func (a *Affected) rule(r *rule) {
	switch k := r.key(); {
	case k.never:
	case k.prefix.IsValid():
		a.prefix(k.prefix)
	case k.device == fieldIn, k.device == fieldOut:
		a.link(k.link)
	default:
		*a = Affected{All: true}
	}
}

// concern notes the packets that a piece could match or lead, and other, which is before or after it, does not lead as well. Both may
// be nil.
func (s *Set) concern(a *Affected, p, other *piece) {
	if a.All || p == nil {
		return
	}
	for i := range p.chains {
		c := &p.chains[i]
		if c.stage == stages {
			continue
		}
		for i := range c.rules {
			a.rule(&c.rules[i])
		}
	}
	for _, r := range p.routing {
		s.concernRouted(a, r, other.leads(r))
	}
	if p.service != nil {
		for _, to := range s.frontends(p.service.Service.Address) {
			a.prefix(netip.PrefixFrom(to, to.BitLen()))
		}
	}
	if d := p.resource.Device; d != nil {
		a.link(d.Link)
	}
}

// frontends returns the addresses that a service of an address is at. Where those of the Host change, all is concerned in any case.
func (s *Set) frontends(a netip.Addr) []netip.Addr {
	if h := s.committed.host; h != nil && a.IsUnspecified() {
		return h.Addresses
	}
	return []netip.Addr{a}
}

// concernRouted notes the packets that a policy rule could lead, but for where it leads as well before or after. A route for every
// address does not tell them apart. Their mark does, unless rules give it to packets whatever the mark of their connection: what such a
// rule does is not kept with the connection.
func (s *Set) concernRouted(a *Affected, r *policyRoutes, as map[lead]bool) {
	mark := uint32(r.class)
	for _, o := range r.offers {
		at := o.at
		switch {
		case as[o.lead()]:
		case at.Bits() > 0 || mark == 0 || s.marks[mark] > 0 || a.All:
			a.prefix(at)
		default:
			a.Marks[mark] = struct{}{}
		}
	}
}

// A lead is what an offer says but for its rule.
type lead struct {
	at   netip.Prefix
	bits int
	link Link
	via  netip.Addr
}

func (o *routeOffer) lead() lead { return lead{o.at, o.bits, o.link, o.via} }

// leads returns where the piece's rule leads that stands in the place of r and asks for the same, nil if there is none.
func (p *piece) leads(r *policyRoutes) map[lead]bool {
	if p == nil {
		return nil
	}
	i := slices.IndexFunc(p.routing, func(o *policyRoutes) bool {
		return o.number == r.number && o.table == r.table && o.priority == r.priority && o.class == r.class && o.source == r.source &&
			o.origin.compare(r.origin) == 0
	})
	if i < 0 {
		return nil
	}
	all := make(map[lead]bool, len(p.routing[i].offers))
	for _, o := range p.routing[i].offers {
		all[o.lead()] = true
	}
	return all
}
