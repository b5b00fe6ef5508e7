package nat_test

import (
	"testing"

	"culvert/integration/need"
	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// No. 4: a source that no podCIDRs route covers is pinned to its node; pods follow the current
// routes.
func TestReturnPath(t *testing.T) {
	e := engine(t)
	pod, client := udp("10.200.1.5", "10.71.3.9", 7, 8), udp("203.0.113.9", "10.71.3.9", 7, 8)
	_, podOut, _ := forwarded(t, e, node1, pod.Bytes(), start)
	_, clientOut, _ := forwarded(t, e, node1, client.Bytes(), start)
	returned(t, e, pod, node1, podOut, nat.Tunnel, start)
	c := rome()
	c.Routes[0].Link, c.Routes[1].Link = node2, node1 // the pod CIDR moves
	need.NoError(t, e.Apply(c))
	returned(t, e, pod, node2, podOut, nat.Tunnel, start)
	returned(t, e, client, node1, clientOut, nat.Tunnel, start)
}

// Connections survive a change of the configuration unless something that they need has
// disappeared.
func TestEviction(t *testing.T) {
	mapping := rules.AddressMapping{External: address("10.70.0.9"), Internal: address("192.0.2.10"), Via: node2}
	base := func(c *nat.Config) { c.Addresses = []rules.AddressMapping{mapping} }
	podCIDR, client := udp("10.200.1.5", "10.71.3.9", 7, 8), udp("203.0.113.9", "10.71.3.9", 7, 8)
	host, inbound := udp("10.200.3.9", "10.70.0.9", 7, 8), udp("10.200.3.9", "10.200.2.5", 7, 8)
	tests := []struct {
		name   string
		change func(*nat.Config)
		left   int // remaining of 4 connections
	}{
		{"nothing", func(*nat.Config) {}, 4},
		{"a filter", func(c *nat.Config) { c.Rules = []rules.FilterRule{{Name: "none", Action: rules.FilterDrop}} }, 4},
		{"the mapping", func(c *nat.Config) { c.Addresses = nil }, 3},
		{"the mapped host", func(c *nat.Config) { c.Addresses[0].Internal = address("192.0.2.99") }, 3},
		{"the node of the client", func(c *nat.Config) {
			c.Nodes[0].Link = 9
			c.Routes[0].Link, c.Routes[2].Link, c.Routes[3].Link, c.Routes[6].Link = node2, node2, node2, node2
		}, 2},
		{"the pod's route", func(c *nat.Config) { c.Routes[1].Prefix = prefix("10.200.8.0/23") }, 3},
		{"U", func(c *nat.Config) { c.UnknownSource = rules.PairOf(address("10.70.0.1")) }, 3},
		{"U off", func(c *nat.Config) { c.UnknownSource = rules.Pair{} }, 3},
		{"the remap", func(c *nat.Config) { c.Remote[0].Remapped = prefix("10.75.0.0/16") }, 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			e := engine(t, base)
			for p, in := range map[*nattest.IP]nat.Link{&podCIDR: node1, &client: node1, &host: nat.Tunnel,
				&inbound: nat.Tunnel} {
				forwarded(t, e, in, p.Bytes(), start)
			}
			c := rome()
			base(c)
			test.change(c)
			need.NoError(t, e.Apply(c))
			if !e.Sweep(start) {
				t.Fatal("the sweep did not end")
			}
			if st := e.Stats(); st.Connections != test.left || int(st.Evicted) != 4-test.left {
				t.Fatalf("%d connections left, %d evicted; want %d left", st.Connections, st.Evicted, test.left)
			}
		})
	}
}

// The file's rules apply to packets of existing connections, in both directions, from the next
// packet on.
func TestFilterChange(t *testing.T) {
	e := engine(t)
	p := tcp("10.200.1.5", "10.71.3.9", 40000, 22, nattest.SYN, "")
	_, out, _ := forwarded(t, e, node1, p.Bytes(), start)
	returned(t, e, p, node1, out, nat.Tunnel, start)
	for _, action := range []rules.FilterAction{rules.FilterDrop, rules.FilterReject} {
		c := rome()
		c.Rules = []rules.FilterRule{{Name: "no-ssh", From: rules.FromLocal, Protocol: 6,
			Ports: []rules.PortRange{{First: 22, Last: 22}}, Action: action}}
		need.NoError(t, e.Apply(c))
		want := map[rules.FilterAction]nat.Reason{rules.FilterDrop: nat.ReasonFiltered,
			rules.FilterReject: nat.ReasonRejected}[action]
		for range 2 {
			v := dropped(t, e, node1, p.Bytes(), start, want)
			if got := v.Refusal == packet.NetUnreachable; got != (action == rules.FilterReject) {
				t.Fatalf("answer %d", v.Refusal)
			}
		}
		returned(t, e, p, node1, out, nat.Tunnel, start) // the other direction passes
	}
	need.NoError(t, e.Apply(rome()))
	forwarded(t, e, node1, p.Bytes(), start)
	if st := e.Stats(); st.Connections != 1 || st.Created != 1 {
		t.Fatalf("%+v", st)
	}
}
