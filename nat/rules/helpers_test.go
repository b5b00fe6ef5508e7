package rules

import (
	"net/netip"
	"slices"
)

// all returns every rule of r that a packet can meet, in the order of evaluation.
func (r *Ruleset) all() []*rule {
	var all []*rule
	for s := range r.stages {
		st := &r.stages[s]
		found := slices.Clone(st.few)
		if x := st.ruleIndex; x != nil {
			bucket := func(b *ruleBucket) {
				if b == nil {
					return
				}
				found = append(found, b.list...)
				for _, t := range b.tables {
					if t != nil {
						for _, list := range t.All() {
							found = append(found, list...)
						}
					}
				}
			}
			bucket(x.any)
			for p := range 1 << 16 {
				bucket(x.in.get(Link(p)))
				bucket(x.out.get(Link(p)))
			}
		}
		slices.SortFunc(found, compareRules)
		all = append(all, found...)
	}
	return all
}

// counters returns the counters of all rules by path.
func (r *Ruleset) counters() map[string]*Counter {
	all := map[string]*Counter{}
	for _, rule := range r.all() {
		if rule.counter != nil {
			all[rule.path()] = rule.counter
		}
	}
	return all
}

// slow returns the rules of c, uncompiled.
func (c *Config) slow() *slowRules {
	s := &slowRules{c.Firewall, c.Routing, map[string]Link{tunnelDevice: Tunnel}, map[netip.Addr]Link{}}
	for a := range c.PeerTunnelAddress.All() {
		s.via[a] = Tunnel
	}
	for i := range c.Nodes {
		n := &c.Nodes[i]
		s.devices[n.device()] = n.Link
		for a := range n.Address.All() {
			s.via[a] = n.Link
		}
	}
	return s
}

// newRuleset returns the rules of c alone, or everything that is wrong with them.
func newRuleset(c *Config) (*Ruleset, error) { return NewSet().make(c) }

// make commits c.
func (s *Set) make(c *Config) (*Ruleset, error) {
	d, err := s.Replace(c)
	if err != nil {
		return nil, err
	}
	r, _ := s.Commit(d)
	return r, nil
}

// A recorder takes steps down.
type recorder struct{ steps []Step }

// Trace implements Tracer.
func (r *recorder) Trace(s Step) { r.steps = append(r.steps, s) }

// LinkName implements Tracer.
func (r *recorder) LinkName(Link) string { return "" }
