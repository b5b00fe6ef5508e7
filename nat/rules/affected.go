package rules

import (
	"net/netip"

	"github.com/gaissmai/bart"
)

// maxAffected is how many prefixes are told apart before a commit is said to concern all.
const maxAffected = 1 << 12

// An Affected says what a commit could matter to: connections with an address in Prefixes, a link in Links or a mark in Marks, or all.
type Affected struct {
	All      bool
	Prefixes bart.Lite
	Links    map[Link]struct{}
	Marks    map[uint32]struct{}
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
	}
}

func (a *Affected) link(p Link) {
	if !a.All {
		a.Links[p] = struct{}{}
	}
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

// concern notes the packets that a piece could match or lead.
func (s *Set) concern(a *Affected, p *piece) {
	if a.All {
		return
	}
	for _, c := range p.chains {
		if c.stage == stages {
			continue
		}
		for i := range c.rules {
			a.rule(&c.rules[i])
		}
	}
	for _, r := range p.routing {
		s.concernRouted(a, r)
	}
	if p.service != nil {
		a.prefix(netip.PrefixFrom(p.service.Service.Address, p.service.Service.Address.BitLen()))
	}
	if d := p.resource.Device; d != nil {
		a.link(d.Link)
	}
}

// concernRouted notes the packets that a policy rule could lead. A route for every address does not tell them apart. Their mark does,
// unless rules give it to packets whatever the mark of their connection: what such a rule does is not kept with the connection.
func (s *Set) concernRouted(a *Affected, r *policyRule) {
	mark := uint32(r.class)
	for i := range r.offers {
		if at := r.offers[i].at; at.Bits() > 0 || mark == 0 || s.marks[mark] > 0 || a.All {
			a.prefix(at)
		} else {
			a.Marks[mark] = struct{}{}
		}
	}
}
