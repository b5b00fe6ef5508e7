package nat

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"testing"

	"culvert/nat/packet"
)

// randomResource makes a resource that goes well with any other, by its key.
func (m ruleMaker) randomResource(k int) (Key, Resource) {
	key := Key{"kind", one(m, "", "a"), fmt.Sprint("r", k)}
	r := Resource{Order: int64(m.IntN(3))}
	switch m.IntN(4) {
	case 0:
		// Devices by number, so that two resources claim the same one now and then.
		n := m.IntN(3)
		r.Device = &Device{Port(n + 1), []string{"liqo.abcdefghij", "rome-2", "eth0"}[n], netip.AddrFrom4([4]byte{10, 80, 0, byte(n + 2)})}
	case 1:
		r.Tables = m.tables()
	case 2:
		r.Routing = m.routing()
	case 3:
		r.Service = &Service{
			Address: netip.AddrFrom4([4]byte{10, 0, 0, byte(m.IntN(3))}), Port: one(m, uint16(80), 443), Protocol: packet.TCP,
			Backends: []Backend{{Address: m.addr(false), Port: uint16(1 + m.IntN(9))}},
		}
		r.Routing = []PolicyTable{{Name: "via", Rules: []PolicyRule{{Priority: 600, Routes: []PolicyRoute{
			{Destination: netip.PrefixFrom(r.Service.Backends[0].Address, 32), Device: one(m, firstNodeDevice, "rome-2")},
		}}}}}
	}
	return key, r
}

// decision is all that a set decides about a packet, in words.
func decision(r *ruleset, v view, mark uint32) string {
	var b strings.Builder
	e := effects{hits: make([]*rule, 0, 1000), connMark: 77}
	for st := range stages {
		if st != stageDNAT && st != stageSNAT {
			fmt.Fprint(&b, st, r.filter(st, &v, &e), " ")
			continue
		}
		bound := r.nat(st, &v)
		fmt.Fprint(&b, st, bound.kind, bound.addr, " ")
		if bound.service != nil {
			fmt.Fprint(&b, bound.service.config.Backends)
		}
		if bound.rule != nil {
			fmt.Fprint(&b, bound.rule.chain.origin.key, bound.rule.path())
		}
	}
	for _, hit := range e.hits {
		fmt.Fprint(&b, hit.chain.origin.key, hit.path(), " ")
	}
	hop, ok := r.route(v.in, mark, v.src, v.dst)
	fmt.Fprint(&b, e.mark, e.connMark, e.notrack, e.mss, e.routeMSS, hop.port, hop.via, ok)
	if ok {
		fmt.Fprint(&b, hop.rule.origin.key, hop.rule.name)
	}
	return b.String()
}

// However a set came about, by whatever puts, deletions, refusals, rollbacks and commits, it decides as one that was made of what is in it
// at the end.
func TestSetIsWhatIsInIt(t *testing.T) {
	m := newRuleMaker(seedOfRules(t))
	sequences := 300
	if testing.Short() {
		sequences = 40
	}
	for sequence := range sequences {
		s, in, pending := newSet(), map[Key]Resource{}, map[Key]*Resource{}
		var r *ruleset
		for range 1 + m.IntN(12) {
			for range 1 + m.IntN(4) {
				switch key, resource := m.randomResource(m.IntN(6)); {
				case m.IntN(4) == 0:
					s.Delete(key)
					pending[key] = nil
				case s.Put(key, resource) == nil:
					pending[key] = &resource
				}
			}
			if m.IntN(4) == 0 {
				s.Rollback()
				clear(pending)
				continue
			}
			s.first = one(m, Port(1), 2)
			r, _ = s.Commit()
			for key, resource := range pending {
				if delete(in, key); resource != nil {
					in[key] = *resource
				}
			}
			clear(pending)
		}
		if r == nil {
			continue
		}
		fresh := newSet()
		fresh.network = s.network
		for key, resource := range in {
			if err := fresh.Put(key, resource); err != nil {
				t.Fatalf("sequence %d: what was accepted is refused: %v", sequence, err)
			}
		}
		want, _ := fresh.Commit()
		if len(s.pieces) != len(in) || s.rules != fresh.rules || r.notracks != want.notracks {
			t.Fatalf("sequence %d: %d pieces, %d rules, %d notrack, want %d, %d, %d",
				sequence, len(s.pieces), s.rules, r.notracks, len(in), fresh.rules, want.notracks)
		}
		for range 100 {
			v, mark := m.view(), uint32(m.IntN(4))
			if got, want := decision(r, v, mark), decision(want, v, mark); got != want {
				t.Fatalf("sequence %d, %+v:\n%s\nwant\n%s", sequence, v, got, want)
			}
		}
	}
}

// What a change does not concern is shared and not affected.
func TestSetChangesLittle(t *testing.T) {
	s := newSet()
	c := sized(1000)
	if err := s.replace(c); err != nil {
		t.Fatal(err)
	}
	before, _ := s.Commit()
	if err := s.replace(c); err != nil {
		t.Fatal(err)
	}
	if len(s.pending) != 0 {
		t.Fatalf("the same configuration changes %d resources", len(s.pending))
	}
	key := Key{Kind: "mapping", Name: mapped(500).String()}
	moved := AddressMapping{External: mapped(500), Internal: addr("198.51.100.9")}
	if err := s.Put(key, c.mapping(moved)); err != nil {
		t.Fatal(err)
	}
	after, affected := s.Commit()
	for a, want := range map[netip.Addr]bool{
		mapped(500): true, addr("192.1.1.244"): true, addr("198.51.100.9"): true,
		mapped(501): false, pod(500): false, addr("192.1.1.245"): false,
	} {
		if got := affected.Prefixes.Contains(a); got != want {
			t.Errorf("%v affected: %v", a, got)
		}
	}
	if affected.All || len(affected.Ports) > 0 || len(affected.Marks) > 0 {
		t.Errorf("affected: all %v, ports %v, marks %v", affected.All, affected.Ports, affected.Marks)
	}
	for st := range stages {
		if st != stageDNAT && st != stageSNAT && before.stages[st].ruleIndex != after.stages[st].ruleIndex {
			t.Errorf("stage %d is not shared", st)
		}
	}
	v := from(Tunnel, "10.1.2.6", mapped(500).String())
	if was, is := before.nat(stageDNAT, &v).addr, after.nat(stageDNAT, &v).addr; was != addr("192.1.1.244") || is != addr("198.51.100.9") {
		t.Errorf("mapped to %v before and %v after", was, is)
	}
}

// A refusal belongs to its key: the others are put, and the key keeps what it had.
func TestSetRefusesByKey(t *testing.T) {
	s := newSet()
	good := Resource{Tables: []Table{oneChain(FamilyIPv4, ChainFilter, HookForward, 0, Rule{Action: ActionDrop})}}
	bad := Resource{Tables: []Table{oneChain(FamilyIPv4, ChainFilter, HookForward, 0, Rule{Action: "explode"})}}
	device := Resource{Device: &Device{Port: 1, Name: "rome-1", Address: addr("10.80.0.2")}}
	service := Resource{Service: &Service{Address: addr("10.70.0.20"), Port: 80, Protocol: packet.TCP}}
	for _, step := range []struct {
		name string
		r    Resource
		want string
	}{
		{"a", good, ""}, {"a", bad, `unknown action "explode"`},
		{"b", device, ""}, {"c", device, `device "rome-1" is taken by kind/b`},
		{"d", service, ""}, {"e", service, "10.70.0.20 port 80 is taken by kind/d"},
		{"c", Resource{Device: &Device{Port: 2, Name: "rome-2", Address: addr("10.80.0.2")}}, "address 10.80.0.2 is taken by kind/b"},
	} {
		err := s.Put(Key{Kind: "kind", Name: step.name}, step.r)
		if got := fmt.Sprint(errors.Unwrap(err), err); step.want == "" && err != nil || !strings.Contains(got, step.want) {
			t.Errorf("%s: error %v, want %q", step.name, err, step.want)
		}
	}
	r, _ := s.Commit()
	var e effects
	if len(s.pieces) != 3 || r.filter(stageForward, packetView(), &e) != ruleDrop {
		t.Errorf("%d resources are left, verdict %v", len(s.pieces), r.filter(stageForward, packetView(), &e))
	}
	if _, ok := s.devices["rome-2"]; ok {
		t.Error("the device of a refused resource is known")
	}
}

// BenchmarkSetChange changes one of 50,000 mappings, beside 500 services and 5,000 nodes.
func BenchmarkSetChange(b *testing.B) {
	s := newSet()
	c := sized(50_000)
	c.Routes = c.Routes[:len(c.Nodes)] // a pod CIDR each
	for i := range 500 {
		c.Services = append(c.Services, Service{
			Name: fmt.Sprint("s", i), Address: netip.AddrFrom4([4]byte{10, 67, byte(i >> 8), byte(i)}), Port: 80, Protocol: packet.TCP,
			Backends: []Backend{{Address: pod(i), Port: 8080}},
		})
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	used := usedTime(b)
	if err := s.replace(c); err != nil {
		b.Fatal(err)
	}
	s.Commit()
	first := usedTime(b) - used
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportAllocs()
	b.ResetTimer()
	used = usedTime(b)
	for i := range b.N {
		m := AddressMapping{External: mapped(i % 50_000), Internal: netip.AddrFrom4([4]byte{198, byte(18 + i>>16&1), byte(i >> 8), byte(i)})}
		if err := s.Put(Key{Kind: "mapping", Name: m.External.String()}, c.mapping(m)); err != nil {
			b.Fatal(err)
		}
		s.Commit()
	}
	b.ReportMetric(float64(usedTime(b)-used)/float64(b.N)/1e3, "cpu-µs/change")
	b.ReportMetric(first.Seconds(), "cpu-s-first")
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/(1<<20), "live-MiB")
	runtime.KeepAlive(s)
}

// BenchmarkApplyChange has an engine find and commit one changed mapping of 50,000 in a whole configuration.
func BenchmarkApplyChange(b *testing.B) {
	c := sized(50_000)
	e, err := New([16]byte{}, c)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	used := usedTime(b)
	for i := range b.N {
		c.Addresses[i%50_000].Internal = netip.AddrFrom4([4]byte{198, byte(18 + i>>16&1), byte(i >> 8), byte(i)})
		if err := e.Apply(c); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(usedTime(b)-used)/float64(b.N)/1e6, "cpu-ms/change")
}
