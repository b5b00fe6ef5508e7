package nat

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"culvert/integration/need"
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// exporting returns milan with services of pods alone.
func exporting(backends [][]rules.Backend) *Config {
	c := milan()
	c.Services = nil
	for i, list := range backends {
		c.Services = append(c.Services, rules.Service{Name: []string{"web", "dns", "time"}[i],
			Address: netip.AddrFrom4([4]byte{10, 70, 0, byte(20 + i)}), Port: 80,
			Protocol: packet.UDP, OnRemoval: rules.OnRemoval(i % 2), Affinity: rules.Affinity(i % 2), Backends: list})
	}
	return c
}

// Two engines have the same packets. One gets whole configurations, the other only the services
// whose backends have changed: they never differ, new clients and old ones, and a whole
// configuration goes on from there.
func TestAmendIsApply(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	some := func() (list []rules.Backend) {
		for _, i := range r.Perm(9)[:r.IntN(5)] {
			list = append(list, rules.Backend{Address: netip.AddrFrom4([4]byte{10, 200, byte(i % 3), byte(i)}),
				Port: 8080, Weight: r.IntN(3)})
		}
		return list
	}
	backends := [][]rules.Backend{some(), some(), some()}
	whole, part := newEngine(t, exporting(backends)), newEngine(t, exporting(backends))
	forwarded, refused := 0, 0
	for round := range 400 {
		backends = slices.Clone(backends)
		var changed []rules.Service
		for i := range backends {
			if r.IntN(2) == 0 {
				backends[i] = some()
				changed = append(changed, exporting(backends).Services[i])
			}
		}
		need.NoError(t, whole.Apply(exporting(backends)))
		err := error(nil)
		if r.IntN(10) == 0 { // whoever applies a whole one goes on from what was amended
			err = part.Apply(exporting(backends))
		} else if len(changed) > 0 {
			err = part.Amend(changed)
		}
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		for range 30 {
			// old connections too
			source, port := netip.AddrFrom4([4]byte{10, 200, 3, byte(r.IntN(3))}), uint16(1+r.IntN(40))
			destination := netip.AddrFrom4([4]byte{10, 70, 0, byte(20 + r.IntN(3))})
			if sameVerdict(t, whole, part, Tunnel, source, destination, port) {
				forwarded++
			} else {
				refused++
			}
		}
	}
	if forwarded < 1000 || refused < 500 {
		t.Errorf("%d forwarded, %d refused: too few to compare", forwarded, refused)
	}
}

// A gateway's service to which no route leads by itself, or that is not there, is not amended, nor
// is another one beside it.
func TestAmendRefuses(t *testing.T) {
	pods := [][]rules.Backend{{{Address: addr("10.200.1.5"), Port: 80}}, {{Address: addr("10.200.1.6"), Port: 80}}}
	good := exporting([][]rules.Backend{{{Address: addr("10.200.1.7"), Port: 80}}}).Services[0]
	for want, change := range map[string]func(s *rules.Service){
		"service/other 10.70.0.21:80/17: there is none to amend": func(s *rules.Service) { s.Name = "other" },
		"service/dns 10.70.0.21:81/17: there is none to amend":   func(s *rules.Service) { s.Port = 81 },
		"Backends[0].Address: no route leads to 192.0.2.9 yet": func(s *rules.Service) {
			s.Backends[0].Address = addr("192.0.2.9")
		},
		"Backends[0].Address: no route leads to 10.200.1.6 yet": func(s *rules.Service) { s.Backends[0].Via = 9 },
		"Backends[0].Port: 0 is no port":                        func(s *rules.Service) { s.Backends[0].Port = 0 },
		"Frontend: a gateway's service has none": func(s *rules.Service) {
			s.Frontend = &rules.Frontend{}
		},
	} {
		e := newEngine(t, exporting(pods))
		bad := exporting(pods).Services[1]
		bad.Backends = slices.Clone(bad.Backends)
		change(&bad)
		before := e.current()
		if err := e.Amend([]rules.Service{good, bad}); err == nil || !strings.Contains(err.Error(), want) ||
			e.current() != before {
			t.Errorf("%v, want %s", err, want)
		}
	}
	e := newEngine(t, milan()) // whose service has a backend outside the cluster
	s := milan().Services[0]
	s.Backends = s.Backends[:1]
	if err := e.Amend([]rules.Service{s}); err == nil || !strings.Contains(err.Error(), "there is none to amend") {
		t.Error(err)
	}
}
