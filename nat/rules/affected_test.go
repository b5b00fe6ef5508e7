package rules

import (
	"fmt"
	"net/netip"
	"testing"

	"culvert/integration/need"
)

// A pod that goes and one that comes concern nobody else, neither those whose routes are of the
// same resource nor those of resources that come before or after it.
func TestAffectedByOnePod(t *testing.T) {
	s := NewSet()
	put := func(node int, pods ...string) *Affected {
		d := s.Draft()
		r := PolicyRule{In: "liqo-node"}
		for _, p := range pods {
			r.Routes = append(r.Routes, PolicyRoute{Destination: netip.PrefixFrom(netip.MustParseAddr(p), 32),
				Device: tunnelDevice})
		}
		key := Key{Kind: "RouteConfiguration", Name: fmt.Sprint("node", node)}
		need.NoError(t, d.Put(key, Resource{Order: int64(node),
			Routing: []PolicyTable{{Name: key.Name, Rules: []PolicyRule{r}}}}))
		_, a := s.Commit(d)
		return a
	}
	d := s.Draft()
	need.NoError(t, d.Put(Key{Kind: "device"},
		Resource{Device: &Device{Name: "liqo-node", Address: PairOf(netip.MustParseAddr("10.80.0.1")), Link: 1}}))
	s.Commit(d)
	put(1, "10.1.1.1", "10.1.1.2")
	put(2, "10.1.2.1", "10.1.2.2", "10.1.2.3")
	put(3, "10.1.3.1", "10.1.3.2")
	a := put(2, "10.1.2.2", "10.1.2.3", "10.1.2.4")
	for pod, want := range map[string]bool{
		"10.1.1.1": false, "10.1.2.1": true, "10.1.2.2": false, "10.1.2.3": false, "10.1.2.4": true, "10.1.3.2": false,
	} {
		if got := a.Contains(netip.MustParseAddr(pod)); got != want {
			t.Errorf("%s is concerned: %v", pod, got)
		}
	}
	if a.All || len(a.Links) > 0 || len(a.Marks) > 0 {
		t.Errorf("concerned: all %v, links %v, marks %v", a.All, a.Links, a.Marks)
	}
}

// What is added to is told apart as long as that is not much. Of much, nothing is missed, and
// packets do not wait until all is copied.
func TestAffectedMuch(t *testing.T) {
	pod := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}) }
	for _, n := range []int{1, maxAdded, maxAdded + 1, maxAffected - 1} {
		much := newAffected(false)
		for i := range n {
			much.prefix(netip.PrefixFrom(pod(i), 32))
		}
		much.prefix(netip.MustParsePrefix("fd00:1::/64"))
		var all Affected
		all.prefix(netip.MustParsePrefix("10.9.0.0/16"))
		all.Add(much)
		for i := range n {
			if !all.Contains(pod(i)) {
				t.Fatalf("of %d, %v is missed", n, pod(i))
			}
		}
		for address, want := range map[string]bool{"10.9.3.3": true, "10.8.0.1": false, "fd00:1::7": true,
			"fd00:2::": false} {
			if got := all.Contains(netip.MustParseAddr(address)); got != want {
				t.Errorf("of %d, %s is concerned: %v", n, address, got)
			}
		}
		if size := all.Prefixes.Size(); size > maxAdded+1 {
			t.Errorf("of %d, %d are copied", n, size)
		}
	}
	links := newAffected(false)
	for i := range maxAdded + 1 {
		links.link(Link(i))
	}
	var all Affected
	if all.Add(links); !all.All || len(all.Links) > 0 {
		t.Errorf("of %d links, %d are copied", len(links.Links), len(all.Links))
	}
}

// What several commits concern together is what each of them does, and nothing else.
func TestAffectedTogether(t *testing.T) {
	pod := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}) }
	var all Affected
	one, other := newAffected(false), newAffected(false)
	one.prefix(netip.PrefixFrom(pod(1), 32))
	one.link(3)
	other.prefix(netip.MustParsePrefix("10.2.0.0/16"))
	other.prefix(netip.MustParsePrefix("fd00::/64"))
	other.Marks[7] = struct{}{}
	all.Add(one)
	all.Add(other)
	all.Add(newAffected(false))
	for address, want := range map[string]bool{"10.1.0.1": true, "10.1.0.2": false, "10.2.9.9": true, "10.3.0.0": false,
		"fd00::5": true, "fd01::": false} {
		if got := all.Contains(netip.MustParseAddr(address)); got != want {
			t.Errorf("%s is concerned: %v", address, got)
		}
	}
	_, link := all.Links[3]
	_, mark := all.Marks[7]
	if all.All || !link || !mark || len(all.Links)+len(all.Marks) != 2 {
		t.Errorf("all %v, links %v, marks %v", all.All, all.Links, all.Marks)
	}
	if _, changed := one.Marks[7]; changed || one.Contains(netip.MustParseAddr("10.2.0.1")) {
		t.Error("what was added to is another's")
	}
	for i := range maxAffected {
		p := newAffected(false)
		p.prefix(netip.PrefixFrom(pod(i), 32))
		all.Add(p)
	}
	if !all.All {
		t.Errorf("%d prefixes are told apart", all.Prefixes.Size())
	}
	if all.Add(one); !all.All {
		t.Error("all is no longer all")
	}
}
