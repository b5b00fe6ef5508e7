package rules

import (
	"fmt"
	"net/netip"
	"testing"
)

// A pod that goes and one that comes concern nobody else, neither those whose routes are of the same resource nor those of resources
// that come before or after it.
func TestAffectedByOnePod(t *testing.T) {
	s := NewSet()
	put := func(node int, pods ...string) *Affected {
		d := s.Draft()
		r := PolicyRule{In: "liqo-node"}
		for _, p := range pods {
			r.Routes = append(r.Routes, PolicyRoute{Destination: netip.PrefixFrom(netip.MustParseAddr(p), 32), Device: tunnelDevice})
		}
		key := Key{Kind: "RouteConfiguration", Name: fmt.Sprint("node", node)}
		if err := d.Put(key, Resource{Order: int64(node), Routing: []PolicyTable{{Name: key.Name, Rules: []PolicyRule{r}}}}); err != nil {
			t.Fatal(err)
		}
		_, a := s.Commit(d)
		return a
	}
	d := s.Draft()
	if err := d.Put(Key{Kind: "device"}, Resource{Device: &Device{Name: "liqo-node", Address: PairOf(netip.MustParseAddr("10.80.0.1")), Link: 1}}); err != nil {
		t.Fatal(err)
	}
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
