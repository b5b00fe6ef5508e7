package nat

import (
	"net/netip"

	"github.com/gaissmai/bart"
)

// maxAffected is how many prefixes are told apart before a commit is said to concern all connections.
const maxAffected = 1 << 12

// An Affected says which connections a commit concerns: those with an address in Prefixes, a link in Links or a mark in Marks.
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
		a.prefix(netip.PrefixFrom(p.service.config.Address, p.service.config.Address.BitLen()))
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

// concerns reports whether the commit could change something about a connection. What has no route is always asked for one again.
func (a *Affected) concerns(c *conn) bool {
	if a.All || c.verdict[original] == ReasonNoRoute || c.verdict[reply] == ReasonNoRoute {
		return true
	}
	if _, ok := a.Marks[c.mark]; ok {
		return true
	}
	for d := range c.tuples {
		t := &c.tuples[d]
		if _, ok := a.Links[t.Link]; ok {
			return true
		}
		if _, ok := a.Links[c.out[d]]; ok {
			return true
		}
		if a.Prefixes.Contains(t.Source()) || a.Prefixes.Contains(t.Destination()) {
			return true
		}
	}
	return false
}

// historyLength is how many commits a connection may miss before it is looked at whatever they concern. It is a power of two.
const historyLength = 64

// A history holds what the last commits concern, by generation.
type history [historyLength]*Affected

// concerns reports whether a commit since the connection's generation concerns it.
func (h *history) concerns(c *conn, generation uint32) bool {
	if generation-c.generation > historyLength {
		return true
	}
	for g := generation; g != c.generation; g-- {
		if h[g%historyLength].concerns(c) {
			return true
		}
	}
	return false
}
