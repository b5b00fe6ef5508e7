package rules

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"
)

var rulesSeed = flag.Uint64("rules.seed", 0, "seed of the random rule sets; 0: from the clock")

// A ruleMaker makes random tables and packets over few addresses, so that they meet, with prefixes
// of many lengths.
type ruleMaker struct{ *rand.Rand }

func newRuleMaker(seed uint64) ruleMaker { return ruleMaker{rand.New(rand.NewPCG(seed, 7))} }

func one[T any](m ruleMaker, of ...T) T { return of[m.IntN(len(of))] }

// randomNodes is the part of the configuration that rules refer to.
func randomNodes() *Config {
	return &Config{
		Nodes: []Node{
			{Link: 1, Name: "rome-1", Device: "liqo.abcdefghij", Address: PairOf(netip.MustParseAddr("10.80.0.2"))},
			{Link: 2, Name: "rome-2", Address: PairOf(netip.MustParseAddr("10.80.0.3"))},
			{Link: 900, Name: "rome-3", Device: "liqo.zzz", Address: PairOf(netip.MustParseAddr("fd80::3"))},
		},
		GatewayAddress:    PairOf(netip.MustParseAddr("10.80.0.4")),
		TunnelAddress:     PairOf(netip.MustParseAddr("169.254.18.2")),
		PeerTunnelAddress: PairOf(netip.MustParseAddr("169.254.18.1")),
	}
}

var randomDevices = []string{"liqo-tunnel", "liqo.abcdefghij", "rome-2", "liqo.zzz", "eth0", "rome-1", ""}

func (m ruleMaker) addr(v6 bool) netip.Addr {
	if v6 {
		a := netip.MustParseAddr("fd00:10::").As16()
		a[7], a[15] = byte(m.IntN(3)), byte(m.IntN(4))
		return netip.AddrFrom16(a)
	}
	return netip.AddrFrom4([4]byte{10, byte(m.IntN(2)), byte(m.IntN(3)), byte(m.IntN(4))})
}

func (m ruleMaker) prefix(v6 bool) netip.Prefix {
	bits := one(m, 0, 7, 8, 15, 16, 20, 23, 24, 30, 31, 32)
	if v6 {
		bits = one(m, 0, 16, 31, 63, 64, 120, 126, 127, 128)
	}
	return netip.PrefixFrom(m.addr(v6), bits)
}

func (m ruleMaker) ip(v6 bool) string {
	switch m.IntN(6) {
	case 0:
		return m.prefix(v6).String() // host bits and all
	case 1, 2:
		return m.prefix(v6).Masked().String()
	case 3:
		a, b := m.addr(v6), m.addr(v6)
		if b.Less(a) {
			a, b = b, a
		}
		return a.String() + "-" + b.String()
	}
	return m.addr(v6).String()
}

func (m ruleMaker) match(v6 bool) Match {
	var x Match
	x.Op = one(m, OpEqual, OpEqual, OpEqual, OpNotEqual, "")
	for x.Proto == "" && x.Dev.Value == "" && x.IP.Value == "" && x.Port.Value == "" {
		if m.IntN(5) == 0 {
			x.Proto = one(m, "tcp", "udp", "sctp", "icmp", "47")
		}
		if m.IntN(4) == 0 {
			x.Dev = Operand{one(m, randomDevices[:6]...), one(m, PositionIn, PositionOut)}
		}
		if m.IntN(2) == 0 {
			x.IP = Operand{m.ip(v6), one(m, PositionSource, PositionDestination)}
		}
		if m.IntN(6) == 0 {
			x.Port = Operand{one(m, "80", "443", "0", "80-443", "1-65535"), one(m, PositionSource, PositionDestination)}
		}
	}
	return x
}

func (m ruleMaker) rule(name string, actions []Action, f Family) Rule {
	v6 := f == FamilyIPv6 || f == FamilyINET && m.IntN(2) == 0
	r := Rule{Name: name, Action: one(m, actions...), NoCounter: m.IntN(4) == 0}
	for range one(m, 0, 1, 1, 2, 2, 3) {
		r.Match = append(r.Match, m.match(v6))
	}
	switch r.Action {
	case ActionClampMSS:
		r.Match = append(r.Match, Match{Proto: "tcp"})
		r.Value = one(m, uint32(0), 536, 1300, 65535)
	case ActionCTMark, ActionSetMark:
		r.Value = uint32(m.IntN(4))
	case ActionSNAT, ActionDNAT:
		r.To = m.ip(v6)
	}
	return r
}

func (m ruleMaker) chain(name string, f Family, size int) Chain {
	c := Chain{Name: name, Type: ChainFilter, Policy: one(m, PolicyAccept, "", "", "", PolicyDrop)}
	actions := []Action{ActionAccept, ActionDrop, ActionCTMark, ActionMetaMarkFromCT, ActionSetMark, ActionClampMSS,
		ActionNoTrack}
	switch c.Hook = one(m, HookPrerouting, HookForward, HookPostrouting, HookInput, HookOutput); c.Hook {
	case HookPrerouting, HookForward, HookInput, HookOutput:
		actions = append(actions, ActionReject)
	}
	if m.IntN(3) == 0 {
		c.Type = ChainNAT
		if c.Hook = HookPrerouting; m.IntN(2) == 0 {
			c.Hook = HookPostrouting
		}
		actions = []Action{ActionDNAT}
		if c.Hook == HookPostrouting {
			actions = []Action{ActionSNAT, ActionSNAT, ActionMasquerade}
		}
	}
	c.Priority = one(m, int32(-300), -200, -150, -100, -99, 0, 0, 0, 50, 99, 100, 101)
	if c.Type == ChainNAT {
		c.Priority = max(c.Priority, -199)
	}
	for i := range size {
		r := m.rule(fmt.Sprint("r", i), actions, f)
		if r.Action == ActionClampMSS && (c.Hook == HookPrerouting || c.Hook == HookInput) {
			r.Value = max(r.Value, 1)
		}
		c.Rules = append(c.Rules, r)
	}
	return c
}

func (m ruleMaker) tables() []Table {
	var all []Table
	for i := range 1 + m.IntN(5) {
		t := Table{Name: fmt.Sprint("t", i), Family: one(m, FamilyIPv4, FamilyIPv4, FamilyIPv6, FamilyINET)}
		for j := range m.IntN(5) {
			t.Chains = append(t.Chains, m.chain(fmt.Sprint("c", j), t.Family, one(m, 0, 1, 3, 12, 40)))
		}
		all = append(all, t)
	}
	return all
}

func (m ruleMaker) routing() []PolicyTable {
	var all []PolicyTable
	maybe := func(v6 bool) netip.Prefix {
		if m.IntN(2) == 0 {
			return netip.Prefix{}
		}
		return m.prefix(v6)
	}
	for i := range 1 + m.IntN(5) {
		t := PolicyTable{Name: fmt.Sprint("t", i)}
		for range m.IntN(6) {
			v6 := m.IntN(4) == 0
			r := PolicyRule{
				Destination: maybe(v6),
				In:          one(m, append(randomDevices, "", "", "")...),
				Mark:        one(m, uint32(0), 0, 1, 2),
				Priority:    one(m, 0, 0, 100, 150, 200),
			}
			if m.IntN(3) == 0 {
				r.Source = maybe(v6)
			}
			if m.IntN(15) == 0 {
				r.Out = "eth0"
			}
			for range one(m, 0, 1, 2, 20) {
				route := PolicyRoute{Destination: m.prefix(v6).Masked(), Device: one(m, randomDevices...)}
				if route.Device == "" || m.IntN(3) == 0 {
					route.Via = one(m, netip.MustParseAddr("10.80.0.2"), netip.MustParseAddr("169.254.18.1"),
						netip.MustParseAddr("10.80.0.99"))
				}
				r.Routes = append(r.Routes, route)
			}
			t.Rules = append(t.Rules, r)
		}
		all = append(all, t)
	}
	return all
}

func (m ruleMaker) view() view {
	v6 := m.IntN(3) == 0
	v := view{
		src: m.addr(v6), dst: m.addr(v6),
		proto: one(m, uint8(6), 17, 132, 1, 47),
		hasL4: m.IntN(8) != 0,
		in:    one(m, Tunnel, 1, 2, 900, 5),
		out:   one(m, Tunnel, 1, 2, 900, noLink),
	}
	v.untracked = m.IntN(8) == 0
	if v.hasL4 {
		s, d := one(m, 80, 443, 0, 444, 30000), one(m, 80, 443, 79, 65535)
		v.l4 = [4]byte{byte(s >> 8), byte(s), byte(d >> 8), byte(d)}
	}
	return v
}

// differences returns where the compiled and the slow rules disagree about v.
func differences(r *Ruleset, s *slowRules, v view, mark uint32) []string {
	var all []string
	differ := func(what string, got, want any) {
		if fmt.Sprint(got) != fmt.Sprint(want) {
			all = append(all, fmt.Sprintf("%s of %+v: %v, want %v", what, v, got, want))
		}
	}
	e := Effects{hits: make([]*rule, 0, 1000), ConnMark: 77}
	slow := slowEffects{connMark: 77}
	for st := range stages {
		if st == stageDNAT || st == stageSNAT {
			b, want := r.bind(st, &v), s.nat(st, &v, [2]Pair{r.Own(Tunnel), r.gateway})
			got := slowBinding{b.kind, b.addr, ""}
			if b.rule != nil {
				got.by = b.rule.path()
			}
			differ(fmt.Sprint("binding at stage ", st), got, want)
			continue
		}
		e.by = nil
		verdict := r.filter(st, &v, &e)
		slow.verdict, slow.by = ruleAccept, ""
		s.filter(st, &v, &slow)
		got := slowEffects{verdict: verdict, mark: e.mark, connMark: e.ConnMark, notrack: e.NoTrack}
		for _, n := range e.hits {
			got.hits = append(got.hits, n.path())
		}
		switch {
		case e.by == nil:
		case e.by.policy:
			got.by = "policy"
		default:
			got.by = e.by.path()
		}
		var values []uint32
		for _, x := range slow.mss {
			if x != 0 {
				values = append(values, x)
			}
		}
		lowest := uint32(0)
		if len(values) > 0 {
			lowest = slices.Min(values)
		}
		differ("route's MSS", e.routeMSS, slices.Contains(slow.mss, 0))
		differ("MSS", e.mss, lowest)
		want := slow
		want.mss = nil
		differ(fmt.Sprint("effects at stage ", st), got, want)
	}
	hop, ok := r.route(v.in, mark, v.src, v.dst)
	link, via, want := s.route(v.in, mark, v.src, v.dst)
	if !ok {
		hop.link, hop.via = 0, netip.Addr{}
	}
	differ(fmt.Sprint("route with mark ", mark), fmt.Sprint(hop.link, hop.via, ok), fmt.Sprint(link, via, want))
	return all
}

func seedOfRules(tb testing.TB) uint64 {
	seed := *rulesSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	tb.Logf("replay with -rules.seed=%d", seed)
	return seed
}

func TestCompiledRulesAgainstSlowOnes(t *testing.T) {
	m := newRuleMaker(seedOfRules(t))
	rounds := 400
	if testing.Short() {
		rounds = 60
	}
	for round := range rounds {
		c := randomNodes()
		c.Firewall, c.Routing = m.tables(), m.routing()
		r, err := newRuleset(c)
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		s := c.slow()
		for range 200 {
			for _, d := range differences(r, s, m.view(), uint32(m.IntN(4))) {
				t.Error(d)
			}
			if t.Failed() {
				t.Fatalf("round %d, tables %+v\nrouting %+v", round, c.Firewall, c.Routing)
			}
		}
	}
}
