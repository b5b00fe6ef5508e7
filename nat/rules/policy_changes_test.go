package rules

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"culvert/integration/need"
)

// When a pod of a node comes and another goes, the routes of all others stay the same in memory.
func TestRoutesThatStayAreShared(t *testing.T) {
	routes := func(from, to int) Resource {
		r := Resource{Routing: []PolicyTable{{Name: "node", Rules: []PolicyRule{{}}}}}
		for i := from; i < to; i++ {
			at := netip.PrefixFrom(pod(i), 32)
			r.Routing[0].Rules[0].Routes = append(r.Routing[0].Rules[0].Routes, PolicyRoute{Destination: at,
				Device: tunnelDevice})
		}
		return r
	}
	s := NewSet()
	commit := func(name string, r Resource) *Ruleset {
		d := s.Draft()
		need.NoError(t, d.Put(Key{Kind: "kind", Name: name}, r))
		committed, _ := s.Commit(d)
		return committed
	}
	commit("others", routes(1000, 5000))
	before := commit("node", routes(0, 50))
	after := commit("node", routes(1, 51))
	for i := range 51 {
		at := netip.PrefixFrom(pod(i), 32)
		was, had := before.policy.plain.all.Get(at)
		is, has := after.policy.plain.all.Get(at)
		if had != (i < 50) || has != (i > 0) {
			t.Errorf("route to %v: %v before and %v after", at, had, has)
		}
		if had && has && was.offers[0] != is.offers[0] {
			t.Errorf("route to %v is made anew", at)
		}
	}
}

// edited returns a resource with one small change of its policy tables.
func (m ruleMaker) edited(r *Resource) Resource {
	c := Resource{Order: r.Order}
	for _, t := range r.Routing {
		t.Rules = slices.Clone(t.Rules)
		for i := range t.Rules {
			t.Rules[i].Routes = slices.Clone(t.Rules[i].Routes)
		}
		c.Routing = append(c.Routing, t)
	}
	t := &c.Routing[m.IntN(len(c.Routing))]
	if len(t.Rules) == 0 {
		c.Routing = m.routing()
		return c
	}
	i := m.IntN(len(t.Rules))
	rule := &t.Rules[i]
	switch m.IntN(8) {
	case 0:
		c.Order = int64(m.IntN(3))
	case 1:
		rule.Priority = one(m, 0, 100, 150, 200)
	case 2:
		rule.Mark = uint32(m.IntN(3))
	case 3:
		t.Rules = slices.Delete(t.Rules, i, i+1)
	case 4:
		j := m.IntN(len(t.Rules))
		t.Rules[i], t.Rules[j] = t.Rules[j], t.Rules[i]
	case 5:
		rule.Routes = append(rule.Routes, PolicyRoute{Destination: m.prefix(false).Masked(),
			Device: one(m, randomDevices[0], tunnelDevice)})
	default:
		if n := len(rule.Routes); n > 0 {
			rule.Routes = slices.Delete(rule.Routes, m.IntN(n), n)
		}
	}
	return c
}

// However policy tables came to be what they are, they lead as those do that were made so.
func TestEditedRoutesLeadAsNewOnes(t *testing.T) {
	m := newRuleMaker(seedOfRules(t))
	for sequence := range 25 {
		s, in := NewSet(), map[Key]Resource{}
		if _, err := s.make(randomNodes()); err != nil {
			t.Fatal(err)
		}
		for edit := range 30 {
			key := Key{Kind: "kind", Name: fmt.Sprint(m.IntN(3))}
			r, there := in[key]
			if there {
				r = m.edited(&r)
			} else {
				r = Resource{Routing: m.routing()}
			}
			d := s.Draft()
			need.NoError(t, d.Put(key, r))
			in[key] = r
			got, _ := s.Commit(d)

			fresh := NewSet()
			if _, err := fresh.make(randomNodes()); err != nil {
				t.Fatal(err)
			}
			d = fresh.Draft()
			for key, r := range in {
				need.NoError(t, d.Put(key, r))
			}
			want, _ := fresh.Commit(d)
			if got, want := routesOf(s), routesOf(fresh); !slices.Equal(got, want) {
				t.Fatalf("sequence %d, edit %d: routes\n%v\nwant\n%v", sequence, edit, got, want)
			}
			for range 20 {
				v, mark := m.view(), uint32(m.IntN(4))
				if got, want := decided(got, v, mark), decided(want, v, mark); got != want {
					t.Fatalf("sequence %d, edit %d, %+v:\n%s\nwant\n%s", sequence, edit, v, got, want)
				}
			}
		}
	}
}

// routesOf returns the routes of a set in the order of rules.
func routesOf(s *Set) []RouteInfo {
	var all []RouteInfo
	s.Routes().Each(func(l Link) string { return fmt.Sprint(l) }, func(r *RouteInfo) bool {
		all = append(all, *r)
		return true
	})
	return all
}
