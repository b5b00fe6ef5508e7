package rules

import (
	"bytes"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// slowRules evaluates tables as they are written, chain by chain and rule by rule, and policy
// tables on a list that is kept as the kernel keeps its own. It shares no code with the compiled
// form.
type slowRules struct {
	tables  []Table
	routing []PolicyTable
	devices map[string]Link
	via     map[netip.Addr]Link
}

// slowChain is a chain with its table.
type slowChain struct {
	table *Table
	chain *Chain
}

// chains returns those of a hook and type with low ≤ priority < high, in order.
func (s *slowRules) chains(h Hook, t ChainType, low, high int32) []slowChain {
	var all []slowChain
	for i := range s.tables {
		for j := range s.tables[i].Chains {
			c := &s.tables[i].Chains[j]
			if c.Hook == h && c.Type == t && low <= c.Priority && c.Priority < high {
				all = append(all, slowChain{&s.tables[i], c})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b slowChain) int {
		return int(int64(a.chain.Priority) - int64(b.chain.Priority))
	})
	return all
}

const lowest, highest = -1 << 31, 1<<31 - 1

// at returns the chains of a stage.
func (s *slowRules) at(st stage) []slowChain {
	switch st {
	case stageRaw:
		return s.chains("prerouting", "filter", lowest, -200)
	case stagePreDNAT:
		return s.chains("prerouting", "filter", -200, -100)
	case stageDNAT:
		return s.chains("prerouting", "nat", lowest, highest)
	case stagePrerouting:
		return s.chains("prerouting", "filter", -100, highest)
	case stageInput:
		return s.chains("input", "filter", lowest, highest)
	case stageOutput:
		return s.chains("output", "filter", lowest, highest)
	case stageForward:
		return s.chains("forward", "filter", lowest, highest)
	case stagePreSNAT:
		return s.chains("postrouting", "filter", lowest, 100)
	case stageSNAT:
		return s.chains("postrouting", "nat", lowest, highest)
	case stagePostrouting:
		return s.chains("postrouting", "filter", 100, highest)
	}
	panic("no such stage")
}

func (c slowChain) path(r *Rule) string { return c.table.Name + "/" + c.chain.Name + "/" + r.Name }

// family reports whether the table sees packets to a.
func (c slowChain) family(a netip.Addr) bool {
	return c.table.Family == "INET" || (c.table.Family == "IPV4") == a.Is4()
}

// matches reports whether every comparison of every match holds.
func (s *slowRules) matches(r *Rule, v *view) bool {
	for _, m := range r.Match {
		not := m.Op == "neq"
		if m.Proto != "" {
			n, err := strconv.Atoi(m.Proto)
			if err != nil {
				n = map[string]int{"tcp": 6, "udp": 17, "sctp": 132, "icmp": 1, "icmpv6": 58}[m.Proto]
			}
			if int(v.proto) != n {
				return false
			}
		}
		if m.Dev.Value != "" {
			at := v.in
			if m.Dev.Position == "out" {
				at = v.out
			}
			link, known := s.devices[m.Dev.Value]
			if (known && link == at) == not {
				return false
			}
		}
		if m.IP.Value != "" {
			at := v.src
			if m.IP.Position == "dst" {
				at = v.dst
			}
			equal, comparable := slowAddress(m.IP.Value, at)
			if !comparable || equal == not {
				return false
			}
		}
		if m.Port.Value != "" {
			if !v.hasL4 {
				return false
			}
			at := int(v.l4[0])<<8 + int(v.l4[1])
			if m.Port.Position == "dst" {
				at = int(v.l4[2])<<8 + int(v.l4[3])
			}
			first, last, isRange := strings.Cut(m.Port.Value, "-")
			low, _ := strconv.Atoi(first)
			high, _ := strconv.Atoi(last)
			if isRange {
				if at < low || at > high {
					return false
				}
			} else if (at == low) == not {
				return false
			}
		}
	}
	return true
}

// slowAddress compares an address as it is done on bytes: masked, with the value as written.
func slowAddress(value string, a netip.Addr) (equal, comparable bool) {
	b := a.AsSlice()
	if first, last, ok := strings.Cut(value, "-"); ok {
		low, high := netip.MustParseAddr(first).AsSlice(), netip.MustParseAddr(last).AsSlice()
		return bytes.Compare(low, b) <= 0 && bytes.Compare(b, high) <= 0, len(low) == len(b)
	}
	written, bits, isCIDR := strings.Cut(value, "/")
	want := netip.MustParseAddr(written).AsSlice()
	n := 8 * len(want)
	if isCIDR {
		n, _ = strconv.Atoi(bits)
	}
	for i := range b {
		for j := range 8 {
			if 8*i+j >= n {
				b[i] &^= 0x80 >> j
			}
		}
	}
	return bytes.Equal(b, want), len(b) == len(want)
}

// slowEffects are effects with the paths of the rules.
type slowEffects struct {
	verdict        ruleVerdict
	mark, connMark uint32
	notrack        bool
	mss            []uint32 // 0: the route's
	hits           []string
	by             string
}

func (s *slowRules) filter(st stage, v *view, e *slowEffects) {
	for _, c := range s.at(st) {
		if !c.family(v.src) {
			continue
		}
		s.filterChain(c, st, v, e)
		if e.verdict != ruleAccept {
			return
		}
	}
}

func (s *slowRules) filterChain(c slowChain, st stage, v *view, e *slowEffects) {
	for i := range c.chain.Rules {
		r := &c.chain.Rules[i]
		if !s.matches(r, v) {
			continue
		}
		if !r.NoCounter {
			e.hits = append(e.hits, c.path(r))
		}
		tracked := st != stageRaw && !v.untracked && !e.notrack
		switch r.Action {
		case "accept":
			return
		case "drop":
			e.verdict, e.by = ruleDrop, c.path(r)
			return
		case "reject":
			e.verdict, e.by = ruleReject, c.path(r)
			return
		case "ctmark":
			if tracked {
				e.connMark = r.Value
			}
		case "metamarkfromctmark":
			if tracked {
				e.mark = e.connMark
			}
		case "set-mark":
			e.mark = r.Value
		case "tcpmssclamp":
			if v.proto == 6 {
				e.mss = append(e.mss, r.Value)
			}
		case "notrack":
			e.notrack = e.notrack || st == stageRaw
		}
	}
	if c.chain.Policy == "drop" {
		e.verdict, e.by = ruleDrop, "policy"
	}
}

// slowBinding is what nat chains decide, with the path of the rule.
type slowBinding struct {
	kind bindKind
	addr netip.Addr
	by   string
}

func (s *slowRules) nat(st stage, v *view, own [2]Pair) slowBinding {
	for _, c := range s.at(st) {
		if !c.family(v.src) {
			continue
		}
		for i := range c.chain.Rules {
			r := &c.chain.Rules[i]
			if !s.matches(r, v) {
				continue
			}
			old := v.dst
			if st == stageSNAT {
				old = v.src
			}
			b := slowBinding{by: c.path(r)}
			switch {
			case r.Action == "masquerade":
				at := own[1]
				if v.out == Tunnel {
					at = own[0]
				}
				if b.addr, b.kind = at.V6, bindAddress; v.src.Is4() {
					b.addr = at.V4
				}
				if !b.addr.IsValid() {
					b.kind = bindDrop
				}
			case strings.Contains(r.To, "-"):
				continue
			case strings.Contains(r.To, "/"):
				b.addr, b.kind = slowCombine(r.To, old), bindPrefix
				if _, bits, _ := strings.Cut(r.To, "/"); bits == strconv.Itoa(old.BitLen()) {
					b.kind = bindAddress
				}
			default:
				b.addr, b.kind = netip.MustParseAddr(r.To), bindAddress
			}
			if b.kind != bindDrop && b.addr.Is4() != old.Is4() {
				continue
			}
			return b
		}
		if c.chain.Policy == "drop" {
			return slowBinding{kind: bindDrop}
		}
	}
	return slowBinding{}
}

// slowCombine takes bits one by one: the first from the CIDR, the others from a.
func slowCombine(cidr string, a netip.Addr) netip.Addr {
	written, length, _ := strings.Cut(cidr, "/")
	to, n := netip.MustParseAddr(written).AsSlice(), 0
	n, _ = strconv.Atoi(length)
	b := a.AsSlice()
	if len(b) != len(to) {
		return netip.MustParseAddr(written)
	}
	for i := range b {
		for j := range 8 {
			if bit := byte(0x80 >> j); 8*i+j < n {
				b[i] = b[i]&^bit | to[i]&bit
			}
		}
	}
	r, _ := netip.AddrFromSlice(b)
	return r
}

// route goes through the rules in the kernel's order and through the routes of each one's table.
func (s *slowRules) route(in Link, mark uint32, src, dst netip.Addr) (Link, netip.Addr, bool) {
	type listed struct {
		pref  int
		rule  *PolicyRule
		table *PolicyTable
	}
	var list []listed // the kernel's list without the local table, main last
	for i := range s.routing {
		for j := range s.routing[i].Rules {
			l := listed{s.routing[i].Rules[j].Priority, &s.routing[i].Rules[j], &s.routing[i]}
			if l.pref == 0 {
				l.pref = 32765
				if len(list) > 0 {
					l.pref = max(0, min(32765, list[0].pref-1))
				}
			}
			at := 0
			for at < len(list) && list[at].pref <= l.pref {
				at++
			}
			list = slices.Insert(list, at, l)
		}
	}
	for _, l := range list {
		r := l.rule
		if r.Out != "" || r.Mark != 0 && r.Mark != mark {
			continue
		}
		if link, ok := s.devices[r.In]; r.In != "" && (!ok || link != in) {
			continue
		}
		if r.Source.IsValid() && !r.Source.Contains(src) || r.Destination.IsValid() && !r.Destination.Contains(dst) {
			continue
		}
		best, link, via := -1, Link(0), netip.Addr{}
		for _, other := range l.table.Rules {
			for _, route := range other.Routes {
				if !route.Destination.Contains(dst) || route.Destination.Bits() <= best {
					continue
				}
				p, ok := s.via[route.Via]
				if route.Device != "" {
					p, ok = s.devices[route.Device]
				}
				if ok {
					best, link, via = route.Destination.Bits(), p, route.Via
				}
			}
		}
		if best >= 0 {
			return link, via, true
		}
	}
	return 0, netip.Addr{}, false
}
