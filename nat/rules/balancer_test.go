package rules

import (
	"net/netip"
	"testing"
)

// TestStanding: a backend's standing and place say which new clients it gets by which policy;
// whatever they are, it keeps its own.
func TestStanding(t *testing.T) {
	backend := func(n byte, local bool, s Eligibility) Backend {
		return Backend{Address: netip.AddrFrom4([4]byte{10, 244, 0, n}), Port: 80, Local: local, Eligibility: s}
	}
	all := []Backend{
		backend(1, false, EligibleAll), backend(2, true, EligibleAll), backend(3, true, EligibleLocal),
		backend(4, true, EligibleNone), backend(5, false, EligibleNone),
	}
	b := NewBalancer(Service{Backends: all, Frontend: &Frontend{Local: true}})
	for _, test := range []struct {
		name string
		of   *Balancer
		want map[byte]bool
	}{{"Cluster", b, map[byte]bool{1: true, 2: true}}, {"Local", b.local, map[byte]bool{2: true, 3: true}}} {
		chosen := map[byte]bool{}
		for hash := range uint64(100) {
			chosen[test.of.Service.Backends[test.of.Choose(hash)].Address.As4()[3]] = true
		}
		for _, backend := range all {
			n := backend.Address.As4()[3]
			if chosen[n] != test.want[n] {
				t.Errorf("%s: backend %d gets new clients: %v", test.name, n, chosen[n])
			}
			at := netip.AddrPortFrom(backend.Address, backend.Port)
			if !test.of.Has(at) {
				t.Errorf("%s: backend %d is not there", test.name, n)
			}
			if _, ok := test.of.Find(backendSeed(at)); ok != test.want[n] {
				t.Errorf("%s: backend %d is found for a client that comes again: %v", test.name, n, ok)
			}
		}
	}
	if !b.local.elsewhere {
		t.Error("nobody is elsewhere")
	}
	if NewBalancer(Service{Backends: all[3:], Frontend: &Frontend{Local: true}}).local.elsewhere {
		t.Error("somebody who gets no new clients is elsewhere")
	}
}
