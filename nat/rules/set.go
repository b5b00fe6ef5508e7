package rules

import (
	"maps"
	"slices"
)

// A Set is the desired state of the rules, assembled in drafts. It belongs to one goroutine; what
// Commit returns is immutable. The order of puts does not matter.
type Set struct {
	pieces    map[Key]*piece
	claims    map[any]Key // owners of what must be unique: device names, addresses, links and services' addresses
	drafts    []*Draft
	rules     int                         // including those of drafts
	mentions  map[any]map[*piece]struct{} // pieces by the device or neighbour that they name
	unordered int                         // policy rules without an explicit priority
	marks     map[uint32]int              // number of rules that set each mark on packets
	committed *Ruleset
}

// NewSet returns an empty Set.
func NewSet() *Set {
	return &Set{
		pieces:    map[Key]*piece{},
		claims:    map[any]Key{},
		mentions:  map[any]map[*piece]struct{}{},
		marks:     map[uint32]int{},
		committed: &Ruleset{},
	}
}

// Commit publishes d as rules, and returns the connections that the change affects. It cannot fail,
// because Put refuses whatever is invalid. Earlier Rulesets and other drafts stay valid.
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
		if n.first != next.first {
			a.link(n.first)
			a.link(next.first) // connections without a route are revalidated anyway
		}
		d.concernAdmission(a, n.admission, next.admission)
		next.network = *n
	}
	c := changes{links: map[Link]*linkFacts{}, services: map[serviceAddress]**Balancer{}, routing: policyChanges{}}
	if len(d.changes) > len(s.pieces) { // growing step by step costs more
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
	s.rules += d.rules // Discard subtracts them
	d.Discard()
	s.committed = &next
	return &next, a
}

// changes collects the changes of a commit to the indexes.
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
		c.routing.add(r, true)
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
		if chain.stage < stages { // hook output is listed, but packets never meet it
			for i := range chain.rules {
				c.rules[chain.stage] = append(c.rules[chain.stage], change[*rule]{of: &chain.rules[i]})
				s.countMark(&chain.rules[i], 1)
			}
		}
	}
	for _, r := range p.routing {
		c.routing.add(r, false)
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

// resolve computes the priorities of policy rules without an explicit one. Changes to pieces in
// fresh are not recorded.
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
		routing.add(r, true)
		routing.add(again, false)
		if !isFresh[p] {
			s.concernRouted(a, r, nil)
		}
		p.routing = slices.Clone(p.routing)
		p.routing[slices.Index(p.routing, r)] = again
	})
}
