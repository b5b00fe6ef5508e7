package rules

import (
	"maps"
	"slices"
)

// A Set is the desired state of the rules, put together piece by piece in drafts. It belongs to one goroutine; what Commit returns is
// immutable. The order in which resources are put does not matter.
type Set struct {
	pieces    map[Key]*piece
	claims    map[any]Key // who has a device name, an address, a link or a service's address: there is one of each
	drafts    []*Draft
	rules     int                         // with those of drafts
	mentions  map[any]map[*piece]struct{} // the pieces that name a device or a neighbour
	unordered int                         // policy rules without a priority of their own
	marks     map[uint32]int              // how many rules set a packet's mark, by its value
	committed *Ruleset
}

// NewSet returns a Set of nothing.
func NewSet() *Set {
	return &Set{
		pieces:    map[Key]*piece{},
		claims:    map[any]Key{},
		mentions:  map[any]map[*piece]struct{}{},
		marks:     map[uint32]int{},
		committed: &Ruleset{},
	}
}

// Commit returns what is in d, as rules, and the connections that the change concerns. It cannot fail: Put has refused what could
// not be. What was committed before stays valid, and so do other drafts.
func (s *Set) Commit(d *Draft) (*Ruleset, *Affected) {
	a := newAffected(len(s.pieces) == 0)
	d.recompile()
	next := *s.committed
	if n := d.network; n != nil {
		n.host = n.host.same(next.host)
	}
	if n := d.network; n != nil && *n != next.network {
		if n.gateway != next.gateway || n.generated != next.generated || n.host != next.host {
			a.All = true
		}
		a.link(n.first)
		a.link(next.first) // what had none is looked at in any case
		next.network = *n
	}
	c := changes{links: map[Link]*linkFacts{}, services: map[serviceAddress]**Balancer{}, routing: policyChanges{}}
	if len(d.changes) > len(s.pieces) { // to grow step by step costs more
		pieces := make(map[Key]*piece, len(s.pieces)+len(d.changes))
		maps.Copy(pieces, s.pieces)
		s.pieces = pieces
	}
	reordered := false
	for i := range d.changes {
		k := &d.changes[i]
		if k.old = s.pieces[k.key]; k.old != nil {
			if k.piece != nil {
				k.piece.inherit(k.old)
			}
			s.takeOut(k.old, &c)
		}
		reordered = reordered || !sameRules(k.old, k.piece)
	}
	for i := range d.changes {
		if k := &d.changes[i]; k.piece == nil {
			delete(s.pieces, k.key)
		} else {
			s.putIn(k.key, k.piece, &c)
		}
	}
	for what, key := range d.claims {
		if key == nil {
			delete(s.claims, what)
		} else {
			s.claims[what] = *key
		}
	}
	if s.unordered > 0 && reordered {
		s.resolve(c.routing, a, d.at)
	}
	if !a.All {
		for i := range d.changes {
			k := &d.changes[i]
			s.concern(a, k.old, k.piece)
			s.concern(a, k.piece, k.old)
		}
	}
	for st := range c.rules {
		next.stages[st] = next.stages[st].with(c.rules[st])
	}
	for i := range c.rules[stageRaw] {
		if r := &c.rules[stageRaw][i]; r.of.action == ActionNoTrack {
			next.notracks += r.by()
		}
	}
	next.links = next.links.with(c.links)
	next.services = next.services.with(c.services)
	next.policy = next.policy.with(c.routing)
	s.rules += d.rules // Discard takes them off
	d.Discard()
	s.committed = &next
	return &next, a
}

// changes collects what a commit does to the indexes.
type changes struct {
	rules    [stages][]change[*rule]
	links    map[Link]*linkFacts
	services map[serviceAddress]**Balancer
	routing  policyChanges
}

func (s *Set) takeOut(p *piece, c *changes) {
	for i := range p.chains {
		chain := &p.chains[i]
		if chain.stage < stages {
			for i := range chain.rules {
				c.rules[chain.stage] = append(c.rules[chain.stage], change[*rule]{&chain.rules[i], true})
				s.countMark(&chain.rules[i], -1)
			}
		}
	}
	for _, r := range p.routing {
		c.routing.note(r, true)
		if r.given == 0 {
			s.unordered--
		}
	}
	if p.service != nil {
		c.services[addressOf(&p.service.Service)] = nil
	}
	if d := p.resource.Device; d != nil {
		c.links[d.Link] = nil
	}
	for _, m := range p.mentions {
		if pieces := s.mentions[m.what]; pieces != nil {
			if delete(pieces, p); len(pieces) == 0 {
				delete(s.mentions, m.what)
			}
		}
	}
}

func (s *Set) putIn(key Key, p *piece, c *changes) {
	s.pieces[key] = p
	for i := range p.chains {
		chain := &p.chains[i]
		if chain.stage < stages { // hook output is shown, and never met
			for i := range chain.rules {
				c.rules[chain.stage] = append(c.rules[chain.stage], change[*rule]{of: &chain.rules[i]})
				s.countMark(&chain.rules[i], 1)
			}
		}
	}
	for _, r := range p.routing {
		c.routing.note(r, false)
		if r.given == 0 {
			s.unordered++
		}
	}
	if p.service != nil {
		c.services[addressOf(&p.service.Service)] = &p.service
	}
	if d := p.resource.Device; d != nil {
		c.links[d.Link] = p.facts
	}
	for _, m := range p.mentions {
		if s.mentions[m.what] == nil {
			s.mentions[m.what] = map[*piece]struct{}{}
		}
		s.mentions[m.what][p] = struct{}{}
	}
}

func (s *Set) countMark(r *rule, by int) {
	if r.action != ActionSetMark {
		return
	}
	if s.marks[r.value] += by; s.marks[r.value] == 0 {
		delete(s.marks, r.value)
	}
}

// resolve gives the policy rules without a priority of their own the one that follows from all others. What it changes about pieces
// that are fresh is not noted.
func (s *Set) resolve(routing policyChanges, a *Affected, fresh map[Key]int) {
	var all []*policyRoutes
	owner := map[*policyRoutes]*piece{}
	isFresh := map[*piece]bool{}
	for key, p := range s.pieces {
		_, isFresh[p] = fresh[key]
		for _, r := range p.routing {
			all = append(all, r)
			owner[r] = p
		}
	}
	resolve(all, func(r *policyRoutes, priority int) {
		p, again := owner[r], r.withPriority(priority)
		routing.note(r, true)
		routing.note(again, false)
		if !isFresh[p] {
			s.concernRouted(a, r, nil)
		}
		p.routing = slices.Clone(p.routing)
		p.routing[slices.Index(p.routing, r)] = again
	})
}
