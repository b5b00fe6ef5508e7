package nat

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
)

// A Set is the desired state of the rules, put together piece by piece. It belongs to one goroutine; what Commit returns is
// immutable. The order in which resources are put does not matter.
type Set struct {
	network
	pieces     map[Key]*piece
	pending    map[Key]*piece // nil: to be deleted
	rules      int            // with what is pending
	devices    map[string]Port
	neighbours map[netip.Addr]Port
	claims     map[any]Key                 // who has a device name or a service address: there is one of each
	undo       []func()                    // takes back, from the last, what was done to the three maps above since the last Commit
	clock      uint64                      // counts changes of devices and neighbours
	moved      map[string]uint64           // by device or neighbour: when it has last changed, since the last Commit
	mentions   map[string]map[Key]struct{} // the committed pieces that name a device or a neighbour
	unordered  int                         // committed policy rules without a priority of their own
	marks      map[uint32]int              // how many committed rules set a packet's mark, by its value
	committed  *ruleset
}

func newSet() *Set {
	return &Set{
		pieces:     map[Key]*piece{},
		pending:    map[Key]*piece{},
		devices:    map[string]Port{firstNodeDevice: firstNode},
		neighbours: map[netip.Addr]Port{},
		claims:     map[any]Key{},
		moved:      map[string]uint64{},
		mentions:   map[string]map[Key]struct{}{},
		marks:      map[uint32]int{},
		committed:  &ruleset{},
	}
}

// current returns the piece of key with what is pending, or nil.
func (s *Set) current(key Key) *piece {
	if p, ok := s.pending[key]; ok {
		return p
	}
	return s.pieces[key]
}

// Put makes r the resource of key. If something is wrong with r, it says all of it and key keeps what it had.
func (s *Set) Put(key Key, r Resource) error {
	old := s.current(key)
	if old != nil && reflect.DeepEqual(old.resource, r) {
		return nil
	}
	before := len(s.undo)
	p, err := s.put(key, r, old)
	if err != nil {
		s.takeBack(before)
		return err
	}
	s.rules += p.rules
	if old != nil {
		s.rules -= old.rules
	}
	s.pending[key] = p
	return nil
}

func (s *Set) put(key Key, r Resource, old *piece) (*piece, error) {
	if old != nil {
		s.release(&old.resource)
	}
	if err := s.claim(key, &r); err != nil {
		return nil, err
	}
	counted := old
	if counted == nil {
		counted = s.pieces[key] // deleted and put again
	}
	p, err := s.compile(key, r.clone(), counted)
	if err != nil {
		return nil, err
	}
	rules := s.rules + p.rules
	if old != nil {
		rules -= old.rules
	}
	if rules > maxRules {
		return nil, fmt.Errorf("nat: %s: more than %d rules in all", key, maxRules)
	}
	return p, nil
}

// Delete removes the resource of key, if there is one.
func (s *Set) Delete(key Key) {
	if old := s.current(key); old != nil {
		s.release(&old.resource)
		s.rules -= old.rules
		s.pending[key] = nil
	}
}

// claim takes what only one resource may have.
func (s *Set) claim(key Key, r *Resource) error {
	take := func(what any, describe string) error {
		if other, taken := s.claims[what]; taken {
			return fmt.Errorf("nat: %s: %s is taken by %s", key, describe, other)
		}
		change(s, s.claims, what, &key)
		return nil
	}
	if c := r.Service; c != nil {
		if err := take(addressOf(c), fmt.Sprintf("address %s port %d", c.Address, c.Port)); err != nil {
			return err
		}
	}
	d := r.Device
	if d == nil {
		return nil
	}
	if err := take(d.Name, fmt.Sprintf("device %q", d.Name)); err != nil {
		return err
	}
	change(s, s.devices, d.Name, &d.Port)
	s.moves(d.Name)
	if d.Address.IsValid() {
		if err := take(d.Address, "address "+d.Address.String()); err != nil {
			return err
		}
		change(s, s.neighbours, d.Address, &d.Port)
		s.moves(d.Address.String())
	}
	return nil
}

// release gives back what claim has taken.
func (s *Set) release(r *Resource) {
	if r.Service != nil {
		change(s, s.claims, any(addressOf(r.Service)), nil)
	}
	if d := r.Device; d != nil {
		change(s, s.claims, any(d.Name), nil)
		change(s, s.devices, d.Name, nil)
		s.moves(d.Name)
		if d.Address.IsValid() {
			change(s, s.claims, any(d.Address), nil)
			change(s, s.neighbours, d.Address, nil)
			s.moves(d.Address.String())
		}
	}
}

// moves notes that a device or neighbour leads elsewhere. It is not taken back: to compile a piece once more does no harm.
func (s *Set) moves(name string) {
	s.clock++
	s.moved[name] = s.clock
}

// change sets or, with nil, removes a value of one of the Set's maps, so that it can be taken back.
func change[K comparable, V any](s *Set, m map[K]V, k K, to *V) {
	old, had := m[k]
	s.undo = append(s.undo, func() {
		if had {
			m[k] = old
		} else {
			delete(m, k)
		}
	})
	if to != nil {
		m[k] = *to
	} else {
		delete(m, k)
	}
}

// takeBack undoes all changes but the first n.
func (s *Set) takeBack(n int) {
	for _, undo := range slices.Backward(s.undo[n:]) {
		undo()
	}
	s.undo = s.undo[:n]
}

// Rollback forgets what was put and deleted since the last Commit.
func (s *Set) Rollback() {
	s.takeBack(0)
	for key, p := range s.pending {
		if p != nil {
			s.rules -= p.rules
		}
		if old := s.pieces[key]; old != nil {
			s.rules += old.rules
		}
	}
	clear(s.pending)
	clear(s.moved)
	s.network = s.committed.network
}

// Commit returns what was put, as rules, and the connections that the change concerns. It cannot fail: Put has refused what could
// not be. What was committed before stays valid.
func (s *Set) Commit() (*ruleset, *Affected) {
	a := newAffected(len(s.pieces) == 0)
	s.recompile()
	next := *s.committed
	if s.network != next.network {
		if s.own != next.own || s.generated != next.generated {
			a.All = true
		}
		a.port(s.first)
		a.port(next.first) // what had none is looked at in any case
		next.network = s.network
	}
	var rules [stages]listDelta
	services := map[serviceAddress]**service{}
	routing := policyChanges{}
	for key := range s.pending {
		if old := s.pieces[key]; old != nil {
			s.concern(a, old)
			s.takeOut(key, old, &rules, services, routing)
		}
	}
	for key, p := range s.pending {
		if p == nil {
			delete(s.pieces, key)
			continue
		}
		s.concern(a, p)
		s.putIn(key, p, &rules, services, routing)
	}
	if s.unordered > 0 {
		s.resolve(routing, a)
	}
	for st := range rules {
		next.stages[st] = next.stages[st].with(&rules[st])
	}
	for _, r := range rules[stageRaw].add {
		if r.action == ActionNoTrack {
			next.notracks++
		}
	}
	for _, r := range rules[stageRaw].remove {
		if r.action == ActionNoTrack {
			next.notracks--
		}
	}
	next.services = next.services.with(services)
	next.policy = next.policy.with(routing)
	s.undo = nil
	clear(s.pending)
	s.committed = &next
	return &next, a
}

// recompile compiles anew the pieces that name devices which have changed since they were compiled.
func (s *Set) recompile() {
	stale := map[Key]*piece{}
	look := func(key Key, p *piece) {
		for _, name := range p.mentions {
			if s.moved[name] > p.compiled {
				stale[key] = p
				return
			}
		}
	}
	for key, p := range s.pending {
		if p != nil {
			look(key, p)
		}
	}
	for name := range s.moved {
		for key := range s.mentions[name] {
			if _, ok := s.pending[key]; !ok {
				look(key, s.pieces[key])
			}
		}
	}
	for key, p := range stale {
		again, err := s.compile(key, p.resource, p)
		if err != nil {
			panic("nat: a resource was good and is not: " + err.Error()) // devices decide about nothing that could be wrong
		}
		s.pending[key] = again
	}
	clear(s.moved)
}

func (s *Set) takeOut(key Key, p *piece, rules *[stages]listDelta, services map[serviceAddress]**service, routing policyChanges) {
	for _, c := range p.chains {
		if c.stage < stages {
			for i := range c.rules {
				rules[c.stage].remove = append(rules[c.stage].remove, &c.rules[i])
				s.countMark(&c.rules[i], -1)
			}
		}
	}
	for _, r := range p.routing {
		routing.remove(r)
		if r.given == 0 {
			s.unordered--
		}
	}
	if p.service != nil {
		services[addressOf(&p.service.config)] = nil
	}
	for _, name := range p.mentions {
		if keys := s.mentions[name]; keys != nil {
			if delete(keys, key); len(keys) == 0 {
				delete(s.mentions, name)
			}
		}
	}
}

func (s *Set) putIn(key Key, p *piece, rules *[stages]listDelta, services map[serviceAddress]**service, routing policyChanges) {
	s.pieces[key] = p
	for _, c := range p.chains {
		if c.stage < stages { // hook output is shown, and never met
			for i := range c.rules {
				rules[c.stage].add = append(rules[c.stage].add, &c.rules[i])
				s.countMark(&c.rules[i], 1)
			}
		}
	}
	for _, r := range p.routing {
		routing.add(r)
		if r.given == 0 {
			s.unordered++
		}
	}
	if p.service != nil {
		services[addressOf(&p.service.config)] = &p.service
	}
	for _, name := range p.mentions {
		if s.mentions[name] == nil {
			s.mentions[name] = map[Key]struct{}{}
		}
		s.mentions[name][key] = struct{}{}
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

// resolve gives the policy rules without a priority of their own the one that follows from all others.
func (s *Set) resolve(routing policyChanges, a *Affected) {
	var all []*policyRule
	owner := map[*policyRule]*piece{}
	for _, p := range s.pieces {
		for _, r := range p.routing {
			all = append(all, r)
			owner[r] = p
		}
	}
	resolve(all, func(r *policyRule, priority int) {
		p, again := owner[r], r.withPriority(priority)
		routing.replace(r, again)
		s.concernRouted(a, r)
		p.routing = slices.Clone(p.routing)
		p.routing[slices.Index(p.routing, r)] = again
	})
}

// replace changes a rule that may have been added by the same commit.
func (c policyChanges) replace(r, by *policyRule) {
	for i := range r.offers {
		o := &r.offers[i]
		d := c.at(routeSetKey{r.class, r.source}, o.at)
		if i := slices.Index(d.add, o); i >= 0 {
			d.add = slices.Delete(d.add, i, i+1)
		} else {
			d.remove = append(d.remove, o)
		}
	}
	c.add(by)
}

// replace puts all resources of c in place of those that are there. On error the Set is as it was at the last Commit.
func (s *Set) replace(c *Config) error {
	s.Rollback()
	s.network = c.network()
	resources := c.resources()
	keep := make(map[Key]struct{}, len(resources))
	var faults []error
	for i := range resources {
		key := resources[i].key
		if _, ok := keep[key]; ok {
			faults = append(faults, fmt.Errorf("nat: %s: there is another of this name", key))
		}
		keep[key] = struct{}{}
	}
	// What goes makes room for what comes: a device or an address may have another owner.
	for key := range s.pieces {
		if _, ok := keep[key]; !ok {
			s.Delete(key)
		}
	}
	for i := range resources {
		if old := s.pieces[resources[i].key]; old != nil && !old.resource.claimsLike(&resources[i].Resource) {
			s.Delete(resources[i].key)
		}
	}
	for i := range resources {
		faults = append(faults, s.Put(resources[i].key, resources[i].Resource))
	}
	if err := errors.Join(faults...); err != nil {
		s.Rollback()
		return err
	}
	return nil
}
