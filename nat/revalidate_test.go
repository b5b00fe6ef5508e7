package nat_test

import (
	"fmt"
	"net/netip"
	"testing"

	"culvert/integration/need"
	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// A sweep looks at few connections at a time, and completes its way around the table however often
// the configuration changes meanwhile.
func TestSweepGetsAround(t *testing.T) {
	const lasting, doomed = 20_000, 1_000
	e := engine(t, func(c *nat.Config) { c.MaxConnections = 4 * (lasting + doomed) })
	for i := range lasting + doomed {
		to := "10.71.3.9"
		if i >= lasting {
			to = "10.99.64.9" // the last ones of the table lose their remote CIDR
		}
		forwarded(t, e, node1, udp("10.200.1.5", to, uint16(1+i), 53).Bytes(), start)
	}
	apply := func() {
		c := rome()
		c.MaxConnections = 4 * (lasting + doomed)
		c.Remote[2].Real = prefix("10.98.64.0/18")
		need.NoError(t, e.Apply(c))
	}
	calls := 0
	for evicted := uint64(0); evicted < doomed; calls++ {
		if calls > 2*(lasting+doomed)/64 {
			t.Fatalf("%d of %d evicted after %d sweeps", evicted, doomed, calls)
		}
		apply()
		if e.Sweep(start) {
			t.Fatal("one sweep saw all of the table")
		}
		now := e.Stats().Evicted
		if now-evicted > 64 {
			t.Fatalf("a sweep evicted %d", now-evicted)
		}
		evicted = now
	}
	// Without further changes, the sweep ends once it has seen all connections since the last
	// change, also while the table grows.
	calls = 0
	for !e.Sweep(start) {
		forwarded(t, e, node1, udp("10.200.1.6", "10.71.3.9", uint16(1+calls), 53).Bytes(), start)
		calls++
	}
	if most := (lasting + doomed) / 64; calls < most-1 || calls > most+1 {
		t.Fatalf("%d sweeps, want %d", calls, most)
	}
}

// While the table grows, a sweep still sees all connections that existed when the configuration
// changed.
func TestSweepBesideNewConnections(t *testing.T) {
	e := engine(t)
	flow := func(i int, to string) { forwarded(t, e, node1, udp("10.200.1.5", to, uint16(1+i), 53).Bytes(), start) }
	apply := func(real string) {
		c := rome()
		c.Remote[2].Real = prefix(real)
		need.NoError(t, e.Apply(c))
	}
	for i := range 500 {
		flow(i, "10.99.64.9")
	}
	apply("10.99.64.0/18")
	e.Sweep(start) // the sweep is now somewhere in the table
	apply("10.98.64.0/18")
	for i := 0; !e.Sweep(start); i++ {
		for j := range 200 {
			flow(1000+200*i+j, "10.71.3.9")
		}
	}
	if st := e.Stats(); st.Evicted != 500 {
		t.Fatalf("%d of 500 evicted", st.Evicted)
	}
}

// Services beyond number 32,767 are ordinary: their connections end with their backend.
func TestManyServices(t *testing.T) {
	const n = 32_770
	backend := rules.Backend{Address: address("10.200.1.5"), Port: 8080}
	services := make([]rules.Service, n)
	at := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 70, 1 + byte(i>>8), byte(i)}) }
	for i := range services {
		services[i] = rules.Service{Name: at(i).String(), Address: at(i), Port: 80, Protocol: 6,
			OnRemoval: rules.RemovalReset,
			Backends:  []rules.Backend{backend}}
	}
	e := engine(t, func(c *nat.Config) { c.Services = services })
	to := func(i int, flags uint8) []byte { return tcp("10.200.3.9", at(i).String(), 4000, 80, flags, "").Bytes() }
	for _, i := range []int{0, n - 1} {
		forwarded(t, e, nat.Tunnel, to(i, nattest.SYN), start)
	}
	for i := range services {
		services[i].Backends = []rules.Backend{{Address: address("10.200.1.6"), Port: 8080}}
	}
	c := rome()
	c.Services = services
	need.NoError(t, e.Apply(c))
	for _, i := range []int{0, n - 1} {
		if v := dropped(t, e, nat.Tunnel, to(i, nattest.ACK), start, nat.ReasonNoBackend); v.Refusal != packet.Reset {
			t.Fatalf("service %d answers %d", i, v.Refusal)
		}
	}
}

// No node has the number of an outside link, nor those that rules use for "no device", "a device
// that nobody has", "any device" and "the first node", nor 0.
func TestReservedLinks(t *testing.T) {
	for _, link := range []nat.Link{0, nat.Tunnel, 0xfeff, 0xffef, 0xfff0, 0xfffb, 0xfffc, 0xfffd, 0xfffe, 0xffff} {
		c := rome()
		c.Nodes = append(c.Nodes, rules.Node{Link: link, Name: "rome-3", Address: rules.PairOf(address("10.80.0.9"))})
		_, err := nat.New([16]byte{}, c)
		if reserved := err != nil && err.Error() == fmt.Sprintf("rules: config: Nodes[2].Link: %d is reserved",
			link); reserved != (link != 0xfeff) {
			t.Errorf("link %#x: %v", link, err)
		}
	}
}
