package rules

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"
)

// maxAffected is how many prefixes are listed before a commit is said to affect everything.
const maxAffected = 1 << 12

// maxAdded is how many prefixes, links and marks each Add copies one by one, because packets wait
// for it.
const maxAdded = 1 << 6

// An Affected says which connections a commit could affect: those with an address in Prefixes, a
// link in Links or a mark in Marks, or all.
type Affected struct {
	All      bool
	Prefixes bart.Lite
	Links    map[Link]struct{}
	Marks    map[uint32]struct{}

	// cover contains all Prefixes of IPv4, and of IPv6. It quickly rules out most connections.
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

// Add makes a include o. If that is too much, a becomes wider: a prefix that covers those of o, or
// simply all.
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

// rule adds the packets that a rule could match.
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

// concern adds the packets that piece p could match or route, unless other, the piece before or
// after it, routes them equally. Both may be nil.
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

// frontends returns the addresses at which a service of an address is reached. If those of the Host
// change, everything is affected anyway.
func (s *Set) frontends(a netip.Addr) []netip.Addr {
	if h := s.committed.host; h != nil && a.IsUnspecified() {
		return h.Addresses
	}
	return []netip.Addr{a}
}

// concernRouted adds the packets that a policy rule could route, except where they are routed
// equally before and after. A route for every address does not narrow them down; their mark does,
// unless rules set marks on packets independently of the connection's mark, because that effect is
// not kept with the connection.
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

// A lead is an offer without its rule.
type lead struct {
	at   netip.Prefix
	bits int
	link Link
	via  netip.Addr
}

func (o *routeOffer) lead() lead { return lead{o.at, o.bits, o.link, o.via} }

// leads returns where the piece routes packets by the rule in the same place as r with the same
// selectors, nil if there is none.
func (p *piece) leads(r *policyRoutes) map[lead]bool {
	if p == nil {
		return nil
	}
	i := slices.IndexFunc(p.routing, func(o *policyRoutes) bool {
		return o.number == r.number && o.table == r.table && o.priority == r.priority && o.class == r.class &&
			o.source == r.source &&
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
