package nat_test

import (
	"testing"
	"time"

	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// When a Service, one of its ports or its node port is deleted, TCP stays with its endpoint and UDP
// ends. The same happens if another Service takes the address and port, whose endpoints get new
// connections. All of this holds after a restart too.
func TestHostServiceRemoved(t *testing.T) {
	const client = "198.51.100.9" // masqueraded
	without := func(gone string) func(*nat.Config) {
		return func(c *nat.Config) {
			var kept []rules.Service
			for _, s := range c.Services {
				if s.Address.String() != gone {
					kept = append(kept, s)
				}
			}
			c.Services = kept
		}
	}
	// another has the other backend, at the same address and port, which sees the client's address.
	another := func(c *nat.Config) {
		only(1)(c)
		for i := range c.Services {
			if s := &c.Services[i]; s.Port != 0 {
				s.Name, s.Frontend = "other", &rules.Frontend{External: s.Frontend.External, Local: true}
				s.Backends[0].Local = true
			}
		}
	}
	for name, test := range map[string]struct {
		to     string
		port   uint16
		change func(*nat.Config)
		next   string // endpoint of the next connection; "": no Service matches
	}{
		"cluster address":            {"10.96.0.10", 80, without("10.96.0.10"), ""},
		"node port":                  {"172.18.0.2", 30080, without("0.0.0.0"), ""},
		"load balancer":              {"203.0.113.7", 80, without("203.0.113.7"), ""},
		"all":                        {"172.18.0.2", 30080, func(c *nat.Config) { c.Services = nil }, ""},
		"taken over":                 {"172.18.0.2", 30080, another, remote},
		"cluster address taken over": {"10.96.0.10", 80, another, remote},
	} {
		for _, protocol := range []uint8{packet.TCP, packet.UDP} {
			for _, restart := range []bool{false, true} {
				of := func(c *nat.Config) {
					for i := range c.Services {
						if s := &c.Services[i]; s.Port != 0 {
							s.Protocol = protocol
						}
					}
				}
				e := host(t, only(0), of)
				request := func(port uint16, first bool) []byte {
					if protocol == packet.UDP {
						return udp(client, test.to, port, test.port).Bytes()
					}
					flags := uint8(nattest.ACK)
					if first {
						flags = nattest.SYN
					}
					return tcp(client, test.to, port, test.port, flags, "").Bytes()
				}
				_, was, _ := forwarded(t, e, rules.HostLink, request(5000, true), start)
				answer := func() []byte {
					if protocol == packet.UDP {
						return udp(local, was.Source.String(), 8080, was.SourcePort).Bytes()
					}
					return tcp(local, was.Source.String(), 8080, was.SourcePort, nattest.SYN|nattest.ACK, "").Bytes()
				}
				forwarded(t, e, rules.HostLink, answer(), start)
				now := start.Add(time.Second)
				if next := vienna(test.change, only(0), of); restart {
					saved := write(e.Records(0, func(nat.Link) string { return "host" }), start)
					var err error
					if e, err = nat.New([16]byte{4, 5}, next); err != nil {
						t.Fatal(err)
					}
					read(e.Restore(func(string) (nat.Link, bool) { return rules.HostLink, true }, now), saved)
				} else if err := e.Apply(next); err != nil {
					t.Fatal(err)
				}
				for !e.Sweep(now) {
				}
				if protocol == packet.UDP {
					if v, out := process(t, e, rules.HostLink, request(5000, false), now); v.Action == nat.Forward &&
						v.Untracked == false {
						if got, err := nattest.Check(out[0]); err != nil || got.Destination.String() == local {
							t.Errorf("%s, restart %v: UDP goes on to %s (%v)", name, restart, got.Destination, err)
						}
					}
					continue
				}
				v, out := process(t, e, rules.HostLink, request(5000, false), now)
				if v.Action != nat.Forward {
					t.Errorf("%s, restart %v: TCP: %v %v", name, restart, v.Action, v.Reason)
					continue
				}
				got, err := nattest.Check(out[0])
				if err != nil || got.Destination != was.Destination || got.Source != was.Source ||
					got.SourcePort != was.SourcePort {
					t.Errorf("%s, restart %v: TCP goes from %s port %d to %s, was from %s port %d to %s (%v)", name,
						restart, got.Source, got.SourcePort,
						got.Destination, was.Source, was.SourcePort, was.Destination, err)
				}
				if v, out := process(t, e, rules.HostLink, answer(), now); v.Action != nat.Forward {
					t.Errorf("%s, restart %v: the answer: %v %v", name, restart, v.Action, v.Reason)
				} else if got, err := nattest.Check(out[0]); err != nil || got.Source.String() != test.to ||
					got.SourcePort != test.port {
					t.Errorf("%s, restart %v: the answer comes from %s port %d (%v)", name, restart, got.Source,
						got.SourcePort, err)
				}
				v, out = process(t, e, rules.HostLink, request(5001, true), now)
				if test.next == "" {
					if v.Action == nat.Forward && !v.Untracked {
						got, err := nattest.Check(out[0])
						if err != nil || got.Destination.String() != test.to {
							t.Errorf("%s, restart %v: a new connection goes to %s (%v)", name, restart,
								got.Destination, err)
						}
					}
				} else if got, err := nattest.Check(out[0]); err != nil || got.Destination.String() != test.next {
					t.Errorf("%s, restart %v: a new connection goes to %s, want %s (%v)", name, restart,
						got.Destination, test.next, err)
				}
			}
		}
	}
}
