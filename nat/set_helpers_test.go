package nat

import (
	"net/netip"
	"slices"
)

// all returns every rule of r that a packet can meet, in the order of evaluation.
func (r *ruleset) all() []*rule {
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
func (r *ruleset) counters() map[string]*counter {
	all := map[string]*counter{}
	for _, rule := range r.all() {
		if rule.counter != nil {
			all[rule.path()] = rule.counter
		}
	}
	return all
}

// service returns a service by name.
func (r *ruleset) service(name string) (found *service) {
	r.services.all(func(_ serviceAddress, s *service) bool {
		if s.config.Name == name {
			found = s
		}
		return found == nil
	})
	return found
}

// slow returns the rules of c, uncompiled.
func (c *Config) slow() *slowRules {
	s := &slowRules{c.Firewall, c.Routing, map[string]Link{tunnelDevice: Tunnel}, map[netip.Addr]Link{c.PeerTunnelAddress: Tunnel}}
	for i := range c.Nodes {
		n := &c.Nodes[i]
		s.devices[n.device()], s.via[n.Address] = n.Link, n.Link
	}
	return s
}

// newRuleset returns the rules of c alone, or everything that is wrong with them.
func newRuleset(c *Config) (*ruleset, error) { return newSet().make(c) }

// make commits c.
func (s *Set) make(c *Config) (*ruleset, error) {
	d, err := s.replace(c)
	if err != nil {
		return nil, err
	}
	r, _ := s.commit(d)
	return r, nil
}

// all calls yield for every key and value, in no order, until it returns false.
func (m cowMap[K, V]) all(yield func(K, V) bool) {
	for _, shard := range m.shards {
		for k, v := range shard {
			if !yield(k, v) {
				return
			}
		}
	}
}
