package rules

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"

	"culvert/integration/need"
)

// A byteSource takes random numbers from bytes and, when they are used up, from a generator, so
// that no choice waits for ever.
type byteSource struct {
	data []byte
	then rand.Source
}

func (s *byteSource) Uint64() uint64 {
	if len(s.data) == 0 {
		return s.then.Uint64()
	}
	var b [8]byte
	n := copy(b[:], s.data[:min(len(s.data), 2)]) // two bytes decide enough: IntN looks at the high bits
	s.data = s.data[n:]
	return binary.BigEndian.Uint64(b[:])
}

// FuzzRules lets the fuzzer choose tables, policy tables and packets, and compares the compiled
// form with the slow one.
func FuzzRules(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("two bytes for each choice of a table, a chain, a rule, a match and a packet"))
	f.Fuzz(func(t *testing.T, data []byte) {
		m := ruleMaker{rand.New(&byteSource{data, rand.NewPCG(1, 2)})}
		c := randomNodes()
		c.Firewall, c.Routing = m.tables(), m.routing()
		r, err := newRuleset(c)
		need.NoError(t, err)
		s := c.slow()
		for range 8 {
			for _, d := range differences(r, s, m.view(), uint32(m.IntN(4))) {
				t.Error(d)
			}
		}
		if t.Failed() {
			t.Logf("tables %+v\nrouting %+v", c.Firewall, c.Routing)
		}
	})
}

// FuzzRuleText gives rules any text. What is accepted must decide about a packet; nothing may
// panic.
func FuzzRuleText(f *testing.F) {
	f.Add("IPV4", "nat", "prerouting", "dnat", "eq", "tcp", "liqo-tunnel", "in", "10.71.0.0/16", "dst", "80-443", "dst",
		"10.0.0.0/16", uint32(0))
	f.Add("INET", "filter", "forward", "tcpmssclamp", "neq", "tcp", "eth0", "out", "fd00::1-fd00::9", "src", "80",
		"src", "", uint32(1300))
	f.Add("IPV6", "nat", "postrouting", "snat", "", "132", "", "", "fd00::/64", "src", "", "", "fd00:1::/64", uint32(9))
	f.Fuzz(func(t *testing.T, family, kind, hook, action, op, protocol, device, devAt, ip, ipAt, port, portAt,
		to string, value uint32) {
		c := randomNodes()
		c.Routing = []PolicyTable{}
		c.Firewall = []Table{{Name: "t", Family: Family(family), Chains: []Chain{{
			Name: "c", Type: ChainType(kind), Hook: Hook(hook), Priority: int32(value),
			Rules: []Rule{{Name: "r", Action: Action(action), To: to, Value: value, Match: []Match{{
				Op: Op(op), Proto: protocol, Dev: Operand{device, Position(devAt)}, IP: Operand{ip, Position(ipAt)},
				Port: Operand{port, Position(portAt)},
			}}}},
		}}}}
		r, err := newRuleset(c)
		if err != nil {
			return
		}
		for _, v := range []view{from(1, "10.0.1.5", "10.71.2.6"), from(Tunnel, "fd00::5", "fd00::6")} {
			for s := range stages {
				var e Effects
				if s != stageDNAT && s != stageSNAT {
					r.filter(s, &v, &e)
					continue
				}
				old := v.dst
				if s == stageSNAT {
					old = v.src
				}
				if b := r.bind(s, &v); (b.kind == bindAddress || b.kind == bindPrefix) && b.addr.Is4() != old.Is4() {
					t.Errorf("%v becomes %v", old, b.addr)
				}
			}
		}
	})
}

// FuzzCombine compares the prefix translation with the one of bits.
func FuzzCombine(f *testing.F) {
	f.Add([]byte{10, 0, 0, 0}, []byte{10, 71, 3, 4}, uint8(13))
	f.Add(make([]byte, 16), []byte("sixteen bytes..."), uint8(50))
	f.Fuzz(func(t *testing.T, to, from []byte, bits uint8) {
		a, ok := netip.AddrFromSlice(to)
		b, ok2 := netip.AddrFromSlice(from)
		if !ok || !ok2 || a.Is4() != b.Is4() || a.Is4In6() || b.Is4In6() || int(bits) > a.BitLen() {
			return
		}
		p := netip.PrefixFrom(a, int(bits)).Masked()
		if got, want := Combine(p, b), slowCombine(p.String(), b); got != want {
			t.Errorf("%v into %v: %v, want %v", b, p, got, want)
		}
	})
}
