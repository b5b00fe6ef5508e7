package nat

import (
	"bytes"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"culvert/integration/need"
	"culvert/nat/nattest"
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// A recorder records steps.
type recorder struct{ steps []rules.Step }

func (r *recorder) Trace(s rules.Step) { r.steps = append(r.steps, s) }

func (r *recorder) LinkName(l Link) string { return fmt.Sprintf("link %d", l) }

// String shows the steps.
func (r *recorder) String() string {
	var b strings.Builder
	for _, s := range r.steps {
		fmt.Fprintf(&b, "%s %q %s: %v, %s (%s to %s)\n", s.Kind, s.Name, s.Origin, s.Passed, s.Detail, s.Source,
			s.Destination)
	}
	return b.String()
}

// fingerprint hashes everything that an Engine keeps, byte for byte: its own memory, and what it
// points to as far as packets may change that.
func fingerprint(e *Engine, seed maphash.Seed) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	// From the snapshot to the end: counters, lists, the wheel, path MTUs, and what the last packet
	// left in scratch.
	h.Write(unsafe.Slice((*byte)(unsafe.Pointer(&e.snapshot)), unsafe.Sizeof(*e)-unsafe.Offsetof(e.snapshot)))
	raw(&h, e.table.chunks)
	for _, c := range e.table.chunks {
		raw(&h, unsafe.Slice(c, 1))
	}
	for _, w := range e.table.wide.chunks {
		raw(&h, w[:])
	}
	for _, d := range []*directory{&e.table.directory, &e.clients.directory} {
		raw(&h, d.buckets)
		for _, b := range d.buckets {
			raw(&h, b.slots[:])
		}
	}
	for i := range e.table.shares.shards {
		raw(&h, e.table.shares.shards[i].identities)
		raw(&h, e.table.shares.shards[i].counts)
	}
	raw(&h, e.hits.lists)
	for _, c := range e.clients.made {
		raw(&h, c[:])
	}
	f := &e.fragments
	raw(&h, f.ready)
	for _, g := range []*datagram{f.partial.first, f.complete.first, f.spare} {
		for ; g != nil; g = g.next {
			raw(&h, unsafe.Slice(g, 1))
			for w := g.held; w != nil; w = w.next {
				raw(&h, unsafe.Slice(w, 1))
			}
		}
	}
	for w := f.heldSpare; w != nil; w = w.next {
		raw(&h, unsafe.Slice(w, 1))
	}
	// Maps have no order of their own.
	var sum uint64
	sum += entries(seed, f.index) + entries(seed, e.clients.lists) + entries(seed, e.hits.numbers)
	sum += entries(seed, e.table.closed) + entries(seed, e.limit.links) + entries(seed, e.limit.each)
	e.apply.Lock()
	defer e.apply.Unlock()
	e.set.Rules().Counters(func(c rules.RuleCount) { sum += maphash.Comparable(seed, c) })
	return h.Sum64() + sum
}

func raw[T any](h *maphash.Hash, s []T) {
	if len(s) > 0 {
		var one T
		h.Write(unsafe.Slice((*byte)(unsafe.Pointer(&s[0])), len(s)*int(unsafe.Sizeof(one))))
	}
}

func entries[K, V comparable](seed maphash.Seed, m map[K]V) (sum uint64) {
	for k, v := range m {
		sum += maphash.Comparable(seed, struct {
			k K
			v V
		}{k, v})
	}
	return sum
}

// A trafficMaker makes packets that reach every kind of rule, verdict and reason.
type trafficMaker struct {
	*rand.Rand
	sent []sentPacket // some that were forwarded, as they went out
}

type sentPacket struct {
	bytes []byte
	tuple packet.Tuple
}

func (m *trafficMaker) host(prefix string, n int) string { return prefix + fmt.Sprint(1+m.IntN(n)) }

// body returns a transport header and payload of up to n bytes.
func (m *trafficMaker) body(source, destination uint16, n int) nattest.Body {
	payload := make([]byte, m.IntN(n+1))
	switch m.IntN(4) {
	case 0:
		return nattest.UDP{SourcePort: source, DestinationPort: destination, Payload: payload}
	case 1:
		return nattest.SCTP{SourcePort: source, DestinationPort: destination, Tag: 7,
			Chunks: []byte{byte(m.IntN(15)), 0, 0, 4}}
	}
	flags := []uint8{nattest.SYN, nattest.SYN | nattest.ACK, nattest.ACK, nattest.ACK, nattest.FIN | nattest.ACK,
		nattest.RST}[m.IntN(6)]
	s := nattest.TCP{SourcePort: source, DestinationPort: destination, Seq: 100, Ack: 100, Flags: flags, Window: 65535,
		Payload: payload}
	if flags&nattest.SYN != 0 {
		s.Options = []byte{2, 4, 5, 180}
	}
	return s
}

// flood returns a packet of a client that takes all the ports it can get.
func (m *trafficMaker) flood() []byte {
	return nattest.IP{Source: "11.11.11.250", Destination: "10.71.2.77",
		Body: nattest.UDP{SourcePort: uint16(512 + m.IntN(512)), DestinationPort: 53}}.Bytes()
}

// next returns a packet and where it enters.
func (m *trafficMaker) next() (in Link, b []byte) {
	node := one(m.Rand, Link(4), 9)
	p := nattest.IP{TTL: uint8(one(m.Rand, 1, 64, 64, 64, 64, 64, 64, 64)), ID: uint16(m.IntN(60)),
		Body: m.body(uint16(1000+m.IntN(40)), uint16(one(m.Rand, 53, 80, 443, 6091)), 60)}
	pod, remote := m.host("10.200.1.", 20), m.host("10.71.2.", 5)
	p.Source, p.Destination, in = pod, remote, 9
	switch m.IntN(22) {
	case 0:
		p.Source, p.Destination, in = m.host("10.200.2.", 5), one(m.Rand, pod, pod, pod, "10.80.0.2"), Tunnel
	case 1, 2: // clients that share U
		p.Source, in = m.host("11.11.11.", 200), node
		p.Body = m.body(uint16(512+m.IntN(512)), 53, 10)
		p.MF = m.IntN(8) == 0
	case 3:
		p.Source, p.Destination, in = m.host("10.200.2.", 9), "10.70.0."+fmt.Sprint(one(m.Rand, 9, 10, 11, 20, 21,
			22, 99)), Tunnel
		p.Body = m.body(uint16(1000+m.IntN(40)), one(m.Rand, uint16(80), 81), 10)
	case 4: // IPv6, which has no U
		p.Source, p.Destination, in = one(m.Rand, "fd00:200:0:1::5", "2001:db8::7"), m.host("fd00:71:0:4001::", 5), 4
	case 5:
		p.Source, in = one(m.Rand, "10.71.2.6", "10.80.0.4", "127.0.0.1"), node
	case 6:
		p.Destination = one(m.Rand, "224.0.0.5", "8.8.8.8", "10.200.99.5", "255.255.255.255", "10.80.0.4")
	case 7:
		p.Body, p.DF = nattest.UDP{SourcePort: 5000, DestinationPort: 80, Payload: make([]byte, 1400)}, m.IntN(2) == 0
	case 8:
		p.Options = []byte{131, 3, 4, 0}
	case 9: // protocols without ports
		p.Source, p.Body, in = m.host("11.11.11.", 200), nattest.Raw{Protocol: 47, Payload: make([]byte, 8)}, node
	case 10:
		p.Body = nattest.ICMP{Type: one(m.Rand, uint8(5), 8, 9, 0, 3), Rest: uint32(m.IntN(4)) << 16,
			Payload: make([]byte, 28)}
	case 11, 12, 13: // fragments of few datagrams
		offset := 8 * m.IntN(12)
		p.Offset, p.MF, in = offset+8, m.IntN(3) > 0, one(m.Rand, Tunnel, 9)
		p.Body = nattest.Raw{Protocol: packet.UDP, Payload: make([]byte, 8*(1+m.IntN(6)))}
		if offset == 0 {
			p.Offset, p.MF, p.Body = 0, true, nattest.UDP{SourcePort: 1000, DestinationPort: 53,
				Payload: make([]byte, 8)}
		}
		if m.IntN(4) == 0 && offset > 0 {
			p.Body = nattest.Raw{Protocol: packet.UDP, Payload: make([]byte, 2400)}
		}
		if in == Tunnel {
			p.Source, p.Destination = "10.200.2.6", one(m.Rand, "10.70.0.9", "10.70.0.10", "10.200.1.7")
		} else if m.IntN(2) == 0 {
			p.Source, in = m.host("11.11.11.", 3), 4
		}
	case 14, 15, 16, 17: // answers
		if len(m.sent) > 0 {
			if s := &m.sent[m.IntN(len(m.sent))]; !packet.IsICMP(s.tuple.Protocol) {
				t := s.tuple
				p.Source, p.Destination, in = t.Destination().String(), t.Source().String(), t.Link
				p.Body = m.body(t.DestinationPort(), t.SourcePort(), 30)
				if t.Link != Tunnel && m.IntN(4) == 0 {
					in = node
				}
			}
		}
	case 18, 19: // errors about sent packets
		if len(m.sent) > 0 {
			s := &m.sent[m.IntN(len(m.sent))]
			router := one(m.Rand, s.tuple.Destination().String(), m.host("10.200.1.", 250))
			e := nattest.ICMP{Type: 3, Code: 1, Payload: s.bytes[:min(len(s.bytes), 28)]}
			if m.IntN(2) == 0 {
				e.Code, e.Rest = 4, 900
			}
			if s.tuple.IPv6 {
				e, router = nattest.ICMP{Type: 1, Payload: s.bytes[:min(len(s.bytes), 60)]},
					s.tuple.Destination().String()
			}
			p.Source, p.Destination, p.Body, in = router, s.tuple.Source().String(), e, s.tuple.Link
			if m.IntN(6) == 0 && !s.tuple.IPv6 {
				p.Destination = m.host("10.200.1.", 20)
			}
		}
	case 20: // the checksum is in another fragment
		p.Source, p.MF, in = m.host("11.11.11.", 200), true, node
		p.Body = nattest.SCTP{SourcePort: 700, DestinationPort: 53, Tag: 7, Chunks: make([]byte, 12)}
	case 21: // met by the rules of the test
		p.Source, p.Body = m.host("10.200.1.", 250), m.body(7, one(m.Rand, uint16(7), 9, 11, 13), 0)
	}
	b = p.Bytes()
	if m.IntN(40) == 0 {
		b = b[:m.IntN(len(b))]
	}
	return in, b
}

// explained is a configuration with every kind of rule.
func explained(t *testing.T) (*Engine, *Config) {
	t.Helper()
	c := milan()
	c.MaxConnections = 3000
	c.Addresses[1].ProxyProtocol = true
	c.Services = append(c.Services,
		rules.Service{Name: "empty", Address: addr("10.70.0.21"), Port: 80, Protocol: packet.TCP},
		rules.Service{Name: "sticky", Address: addr("10.70.0.22"), Port: 80, Protocol: packet.TCP,
			Affinity: rules.AffinityClientIP, Backends: slices.Clone(c.Services[0].Backends)})
	c.Rules = []rules.FilterRule{
		{Name: "let", Source: []netip.Prefix{pfx("10.200.1.240/29")}, Ports: []rules.PortRange{{First: 7, Last: 7}},
			Protocol: packet.TCP, Action: rules.FilterAccept},
		{Name: "drop", Ports: []rules.PortRange{{First: 7, Last: 7}}, Protocol: packet.TCP, Action: rules.FilterDrop},
		{Name: "reject", Ports: []rules.PortRange{{First: 9, Last: 9}}, Protocol: packet.TCP,
			Action: rules.FilterReject},
	}
	e, err := New([16]byte{1}, c)
	need.NoError(t, err)
	udp := func(port string) []rules.Match {
		return []rules.Match{{Proto: "udp"}, {Port: rules.Operand{Value: port, Position: rules.PositionDestination}}}
	}
	if err := e.Put(rules.Key{Kind: "firewall-of-others", Namespace: "liqo", Name: "extra"},
		rules.Resource{Order: 9, Tables: []rules.Table{{
			Name: "extra", Family: rules.FamilyIPv4, Chains: []rules.Chain{
				{Name: "raw", Type: rules.ChainFilter, Hook: rules.HookPrerouting, Priority: rules.PriorityRaw,
					Rules: []rules.Rule{
						{Name: "untracked", Match: udp("6091"), Action: rules.ActionNoTrack}}},
				{Name: "masquerade", Type: rules.ChainNAT, Hook: rules.HookPostrouting, Priority: rules.PrioritySNAT,
					Rules: []rules.Rule{
						{Name: "own", Match: append(udp("9"), ip("10.200.1.0/24", rules.PositionSource)),
							Action: rules.ActionMasquerade}}},
				{Name: "guard", Type: rules.ChainFilter, Hook: rules.HookForward, Policy: rules.PolicyDrop,
					Rules: []rules.Rule{
						{Name: "few", Match: append(udp("11"), ip("10.200.1.0/25", rules.PositionSource)),
							Action: rules.ActionAccept},
						{Name: "not 11", Match: []rules.Match{{Op: rules.OpNotEqual, Port: rules.Operand{Value: "11",
							Position: rules.PositionDestination}}}, Action: rules.ActionAccept},
						{Name: "others", Match: []rules.Match{{Op: rules.OpEqual, IP: rules.Operand{Value: "0.0.0.0/0",
							Position: rules.PositionSource}, Proto: "47"}}, Action: rules.ActionAccept},
						{Name: "icmp", Match: []rules.Match{{Proto: "icmp"}}, Action: rules.ActionAccept},
						{Name: "mss", Match: []rules.Match{{Proto: "tcp"}}, Action: rules.ActionClampMSS,
							Value: 1000}}},
			},
		}}}); err != nil {
		t.Fatal(err)
	}
	e.CommitRules()
	return e, c
}

// Explain predicts what Process then does with a packet, and changes nothing that the Engine keeps.
func TestExplainIsProcess(t *testing.T) {
	n := 18_000
	switch {
	case os.Getenv(longEnv) != "":
		n = 200_000
	case testing.Short():
		n = 1500 // too few for all cases to occur
	}
	e, c := explained(t)
	m := &trafficMaker{Rand: rand.New(rand.NewPCG(randomSeed(t), 7))}
	seed := maphash.MakeSeed()
	actions, reasons := map[Action]int{}, map[Reason]int{}
	kinds, actionsOfRules := map[rules.StepKind]int{}, map[string]int{}
	now := Time(time.Hour)
	var work [4096]byte
	// missing returns what has not happened often enough. Some cases are rare: where chance
	// withholds one, the test goes on, for at most 5n packets.
	missing := func() (all []string) {
		add := func(times int, what string, of any) {
			if want := n / 2000; times < want {
				all = append(all, fmt.Sprintf("%d %s %v, want %d", times, what, of, want))
			}
		}
		for _, r := range Reasons() {
			add(reasons[r], "packets dropped for", r)
		}
		for _, a := range []Action{Drop, Forward, Deliver, Hold} {
			add(actions[a], "times", a)
		}
		for _, a := range []rules.Action{rules.ActionAccept, rules.ActionDrop, rules.ActionReject, rules.ActionCTMark,
			rules.ActionMetaMarkFromCT, rules.ActionSetMark, rules.ActionClampMSS,
			rules.ActionNoTrack, rules.ActionDNAT, rules.ActionSNAT, rules.ActionMasquerade, rules.ActionRefuseSource} {
			add(actionsOfRules[string(a)], "packets met a rule with action", a)
		}
		for k := range rules.StepNearest + 1 {
			add(kinds[k], "steps of kind", k)
		}
		return all
	}
	for i := 0; i < n || i < 5*n && len(missing()) > 0; i++ {
		switch now = now.Add(time.Duration(m.IntN(20)) * time.Millisecond); {
		case i%500 == 0: // another size of the table, other mappings, and admission now and then
			if c.Admit = nil; i%2000 == 0 {
				c.Admit = []rules.Endpoint{
					{Prefix: pfx("10.200.1.0/24"), Protocol: packet.TCP, Port: uint16(7 + m.IntN(9))},
					{Prefix: pfx("10.200.0.0/16"), Protocol: packet.UDP}}
			}
			c.MaxConnections = 3000
			if i%3000 < 1500 {
				c.MaxConnections = 10 + m.IntN(40)
			}
			c.Addresses[0].Internal = netip.AddrFrom4([4]byte{192, 0, 2, byte(20 + m.IntN(9))})
			c.Services[0].Backends[0].Port = uint16(8080 + m.IntN(3))
			need.NoError(t, e.Apply(c))
		case i%5000 == 4999:
			now = now.Add(200 * time.Hour)
		case i%700 == 699:
			now = now.Add(time.Duration(m.IntN(200)) * time.Second)
		}
		in, b := m.next()
		if i%3000 > 2000 && m.IntN(2) == 0 {
			in, b = 4, m.flood()
		}
		var p, q packet.Packet
		p.Parse(slices.Clone(b))
		q.Parse(slices.Clone(b))
		var steps recorder
		before := fingerprint(e, seed)
		said := e.Explain(&p, in, now, &steps)
		if fingerprint(e, seed) != before {
			t.Fatalf("packet %d, %x from link %d: Explain has changed something\n%s", i, b, in, &steps)
		}
		if did := e.Process(&q, in, now); did != said || !bytes.Equal(p.Bytes(), q.Bytes()) ||
			p.SegmentSize != q.SegmentSize {
			t.Fatalf("packet %d, %x from link %d: %+v with %x, and Explain said %+v with %x\n%s", i, b, in, did,
				q.Bytes(), said, p.Bytes(), &steps)
		}
		for held := said.Held; held > 0; held-- {
			if v, ok := e.Release(&q, work[:], in, now); !ok {
				t.Fatalf("packet %d: %d fragments were said to wait, and %d are left: %v", i, said.Held, held, v)
			}
		}
		actions[said.Action]++
		if said.Action == Drop {
			reasons[said.Reason]++
		}
		if said.Action == Forward && said.SegmentSize == 0 {
			s := sentPacket{bytes: bytes.Clone(q.Bytes())}
			if q.Parse(s.bytes); q.Fault() == packet.NoFault && q.FragmentOffset() == 0 {
				if q.Tuple(&s.tuple, said.Out); len(m.sent) < 200 {
					m.sent = append(m.sent, s)
				} else {
					m.sent[m.IntN(len(m.sent))] = s
				}
			}
		}
		for _, s := range steps.steps {
			kinds[s.Kind]++
			if s.Kind == rules.StepRule && s.Passed {
				action, _, _ := strings.Cut(s.Detail, " ")
				actionsOfRules[action]++
			}
		}
	}
	for _, m := range missing() {
		t.Error(m)
	}
	t.Logf("%v\n%v\n%v", actions, reasons, actionsOfRules)
}

// Explain names rules, routes and services with their origin, and the rule that came nearest to
// letting a packet through.
func TestExplainSteps(t *testing.T) {
	e, _ := explained(t)
	extra := rules.Key{Kind: "firewall-of-others", Namespace: "liqo", Name: "extra"}
	for _, tt := range []struct {
		name string
		in   Link
		p    nattest.IP
		want Verdict
		step rules.Step // without Source and Destination
	}{
		{"a chain's policy", 9, nattest.IP{Source: "10.200.1.200", Destination: "10.71.2.6",
			Body: nattest.UDP{DestinationPort: 11}},
			drop(ReasonFiltered), rules.Step{Kind: rules.StepRule, Name: "extra/guard", Origin: rules.Origin{Key: extra,
				Field: "tables[0].chains[2].policy"}, Passed: true, Detail: "drop"}},
		{"what it would take", 9, nattest.IP{Source: "10.200.1.200", Destination: "10.71.2.6",
			Body: nattest.UDP{DestinationPort: 11}},
			drop(ReasonFiltered), rules.Step{Kind: rules.StepNearest, Name: "extra/guard/few",
				Origin: rules.Origin{Key: extra, Field: "tables[0].chains[2].rules[0]"},
				Detail: "only for src 10.200.1.0/25"}},
		{"a rule that does not match", 9, nattest.IP{Source: "10.200.1.200", Destination: "10.71.2.6",
			Body: nattest.UDP{DestinationPort: 11}},
			drop(ReasonFiltered), rules.Step{Kind: rules.StepRule, Name: "extra/raw/untracked",
				Origin: rules.Origin{Key: extra, Field: "tables[0].chains[0].rules[0]"},
				Detail: "only for dport 6091"}},
		{"a source of another cluster", Tunnel, nattest.IP{Source: "9.9.9.9", Destination: "10.200.1.5",
			Body: nattest.UDP{}},
			drop(ReasonBadSource), rules.Step{Name: "source"}},
		{"a mapping", Tunnel, nattest.IP{Source: "10.200.2.6", Destination: "10.70.0.11",
			Body: nattest.UDP{DestinationPort: 53}},
			Verdict{Action: Forward, Out: 9, Packets: 1}, rules.Step{Kind: rules.StepRule,
				Name:   "10.70.0.11-remap-ipmapping-gw/prerouting/10.70.0.11",
				Origin: rules.Origin{Key: rules.Key{Kind: "mapping", Name: "10.70.0.11"}}, Passed: true,
				Detail: "dnat 10.200.1.3"}},
		{"a service", Tunnel, nattest.IP{Source: "10.200.2.6", Destination: "10.70.0.21",
			Body: nattest.TCP{DestinationPort: 80, Flags: nattest.SYN}},
			refuse(ReasonNoBackend, packet.PortUnreachable), rules.Step{Kind: rules.StepService, Name: "empty",
				Origin: rules.Origin{Key: rules.Key{Kind: "service", Name: "empty 10.70.0.21:80/6"}}, Passed: true}},
		{"a route", Tunnel, nattest.IP{Source: "10.200.2.6", Destination: "10.200.1.5",
			Body: nattest.UDP{DestinationPort: 53}},
			Verdict{Action: Forward, Out: 9, Packets: 1}, rules.Step{Kind: rules.StepRoute, Name: "milan-2/1",
				Origin: rules.Origin{Key: rules.Key{Kind: "node", Name: "milan-2"}}, Passed: true,
				Detail: "to link 9, with mark 0"}},
		{"no route", 9, nattest.IP{Source: "10.200.1.5", Destination: "8.8.8.8",
			Body: nattest.UDP{DestinationPort: 53}},
			refuse(ReasonNoRoute, packet.NetUnreachable), rules.Step{Kind: rules.StepRoute,
				Detail: "nowhere, with mark 0"}},
	} {
		var p packet.Packet
		p.Parse(tt.p.Bytes())
		var steps recorder
		if got := e.Explain(&p, tt.in, 1, &steps); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
		if !slices.ContainsFunc(steps.steps, func(s rules.Step) bool {
			s.Source, s.Destination = netip.AddrPort{}, netip.AddrPort{}
			return s == tt.step
		}) {
			t.Errorf("%s: no step %+v among\n%s", tt.name, tt.step, &steps)
		}
	}
}

// A connection is explained by the rules that the first packet of its direction matched.
func TestExplainConnection(t *testing.T) {
	e, _ := explained(t)
	b := nattest.IP{Source: "10.200.1.5", Destination: "10.71.2.6", Body: nattest.UDP{SourcePort: 7,
		DestinationPort: 53}}.Bytes()
	for i := range 3 {
		var p packet.Packet
		var steps recorder
		p.Parse(slices.Clone(b))
		e.Explain(&p, 9, 1, &steps)
		connection := slices.IndexFunc(steps.steps, func(s rules.Step) bool { return s.Kind == rules.StepConnection })
		rule := slices.IndexFunc(steps.steps, func(s rules.Step) bool {
			return s.Name == "extra/guard/not 11" && s.Passed
		})
		if (connection >= 0) != (i > 0) || rule < 0 {
			t.Errorf("packet %d: connection at %d, rule at %d\n%s", i, connection, rule, &steps)
		}
		p.Parse(slices.Clone(b))
		e.Process(&p, 9, 1)
	}
}

// The explanation includes changes of a stream's sequence numbers.
func TestExplainProxyProtocol(t *testing.T) {
	c := milan()
	c.Services[0].ProxyProtocol, c.Services[0].Backends = true, c.Services[0].Backends[:1]
	e, err := New([16]byte{1}, c)
	need.NoError(t, err)
	segment := func(from, to string, sport, dport uint16, s nattest.TCP) (b []byte, in Link) {
		if in = Tunnel; from == "10.200.1.5" {
			in = 9
		}
		s.SourcePort, s.DestinationPort = sport, dport
		return nattest.IP{Source: from, Destination: to, Body: s}.Bytes(), in
	}
	client := func(s nattest.TCP) ([]byte, Link) { return segment("10.200.2.6", "10.70.0.20", 4000, 80, s) }
	server := func(s nattest.TCP) ([]byte, Link) { return segment("10.200.1.5", "10.71.2.6", 8080, 4000, s) }
	for _, tt := range []struct {
		from func(nattest.TCP) ([]byte, Link)
		s    nattest.TCP
		want string
	}{
		{client, nattest.TCP{Seq: 1001, Flags: nattest.ACK}, `check "begin of a TCP connection" /: false`},
		{client, nattest.TCP{Seq: 1000, Flags: nattest.SYN},
			"a header of 28 bytes will tell the server 10.71.2.6:4000 > 10.70.0.20:80"},
		{client, nattest.TCP{Seq: 1000, Flags: nattest.SYN}, "the handshake passes without data"},
		{server, nattest.TCP{Seq: 9000, Ack: 1001, Flags: nattest.SYN | nattest.ACK}, "acknowledgements - 28"},
		{client, nattest.TCP{Seq: 1001, Ack: 9001, Flags: nattest.ACK}, "a header of 28 bytes goes in front"},
		{client, nattest.TCP{Seq: 1002, Ack: 9001, Flags: nattest.ACK}, "sequence number + 28"},
	} {
		b, in := tt.from(tt.s)
		var p packet.Packet
		var steps recorder
		p.Parse(slices.Clone(b))
		e.Explain(&p, in, 1, &steps)
		if !strings.Contains(steps.String(), tt.want) {
			t.Errorf("no %q in\n%s", tt.want, &steps)
		}
		p.Parse(b)
		e.Process(&p, in, 1)
	}
}
