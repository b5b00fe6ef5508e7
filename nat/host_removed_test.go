package nat_test

import (
	"fmt"
	"testing"
	"time"

	"culvert/integration/need"
	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// When a Service, one of its ports or its node port is deleted, TCP stays with its endpoint and UDP
// ends. The same happens if another Service takes the address and port, whose endpoints get new
// connections. All of this holds after a restart too.
func TestHostServiceRemoved(t *testing.T) {
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
		"taken over":                 {"172.18.0.2", 30080, anotherService, remote},
		"cluster address taken over": {"10.96.0.10", 80, anotherService, remote},
	} {
		for _, protocol := range []uint8{packet.TCP, packet.UDP} {
			for _, restart := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, protocol %d, restart %v", name, protocol, restart), func(t *testing.T) {
					s := serve(t, protocol, test.to, test.port)
					s.change(test.change, restart)
					if protocol == packet.UDP {
						s.ends()
					} else if s.stays() {
						s.next(test.next)
					}
				})
			}
		}
	}
}

// without removes the Services at an address.
func without(gone string) func(*nat.Config) {
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

// anotherService puts a Service with the other backend, which sees the client's address, at the
// same addresses and ports.
func anotherService(c *nat.Config) {
	only(1)(c)
	for i := range c.Services {
		if s := &c.Services[i]; s.Port != 0 {
			s.Name, s.Frontend = "other", &rules.Frontend{External: s.Frontend.External, Local: true}
			s.Backends[0].Local = true
		}
	}
}

// A servedHost has a connection to a Service with one endpoint.
type servedHost struct {
	*testing.T
	e        *nat.Engine
	now      nat.Time
	protocol uint8
	to       string
	port     uint16
	was      nattest.View // the first request, as the endpoint gets it
}

func serve(t *testing.T, protocol uint8, to string, port uint16) *servedHost {
	s := &servedHost{T: t, now: start, protocol: protocol, to: to, port: port}
	s.e = host(t, only(0), s.speak)
	_, s.was, _ = forwarded(t, s.e, rules.HostLink, s.request(5000, nattest.SYN), s.now)
	forwarded(t, s.e, rules.HostLink, s.answer(), s.now)
	return s
}

// speak makes all Services use the protocol.
func (s *servedHost) speak(c *nat.Config) {
	for i := range c.Services {
		if c.Services[i].Port != 0 {
			c.Services[i].Protocol = s.protocol
		}
	}
}

// request is a packet of a client that is masqueraded.
func (s *servedHost) request(port uint16, flags uint8) []byte {
	const client = "198.51.100.9"
	if s.protocol == packet.UDP {
		return udp(client, s.to, port, s.port).Bytes()
	}
	return tcp(client, s.to, port, s.port, flags, "").Bytes()
}

func (s *servedHost) answer() []byte {
	to := s.was.Source.String()
	if s.protocol == packet.UDP {
		return udp(local, to, 8080, s.was.SourcePort).Bytes()
	}
	return tcp(local, to, 8080, s.was.SourcePort, nattest.SYN|nattest.ACK, "").Bytes()
}

// change applies another configuration, or starts with it and the records of the connections.
func (s *servedHost) change(change func(*nat.Config), restart bool) {
	s.Helper()
	s.now = start.Add(time.Second)
	if next := vienna(change, only(0), s.speak); restart {
		saved := write(s.e.Records(0, func(nat.Link) string { return "host" }), start)
		var err error
		s.e, err = nat.New([16]byte{4, 5}, next)
		need.NoError(s, err)
		read(s.e.Restore(func(string) (nat.Link, bool) { return rules.HostLink, true }, s.now), saved)
	} else {
		need.NoError(s, s.e.Apply(next))
	}
	for !s.e.Sweep(s.now) {
	}
}

// ends requires that the endpoint gets no further request.
func (s *servedHost) ends() {
	s.Helper()
	v, out := process(s, s.e, rules.HostLink, s.request(5000, nattest.ACK), s.now)
	if v.Action == nat.Forward && !v.Untracked {
		if got, err := nattest.Check(out[0]); err != nil || got.Destination.String() == local {
			s.Errorf("UDP goes on to %s (%v)", got.Destination, err)
		}
	}
}

// stays requires that the endpoint gets further requests from the same address and port, and that
// its answers come from the Service. It returns whether there was a request.
func (s *servedHost) stays() bool {
	s.Helper()
	v, out := process(s, s.e, rules.HostLink, s.request(5000, nattest.ACK), s.now)
	if v.Action != nat.Forward {
		s.Errorf("TCP: %v %v", v.Action, v.Reason)
		return false
	}
	if got, err := nattest.Check(out[0]); err != nil || got.Destination != s.was.Destination ||
		got.Source != s.was.Source || got.SourcePort != s.was.SourcePort {
		s.Errorf("TCP goes from %s port %d to %s, was from %s port %d to %s (%v)", got.Source, got.SourcePort,
			got.Destination, s.was.Source, s.was.SourcePort, s.was.Destination, err)
	}
	if v, out := process(s, s.e, rules.HostLink, s.answer(), s.now); v.Action != nat.Forward {
		s.Errorf("the answer: %v %v", v.Action, v.Reason)
	} else if got, err := nattest.Check(out[0]); err != nil || got.Source.String() != s.to || got.SourcePort != s.port {
		s.Errorf("the answer comes from %s port %d (%v)", got.Source, got.SourcePort, err)
	}
	return true
}

// next requires that a new connection goes to an endpoint, or, if it is "", to none.
func (s *servedHost) next(endpoint string) {
	s.Helper()
	v, out := process(s, s.e, rules.HostLink, s.request(5001, nattest.SYN), s.now)
	if endpoint == "" {
		if v.Action != nat.Forward || v.Untracked {
			return
		}
		endpoint = s.to
	}
	if got, err := nattest.Check(out[0]); err != nil || got.Destination.String() != endpoint {
		s.Errorf("a new connection goes to %s, want %s (%v)", got.Destination, endpoint, err)
	}
}
