package nat_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"culvert/integration/need"
	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// vienna is a node with pods of 10.244.0.0/16, its own behind a bridge, and a service at all kinds
// of addresses.
func vienna(change ...func(*nat.Config)) *nat.Config {
	backends := []rules.Backend{{Address: address("10.244.1.5"), Port: 8080, Local: true},
		{Address: address("10.244.2.5"), Port: 8080}}
	frontend := func(a string, port uint16, f rules.Frontend) rules.Service {
		return rules.Service{Name: "web", Address: address(a), Port: port, Protocol: packet.TCP, Backends: backends,
			Frontend: &f}
	}
	c := &nat.Config{MTU: 65535, Config: rules.Config{
		LocalPodCIDRs: []netip.Prefix{prefix("10.244.0.0/16")},
		Host: &rules.Host{
			Addresses:    []netip.Addr{address("172.18.0.2"), address("10.244.1.1")},
			Masquerade:   rules.PairOf(address("172.18.0.2")),
			Ports:        rules.PortRange{First: 61000, Last: 61999},
			ServiceCIDRs: []netip.Prefix{prefix("10.96.0.0/12")},
			Bridged:      []netip.Prefix{prefix("10.244.1.0/24")},
		},
		Services: []rules.Service{
			frontend("10.96.0.10", 80, rules.Frontend{}),
			frontend("10.96.0.11", 80, rules.Frontend{Local: true}),
			frontend("0.0.0.0", 30080, rules.Frontend{External: true}),
			frontend("0.0.0.0", 30081, rules.Frontend{External: true, Local: true}),
			frontend("203.0.113.7", 80, rules.Frontend{External: true, Local: true,
				Sources: []netip.Prefix{prefix("198.51.100.0/24")}}),
			{Name: "other ports", Address: address("10.96.0.10"), Frontend: &rules.Frontend{}},
		},
	}}
	for _, f := range change {
		f(c)
	}
	return c
}

func host(t testing.TB, change ...func(*nat.Config)) *nat.Engine {
	t.Helper()
	e, err := nat.New([16]byte{4, 5}, vienna(change...))
	need.NoError(t, err)
	return e
}

// only keeps one of the two backends.
func only(place int) func(*nat.Config) {
	return func(c *nat.Config) {
		for i := range c.Services {
			if s := &c.Services[i]; len(s.Backends) == 2 {
				s.Backends = s.Backends[place : place+1]
			}
		}
	}
}

func none(c *nat.Config) {
	for i := range c.Services {
		c.Services[i].Backends = nil
	}
}

const local, remote = "10.244.1.5", "10.244.2.5"

// The client decides which backends there are and which source they see, as with kube-proxy
// (pkg/proxy/nftables: the chains service, external and their masquerade marks).
func TestHostWhoAsks(t *testing.T) {
	const outside, pod, podThere, process = "198.51.100.9", "10.244.1.9", "10.244.2.9", "172.18.0.2"
	for _, test := range []struct {
		name, from, to string
		port           uint16
		backends       []string // seen in 64 tries
		masqueraded    bool
	}{
		{"pod to a cluster address", podThere, "10.96.0.10", 80, []string{local, remote}, false},
		{"process of the node to a cluster address", process, "10.96.0.10", 80, []string{local, remote}, true},
		{"host outside to a cluster address", outside, "10.96.0.10", 80, []string{local, remote}, true},
		{"pod, internal policy Local", podThere, "10.96.0.11", 80, []string{local}, false},
		{"process, internal policy Local", process, "10.96.0.11", 80, []string{local}, true},
		{"outside to a node port", outside, "172.18.0.2", 30080, []string{local, remote}, true},
		{"outside to a node port at another address", outside, "10.244.1.1", 30080, []string{local, remote}, true},
		{"pod to a node port", podThere, "172.18.0.2", 30080, []string{local, remote}, true},
		{"outside to a node port, external policy Local", outside, "172.18.0.2", 30081, []string{local}, false},
		{"pod to a node port, external policy Local", podThere, "172.18.0.2", 30081, []string{local, remote}, false},
		{"process to a node port, external policy Local", process, "172.18.0.2", 30081, []string{local, remote}, true},
		{"outside in the source ranges", outside, "203.0.113.7", 80, []string{local}, false},
		{"pod and backend on one bridge", pod, "10.96.0.11", 80, []string{local}, true},
		{"backend that asks itself", local, "10.96.0.11", 80, []string{local}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			e, seen := host(t), map[string]bool{}
			for i := range uint16(64) {
				request := tcp(test.from, test.to, 40000+i, test.port, nattest.SYN, "")
				v, got, _ := forwarded(t, e, rules.HostLink, request.Bytes(), start)
				if v.Out != rules.HostLink {
					t.Fatalf("goes to link %d", v.Out)
				}
				backend := got.Destination.String()
				seen[backend] = true
				source, port := test.from, got.SourcePort
				if test.masqueraded {
					source = "172.18.0.2"
				}
				expect(t, got, source, backend)
				if port < 61000 || port > 61999 || got.DestinationPort != 8080 {
					t.Fatalf("ports %d > %d", port, got.DestinationPort)
				}
				answer := tcp(backend, source, 8080, port, nattest.SYN|nattest.ACK, "")
				_, back, _ := forwarded(t, e, rules.HostLink, answer.Bytes(), start)
				expect(t, back, test.to, test.from)
				if back.SourcePort != test.port || back.DestinationPort != 40000+i {
					t.Fatalf("answer's ports %d > %d", back.SourcePort, back.DestinationPort)
				}
			}
			if len(seen) != len(test.backends) || !seen[test.backends[0]] ||
				!seen[test.backends[len(test.backends)-1]] {
				t.Errorf("backends %v, want %v", seen, test.backends)
			}
		})
	}
}

// A client keeps the source port that it has asked for where a pod sees its address, and a process
// of the node a privileged one. Other clients' privileged ports stay privileged. What the kernel
// could not tell from other packets gets one of the node's ports, as does a port that is taken.
func TestHostSourcePorts(t *testing.T) {
	const outside, pod, process = "198.51.100.9", "10.244.2.9", "172.18.0.2"
	privileged, given := [2]uint16{512, 1023}, [2]uint16{61000, 61999}
	is := func(port uint16) [2]uint16 { return [2]uint16{port, port} }
	for _, test := range []struct {
		name, from, to string
		udp            bool
		own, port      uint16
		backend        string
		want           [2]uint16
	}{
		{"pod", pod, "10.96.0.10", false, 700, 80, remote, is(700)},
		{"pod, not privileged", pod, "10.96.0.10", false, 1024, 80, remote, given},
		{"pod, UDP", pod, "10.96.0.10", true, 5060, 80, remote, is(5060)},
		{"pod, UDP, the last", pod, "10.96.0.10", true, 32767, 80, remote, is(32767)},
		{"pod, UDP, one of the kernel's choice", pod, "10.96.0.10", true, 32768, 80, remote, given},
		{"process", process, "10.96.0.10", false, 700, 80, remote, is(700)},
		{"process, UDP", process, "10.96.0.10", true, 67, 80, remote, is(67)},
		{"process, UDP, not privileged", process, "10.96.0.10", true, 5060, 80, remote, given},
		{"outside", outside, "172.18.0.2", false, 700, 30080, remote, privileged},
		{"outside, UDP", outside, "172.18.0.2", true, 67, 30080, remote, privileged},
		{"outside, policy Local", outside, "172.18.0.2", true, 67, 30081, local, is(67)},
		{"pod behind the endpoint's bridge", "10.244.1.9", "10.96.0.10", false, 700, 80, local, privileged},
		{"pod to an endpoint that is none", pod, "10.96.0.10", false, 700, 80, "192.0.2.9", given},
		{"process to an endpoint that is none", process, "10.96.0.10", false, 700, 80, "192.0.2.9", given},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := host(t, func(c *nat.Config) {
				for i := range c.Services {
					if s := &c.Services[i]; len(s.Backends) > 0 {
						s.Backends = []rules.Backend{{Address: address(test.backend), Port: 8080,
							Local: test.backend == local}}
						if test.udp {
							s.Protocol = packet.UDP
						}
					}
				}
			})
			send := func(from, to string, own, port uint16) *nattest.View {
				t.Helper()
				b := tcp(from, to, own, port, nattest.SYN, "").Bytes()
				if test.udp {
					b = udp(from, to, own, port).Bytes()
				}
				_, got, _ := forwarded(t, e, rules.HostLink, b, start)
				return &got
			}
			seen := send(test.from, test.to, test.own, test.port)
			if p := seen.SourcePort; p < test.want[0] || p > test.want[1] {
				t.Errorf("the endpoint sees %d, want %v", p, test.want)
			}
			back := send(test.backend, seen.Source.String(), 8080, seen.SourcePort)
			if expect(t, *back, test.to, test.from); back.DestinationPort != test.own {
				t.Errorf("the answer goes to port %d", back.DestinationPort)
			}
		})
	}
}

// Two Services have one endpoint: a client that uses one port for both keeps it for the first.
// Packets to a privileged port that answer no connection belong to the node's own processes.
func TestHostSourcePortTaken(t *testing.T) {
	const pod = "10.244.2.9"
	e, seen := host(t, only(0)), []uint16{}
	for _, to := range []string{"10.96.0.10", "10.96.0.11"} {
		_, got, _ := forwarded(t, e, rules.HostLink, tcp(pod, to, 700, 80, nattest.SYN, "").Bytes(), start)
		_, back, _ := forwarded(t, e, rules.HostLink, tcp(local, pod, 8080, got.SourcePort, nattest.SYN|nattest.ACK,
			"").Bytes(), start)
		if expect(t, back, to, pod); back.DestinationPort != 700 {
			t.Errorf("%s answers to port %d", to, back.DestinationPort)
		}
		seen = append(seen, got.SourcePort)
	}
	if seen[0] != 700 || seen[1] < 61000 {
		t.Errorf("the endpoint sees %v", seen)
	}
	_, got, _ := forwarded(t, e, rules.HostLink, tcp(local, "172.18.0.2", 8080, 701, nattest.SYN|nattest.ACK,
		"").Bytes(), start)
	expect(t, got, local, "172.18.0.2")
}

// Packets to no service are refused, dropped or forwarded unchanged.
func TestHostUnserved(t *testing.T) {
	for _, test := range []struct {
		name, from, to string
		port           uint16
		change         func(*nat.Config)
		want           nat.Reason // ReasonNone: it is forwarded
		told           packet.Refusal
	}{
		{"no endpoint at all", "10.244.2.9", "10.96.0.10", 80, none, nat.ReasonNoBackend, packet.Reset},
		{"no endpoint at all, policy Local", "198.51.100.9", "172.18.0.2", 30081, none, nat.ReasonNoBackend,
			packet.Reset},
		{"no local endpoint, internal policy Local", "10.244.2.9", "10.96.0.11", 80, only(1), nat.ReasonNoBackend,
			packet.NoRefusal},
		{"no local endpoint, external policy Local", "198.51.100.9", "172.18.0.2", 30081, only(1), nat.ReasonNoBackend,
			packet.NoRefusal},
		{"another port of a cluster address", "10.244.2.9", "10.96.0.10", 81, nil, nat.ReasonNoBackend, packet.Reset},
		{"a cluster address that no service has", "10.244.2.9", "10.96.0.99", 80, nil, nat.ReasonNoMapping,
			packet.NoRefusal},
		{"outside of the source ranges", "192.0.2.1", "203.0.113.7", 80, nil, nat.ReasonFiltered, packet.NoRefusal},
		{"an answer to a masqueraded connection that is over", "10.244.2.5", "172.18.0.2", 61005, nil,
			nat.ReasonNoMapping, packet.NoRefusal},
		{"a pod's answer to a probe", "10.244.1.5", "172.18.0.2", 41000, nil, nat.ReasonNone, packet.NoRefusal},
		{"a pod to a pod", "10.244.1.5", "10.244.2.9", 41000, nil, nat.ReasonNone, packet.NoRefusal},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := host(t, func(c *nat.Config) {
				if test.change != nil {
					test.change(c)
				}
			})
			b := tcp(test.from, test.to, 8080, test.port, nattest.SYN, "").Bytes()
			if test.want == nat.ReasonNone {
				_, got, _ := forwarded(t, e, rules.HostLink, b, start)
				expect(t, got, test.from, test.to)
				if n := e.Stats().Connections; n != 0 {
					t.Errorf("it made %d connections", n)
				}
				return
			}
			v := dropped(t, e, rules.HostLink, b, start, test.want)
			if v.Refusal != test.told {
				t.Errorf("refusal %d, want %d", v.Refusal, test.told)
			}
		})
	}
}

// A refusal comes from the address that was asked: from no other would the kernel accept it on the
// device.
func TestHostRefusesInTheNameOfTheService(t *testing.T) {
	e := host(t, none)
	b := udp("10.244.2.9", "10.96.0.10", 5000, 80).Bytes()
	v := dropped(t, e, rules.HostLink, b, start, nat.ReasonNoBackend)
	got, err := nattest.Check(answer(t, e, rules.HostLink, b, v, start))
	need.NoError(t, err)
	expect(t, got, "10.96.0.10", "10.244.2.9")
}

// A range of 100 ports serves 93 connections to each backend's port, and the next is dropped.
func TestHostPortsRunOut(t *testing.T) {
	e := host(t, only(1), func(c *nat.Config) { c.Host.Ports.Last = 61099 })
	for i := range uint16(31) { // one client gets a third
		forwarded(t, e, rules.HostLink, tcp("198.51.100.9", "172.18.0.2", 2000+i, 30080, nattest.SYN,
			"").Bytes(), start)
	}
	seen := 0
	for i := range 200 {
		v, _ := process(t, e, rules.HostLink, tcp(fmt.Sprintf("198.51.100.%d", 10+i), "172.18.0.2", 2000, 30080,
			nattest.SYN, "").Bytes(), start)
		if v.Action == nat.Forward {
			seen++
		} else if v.Reason != nat.ReasonPortShare && v.Reason != nat.ReasonPortExhausted {
			t.Fatalf("dropped for %v", v.Reason)
		}
	}
	if got := 31 + seen; got != 93 {
		t.Errorf("%d connections", got)
	}
}

// When an endpoint is removed, UDP finds another with its next packet, and TCP stays, whether the
// whole configuration is applied or only the change.
func TestHostEndpointLeaves(t *testing.T) {
	for _, protocol := range []uint8{packet.TCP, packet.UDP} {
		both := func(c *nat.Config) {
			for i := range c.Services {
				if s := &c.Services[i]; s.Port != 0 {
					s.Protocol = protocol
				}
			}
		}
		for _, to := range []struct {
			address string
			port    uint16
			amend   bool
		}{{"10.96.0.10", 80, false}, {"10.96.0.10", 80, true}, {"172.18.0.2", 30080, false},
			{"172.18.0.2", 30080, true}} {
			e := host(t, both)
			send := func(now nat.Time) string {
				b := udp("10.244.2.9", to.address, 5000, to.port).Bytes()
				if protocol == packet.TCP {
					flags := uint8(nattest.SYN)
					if now > start {
						flags = nattest.ACK
					}
					b = tcp("10.244.2.9", to.address, 5000, to.port, flags, "").Bytes()
				}
				_, got, _ := forwarded(t, e, rules.HostLink, b, now)
				return got.Destination.String()
			}
			was, leaves := send(start), 0
			if was == local {
				leaves = 1
			}
			next := vienna(both, only(leaves))
			err := error(nil)
			if to.amend {
				err = e.Amend(next.Services[:3:3])
			} else {
				err = e.Apply(next)
			}
			need.NoError(t, err)
			is := send(start + nat.Time(time.Second))
			if (is == was) != (protocol == packet.TCP) {
				t.Errorf("protocol %d to %v: %s before, %s after", protocol, to, was, is)
			}
		}
	}
}

// A backend that is no pod of the cluster, as of an imported Service, sees the node unless its
// answers are routed here; then it sees the pod that asks, and still no other client.
func TestHostRouted(t *testing.T) {
	for _, test := range []struct {
		from   string
		routed bool
		sees   string
	}{
		{"10.244.2.9", false, "172.18.0.2"}, {"10.244.2.9", true, "10.244.2.9"}, {"198.51.100.9", true, "172.18.0.2"},
		{"172.18.0.2", true, "172.18.0.2"},
	} {
		e := host(t, func(c *nat.Config) {
			for i := range c.Services {
				if s := &c.Services[i]; len(s.Backends) > 0 {
					s.Backends = []rules.Backend{{Address: address("10.71.0.9"), Port: 80}}
				}
			}
			if test.routed {
				c.Host.Routed = []netip.Prefix{prefix("10.71.0.0/24")}
			}
		})
		_, got, out := forwarded(t, e, rules.HostLink, tcp(test.from, "10.96.0.10", 40000, 80, nattest.SYN,
			"").Bytes(), start)
		if got.Source.String() != test.sees || got.Destination.String() != "10.71.0.9" || got.SourcePort < 61000 {
			t.Errorf("%s, routed %t: %s:%d to %s, want %s", test.from, test.routed, got.Source, got.SourcePort,
				got.Destination, test.sees)
		}
		answer := tcp("10.71.0.9", got.Source.String(), 80, got.SourcePort, nattest.SYN|nattest.ACK, "")
		if _, back, _ := forwarded(t, e, rules.HostLink, answer.Bytes(), start); back.Destination.String() !=
			test.from || back.Source.String() != "10.96.0.10" || len(out) == 0 {
			t.Errorf("%s, routed %t: the answer goes from %s to %s", test.from, test.routed, back.Source,
				back.Destination)
		}
	}
}

// What is amended is one service alone; what is wrong with it, or that there is none of its kind,
// is said, and nothing changes.
func TestHostAmend(t *testing.T) {
	e := host(t, only(0))
	source := uint16(5000)
	sentTo := func(to string, port uint16) string {
		t.Helper()
		source++
		_, got, _ := forwarded(t, e, rules.HostLink, tcp("10.244.2.9", to, source, port, nattest.SYN,
			"").Bytes(), start)
		return got.Destination.String()
	}
	for want, change := range map[string]func(*rules.Service){
		"Services[0].Backends[0].Address": func(s *rules.Service) { s.Backends[0].Address = netip.Addr{} },
		"Services[0].Frontend":            func(s *rules.Service) { s.Frontend = nil },
		"there is none to amend":          func(s *rules.Service) { s.Name = "other" },
	} {
		c := vienna(only(1))
		bad := c.Services[0]
		bad.Backends = append([]rules.Backend(nil), bad.Backends...)
		change(&bad)
		if err := e.Amend([]rules.Service{bad, c.Services[2]}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if got := sentTo("172.18.0.2", 30080); got != local {
		t.Errorf("after what was refused: %s", got)
	}
	prepared, err := e.Prepare(vienna(none))
	if err != nil || prepared == nil {
		t.Fatal(err)
	}
	need.NoError(t, e.Amend(vienna(only(1)).Services[:1]))
	if got := sentTo("10.96.0.10", 80); got != remote {
		t.Errorf("what was amended: %s", got)
	}
	if got := sentTo("172.18.0.2", 30080); got != local {
		t.Errorf("another port: %s", got)
	}
	need.NoError(t, e.Apply(vienna(only(1))))
	if got := sentTo("172.18.0.2", 30080); got != remote {
		t.Errorf("what was applied then: %s", got)
	}
}

// All addresses of a service share the memory of clients.
func TestHostAffinity(t *testing.T) {
	for i := range 16 {
		client := fmt.Sprintf("198.51.100.%d", i+1)
		e := host(t, func(c *nat.Config) {
			for i := range c.Services {
				if s := &c.Services[i]; s.Port != 0 {
					s.Affinity = rules.AffinityClientIP
				}
			}
		})
		_, first, _ := forwarded(t, e, rules.HostLink, tcp(client, "172.18.0.2", 1000, 30080, nattest.SYN,
			"").Bytes(), start)
		_, second, _ := forwarded(t, e, rules.HostLink, tcp(client, "10.96.0.10", 1001, 80, nattest.SYN,
			"").Bytes(), start)
		if first.Destination != second.Destination {
			t.Fatalf("%s: %s, then %s", client, first.Destination, second.Destination)
		}
	}
}

// Everything wrong with the configuration of a node is refused by its field.
func TestHostFaults(t *testing.T) {
	for want, change := range map[string]func(*nat.Config){
		"Host.Masquerade":          func(c *nat.Config) { c.Host.Masquerade = rules.PairOf(address("192.0.2.1")) },
		"Host.Ports":               func(c *nat.Config) { c.Host.Ports = rules.PortRange{First: 61000, Last: 61010} },
		"Host.Addresses[0]":        func(c *nat.Config) { c.Host.Addresses[0] = netip.Addr{} },
		"Host.Bridged[0]":          func(c *nat.Config) { c.Host.Bridged = []netip.Prefix{{}} },
		"Services[0].Frontend":     func(c *nat.Config) { c.Services[0].Frontend = nil },
		"Services[0].Address":      func(c *nat.Config) { c.Services[0].Address = address("0.0.0.0") },
		"Services[0].Port":         func(c *nat.Config) { c.Services[0].Port = 0 },
		"Services[5].Backends":     func(c *nat.Config) { c.Services[5].Backends = c.Services[0].Backends },
		"of this name":             func(c *nat.Config) { c.Services[1].Address = address("10.96.0.10") },
		"a gateway's service has":  func(c *nat.Config) { c.Host = nil },
		"Services[4].Frontend.Sou": func(c *nat.Config) { c.Services[4].Frontend.Sources = []netip.Prefix{{}} },
	} {
		if _, err := nat.New([16]byte{}, vienna(change)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	e := host(t)
	if err := e.Apply(vienna(func(c *nat.Config) { c.Host.Ports.Last++ })); err == nil {
		t.Error("ports change under connections that have them")
	}
}
