package config

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"culvert/nat"
)

// TestPorts: each node has a port of its own, keeps it, and gets it back when it returns. When all
// ports have been used, new nodes get those of nodes that left.
func TestPorts(t *testing.T) {
	named := func(from, to int) (nodes []Node) {
		for i := from; i < to; i++ {
			nodes = append(nodes, Node{Name: fmt.Sprint(i)})
		}
		return nodes
	}
	distinct := func(p Links, n int) {
		t.Helper()
		seen := map[nat.Link]bool{}
		for name, link := range p.ByName {
			if link == 0 || link > maxNodes || seen[link] {
				t.Fatalf("%s has link %d", name, link)
			}
			seen[link] = true
		}
		if len(seen) != n || len(p.last) > maxNodes {
			t.Fatalf("%d nodes, want %d; %d remembered", len(seen), n, len(p.last))
		}
	}
	first := Links{}.Assign(named(0, 3))
	distinct(first, 3)
	others := first.Assign(named(1, 5))
	distinct(others, 4)
	back := others.Assign(named(0, 5))
	distinct(back, 5)
	for name, link := range others.ByName {
		if back.ByName[name] != link {
			t.Errorf("%s had port %d, has %d", name, link, back.ByName[name])
		}
	}
	if back.ByName["0"] != first.ByName["0"] {
		t.Errorf("0 had port %d, comes back with %d", first.ByName["0"], back.ByName["0"])
	}
	full := back.Assign(named(0, maxNodes))
	distinct(full, maxNodes)
	next := full.Assign(named(100, maxNodes+100))
	distinct(next, maxNodes)
	for i := 100; i < maxNodes; i++ {
		if name := fmt.Sprint(i); next.ByName[name] != full.ByName[name] {
			t.Fatalf("%s had port %d, has %d", name, full.ByName[name], next.ByName[name])
		}
	}
	distinct(next.Assign(named(0, 200)), 200)
}

// TestDiffer: what a list loses and gains, wherever that is in it.
func TestDiffer(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	some := func() []int { return r.Perm(12)[:r.IntN(12)] }
	for range 2000 {
		was, is := some(), some()
		if r.IntN(2) == 0 {
			slices.Sort(was)
			slices.Sort(is)
		}
		gone, added := differ(was, is)
		for n := range 12 {
			in := func(list []int) bool { return slices.Contains(list, n) }
			if in(gone) != (in(was) && !in(is)) || in(added) != (in(is) && !in(was)) {
				t.Fatalf("from %v to %v: %v gone, %v added", was, is, gone, added)
			}
		}
	}
}
