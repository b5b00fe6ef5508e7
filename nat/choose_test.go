package nat_test

import (
	"math"
	"net/netip"
	"testing"

	"culvert/integration/need"
	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// Choose predicts for a connection what Process does with its first packet: which clients are
// admitted, and which backend answers.
func TestChooseIsProcess(t *testing.T) {
	for name, change := range map[string]func(*nat.Config){
		"two backends": func(*nat.Config) {}, "none": none, "none here": only(1),
		"by weight": func(c *nat.Config) { c.Services[2].Backends[1].Weight = 7 },
		"affinity": func(c *nat.Config) {
			for i := range c.Services {
				c.Services[i].Affinity = rules.AffinityClientIP
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			processes, chooses := host(t, change), host(t, change)
			for _, from := range []string{"198.51.100.9", "203.0.113.99", "10.244.1.9", "172.18.0.2"} {
				for to, port := range map[string]uint16{"172.18.0.2": 30080, "10.244.1.1": 30081, "203.0.113.7": 80,
					"10.96.0.10": 80, "10.96.0.99": 80} {
					for i := range uint16(16) {
						var p packet.Packet
						p.Parse(tcp(from, to, 40000+i, port, nattest.SYN, "").Bytes())
						v := processes.Process(&p, rules.HostLink, start)
						want := netip.AddrPort{}
						if v.Action == nat.Forward {
							var to packet.Tuple
							p.Tuple(&to, rules.HostLink)
							want = netip.AddrPortFrom(to.Destination(), to.DestinationPort())
						}
						client, service := netip.AddrPortFrom(address(from), 40000+i),
							netip.AddrPortFrom(address(to), port)
						got, reason := chooses.Choose(client, service, packet.TCP, nil, start)
						if got != want || reason != v.Reason {
							t.Fatalf("%s asks %s: %v (%v), and its first packet goes to %v (%v)", client, service, got,
								reason, want, v.Reason)
						}
					}
				}
			}
		})
	}
}

// A backend that has failed is not chosen again while there are others, whose weights still count.
// The backend remembered for a client is the one that it got last.
func TestChooseAnother(t *testing.T) {
	at := func(n byte) netip.AddrPort { return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 2, n}), 8080) }
	weights := []int{1000, 1, 3}
	e := host(t, func(c *nat.Config) {
		s := &c.Services[2]
		s.Affinity, s.Backends = rules.AffinityClientIP, nil
		for i, w := range weights {
			s.Backends = append(s.Backends, rules.Backend{Address: at(byte(i)).Addr(), Port: 8080, Weight: w})
		}
	})
	service := netip.MustParseAddrPort("172.18.0.2:30080")
	const clients = 4000
	got := map[netip.AddrPort]int{}
	for i := range clients {
		client := netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)}), 4000)
		backend, reason := e.Choose(client, service, packet.TCP, []netip.AddrPort{at(0)}, start)
		if reason != nat.ReasonNone {
			t.Fatal(reason)
		}
		got[backend]++
		client = netip.AddrPortFrom(client.Addr(), 4001)
		if again, _ := e.Choose(client, service, packet.TCP, nil, start); again != backend {
			t.Fatalf("%s got %v, and then %v", client, backend, again)
		}
	}
	for i, share := range []float64{0, 0.25, 0.75} {
		want := share * clients
		if d := math.Abs(float64(got[at(byte(i))]) - want); d > 5*math.Sqrt(want) {
			t.Errorf("backend %d: %d connections, want %.0f", i, got[at(byte(i))], want)
		}
	}
	client := netip.MustParseAddrPort("198.51.100.9:4000")
	if last, reason := e.Choose(client, service, packet.TCP, []netip.AddrPort{at(1), at(2)}, start); last != at(0) {
		t.Errorf("the last backend is %v (%v)", last, reason)
	}
	if _, reason := e.Choose(client, service, packet.TCP, []netip.AddrPort{at(0), at(1), at(2)},
		start); reason != nat.ReasonNoBackend {
		t.Errorf("after all have failed: %v", reason)
	}
}

// TCP connections survive the removal of their backend and of their Service; UDP connections
// survive neither. None survives a rule against its client.
func TestKeeps(t *testing.T) {
	service, backend := netip.MustParseAddrPort("203.0.113.7:80"), netip.MustParseAddrPort(local+":8080")
	client := netip.MustParseAddrPort("198.51.100.9:4000")
	for _, test := range []struct {
		name   string
		change func(*nat.Config)
		kept   map[uint8]bool
	}{
		{"as it was", func(*nat.Config) {}, map[uint8]bool{packet.TCP: true, packet.UDP: true}},
		{"leaving", func(c *nat.Config) {
			for i := range c.Services {
				for j := range c.Services[i].Backends {
					c.Services[i].Backends[j].Eligibility = rules.EligibleNone
				}
			}
		}, map[uint8]bool{packet.TCP: true, packet.UDP: true}},
		{"no backend", none, map[uint8]bool{packet.TCP: true}},
		{"another backend", only(1), map[uint8]bool{packet.TCP: true}},
		{"no service", func(c *nat.Config) { c.Services = c.Services[:2] }, map[uint8]bool{packet.TCP: true}},
		{"source ranges", func(c *nat.Config) {
			for i := range c.Services {
				c.Services[i].Frontend.Sources = []netip.Prefix{prefix("192.0.2.0/24")}
			}
		}, nil},
	} {
		for _, protocol := range []uint8{packet.TCP, packet.UDP} {
			of := func(c *nat.Config) {
				for i := range c.Services {
					if s := &c.Services[i]; s.Port != 0 {
						s.Protocol = protocol
					}
				}
			}
			e := host(t, of)
			if got, reason := e.Choose(client, service, protocol, nil, start); got != backend {
				t.Fatalf("%v (%v)", got, reason)
			}
			need.NoError(t, e.Apply(vienna(of, test.change)))
			if kept := e.Keeps(client, service, protocol, backend); kept != test.kept[protocol] {
				t.Errorf("%s, protocol %d: kept is %v", test.name, protocol, kept)
			}
		}
	}
	if host(t).Keeps(client, netip.MustParseAddrPort("10.96.0.99:80"), packet.UDP, backend) {
		t.Error("a connection to nowhere goes on")
	}
}
