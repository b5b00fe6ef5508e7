package rules

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"culvert/integration/need"
	"culvert/nat/packet"
)

// A walked packet is what became of one on its way through all stages.
type walked struct {
	src, dst   netip.Addr // as it goes on
	out        Link       // noLink: there is no route
	via        string     // what routing led by
	outcome    Outcome
	dnat, snat bindKind
	mark       uint32
	connMark   uint32
	routeMSS   bool
	mss        uint16
}

// walkPacket takes a packet through the rules of r. Of a connection's first packet, the nat chains
// decide the translation; for a later one it is given as the addresses that its connection holds,
// where they are valid.
func walkPacket(r *Ruleset, v view, connMark uint32, first bool, dst, src netip.Addr) walked {
	var steps recorder
	tr := traversalOf(v, connMark, &steps)
	if !first {
		to := tr.From
		if dst.IsValid() {
			to.SetDestination(dst)
		}
		if src.IsValid() {
			to.SetSource(src)
		}
		tr.Follow(to, connMark, 0)
	}
	pass(tr, r)
	w := walked{
		src: tr.To.Source(), dst: tr.To.Destination(), out: noLink, outcome: tr.Outcome, dnat: tr.dnat.kind,
		snat: tr.snat.kind,
		mark: tr.mark, connMark: tr.ConnMark, routeMSS: tr.routeMSS, mss: tr.mss,
	}
	for _, s := range steps.steps {
		if s.Kind == StepRoute && s.Passed {
			w.out, w.via = tr.Out, s.Detail
		}
	}
	return w
}

// pass takes a traversal through all stages, and to the first backend of a service.
func pass(tr *Traversal, r *Ruleset) bool {
	if !tr.Raw(r) || !tr.Enter(r) {
		return false
	}
	if tr.Chooses() {
		tr.SendTo(0)
	}
	return tr.Leave(r)
}

// traversalOf returns the traversal of a packet that rules see as v.
func traversalOf(v view, connMark uint32, t Tracer) *Traversal {
	from := packet.Tuple{Link: v.in, Protocol: v.proto, IPv6: v.src.Is6(), Ports: binary.BigEndian.Uint32(v.l4[:])}
	from.SetSource(v.src)
	from.SetDestination(v.dst)
	tr := new(Traversal)
	tr.Start(&from, nil, v.in, t)
	tr.ConnMark = connMark
	return tr
}

func from(in Link, src, dst string) view {
	return view{src: addr(src), dst: addr(dst), proto: packet.TCP, l4: [4]byte{156, 64, 1, 187}, hasL4: true, in: in}
}

func eachCapture(t *testing.T, remote string, f func(t *testing.T, capture string, g capturedGateway)) {
	for _, capture := range captures {
		t.Run(capture, func(t *testing.T) { f(t, capture, captured(t, capture, remote)) })
	}
}

func expect(t *testing.T, what string, w walked, src, dst string, out Link) {
	t.Helper()
	if w.outcome != Passed || w.src != addr(src) || w.dst != addr(dst) || w.out != out {
		t.Errorf("%s: %v → %v at port %d, %v; want %s → %s at %d", what, w.src, w.dst, w.out, w.outcome, src, dst, out)
	}
}

// The tables of nodes are no gateway's, but they are the same language.
func TestLiqoNodeTables(t *testing.T) {
	for _, capture := range captures {
		c := randomNodes()
		c.Routing = []PolicyTable{}
		loadCapture(t, capture, "nodes.tables", &c.Firewall)
		r, err := newRuleset(c)
		if err != nil {
			t.Fatalf("%s: %v", capture, err)
		}
		full := capture == "main-557c199cf-options" // full masquerade: no condition on the source
		for _, tt := range []struct{ src, dst, want string }{
			{"10.244.0.8", "10.71.1.4", "10.244.0.8"}, // (a) the identity keeps the CNI from masquerading
			{"192.0.2.11", "10.71.1.4", "10.70.0.0"},  // (b) an unknown source
			{"10.244.0.8", "10.68.0.9", "10.244.0.8"}, // (c)
			{"192.0.2.11", "10.68.0.9", "10.70.0.0"},  // (d)
		} {
			want := tt.want
			if full {
				want = "10.70.0.0"
			}
			v := from(1, tt.src, tt.dst)
			v.out = 2
			if b := r.bind(stageSNAT, &v); b.addr != addr(want) {
				t.Errorf("%s: %s → %s gets source %v, want %s", capture, tt.src, tt.dst, b.addr, want)
			}
		}
	}
}

// Both clusters have the same pod CIDR.
func TestLiqoWalkOverlap(t *testing.T) {
	eachCapture(t, "cluster-b", func(t *testing.T, _ string, g capturedGateway) {
		none, pod1, pod2 := netip.Addr{}, g.pods[linkN1], g.pods[linkN2]
		// Step 2: outwards, the destination is translated.
		w := walkPacket(g.Ruleset, from(linkN2, pod2, "10.71.3.4"), 0, true, none, none)
		expect(t, "step 2", w, pod2, "10.244.3.4", Tunnel)
		if w.dnat != bindPrefix || w.snat != bindNone || !strings.Contains(w.via, "via 169.254.18.2,") || !w.routeMSS ||
			w.connMark != 0 {
			t.Errorf("step 2: %+v", w)
		}
		// Step 3: inwards, the source is. The pod is one of n1.
		w = walkPacket(g.Ruleset, from(Tunnel, "10.244.3.4", pod1), 0, true, none, none)
		expect(t, "step 3", w, "10.71.3.4", pod1, linkN1)
		if w.dnat != bindNone || w.snat != bindPrefix || w.routeMSS {
			t.Errorf("step 3: %+v", w)
		}
		// Step 5: the reply of step 3; conntrack restores its destination.
		w = walkPacket(g.Ruleset, from(linkN1, pod1, "10.71.3.4"), 0, false, addr("10.244.3.4"), none)
		expect(t, "step 5, out", w, pod1, "10.244.3.4", Tunnel)
		// And that of step 2; conntrack restores its source.
		w = walkPacket(g.Ruleset, from(Tunnel, "10.244.3.4", pod2), 0, false, none, addr("10.71.3.4"))
		expect(t, "step 5, in", w, "10.71.3.4", pod2, linkN2)
		// External CIDRs overlap too.
		w = walkPacket(g.Ruleset, from(linkN1, pod1, "10.68.0.77"), 0, true, none, none)
		expect(t, "external, out", w, pod1, "10.70.0.77", Tunnel)
		w = walkPacket(g.Ruleset, from(Tunnel, "10.70.0.77", pod1), 0, true, none, none)
		expect(t, "external, in", w, "10.68.0.77", pod1, linkN1)
		// The iif of the rules prevents loops: what comes from the tunnel for a pod that is on no
		// node does not go back.
		if w = walkPacket(g.Ruleset, from(Tunnel, "10.244.3.4", "10.244.200.200"), 0, true, none,
			none); w.outcome != NoRoute {
			t.Errorf("a pod on no node: %+v", w)
		}
	})
}

// Pod CIDRs differ and are not translated; external ones are.
func TestLiqoWalkNoOverlap(t *testing.T) {
	eachCapture(t, "cluster-c", func(t *testing.T, _ string, g capturedGateway) {
		none, pod1 := netip.Addr{}, g.pods[linkN1]
		w := walkPacket(g.Ruleset, from(linkN1, pod1, "10.245.3.4"), 0, true, none, none)
		expect(t, "out", w, pod1, "10.245.3.4", Tunnel)
		if w.dnat != bindNone || !strings.Contains(w.via, "via 169.254.18.1,") {
			t.Errorf("out: %+v", w)
		}
		w = walkPacket(g.Ruleset, from(Tunnel, "10.245.3.4", pod1), 0, true, none, none)
		expect(t, "in", w, "10.245.3.4", pod1, linkN1)
		if w.snat != bindNone {
			t.Errorf("in: %+v", w)
		}
		w = walkPacket(g.Ruleset, from(linkN1, pod1, "10.69.0.9"), 0, true, none, none)
		expect(t, "external, out", w, pod1, "10.71.0.9", Tunnel)
		w = walkPacket(g.Ruleset, from(Tunnel, "10.71.0.9", pod1), 0, true, none, none)
		expect(t, "external, in", w, "10.69.0.9", pod1, linkN1)
	})
}

// All nodes share the address U, and the connection's mark leads the reply back to the right one.
func TestLiqoWalkNodePort(t *testing.T) {
	eachCapture(t, "cluster-b", func(t *testing.T, _ string, g capturedGateway) {
		none, pod2 := netip.Addr{}, g.pods[linkN2]
		for _, node := range []Link{linkN1, linkN2} {
			// Step 3.
			w := walkPacket(g.Ruleset, from(node, "10.70.0.0", "10.71.1.4"), 0, true, none, none)
			expect(t, "step 3", w, "10.70.0.0", "10.244.1.4", Tunnel)
			if g.marks[fmt.Sprint(w.connMark)] != node {
				t.Errorf("a connection from node %d has mark %d, marks are %v", node, w.connMark, g.marks)
			}
			// Step 6.
			r := walkPacket(g.Ruleset, from(Tunnel, "10.244.1.4", "10.70.0.0"), w.connMark, false, none,
				addr("10.71.1.4"))
			expect(t, "step 6", r, "10.71.1.4", "10.70.0.0", node)
			if r.mark != w.connMark {
				t.Errorf("step 6: packet mark %d, want %d", r.mark, w.connMark)
			}
		}
		// Step 4, at the other gateway: U is an address of the peer's external CIDR.
		w := walkPacket(g.Ruleset, from(Tunnel, "10.70.0.0", pod2), 0, true, none, none)
		expect(t, "step 4", w, "10.68.0.0", pod2, linkN2)
		// Step 5.
		w = walkPacket(g.Ruleset, from(linkN2, pod2, "10.68.0.0"), 0, false, addr("10.70.0.0"), none)
		expect(t, "step 5", w, pod2, "10.70.0.0", Tunnel)
		// Without a connection nothing tells which node U is.
		if w = walkPacket(g.Ruleset, from(Tunnel, "10.244.1.4", "10.70.0.0"), 0, true, none,
			none); w.outcome != NoRoute {
			t.Errorf("to U without mark: %+v", w)
		}
	})
}

// An address of the external CIDR stands for a host.
func TestLiqoWalkMapping(t *testing.T) {
	eachCapture(t, "cluster-b", func(t *testing.T, capture string, g capturedGateway) {
		none, pod2 := netip.Addr{}, g.pods[linkN2]
		external, offloaded, pod := "10.70.0.5", "10.70.0.7", "10.244.0.9"
		switch capture {
		case "v1.2.0":
			pod = "10.244.0.10"
		case "main-557c199cf-options":
			external, offloaded, pod = "10.70.0.4", "10.70.0.6", "10.244.0.10"
		}
		w := walkPacket(g.Ruleset, from(Tunnel, "10.244.3.4", external), 0, true, none, none)
		expect(t, "to the host", w, "10.71.3.4", "192.0.2.77", linkN1)
		if w.dnat != bindAddress || !strings.Contains(w.via, "via 10.80.0.2,") && !strings.Contains(w.via,
			"via 10.80.0.1,") {
			t.Errorf("to the host: %+v", w)
		}
		w = walkPacket(g.Ruleset, from(linkN1, "192.0.2.77", "10.71.3.4"), 0, false, addr("10.244.3.4"), addr(external))
		expect(t, "its reply", w, external, "10.244.3.4", Tunnel)
		// An offloaded pod is reached through the node of the gateway, wherever it is.
		w = walkPacket(g.Ruleset, from(Tunnel, "10.244.3.4", offloaded), 0, true, none, none)
		expect(t, "to the offloaded pod", w, "10.71.3.4", pod, linkN1)
		// The remote cluster has a host of its own at the address that is mapped here: its source
		// is remapped, not taken for ours.
		w = walkPacket(g.Ruleset, from(Tunnel, external, pod2), 0, true, none, none)
		expect(t, "from the same address over there", w, "10.68.0."+external[len("10.70.0."):], pod2, linkN2)
		// Leaf to leaf (Section 3.8): the remapped pod CIDR of another peering goes to the
		// gateway's own node.
		w = walkPacket(g.Ruleset, from(Tunnel, "10.244.3.4", "10.245.0.9"), 0, true, none, none)
		expect(t, "leaf to leaf", w, "10.71.3.4", "10.245.0.9", linkN1)
	})
}

// The fabric's own Geneve packets are not tracked.
func TestLiqoNotrack(t *testing.T) {
	g := captured(t, "main-557c199cf-options", "cluster-b")
	v := from(linkN1, "10.244.0.1", "10.71.3.4")
	v.proto, v.l4 = packet.UDP, [4]byte{0, 99, 6091 >> 8, 6091 & 0xff}
	var e Effects
	if g.filter(stageRaw, &v, &e); !e.NoTrack {
		t.Error("UDP to port 6091 is tracked")
	}
	v.proto, e = packet.TCP, Effects{}
	if g.filter(stageRaw, &v, &e); e.NoTrack {
		t.Error("TCP to port 6091 is not tracked")
	}
}

// The resources of Liqo's captures, each under its own key and in any order, mean what they mean in
// one Config.
func TestLiqoResourcesByKey(t *testing.T) {
	for _, remote := range []string{"cluster-b", "cluster-c"} {
		eachCapture(t, remote, func(t *testing.T, capture string, g capturedGateway) {
			r := rand.New(rand.NewPCG(1, 2))
			m := ruleMaker{r}
			c := *g.config
			c.Nodes, c.Firewall, c.Routing = nil, []Table{}, []PolicyTable{}
			s := NewSet()
			if _, err := s.make(&c); err != nil {
				t.Fatal(err)
			}
			var all []namedResource
			for i := range g.config.Nodes {
				n := &g.config.Nodes[i]
				all = append(all, namedResource{Key{"Node", "", n.Name},
					Resource{Device: &Device{Link: n.Link, Name: n.device(), Address: n.Address}}})
			}
			for i, table := range g.config.Firewall {
				all = append(all, namedResource{Key{"FirewallConfiguration", "liqo", table.Name},
					Resource{Order: int64(i), Tables: []Table{table}}})
			}
			for i, table := range g.config.Routing {
				all = append(all, namedResource{Key{"RouteConfiguration", "liqo", table.Name}, Resource{Order: int64(i),
					Routing: []PolicyTable{table}}})
			}
			r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
			d := s.Draft()
			for i := range all {
				need.NoError(t, d.Put(all[i].key, all[i].Resource))
				if r.IntN(4) == 0 {
					s.Commit(d)
					d = s.Draft()
				}
			}
			byKey, _ := s.Commit(d)
			links := []Link{Tunnel, linkN1, linkN2}
			addresses := []netip.Addr{addr("10.80.0.3"), addr("198.51.100.7")}
			for _, pod := range g.pods {
				addresses = append(addresses, addr(pod))
			}
			for _, n := range g.config.Nodes {
				addresses = append(addresses, n.Address.V4)
			}
			for _, rule := range g.all() {
				for i := range rule.tests {
					if p := rule.tests[i].prefix; p.IsValid() {
						addresses = append(addresses, p.Addr(), p.Addr().Next())
					}
				}
				if rule.to.IsValid() {
					addresses = append(addresses, rule.to.Addr(), rule.to.Addr().Next())
				}
			}
			forwarded := 0
			for range 5000 {
				v := from(one(m, links...), one(m, addresses...).String(), one(m, addresses...).String())
				mark, first := one(m, uint32(0), 1, 2, 3), r.IntN(2) == 0
				got := walkPacket(byKey, v, mark, first, netip.Addr{}, netip.Addr{})
				want := walkPacket(g.Ruleset, v, mark, first, netip.Addr{}, netip.Addr{})
				if got != want {
					t.Fatalf("%+v with mark %d:\n%+v, want\n%+v", v, mark, got, want)
				}
				if want.outcome != NoRoute {
					forwarded++
				}
			}
			if forwarded < 500 {
				t.Errorf("%d packets of 5000 have a route", forwarded)
			}
		})
	}
}
