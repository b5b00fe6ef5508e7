package integration

import (
	"fmt"
	"math/rand/v2"
	"net/netip"

	"culvert/nat"
	"culvert/nat/rules"
)

// The address plan of the oracle. Prefixes of equal size have different neighbours, and remapped
// ones begin elsewhere than the real ones.
var (
	oraclePods     = prefixes("10.1.0.0/16", "fd00:1::/48")
	oracleRemote   = prefixes("10.2.0.0/16", "fd00:2::/48") // remapped to:
	oracleSeen     = prefixes("10.3.0.0/16", "fd00:3::/48")
	oracleFlat     = prefixes("10.4.64.0/18", "fd00:4::/56") // remote, not remapped
	oracleExternal = prefixes("10.5.0.0/17", "fd00:5::/52")  // remote, remapped to:
	oracleAlias    = prefixes("10.6.128.0/17", "fd00:6:0:1000::/52")
	oracleOwn      = prefixes("10.7.0.0/16", "fd00:7::/48") // local external
	oracleOutside  = prefixes("172.20.0.0/14", "fd00:8::/40")
	oraclePools    = [][2]netip.Prefix{oraclePods, oracleRemote, oracleSeen, oracleFlat, oracleExternal, oracleAlias,
		oracleOwn, oracleOutside}
)

func prefixes(v4, v6 string) [2]netip.Prefix {
	return [2]netip.Prefix{netip.MustParsePrefix(v4), netip.MustParsePrefix(v6)}
}

// families are the address families that both clusters use.
type families []bool // true = IPv6

var (
	onlyIPv4  = families{false}
	onlyIPv6  = families{true}
	dualStack = families{false, true}
)

func (f families) String() string {
	switch {
	case len(f) > 1:
		return "both families"
	case f[0]:
		return "IPv6"
	}
	return "IPv4"
}

// of returns the prefixes of these families.
func (f families) of(pools ...[2]netip.Prefix) []netip.Prefix {
	var all []netip.Prefix
	for _, p := range pools {
		for _, v6 := range f {
			all = append(all, p[family(v6)])
		}
	}
	return all
}

// pair returns the addresses of these families.
func (f families) pair(v4, v6 string) rules.Pair {
	var p rules.Pair
	for _, six := range f {
		p.Set(netip.MustParseAddr(map[bool]string{false: v4, true: v6}[six]))
	}
	return p
}

// oracleConfig is the engine's configuration without the rules.
func oracleConfig(f families) *nat.Config {
	c := &nat.Config{MTU: oracleMTU, MaxConnections: 1 << 16, Config: rules.Config{
		LocalPodCIDRs:      f.of(oraclePods),
		LocalExternalCIDRs: f.of(oracleOwn),
		GatewayAddress:     f.pair("10.80.0.4", "fd00:80::4"),
		TunnelAddress:      f.pair("169.254.18.2", "fe80::a9fe:1202"),
		PeerTunnelAddress:  f.pair("169.254.18.1", "fe80::a9fe:1201"),
	}}
	for _, v6 := range f {
		i := family(v6)
		c.Remote = append(c.Remote,
			rules.RemoteCIDR{Real: oracleRemote[i], Remapped: oracleSeen[i]},
			rules.RemoteCIDR{Real: oracleFlat[i]},
			rules.RemoteCIDR{Real: oracleExternal[i], Remapped: oracleAlias[i], External: true})
	}
	for i, d := range oracleNodes {
		c.Nodes = append(c.Nodes, rules.Node{Link: d.link, Name: fmt.Sprint("node-", i), Device: d.name,
			Address: f.pair(fmt.Sprint("10.80.0.", 10+i), fmt.Sprint("fd00:80::", 10+i))})
	}
	return c
}

// A maker makes rules, and traffic that matches them.
type maker struct {
	*rand.Rand
	families
	notrack bool // a rule of the tables has notrack
	ports   bool // a rule has ports
	fixture bool // small packets, and none that the kernel damages
	plan    plan
}

// A plan lists prefixes of packets' addresses. A prefix that is listed twice is used twice as
// often.
type plan struct {
	nodes                             []nat.Link
	nodeSources, nodeDestinations     []netip.Prefix
	tunnelSources, tunnelDestinations []netip.Prefix
}

// oraclePlan is the plan of oracleConfig.
func oraclePlan(f families) plan {
	p := plan{
		nodeSources:        f.of(oraclePods, oraclePods, oraclePods, oracleOwn, oracleOutside),
		nodeDestinations:   f.of(oracleSeen, oracleSeen, oracleFlat, oracleAlias, oraclePods, oracleOwn, oracleOutside),
		tunnelSources:      f.of(oracleRemote, oracleFlat, oracleExternal),
		tunnelDestinations: f.of(oraclePods, oraclePods, oracleOwn, oracleOutside),
	}
	for _, d := range oracleNodes {
		p.nodes = append(p.nodes, d.link)
	}
	return p
}

// random returns a configuration with random rules, and makes its plan.
func (m *maker) random() *nat.Config {
	c := oracleConfig(m.families)
	c.Firewall, c.Routing = m.tables(), m.routing()
	m.plan = oraclePlan(m.families)
	return c
}

func pick[T any](m *maker, of ...T) T { return of[m.IntN(len(of))] }

func family(v6 bool) int {
	if v6 {
		return 1
	}
	return 0
}

// v6 chooses one of the families.
func (m *maker) v6() bool { return m.families[m.IntN(len(m.families))] }

// in returns an address of p, mostly one of few, so that rules for single addresses match packets.
func (m *maker) in(p netip.Prefix) netip.Addr {
	a := p.Addr().As16()
	first := p.Bits()
	if p.Addr().Is4() {
		first += 96
	}
	host := m.Uint32N(6) + 1
	if m.IntN(3) == 0 {
		host = m.Uint32()
	}
	for i := range 32 {
		if bit := 127 - i; bit >= first && host>>i&1 != 0 {
			a[bit/8] |= 0x80 >> (bit % 8)
		}
	}
	return netip.AddrFrom16(a).Unmap()
}

func (m *maker) pool(v6 bool) netip.Prefix { return pick(m, oraclePools...)[family(v6)] }

// prefix returns a prefix around or inside a pool, perhaps with host bits.
func (m *maker) prefix(v6 bool) netip.Prefix {
	p := m.pool(v6)
	bits := p.Bits() + m.IntN(p.Addr().BitLen()-p.Bits()+1)
	if m.IntN(3) > 0 {
		bits = max(0, p.Bits()-m.IntN(4)+m.IntN(4))
	}
	return netip.PrefixFrom(m.in(p), bits)
}

func (m *maker) operand(v6 bool) string {
	switch m.IntN(8) {
	case 0:
		return m.prefix(v6).String()
	case 1, 2, 3, 4:
		return m.prefix(v6).Masked().String()
	case 5:
		p := m.pool(v6)
		a, b := m.in(p), m.in(p)
		if b.Less(a) {
			a, b = b, a
		}
		return a.String() + "-" + b.String()
	}
	return m.in(m.pool(v6)).String()
}

var oracleNames = []string{"liqo-tunnel", "liqo.abcdefghij", "rome-2", "liqo.zzz", "eth0", "liqo-tunne"}

func (m *maker) match(v6 bool) rules.Match {
	x := rules.Match{Op: pick(m, rules.OpEqual, rules.OpEqual, rules.OpEqual, rules.OpNotEqual)}
	for x == (rules.Match{Op: x.Op}) {
		if m.IntN(6) == 0 {
			x.Proto = pick(m, "tcp", "udp", "253", map[bool]string{false: "icmp", true: "icmpv6"}[v6])
		}
		if m.IntN(3) == 0 {
			x.Dev = rules.Operand{Value: pick(m, oracleNames...), Position: pick(m, rules.PositionIn,
				rules.PositionOut)}
		}
		if m.IntN(2) == 0 {
			x.IP = rules.Operand{Value: m.operand(v6), Position: pick(m, rules.PositionSource,
				rules.PositionDestination)}
		}
		if m.IntN(8) == 0 {
			m.ports = true
			x.Port = rules.Operand{Value: pick(m, "80", "443", "80-443", "20000-40000"), Position: rules.PositionSource}
			if m.IntN(2) == 0 { // in an ICMP message this is the checksum, which differs from packet to packet
				x.Port.Position, x.Proto = rules.PositionDestination, pick(m, "tcp", "udp", "253")
			}
		}
	}
	return x
}

// tables returns random tables. No two chains of a hook have the same priority, and no filter chain
// has one of conntrack's or nat's, because the kernel's result would depend on which came first.
func (m *maker) tables() []rules.Table {
	used := map[string]bool{}
	priority := func(h rules.Hook, t rules.ChainType) int32 {
		for {
			p := int32(m.IntN(600) - 350)
			if t == rules.ChainNAT {
				p = max(p, rules.PriorityConntrack+1)
			}
			if m.IntN(4) == 0 && t == rules.ChainFilter {
				p = pick(m, int32(-300), -150, 0)
			}
			key := fmt.Sprint(h, p)
			if !used[key] && (t == rules.ChainNAT || p != -200 && p != -100 && p != 100) {
				used[key] = true
				return p
			}
		}
	}
	var all []rules.Table
	for i := range 1 + m.IntN(4) {
		t := rules.Table{Name: fmt.Sprint("t", i), Family: rules.FamilyINET}
		if m.IntN(4) > 0 {
			t.Family = map[bool]rules.Family{false: rules.FamilyIPv4, true: rules.FamilyIPv6}[m.v6()]
		}
		for j := range 1 + m.IntN(4) {
			c := rules.Chain{Name: fmt.Sprint("c", j), Type: pick(m, rules.ChainFilter, rules.ChainNAT)}
			c.Hook = pick(m, rules.HookPrerouting, rules.HookForward, rules.HookPostrouting)
			if c.Type == rules.ChainNAT {
				c.Hook = pick(m, rules.HookPrerouting, rules.HookPostrouting)
			}
			if m.IntN(12) == 0 && c.Type == rules.ChainFilter {
				c.Policy = rules.PolicyDrop
			}
			c.Priority = priority(c.Hook, c.Type)
			for k := range pick(m, 0, 1, 2, 4, 15) {
				r := m.rule(fmt.Sprint("r", k), &t, &c)
				m.notrack = m.notrack || r.Action == rules.ActionNoTrack
				c.Rules = append(c.Rules, r)
			}
			t.Chains = append(t.Chains, c)
		}
		all = append(all, t)
	}
	return all
}

func (m *maker) rule(name string, t *rules.Table, c *rules.Chain) rules.Rule {
	v6 := t.Family == rules.FamilyIPv6 || t.Family == rules.FamilyINET && m.v6()
	r := rules.Rule{Name: name}
	switch {
	case c.Type == rules.ChainFilter:
		r.Action = pick(m, rules.ActionCTMark, rules.ActionMetaMarkFromCT, rules.ActionSetMark, rules.ActionClampMSS,
			rules.ActionAccept,
			rules.ActionAccept, rules.ActionNoTrack, rules.ActionDrop, rules.ActionReject)
		if r.Action == rules.ActionReject && c.Hook != rules.HookForward || r.Action == rules.ActionNoTrack &&
			c.Hook != rules.HookPrerouting {
			r.Action = rules.ActionAccept
		}
	case c.Hook == rules.HookPrerouting:
		r.Action, r.To = rules.ActionDNAT, m.target(v6)
	default:
		r.Action, r.To = rules.ActionSNAT, m.target(v6)
		if m.IntN(6) == 0 {
			r.Action, r.To = rules.ActionMasquerade, ""
		}
	}
	protocol, negated := "", false
	for range pick(m, 1, 1, 2, 2, 3) {
		x := m.match(v6)
		if protocol != "" || r.Action == rules.ActionClampMSS { // nft refuses two protocols in one rule
			x.Proto = ""
			if x.Port.Position == rules.PositionDestination && r.Action != rules.ActionClampMSS {
				x.Port = rules.Operand{}
			}
		}
		if x.Port != (rules.Operand{}) && x.Op == rules.OpNotEqual {
			if negated { // nft 1.0.6 merges "sport ≠ a and dport ≠ b" into "not both"
				x.Port = rules.Operand{}
			}
			negated = true
		}
		protocol += x.Proto
		if x != (rules.Match{Op: x.Op}) {
			r.Match = append(r.Match, x)
		}
	}
	switch r.Action {
	case rules.ActionCTMark, rules.ActionSetMark:
		r.Value = m.Uint32N(4)
	case rules.ActionClampMSS:
		r.Match = append(r.Match, rules.Match{Proto: "tcp"})
		r.Value = pick(m, uint32(0), 536, 1300, 65535)
		if c.Hook == rules.HookPrerouting {
			r.Value = max(r.Value, 1200) // no route is known at this hook
		}
	case rules.ActionDrop, rules.ActionReject: // match little, so that some packets pass
		r.Match = append(r.Match, rules.Match{IP: rules.Operand{Value: m.in(m.pool(v6)).String(),
			Position: pick(m, rules.PositionSource, rules.PositionDestination)}})
	}
	return r
}

func (m *maker) target(v6 bool) string {
	switch m.IntN(8) {
	case 0:
		return m.in(m.pool(v6)).String()
	case 1:
		return map[bool]string{false: "10.7.0.1-10.7.0.9", true: "fd00:7::1-fd00:7::9"}[v6]
	}
	return m.prefix(v6).Masked().String()
}

// routing returns random policy tables in addition to one with a route to every pool.
func (m *maker) routing() []rules.PolicyTable {
	device := func() string { return pick(m, oracleNames[:4]...) }
	var base rules.PolicyRule
	base.Priority = 20000
	for _, p := range oraclePools {
		name := device()
		for _, destination := range m.of(p) {
			base.Routes = append(base.Routes, rules.PolicyRoute{Destination: destination, Device: name})
		}
	}
	all := []rules.PolicyTable{{Name: "base", Rules: []rules.PolicyRule{base}}}
	// The kernel chooses priorities for each family separately, nat for both together; without
	// priorities there is only one family here.
	chosen, only := m.IntN(2) == 0, m.v6()
	for i := range m.IntN(5) {
		t := rules.PolicyTable{Name: fmt.Sprint("t", i)}
		for j := range 1 + m.IntN(4) {
			v6 := m.v6()
			if chosen {
				v6 = only
			}
			r := rules.PolicyRule{Mark: pick(m, uint32(0), 0, 0, 1, 2, 3)}
			if !chosen {
				// Priorities are equal in several tables but never in one: the kernel treats a rule
				// as existing if the fields that it names are equal, and ignores the others.
				r.Priority = pick(m, 100, 150, 200) + j
			}
			if m.IntN(2) == 0 {
				r.Destination = m.prefix(v6).Masked()
			}
			if m.IntN(4) == 0 {
				r.Source = m.prefix(v6).Masked()
			}
			if m.IntN(2) == 0 {
				r.In = pick(m, oracleNames[:5]...)
			}
			if m.IntN(20) == 0 {
				r.Out = device()
			}
			for range 1 + m.IntN(6) {
				r.Routes = append(r.Routes, rules.PolicyRoute{Destination: m.prefix(v6).Masked(),
					Device: pick(m, device(), device(), device(), "eth0")})
			}
			t.Rules = append(t.Rules, r)
		}
		all = append(all, t)
	}
	return all
}
