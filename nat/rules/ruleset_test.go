package rules

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"culvert/integration/need"
	"culvert/nat/packet"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// rulesOf compiles tables for the nodes of randomNodes.
func rulesOf(t testing.TB, tables ...Table) *Ruleset {
	t.Helper()
	c := randomNodes()
	c.Firewall, c.Routing = tables, []PolicyTable{}
	r, err := newRuleset(c)
	need.NoError(t, err)
	return r
}

// oneChain returns a table with one chain.
func oneChain(f Family, ct ChainType, h Hook, priority int32, rules ...Rule) Table {
	for i := range rules {
		if rules[i].Name == "" {
			rules[i].Name = "rule" + string(rune('a'+i))
		}
	}
	return Table{Name: "t", Family: f, Chains: []Chain{{Name: "c", Type: ct, Hook: h, Priority: priority,
		Rules: rules}}}
}

func ip(value string, at Position) Match        { return Match{IP: Operand{value, at}} }
func not(m Match) Match                         { m.Op = OpNotEqual; return m }
func dev(value string, at Position) Match       { return Match{Dev: Operand{value, at}} }
func portMatch(value string, at Position) Match { return Match{Port: Operand{value, at}} }

// packetView is a TCP packet 10.0.1.5:40000 → 10.61.2.6:443 from node 1 to the tunnel, changed by
// edits.
func packetView(edits ...func(*view)) *view {
	v := &view{
		src: addr("10.0.1.5"), dst: addr("10.61.2.6"), proto: packet.TCP,
		l4: [4]byte{40000 >> 8, 40000 & 0xff, 443 >> 8, 443 & 0xff}, hasL4: true, in: 1, out: Tunnel,
	}
	for _, edit := range edits {
		edit(v)
	}
	return v
}

func proto(n uint8) func(*view) { return func(v *view) { v.proto = n } }

// Every statement that Liqo's FirewallConfiguration and nftables make about matches.
func TestMatchStatements(t *testing.T) {
	v6 := func(v *view) { v.src, v.dst = addr("fd00::1"), addr("fd00::2") }
	short := func(v *view) { v.hasL4 = false }
	tests := []struct {
		statement string
		family    Family
		matches   []Match
		packet    *view
		want      bool
	}{
		{"no match matches everything", FamilyIPv4, nil, packetView(), true},
		{"matches are ANDed: both hold", FamilyIPv4, []Match{ip("10.0.0.0/16", "src"), ip("10.61.0.0/16", "dst")},
			packetView(), true},
		{"matches are ANDed: one fails", FamilyIPv4, []Match{ip("10.0.0.0/16", "src"), ip("10.62.0.0/16", "dst")},
			packetView(), false},
		{"one object of several kinds is ANDed", FamilyIPv4,
			[]Match{{Proto: "tcp", Dev: Operand{"liqo.abcdefghij", "in"}, IP: Operand{"10.0.1.5", "src"},
				Port: Operand{"443", "dst"}}}, packetView(), true},
		{"neq applies to each comparison: A≠x and B≠y", FamilyIPv4,
			[]Match{{Op: "neq", IP: Operand{"10.9.9.9", "src"}, Port: Operand{"80", "dst"}}}, packetView(), true},
		{"neq applies to each comparison: NOT(A=x and B=y) would hold", FamilyIPv4,
			[]Match{{Op: "neq", IP: Operand{"10.0.1.5", "src"}, Port: Operand{"80", "dst"}}}, packetView(), false},
		{"proto is equality whatever op: the same", FamilyIPv4, []Match{{Op: "neq", Proto: "tcp"}}, packetView(), true},
		{"proto is equality whatever op: another", FamilyIPv4, []Match{{Op: "neq", Proto: "udp"}}, packetView(), false},
		{"a port range ignores op: inside", FamilyIPv4, []Match{not(portMatch("400-500", "dst"))}, packetView(), true},
		{"a port range ignores op: outside", FamilyIPv4, []Match{not(portMatch("500-600", "dst"))},
			packetView(), false},
		{"a port range includes its ends", FamilyIPv4, []Match{portMatch("443-443", "dst"),
			portMatch("40000-40001", "src")}, packetView(), true},
		{"a single port obeys op", FamilyIPv4, []Match{not(portMatch("443", "dst"))}, packetView(), false},
		{"ip: single address", FamilyIPv4, []Match{ip("10.61.2.6", "dst")}, packetView(), true},
		{"ip: negated single address", FamilyIPv4, []Match{not(ip("10.61.2.6", "dst"))}, packetView(), false},
		{"ip: CIDR", FamilyIPv4, []Match{ip("10.61.2.0/23", "dst")}, packetView(), true},
		{"ip: CIDR with host bits never matches, not even itself", FamilyIPv4, []Match{ip("10.61.2.6/16", "dst")},
			packetView(), false},
		{"ip: CIDR with host bits, negated, always matches", FamilyIPv4, []Match{not(ip("10.61.2.6/16", "dst"))},
			packetView(), true},
		{"ip: /32 CIDR has no host bits", FamilyIPv4, []Match{ip("10.61.2.6/32", "dst")}, packetView(), true},
		{"ip: range, first", FamilyIPv4, []Match{ip("10.61.2.6-10.61.2.9", "dst")}, packetView(), true},
		{"ip: range, last", FamilyIPv4, []Match{ip("10.61.1.250-10.61.2.6", "dst")}, packetView(), true},
		{"ip: range, outside", FamilyIPv4, []Match{ip("10.61.2.7-10.61.2.9", "dst")}, packetView(), false},
		{"ip: negated range", FamilyIPv4, []Match{not(ip("10.61.2.7-10.61.2.9", "dst"))}, packetView(), true},
		{"a port match implies no protocol: UDP", FamilyIPv4, []Match{portMatch("443", "dst")},
			packetView(proto(packet.UDP)), true},
		{"a port match implies no protocol: first four bytes of GRE", FamilyIPv4, []Match{portMatch("443", "dst")},
			packetView(proto(47)), true},
		{"a port match without four bytes fails", FamilyIPv4, []Match{portMatch("443", "dst")},
			packetView(short), false},
		{"a negated port match without four bytes fails too", FamilyIPv4, []Match{not(portMatch("80", "dst"))},
			packetView(short), false},
		{"dev compares the full name", FamilyIPv4, []Match{dev("liqo.abcdefghij", "in")}, packetView(), true},
		{"dev has no wildcard", FamilyIPv4, []Match{dev("liqo.*", "in")}, packetView(), false},
		{"dev: a prefix of the name does not match", FamilyIPv4, []Match{dev("liqo.abc", "in")}, packetView(), false},
		{"dev out", FamilyIPv4, []Match{dev("liqo-tunnel", "out")}, packetView(), true},
		{"dev: an unknown name matches nothing", FamilyIPv4, []Match{dev("eth0", "in")}, packetView(), false},
		{"dev: an unknown name, negated, matches all", FamilyIPv4, []Match{not(dev("eth0", "in")),
			not(dev("eth0", "out"))}, packetView(), true},
		{"dev: a node whose device has another name is not its Name", FamilyIPv4, []Match{dev("rome-1", "in")},
			packetView(), false},
		{"dev out before routing equals nothing", FamilyIPv4, []Match{dev("liqo-tunnel", "out")},
			packetView(func(v *view) { v.out = noLink }), false},
		{"dev out before routing, negated", FamilyIPv4, []Match{not(dev("liqo-tunnel", "out"))},
			packetView(func(v *view) { v.out = noLink }), true},
		{"family IPV4 does not see IPv6", FamilyIPv4, nil, packetView(v6), false},
		{"family IPV6 sees IPv6", FamilyIPv6, []Match{ip("fd00::/64", "src")}, packetView(v6), true},
		{"family IPV6 does not see IPv4", FamilyIPv6, nil, packetView(), false},
		{"family INET sees both", FamilyINET, nil, packetView(v6), true},
		{"a comparison implies the family of its value", FamilyINET, []Match{not(ip("10.9.0.0/16", "src"))},
			packetView(v6), false},
		{"proto by number", FamilyIPv4, []Match{{Proto: "132"}}, packetView(proto(packet.SCTP)), true},
	}
	for _, tt := range tests {
		// Alone, and behind enough others that the index is used.
		for _, others := range []int{0, 40} {
			var rules []Rule
			for i := range others {
				rules = append(rules, Rule{Name: "other" + string(rune('A'+i)),
					Match: []Match{ip("203.0.113.1", "src")}, Action: ActionDrop})
			}
			if tt.family == FamilyIPv6 {
				rules = nil
			}
			r := rulesOf(t, oneChain(tt.family, ChainFilter, HookForward, 0,
				append(rules, Rule{Match: tt.matches, Action: ActionDrop})...))
			var e Effects
			if got := r.filter(stageForward, tt.packet, &e) == ruleDrop; got != tt.want {
				t.Errorf("%s (among %d): match %v, want %v", tt.statement, others, got, tt.want)
			}
		}
	}
}

// Every statement that they make about what nat rules do.
func TestTranslationStatements(t *testing.T) {
	nat := func(h Hook, priority int32, rules ...Rule) Table {
		return oneChain(FamilyINET, ChainNAT, h, priority, rules...)
	}
	dnat := func(to string, m ...Match) Rule { return Rule{Action: ActionDNAT, To: to, Match: m} }
	snat := func(to string, m ...Match) Rule { return Rule{Action: ActionSNAT, To: to, Match: m} }
	named := func(name string, x Table) Table { x.Name = name; return x }
	policed := func(x Table) Table { x.Chains[0].Policy = PolicyDrop; return x }
	v6 := func(v *view) { v.src, v.dst = addr("fd00::1:5"), addr("fd61::2:6") }
	toNode := func(v *view) { v.in, v.out = Tunnel, 2 }
	tests := []struct {
		statement string
		stage     stage
		tables    []Table
		packet    *view
		kind      bindKind
		addr      string
	}{
		{"to an address", stageDNAT, []Table{nat("prerouting", -100, dnat("192.0.2.7"))}, packetView(), bindAddress,
			"192.0.2.7"},
		{"to a CIDR keeps the host bits", stageDNAT, []Table{nat("prerouting", -100, dnat("10.0.0.0/16"))},
			packetView(), bindPrefix, "10.0.2.6"},
		{"to a CIDR that ends within a byte", stageDNAT, []Table{nat("prerouting", -100, dnat("10.0.0.0/13"))},
			packetView(), bindPrefix, "10.5.2.6"},
		{"the length of the target rules, not that of the match", stageDNAT,
			[]Table{nat("prerouting", -100, dnat("172.16.0.0/12", ip("10.61.2.0/24", "dst")))}, packetView(),
			bindPrefix, "172.29.2.6"},
		{"snat changes the source", stageSNAT, []Table{nat("postrouting", 100, snat("10.61.0.0/16"))}, packetView(),
			bindPrefix, "10.61.1.5"},
		{"a range is silently ignored", stageDNAT, []Table{nat("prerouting", -100, dnat("10.1.1.1-10.1.1.9"))},
			packetView(), bindNone, ""},
		{"a range is silently ignored and the next rule follows", stageDNAT,
			[]Table{nat("prerouting", -100, dnat("10.1.1.1-10.1.1.9"), dnat("10.2.2.2"))}, packetView(),
			bindAddress, "10.2.2.2"},
		{"no address: masquerade as the tunnel's", stageSNAT,
			[]Table{nat("postrouting", 100, Rule{Action: ActionMasquerade})}, packetView(),
			bindAddress, "169.254.18.2"},
		{"no address: masquerade as the gateway's", stageSNAT,
			[]Table{nat("postrouting", 100, Rule{Action: ActionMasquerade})}, packetView(toNode),
			bindAddress, "10.80.0.4"},
		{"masquerade without an address of the family drops", stageSNAT,
			[]Table{nat("postrouting", 100, Rule{Action: ActionMasquerade})}, packetView(v6), bindDrop, ""},
		{"IPv6 prefix", stageDNAT, []Table{nat("prerouting", -100, dnat("fd00:1::/63"))}, packetView(v6), bindPrefix,
			"fd00:1::2:6"},
		{"a target of the other family binds nothing", stageDNAT, []Table{nat("prerouting", -100, dnat("10.2.2.2"))},
			packetView(v6), bindNone, ""},
		{"the first rule of a chain binds", stageDNAT,
			[]Table{nat("prerouting", -100, dnat("10.1.1.1", ip("10.62.0.0/16", "dst")), dnat("10.2.2.2"),
				dnat("10.3.3.3"))}, packetView(), bindAddress, "10.2.2.2"},
		{"chains of one hook run by priority", stageDNAT,
			[]Table{named("a", nat("prerouting", 0, dnat("10.1.1.1"))),
				named("b", nat("prerouting", -100, dnat("10.2.2.2")))}, packetView(), bindAddress, "10.2.2.2"},
		{"at equal priority, in the order of the tables", stageSNAT,
			[]Table{named("z", nat("postrouting", 100, snat("10.1.1.1"))),
				named("a", nat("postrouting", 100, snat("10.2.2.2")))}, packetView(), bindAddress, "10.1.1.1"},
		{"99 binds before 100", stageSNAT,
			[]Table{named("a", nat("postrouting", 100, snat("10.1.1.1"))),
				named("b", nat("postrouting", 99, snat("10.0.0.0/16")))}, packetView(), bindPrefix, "10.0.1.5"},
		{"an identity binds, so that later chains cannot", stageSNAT,
			[]Table{named("a", nat("postrouting", 99, snat("10.0.0.0/16"))),
				named("b", nat("postrouting", 100, Rule{Action: ActionMasquerade}))}, packetView(),
			bindPrefix, "10.0.1.5"},
		{"policy drop drops what no rule bound", stageDNAT,
			[]Table{policed(nat("prerouting", -100, dnat("10.1.1.1", ip("10.62.0.0/16", "dst"))))}, packetView(),
			bindDrop, ""},
		{"policy drop spares what a rule bound", stageDNAT, []Table{policed(nat("prerouting", -100, dnat("10.1.1.1")))},
			packetView(), bindAddress, "10.1.1.1"},
	}
	for _, tt := range tests {
		b := rulesOf(t, tt.tables...).bind(tt.stage, tt.packet)
		var want netip.Addr
		if tt.addr != "" {
			want = addr(tt.addr)
		}
		if b.kind != tt.kind || b.addr != want {
			t.Errorf("%s: %v %v, want %v %v", tt.statement, b.kind, b.addr, tt.kind, want)
		}
	}
}

// Every statement that they make about what filter rules do, from stageRaw to stagePostrouting.
func TestFilterStatements(t *testing.T) {
	filter := func(name string, h Hook, priority int32, rules ...Rule) Table {
		x := oneChain(FamilyIPv4, ChainFilter, h, priority, rules...)
		x.Name = name
		return x
	}
	act := func(a Action, value uint32) Rule { return Rule{Action: a, Value: value} }
	clamp := func(value uint32) Rule {
		return Rule{Action: ActionClampMSS, Value: value, Match: []Match{{Proto: "tcp"}}}
	}
	policed := func(x Table) Table { x.Chains[0].Policy = PolicyDrop; return x }
	tests := []struct {
		statement string
		tables    []Table
		packet    *view
		verdict   ruleVerdict
		want      Effects
		hits      string
	}{
		{"ctmark sets the connection's mark", []Table{filter("a", "forward", 0, act("ctmark", 7))},
			packetView(), ruleAccept,
			Effects{ConnMark: 7}, "a/c/rulea"},
		{"metamarkfromctmark copies it to the packet",
			[]Table{filter("a", "prerouting", 0, act("metamarkfromctmark", 0))}, packetView(), ruleAccept,
			Effects{mark: 5, ConnMark: 5}, "a/c/rulea"},
		{"marks follow the order of rules", []Table{filter("a", "forward", 0, act("ctmark", 7),
			act("metamarkfromctmark", 0), act("ctmark", 9))}, packetView(),
			ruleAccept, Effects{mark: 7, ConnMark: 9}, "a/c/rulea a/c/ruleb a/c/rulec"},
		{"set-mark marks the packet", []Table{filter("a", "prerouting", -150, act("set-mark", 0xff00))},
			packetView(), ruleAccept,
			Effects{mark: 0xff00, ConnMark: 5}, "a/c/rulea"},
		{"without a connection there is no mark to set or read", []Table{filter("a", "forward", 0, act("set-mark", 3),
			act("ctmark", 7), act("metamarkfromctmark", 0))},
			packetView(func(v *view) { v.untracked = true }), ruleAccept, Effects{mark: 3, ConnMark: 5},
			"a/c/rulea a/c/ruleb a/c/rulec"},
		{"tcpmssclamp without value: the route's", []Table{filter("a", "forward", 0, clamp(0))},
			packetView(), ruleAccept,
			Effects{ConnMark: 5, routeMSS: true}, "a/c/rulea"},
		{"tcpmssclamp only lowers", []Table{filter("a", "forward", 0, clamp(1300), clamp(1200), clamp(1400))},
			packetView(), ruleAccept,
			Effects{ConnMark: 5, mss: 1200}, "a/c/rulea a/c/ruleb a/c/rulec"},
		{"notrack before the connection is known", []Table{filter("a", "prerouting", -300, act("notrack", 0))},
			packetView(), ruleAccept,
			Effects{ConnMark: 5, NoTrack: true}, "a/c/rulea"},
		{"notrack at -200 is too late", []Table{filter("a", "prerouting", -200, act("notrack", 0))},
			packetView(), ruleAccept,
			Effects{ConnMark: 5}, "a/c/rulea"},
		{"a packet that is not tracked has no connection mark",
			[]Table{filter("a", "prerouting", -300, act("notrack", 0)), filter("b", "forward", 0, act("ctmark", 7))},
			packetView(), ruleAccept, Effects{ConnMark: 5, NoTrack: true}, "a/c/rulea b/c/rulea"},
		{"drop ends all", []Table{filter("a", "forward", 0, act("drop", 0), act("ctmark", 7)), filter("b", "forward", 1,
			act("ctmark", 8))}, packetView(), ruleDrop,
			Effects{ConnMark: 5}, "a/c/rulea"},
		{"reject ends all", []Table{filter("a", "forward", 0, act("reject", 0), act("ctmark", 7))}, packetView(),
			ruleReject, Effects{ConnMark: 5}, "a/c/rulea"},
		{"accept ends its chain only", []Table{filter("a", "forward", 0, act("accept", 0), act("drop", 0)),
			filter("b", "forward", 1, act("ctmark", 8))}, packetView(),
			ruleAccept, Effects{ConnMark: 8}, "a/c/rulea b/c/rulea"},
		{"accept does not spare the packet from a later chain", []Table{filter("a", "forward", 0, act("accept", 0)),
			filter("b", "forward", 1, act("drop", 0))}, packetView(),
			ruleDrop, Effects{ConnMark: 5}, "a/c/rulea b/c/rulea"},
		{"accept passes over the chain's policy", []Table{policed(filter("a", "forward", 0, act("accept", 0)))},
			packetView(), ruleAccept, Effects{ConnMark: 5}, "a/c/rulea"},
		{"policy drop", []Table{policed(filter("a", "forward", 0, act("ctmark", 7)))}, packetView(), ruleDrop,
			Effects{ConnMark: 7}, "a/c/rulea"},
		{"lower priority first", []Table{filter("a", "forward", 5, act("ctmark", 7)), filter("b", "forward", -5,
			act("ctmark", 8))}, packetView(), ruleAccept,
			Effects{ConnMark: 7}, "b/c/rulea a/c/rulea"},
		{"counter: false is not counted",
			[]Table{filter("a", "forward", 0, Rule{Action: ActionCTMark, Value: 7, NoCounter: true})},
			packetView(), ruleAccept,
			Effects{ConnMark: 7}, ""},
		{"prerouting before -100 runs before prerouting 0", []Table{filter("a", "prerouting", 0, act("set-mark", 2)),
			filter("b", "prerouting", -101, act("set-mark", 1))},
			packetView(), ruleAccept, Effects{mark: 2, ConnMark: 5}, "b/c/rulea a/c/rulea"},
		{"postrouting runs last", []Table{filter("a", "postrouting", 0, act("set-mark", 2)), filter("b", "forward", 300,
			act("set-mark", 1))},
			packetView(), ruleAccept, Effects{mark: 2, ConnMark: 5}, "b/c/rulea a/c/rulea"},
		{"what is forwarded meets no output", []Table{filter("a", "output", -300, act("drop", 0))}, packetView(),
			ruleAccept, Effects{ConnMark: 5}, ""},
	}
	for _, tt := range tests {
		r := rulesOf(t, tt.tables...)
		e := Effects{ConnMark: 5, hits: make([]*rule, 0, 8)}
		var verdict ruleVerdict
		for s := stageRaw; s < stages && verdict == ruleAccept; s++ {
			if s != stageDNAT && s != stageSNAT && s != stageInput && s != stageOutput {
				verdict = r.filter(s, tt.packet, &e)
			}
		}
		var hits []string
		for _, n := range e.hits {
			hits = append(hits, n.path())
		}
		if got := strings.Join(hits, " "); got != tt.hits {
			t.Errorf("%s: hit %q, want %q", tt.statement, got, tt.hits)
		}
		e.hits, e.by = nil, nil
		if verdict != tt.verdict || !equalEffects(e, tt.want) {
			t.Errorf("%s: verdict %v %+v, want %v %+v", tt.statement, verdict, e, tt.verdict, tt.want)
		}
	}
}

func equalEffects(a, b Effects) bool {
	a.hits, b.hits = nil, nil
	return a.mark == b.mark && a.ConnMark == b.ConnMark && a.NoTrack == b.NoTrack &&
		a.mss == b.mss && a.routeMSS == b.routeMSS && a.overflow == b.overflow
}

func TestHitsOverflow(t *testing.T) {
	r := rulesOf(t, oneChain(FamilyIPv4, ChainFilter, HookForward, 0, Rule{Action: ActionSetMark},
		Rule{Action: ActionSetMark}, Rule{Action: ActionSetMark}))
	e := Effects{hits: make([]*rule, 0, 3)}
	if r.filter(stageForward, packetView(), &e); e.overflow || len(e.hits) != 3 {
		t.Errorf("three hits in three slots: %+v", e)
	}
	e = Effects{hits: make([]*rule, 0, 2)}
	if r.filter(stageForward, packetView(), &e); !e.overflow || len(e.hits) != 2 {
		t.Errorf("three hits in two slots: %+v", e)
	}
}

func TestCounters(t *testing.T) {
	c := randomNodes()
	c.Routing = []PolicyTable{}
	clamp := Rule{Name: "clamp", Action: ActionClampMSS, Match: []Match{{Proto: "tcp"}}}
	c.Firewall = []Table{oneChain(FamilyIPv4, ChainFilter, HookForward, 0, clamp,
		Rule{Name: "mark", Action: ActionSetMark})}
	s := NewSet()
	first, err := s.make(c)
	need.NoError(t, err)
	e := Effects{hits: make([]*rule, 0, 4)}
	first.filter(stageForward, packetView(), &e)
	countRules(e.hits, true, 1, 60)
	countRules(e.hits, false, 10, 14000)
	// A rule in front of it and one that is gone: what has kept its name keeps its counter.
	c.Firewall = []Table{oneChain(FamilyIPv4, ChainFilter, HookForward, 0)}
	c.Firewall[0].Chains[0].Rules = []Rule{{Name: "new", Action: ActionSetMark},
		{Name: "mark", Action: ActionSetMark, Value: 3}}
	second, err := s.make(c)
	need.NoError(t, err)
	e = Effects{hits: make([]*rule, 0, 4)}
	second.filter(stageForward, packetView(), &e)
	countRules(e.hits, false, 100, 5000)
	for _, tt := range []struct {
		r              *Ruleset
		path           string
		packets, bytes uint64
	}{
		{first, "t/c/clamp", 1, 60}, // MSS rules count SYNs
		{second, "t/c/mark", 111, 19060},
		{second, "t/c/new", 100, 5000},
	} {
		got := tt.r.counters()[tt.path]
		if got.packets.Load() != tt.packets || got.bytes.Load() != tt.bytes {
			t.Errorf("%s: %d packets, %d bytes, want %d and %d", tt.path, got.packets.Load(), got.bytes.Load(),
				tt.packets, tt.bytes)
		}
	}
	if second.counters()["t/c/clamp"] != nil {
		t.Error("the counter of a rule that is gone is kept")
	}
}

// Walks over prefixes nested deeper than a walk has lists look at every rule, and still decide the
// same.
func TestDeeplyNestedPrefixes(t *testing.T) {
	var rules []Rule
	deep := addr("fd00:ffff:ffff:ffff::1")
	for bits := 128; bits > 0; bits -= 2 {
		p := netip.PrefixFrom(deep, bits).Masked()
		rules = append(rules, Rule{Name: p.String(), Action: ActionSetMark, Value: uint32(bits),
			Match: []Match{ip(p.String(), "dst")}})
	}
	slices.Reverse(rules)
	r := rulesOf(t, oneChain(FamilyIPv6, ChainFilter, HookForward, 0, rules...))
	for _, n := range []int{64, 10} {
		e := Effects{hits: make([]*rule, 0, 64)}
		v := packetView(func(v *view) { v.src, v.dst = addr("fd00::5"), deep })
		if n != 64 {
			v.dst = netip.PrefixFrom(deep, 2*n).Masked().Addr() // its zero bits end the nesting
		}
		r.filter(stageForward, v, &e)
		want := 0
		for _, rule := range rules {
			if netip.MustParsePrefix(rule.Name).Contains(v.dst) {
				want++
			}
		}
		if len(e.hits) != want || !slices.IsSortedFunc(e.hits, compareRules) {
			t.Errorf("%v: %d hits in order %v, want %d ascending", v.dst, len(e.hits), e.hits, want)
		}
	}
}

// What makes no sense in a gateway is refused, all of it at once, with where it stands and why.
func TestRefusals(t *testing.T) {
	c := randomNodes()
	rule := func(r Rule) []Rule { r.Name = "r"; return []Rule{r} }
	chain := func(t ChainType, h Hook, r Rule) Chain { return Chain{Name: "c", Type: t, Hook: h, Rules: rule(r)} }
	table := func(f Family, chains ...Chain) Table { return Table{Family: f, Chains: chains} }
	tests := []struct {
		table Table
		want  string
	}{
		{table("ARP"), "family ARP sees frames"},
		{table("BRIDGE"), "family BRIDGE sees frames"},
		{table("NETDEV"), "family NETDEV sees frames"},
		{table("X"), `unknown family "X"`},
		{table("IPV4", Chain{Name: "c", Type: "route", Hook: "output"}), "chain c: type route re-routes"},
		{table("IPV4", Chain{Name: "c", Type: "x"}), `unknown type "x"`},
		{table("INET", Chain{Name: "c", Type: "filter", Hook: "ingress"}), "hook ingress belongs to a device driver"},
		{table("IPV4", Chain{Name: "c", Type: "filter", Hook: "x"}), `unknown hook "x"`},
		{table("IPV4", Chain{Name: "c", Type: "nat", Hook: "forward"}), "type nat has no hook forward"},
		{table("IPV4", Chain{Name: "c", Type: "nat", Hook: "prerouting", Priority: -200}),
			"where no connection is known yet"},
		{table("IPV4", Chain{Name: "c", Type: "nat", Hook: "input"}), "translates the gateway's own traffic"},
		{table("IPV4", Chain{Name: "c", Type: "nat", Hook: "output"}), "translates the gateway's own traffic"},
		{table("IPV4", Chain{Name: "c", Type: "filter", Hook: "forward", Policy: "x"}), `unknown policy "x"`},
		{table("IPV4", chain("filter", "forward", Rule{Action: "dnat", To: "10.0.0.1"})),
			"action dnat in a chain of type filter"},
		{table("IPV4", chain("nat", "prerouting", Rule{Action: "drop"})), "action drop in a chain of type nat"},
		{table("IPV4", chain("nat", "prerouting", Rule{Action: "snat", To: "10.0.0.1"})),
			"action snat at hook prerouting"},
		{table("IPV4", chain("nat", "prerouting", Rule{Action: "masquerade"})), "action masquerade at hook prerouting"},
		{table("IPV4", chain("nat", "postrouting", Rule{Action: "dnat", To: "10.0.0.1"})),
			"action dnat at hook postrouting"},
		{table("IPV4", chain("nat", "postrouting", Rule{Action: "snat"})), `to "" is no address`},
		{table("IPV4", chain("nat", "postrouting", Rule{Action: "snat", To: "fd00::1"})), "no address of family IPV4"},
		{table("IPV4", chain("nat", "postrouting", Rule{Action: "snat", To: "10.0.0.9-10.0.0.1"})),
			"no range of addresses"},
		{table("IPV4", chain("nat", "postrouting", Rule{Action: "masquerade", To: "10.0.0.1"})),
			"action masquerade takes no address"},
		{table("IPV4", chain("filter", "postrouting", Rule{Action: "reject"})), "action reject at hook postrouting"},
		{table("IPV4", chain("filter", "forward", Rule{Action: "tcpmssclamp"})), "needs a match of proto tcp"},
		{table("IPV4", chain("filter", "forward", Rule{Action: "tcpmssclamp", Value: 70000,
			Match: []Match{{Proto: "tcp"}}})), "70000 is no MSS"},
		{table("IPV4", chain("filter", "prerouting", Rule{Action: "tcpmssclamp", Match: []Match{{Proto: "tcp"}}})),
			"where no route is known"},
		{table("IPV4", chain("filter", "forward", Rule{Action: "x"})), `unknown action "x"`},
		{table("IPV4", chain("filter", "forward", Rule{Action: "accept", Match: []Match{{Op: "lt"}}})), `op "lt"`},
		{table("IPV4", chain("filter", "forward", Rule{Action: "accept", Match: []Match{{Proto: "quic"}}})),
			`proto "quic"`},
		{table("IPV4", chain("filter", "forward", Rule{Action: "accept", Match: []Match{dev("eth0", "src")}})),
			"dev position"},
		{table("IPV4", chain("filter", "forward", Rule{Action: "accept", Match: []Match{ip("10.0.0.1", "in")}})),
			"ip position"},
		{table("IPV4", chain("filter", "forward", Rule{Action: "accept", Match: []Match{ip("10.0.0.300", "src")}})),
			`"10.0.0.300" is no address`},
		{table("IPV4", chain("filter", "forward",
			Rule{Action: "accept", Match: []Match{ip("10.0.0.9-10.0.0.1", "src")}})), "in ascending order"},
		{table("IPV4", chain("filter", "forward", Rule{Action: "accept", Match: []Match{ip("fd00::/8", "src")}})),
			"no address of family IPV4"},
		{table("IPV4", chain("filter", "forward", Rule{Action: "accept", Match: []Match{portMatch("80", "out")}})),
			"port position"},
		{table("IPV4", chain("filter", "forward", Rule{Action: "accept", Match: []Match{portMatch("90-80", "src")}})),
			`port "90-80"`},
		{table("IPV4", chain("filter", "forward", Rule{Action: "accept", Match: []Match{portMatch("http", "src")}})),
			`port "http"`},
		{table("IPV4", chain("filter", "forward", Rule{Action: "accept", Match: []Match{{NoReturn: true}}})),
			"match of NoReturn in a chain of type filter"},
		{table("IPV4", chain("nat", "prerouting", Rule{Action: "dnat", To: "10.0.0.1",
			Match: []Match{{NoReturn: true}}})), "match of NoReturn"},
		{table("IPV4", chain("nat", "postrouting", Rule{Action: "masquerade",
			Match: []Match{{Op: "neq", NoReturn: true}}})), "op neq does not go with NoReturn"},
		{table("IPV4", Chain{Name: "c", Type: "filter", Hook: "forward", Rules: []Rule{{Action: "accept"}}}),
			"rule 1: a rule needs a name"},
		{table("IPV4", Chain{Name: "c", Type: "filter", Hook: "forward", Rules: append(rule(Rule{Action: "accept"}),
			rule(Rule{Action: "drop"})...)}),
			"rule r: there is another rule"},
		{table("IPV4", Chain{Name: "c", Type: "filter", Hook: "forward"}, Chain{Name: "c", Type: "filter",
			Hook: "forward"}), "another chain of this name"},
	}
	for i, tt := range tests {
		tt.table.Name = "t" + string(rune('0'+i/10)) + string(rune('0'+i%10))
		c.Firewall = append(c.Firewall, tt.table)
	}
	c.Firewall = append(c.Firewall, Table{Name: "t00", Family: "IPV4"})
	c.Routing = []PolicyTable{
		{Name: "main", Rules: []PolicyRule{{Priority: -1}, {Routes: []PolicyRoute{{}}}}},
		{Name: "main", Rules: []PolicyRule{{Routes: []PolicyRoute{
			{Destination: netip.MustParsePrefix("10.0.0.1/16"), Device: "liqo-tunnel"},
			{Destination: netip.MustParsePrefix("10.0.0.0/16")},
		}}}},
	}
	r, err := newRuleset(c)
	if err == nil || r != nil {
		t.Fatal("not refused")
	}
	faults := strings.Split(err.Error(), "\n")
	for i, tt := range tests {
		name := "table t" + string(rune('0'+i/10)) + string(rune('0'+i%10))
		if !slices.ContainsFunc(faults, func(f string) bool {
			return strings.HasPrefix(f, "rules: "+name) &&
				strings.Contains(f, tt.want)
		}) {
			t.Errorf("%s: no fault with %q", name, tt.want)
		}
	}
	for _, want := range []string{
		"firewall/t00: there is another", "routing/main: there is another", "rule 1: priority -1 is negative",
		"rule 2: a route needs a destination", "10.0.0.1/16: host bits are set", "10.0.0.0/16: neither via nor device",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no fault with %q", want)
		}
	}
	if want := len(tests) + 6; len(faults) != want {
		t.Errorf("%d faults, want %d:\n%v", len(faults), want, err)
	}
}
