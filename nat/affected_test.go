package nat

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"culvert/integration/need"
	"culvert/nat/nattest"
	"culvert/nat/packet"
	"culvert/nat/rules"
)

func send(e *Engine, in Link, source, destination netip.Addr, sourcePort, destinationPort uint16) (Verdict, []byte) {
	b := nattest.IP{
		Source: source.String(), Destination: destination.String(), TTL: 9,
		Body: nattest.UDP{SourcePort: sourcePort, DestinationPort: destinationPort},
	}.Bytes()
	var p packet.Packet
	p.Parse(b)
	return e.Process(&p, in, 1), b
}

// A changed mapping affects only its own connections: only they are looked at again, by their next
// packet or by the sweep, and only they are cut.
func TestChangeConcernsFew(t *testing.T) {
	const n, changed = 300, 100
	for _, sweep := range []bool{false, true} {
		c := sized(n)
		e, err := New([16]byte{}, c)
		need.NoError(t, err)
		looked := 0
		packets := func(want string) {
			t.Helper()
			for i := range n {
				for _, p := range []struct {
					in       Link
					from, to netip.Addr
				}{{Tunnel, addr("10.1.2.6"), mapped(i)}, {Link(i%30 + 1), pod(i), addr("10.129.2.6")}} {
					e.scratch.tr.In = anyNode // a traversal overwrites it
					v, _ := send(e, p.in, p.from, p.to, 4000, 53)
					if e.scratch.tr.In != anyNode {
						looked++
					}
					if v.Action != Forward {
						t.Fatalf("%s: %v to %v: %v", want, p.from, p.to, v.Reason)
					}
				}
			}
		}
		packets("first")
		packets("second") // the first one has marked its connection
		looked = 0
		packets("before")
		if looked != 0 {
			t.Fatalf("%d established packets met the rules", looked)
		}
		c.Addresses[changed].Internal = addr("198.51.100.9")
		need.NoError(t, e.Apply(c))
		if looked = 0; sweep {
			for done := false; !done; {
				done = e.Sweep(1)
			}
		}
		if st := e.Stats(); sweep && (st.Connections != 2*n-1 || st.Evicted != 1) {
			t.Errorf("after the sweep: %d connections, %d evicted", st.Connections, st.Evicted)
		}
		for i := range e.table.high - 1 {
			if c := e.table.at(i + 1); sweep && c.live() && (c.generation != 2 || c.flags&flagEvaluated0 == 0) {
				t.Errorf("connection %d: generation %d, flags %b", i+1, c.generation, c.flags)
			}
		}
		packets("after")
		if st := e.Stats(); looked != 1 || st.Evicted != 1 || st.Created != 2*n+1 {
			t.Errorf("sweep %v: %d packets met the rules, %d connections evicted, %d made; want 1, 1, %d", sweep,
				looked, st.Evicted, st.Created, 2*n+1)
		}
	}
}

// A connection that has missed more commits than are remembered is looked at.
func TestHistoryEnds(t *testing.T) {
	for missed, want := range map[int]bool{1: false, historyLength: false, historyLength + 1: true} {
		c := milan()
		e, err := New([16]byte{}, c)
		need.NoError(t, err)
		send(e, Tunnel, addr("10.200.3.9"), addr("10.70.0.9"), 1, 2)
		for i := range missed {
			c.Addresses[1].Internal = netip.AddrFrom4([4]byte{192, 0, 3, byte(i)})
			need.NoError(t, e.Apply(c))
		}
		e.scratch.tr.In = anyNode
		send(e, Tunnel, addr("10.200.3.9"), addr("10.70.0.9"), 1, 2)
		if got := e.scratch.tr.In != anyNode; got != want {
			t.Errorf("%d commits missed: looked at %v, want %v", missed, got, want)
		}
	}
}

// Connections have missed several commits since a sweep last saw them all. One of these commits
// affects one connection, wherever it stands among the others.
func TestOneOfSeveralCommits(t *testing.T) {
	const n = 6
	for which := range n - 1 {
		c := sized(n)
		e, err := New([16]byte{}, c)
		need.NoError(t, err)
		change := func(i, round int) {
			t.Helper()
			c.Addresses[i].Internal = netip.AddrFrom4([4]byte{198, 51, 100, byte(n*round + i)})
			need.NoError(t, e.Apply(c))
		}
		looked := func(i int) bool {
			t.Helper()
			e.scratch.tr.In = anyNode
			if v, _ := send(e, Tunnel, addr("10.1.2.6"), mapped(i), 4000, 53); v.Action != Forward {
				t.Fatalf("%v", v.Reason)
			}
			return e.scratch.tr.In != anyNode
		}
		change(which, 1)
		change(n-1, 1)
		looked(which)
		looked(n - 1)
		for !e.Sweep(1) {
		}
		for i := range n - 1 {
			change(i, 2)
		}
		if looked(n - 1) {
			t.Errorf("mapping %d: nothing has changed about the last one", which)
		}
		if !looked(which) {
			t.Errorf("mapping %d has changed", which)
		}
	}
}

// When most numbers for lists of counters are in use, a commit starts again, and connections
// continue to count.
func TestHitsBeginAnew(t *testing.T) {
	e, tables := counting(t, 1)
	e.arrive(64)
	for len(e.hits.lists) <= hitEpoch {
		e.hits.lists = append(e.hits.lists, rules.Hits{})
	}
	c := milan()
	c.Firewall = tables
	need.NoError(t, e.Apply(c))
	if len(e.hits.lists) != 2 {
		t.Errorf("%d lists", len(e.hits.lists))
	}
	for range 2 {
		e.arrive(64)
	}
	if early, late := e.counted("early/a"), e.counted("late/a"); early != 3 || late != 3 {
		t.Errorf("counted %d and %d, want 3", early, late)
	}
}

// alter changes something in c. Where rules mark connections, the node to which answers go is
// neither kept exactly nor checked.
func alter(r *rand.Rand, c *Config, marks bool) string {
	host := func() netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, byte(10 + r.IntN(6))}) }
	switch r.IntN(12) {
	case 0:
		m := &c.Addresses[r.IntN(len(c.Addresses))]
		if h := host(); !slices.ContainsFunc(c.Addresses,
			func(m rules.AddressMapping) bool { return m.Internal == h }) {
			m.Internal = h
		}
		return "mapping"
	case 1:
		m := &c.Addresses[r.IntN(len(c.Addresses))]
		if m.Via = 0; r.IntN(2) == 0 {
			m.Via = c.Nodes[r.IntN(len(c.Nodes))].Link
		}
		return "via"
	case 2:
		c.Nodes[0], c.Nodes[1] = c.Nodes[1], c.Nodes[0]
		return "first node"
	case 3:
		c.Nodes[0].Address, c.Nodes[1].Address = c.Nodes[1].Address, c.Nodes[0].Address
		return "node address"
	case 4:
		c.Nodes[0].Device, c.Nodes[1].Device = device(&c.Nodes[1]), device(&c.Nodes[0])
		return "node device"
	case 5:
		c.Routes[r.IntN(len(c.Routes))].Link = c.Nodes[r.IntN(len(c.Nodes))].Link
		return "route"
	case 6:
		b := &c.Services[0].Backends[r.IntN(2)]
		if b.Address = addr("10.200.1.5"); r.IntN(2) == 0 {
			b.Address, b.Via = host(), c.Nodes[0].Link
		}
		c.Services[0].OnRemoval = rules.OnRemoval(r.IntN(2))
		return "backend"
	case 7:
		c.Rules = nil
		for i := range r.IntN(3) {
			f := rules.FilterRule{Name: fmt.Sprint("f", i), From: rules.From(r.IntN(3)),
				Action: rules.FilterAction(r.IntN(3))}
			if r.IntN(4) > 0 {
				f.Destination = []netip.Prefix{netip.PrefixFrom(host(), 31).Masked(), pfx("10.200.1.0/30")}
			}
			c.Rules = append(c.Rules, f)
		}
		return "filter"
	case 8:
		if c.Remote[1].Remapped = (netip.Prefix{}); r.IntN(2) == 0 {
			c.Remote[1].Remapped = pfx("10.75.64.0/18")
		}
		return "remote"
	case 9:
		if c.SourceCheck = SourceCheckCluster; !marks {
			c.SourceCheck = SourceCheck(r.IntN(2))
		}
		return "source check"
	case 10:
		c.Firewall, c.Routing = nil, nil
		if marks && r.IntN(2) == 0 {
			c.Firewall = []rules.Table{markTable(r), clampTable}
			c.Routing = append((&rules.Config{Nodes: c.Nodes, Routes: c.Routes, Remote: c.Remote,
				PeerTunnelAddress: c.PeerTunnelAddress}).PolicyTables(),
				rules.PolicyTable{Name: "marked", Rules: []rules.PolicyRule{{Mark: uint32(1 + r.IntN(3)), Priority: 50,
					Routes: []rules.PolicyRoute{
						{Destination: pfx("0.0.0.0/0"), Device: one(r, "liqo-tunnel", device(&c.Nodes[0]))}}}}})
		}
		return "tables"
	}
	return "nothing"
}

// clampTable lowers the MSS of packets to the tunnel.
var clampTable = rules.Table{Name: "mss", Family: rules.FamilyIPv4,
	Chains: []rules.Chain{{Name: "c", Type: rules.ChainFilter, Hook: rules.HookForward, Rules: []rules.Rule{{
		Name:   "out",
		Match:  []rules.Match{{Proto: "tcp"}, {Dev: rules.Operand{Value: "liqo-tunnel", Position: rules.PositionOut}}},
		Action: rules.ActionClampMSS, Value: 1000,
	}}}}}

// markTable marks packets and connections, in both directions.
func markTable(r *rand.Rand) rules.Table {
	prefix, action := one(r, "10.70.0.9", "10.99.64.0/18", "10.200.1.0/24"), one(r, rules.ActionSetMark,
		rules.ActionCTMark)
	first, second := uint32(1+r.IntN(3)), uint32(1+r.IntN(3))
	chain := rules.Chain{Name: "mark", Type: rules.ChainFilter, Hook: rules.HookPrerouting,
		Priority: rules.PriorityMangle}
	for i, match := range [][]rules.Match{{ip(prefix, rules.PositionSource)}, {ip(prefix, rules.PositionDestination)}} {
		chain.Rules = append(chain.Rules,
			rules.Rule{Name: fmt.Sprint("connection", i), Match: match, Action: rules.ActionCTMark, Value: first},
			rules.Rule{Name: fmt.Sprint("packet", i), Match: match, Action: action, Value: second})
	}
	chain.Rules = append(chain.Rules, rules.Rule{Name: "restore", Match: []rules.Match{in("liqo-tunnel")},
		Action: rules.ActionMetaMarkFromCT})
	return rules.Table{Name: "marks", Family: rules.FamilyIPv4, Chains: []rules.Chain{chain}}
}

// Whatever changes, a connection that a change is said not to affect fares as if it had been looked
// at.
func TestAffectedIsAllThatIsConcerned(t *testing.T) {
	seed := randomSeed(t)
	runs := 60
	if testing.Short() {
		runs = 10
	}
	spared := 0
	for run := range runs {
		r := rand.New(rand.NewPCG(seed, uint64(run)))
		c, marks := milan(), run%2 == 1
		if marks {
			c.SourceCheck = SourceCheckCluster
		}
		few, err := New([16]byte{}, c)
		need.NoError(t, err)
		all, _ := New([16]byte{}, c)
		type packet struct {
			in                          Link
			from, to                    netip.Addr
			sourcePort, destinationPort uint16
		}
		var flows []packet
		for step := range 40 {
			changed := alter(r, c, marks)
			err, same := few.Apply(c), all.Apply(c)
			if fmt.Sprint(err) != fmt.Sprint(same) {
				t.Fatalf("run %d, step %d, %s: %v, %v", run, step, changed, err, same)
			}
			all.history.add(all.snapshot.generation, &rules.Affected{All: true})
			for range 60 {
				p := packet{
					one(r, Tunnel, 4, 9), netip.AddrFrom4([4]byte{10, 200, 1, byte(1 + r.IntN(6))}),
					one(r, addr("10.71.1.4"), addr("10.99.64.5"), addr("10.75.64.5"), addr("192.0.2.12")),
					uint16(r.IntN(3)), 80,
				}
				if p.in == Tunnel {
					p.to = one(r, addr("10.70.0.9"), addr("10.70.0.10"), addr("10.70.0.11"), addr("10.200.1.3"),
						addr("10.70.0.20"), addr("10.64.32.7"))
				}
				if len(flows) > 0 && r.IntN(3) > 0 {
					p = flows[r.IntN(len(flows))]
				}
				before := few.scratch.tr.In
				few.scratch.tr.In = anyNode
				got, b := send(few, p.in, p.from, p.to, p.sourcePort, p.destinationPort)
				if few.scratch.tr.In == anyNode {
					spared++
					few.scratch.tr.In = before
				}
				want, wanted := send(all, p.in, p.from, p.to, p.sourcePort, p.destinationPort)
				if marks {
					got.Asymmetric, want.Asymmetric = false, false
				}
				if got != want || !bytes.Equal(b, wanted) {
					t.Fatalf("run %d, step %d, %s: %+v:\n%+v %x\nwant\n%+v %x", run, step, changed, p, got, b,
						want, wanted)
				}
				if got.Action == Forward && !got.Asymmetric {
					from, to := netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
					flows = append(flows, p, packet{got.Out, to, from, uint16(b[22])<<8 | uint16(b[23]),
						uint16(b[20])<<8 | uint16(b[21])})
				}
			}
		}
		if few, all := few.Stats(), all.Stats(); few.Created != all.Created || few.Evicted > all.Evicted {
			t.Errorf("run %d: %d made and %d evicted, want %d and %d", run, few.Created, few.Evicted,
				all.Created, all.Evicted)
		}
	}
	if spared < runs*100 {
		t.Errorf("%d packets did not meet the rules", spared)
	}
}
