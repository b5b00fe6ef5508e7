package nat_test

import (
	"net/netip"
	"testing"

	"culvert/integration/need"
	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/packet"
	"culvert/nat/rules"
)

const paris = nat.Tunnel + 1

var parisKey = rules.Key{Kind: "Tunnel", Name: "paris"}

// twoTunnels is rome with a second tunnel, to paris, that has pods in 10.98.0.0/16.
func twoTunnels(t *testing.T, tables ...rules.Table) *nat.Engine {
	t.Helper()
	e := engine(t, func(c *nat.Config) {
		c.Services = []rules.Service{{Name: "web", Address: address("10.70.0.20"), Port: 80, Protocol: packet.UDP,
			Backends: []rules.Backend{{Address: address("10.200.1.5"), Port: 8080}}}}
	})
	device := rules.Device{Link: paris, Name: "paris", Address: rules.PairOf(address("169.254.19.1")),
		Own: rules.PairOf(address("169.254.19.2")), Sources: []netip.Prefix{prefix("10.98.0.0/16")}}
	routing := rules.PolicyTable{Name: "paris", Rules: []rules.PolicyRule{
		{Priority: 50, Routes: []rules.PolicyRoute{{Destination: prefix("10.98.0.0/16"), Via: device.Address.V4}}},
		{Priority: 51, In: "paris", Routes: []rules.PolicyRoute{{Destination: prefix("10.99.64.0/18"),
			Device: "liqo-tunnel"}}},
	}}
	need.NoError(t, e.Put(parisKey, rules.Resource{Device: &device, Tables: tables,
		Routing: []rules.PolicyTable{routing}}))
	e.CommitRules()
	return e
}

// One engine serves two tunnels: each leads to its own cluster, which may send only its own
// addresses.
func TestTwoTunnels(t *testing.T) {
	e := twoTunnels(t)
	if v, view, _ := forwarded(t, e, node1, udp("10.200.1.5", "10.98.0.7", 4000, 53).Bytes(), start); v.Out != paris ||
		view.Source != address("10.200.1.5") {
		t.Fatalf("to paris: %+v from %v", v, view.Source)
	}
	if v, _, _ := forwarded(t, e, node1, udp("10.200.1.5", "10.99.64.9", 4000, 53).Bytes(),
		start); v.Out != nat.Tunnel {
		t.Fatalf("to the first cluster: %+v", v)
	}
	if v, _, _ := forwarded(t, e, paris, udp("10.98.0.7", "10.200.1.5", 53, 4000).Bytes(), start); v.Out != node1 {
		t.Fatalf("the answer: %+v", v)
	}
	// Only paris may send its answer.
	dropped(t, e, nat.Tunnel, udp("10.98.0.7", "10.200.1.5", 53, 4000).Bytes(), start, nat.ReasonBadSource)
	dropped(t, e, paris, udp("10.99.64.9", "10.200.1.5", 53, 4000).Bytes(), start, nat.ReasonBadSource)
	dropped(t, e, nat.Tunnel+2, udp("10.98.0.7", "10.200.1.5", 53, 4000).Bytes(), start, nat.ReasonBadSource)
	if v, view, _ := forwarded(t, e, paris, udp("10.98.0.7", "10.70.0.20", 4000, 80).Bytes(), start); v.Out != node1 ||
		view.DestinationPort != 8080 {
		t.Errorf("to a service: %+v, port %d", v, view.DestinationPort)
	}
	if v, _, _ := forwarded(t, e, paris, udp("10.98.0.7", "10.99.64.9", 4000, 53).Bytes(), start); v.Out != nat.Tunnel {
		t.Errorf("from tunnel to tunnel: %+v", v)
	}
	if v, _, _ := forwarded(t, e, nat.Tunnel, udp("10.99.64.9", "10.70.0.0", 53, 4000).Bytes(), start); v.Out != paris {
		t.Errorf("the answer to that: %+v", v)
	}
	ledger(t, e)
	if st := e.Stats(); st.Outbound.Received != 2 || st.Inbound.Received != 7 || st.Created != 4 {
		t.Errorf("%d outbound, %d inbound, %d connections made; want 2, 7, 4", st.Outbound.Received,
			st.Inbound.Received, st.Created)
	}
}

// The gateway has an address of its own on each tunnel: it masquerades as that, and answers only to
// it.
func TestTunnelsHaveAddresses(t *testing.T) {
	e := twoTunnels(t, rules.Table{Name: "own", Family: rules.FamilyIPv4, Chains: []rules.Chain{{
		Name: "c", Type: rules.ChainNAT, Hook: rules.HookPostrouting, Priority: rules.PrioritySNAT - 1,
		Rules: []rules.Rule{
			{Name: "host", Match: []rules.Match{{IP: rules.Operand{Value: "10.200.1.9",
				Position: rules.PositionSource}}}, Action: rules.ActionMasquerade}},
	}}})
	for _, tt := range []struct {
		out                     nat.Link
		remote, own, neighbours string
	}{
		{paris, "10.98.0.7", "169.254.19.2", "169.254.18.2"},
		{nat.Tunnel, "10.99.64.9", "169.254.18.2", "169.254.19.2"},
	} {
		v, view, _ := forwarded(t, e, node1, udp("10.200.1.9", tt.remote, 4000, 53).Bytes(), start)
		if expect(t, view, tt.own, tt.remote); v.Out != tt.out {
			t.Errorf("%s: %+v", tt.remote, v)
		}
		v, view, _ = forwarded(t, e, tt.out, udp(tt.remote, tt.own, 53, 4000).Bytes(), start)
		if expect(t, view, tt.remote, "10.200.1.9"); v.Out != node1 {
			t.Errorf("the answer of %s: %+v", tt.remote, v)
		}
		ping := func(to string) []byte {
			return nattest.IP{Source: tt.remote, Destination: to, Body: nattest.ICMP{Type: 8}}.Bytes()
		}
		if v, _ := process(t, e, tt.out, ping(tt.own), start); v.Action != nat.Deliver {
			t.Errorf("to its own address: %+v", v)
		}
		if v, _ := process(t, e, tt.out, ping(tt.neighbours), start); v.Action != nat.Drop {
			t.Errorf("to the other tunnel's address: %+v", v)
		}
	}
	ledger(t, e)
}

// A removed tunnel ends its connections. The sources allowed from a tunnel can change.
func TestTunnelsComeAndGo(t *testing.T) {
	e := twoTunnels(t)
	inbound := udp("10.98.0.7", "10.200.1.5", 53, 4000).Bytes()
	forwarded(t, e, paris, inbound, start)
	forwarded(t, e, nat.Tunnel, udp("10.99.64.9", "10.200.1.5", 53, 4000).Bytes(), start)
	put := func(sources ...netip.Prefix) {
		t.Helper()
		r := rules.Resource{Device: &rules.Device{Link: paris, Name: "paris",
			Address: rules.PairOf(address("169.254.19.1")), Sources: sources}}
		need.NoError(t, e.Put(parisKey, r))
		e.CommitRules()
	}
	put(prefix("10.97.0.0/16"))
	dropped(t, e, paris, inbound, start, nat.ReasonBadSource)
	put(prefix("10.97.0.0/16"), prefix("10.98.0.0/16"))
	forwarded(t, e, paris, inbound, start)
	e.Delete(parisKey)
	e.CommitRules()
	for !e.Sweep(start) {
	}
	if st := e.Stats(); st.Connections != 1 || st.Evicted != 2 {
		t.Errorf("%d connections, %d evicted; want that of the other tunnel and 2", st.Connections, st.Evicted)
	}
	dropped(t, e, paris, inbound, start, nat.ReasonBadSource)
	inside := rules.Device{Link: 50, Name: "n", Sources: []netip.Prefix{prefix("10.97.0.0/16")}}
	if err := e.Put(parisKey, rules.Resource{Device: &inside}); err == nil {
		t.Error("a node has sources of its own")
	}
}
