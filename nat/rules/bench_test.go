package rules

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"culvert/integration/need"
	"culvert/nat/nattest/cost"
)

// sized returns a configuration with n mapped addresses, n pod routes and n/10 nodes, at most
// 5,000.
func sized(n int) *Config {
	c := milan()
	c.Nodes, c.Routes, c.Addresses, c.Services = nil, nil, nil, nil
	c.LocalPodCIDRs, c.LocalExternalCIDRs = []netip.Prefix{pfx("10.0.0.0/12")}, []netip.Prefix{pfx("10.64.0.0/14")}
	c.UnknownSource = PairOf(addr("10.64.0.0"))
	c.Remote = []RemoteCIDR{{Real: pfx("10.0.0.0/12"), Remapped: pfx("10.128.0.0/12")}, {Real: pfx("10.64.0.0/14"),
		Remapped: pfx("10.68.0.0/14"), External: true}}
	nodes := max(2, min(n/10, 5000))
	for i := range nodes {
		c.Nodes = append(c.Nodes, Node{Link: Link(i + 1), Name: fmt.Sprint("node-", i+1),
			Address: PairOf(netip.AddrFrom4([4]byte{10, 80, byte(i >> 8), byte(i)}))})
	}
	c.GatewayAddress = PairOf(addr("10.81.0.1"))
	for i := range n {
		c.Routes = append(c.Routes, Route{netip.PrefixFrom(pod(i), 32), Link(i%nodes + 1)})
		c.Addresses = append(c.Addresses, AddressMapping{External: mapped(i),
			Internal: netip.AddrFrom4([4]byte{192, 1 + byte(i>>16), byte(i >> 8), byte(i)})})
	}
	return c
}

func pod(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 1 + byte(i>>16), byte(i >> 8), byte(i)})
}
func mapped(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 65 + byte(i>>16), byte(i >> 8), byte(i)})
}

// evaluation takes the first packet of a connection through every stage again and again.
func evaluation(tb testing.TB, r *Ruleset, v view) func() *Traversal {
	tr := traversalOf(v, 0, nil)
	from := tr.From
	return func() *Traversal {
		tr.Start(&from, nil, v.in, nil)
		if !pass(tr, r) {
			tb.Fatalf("%v to %v: no way: %v", v.src, v.dst, tr.Outcome)
		}
		return tr
	}
}

var evaluations = []struct {
	name string
	make func(i int) view
}{
	{"outbound", func(i int) view { return from(1, pod(i).String(), "10.129.2.6") }},
	{"inbound", func(i int) view { return from(Tunnel, "10.1.2.6", pod(i).String()) }},
	{"mapped", func(i int) view { return from(Tunnel, "10.1.2.6", mapped(i).String()) }},
	{"unknown", func(i int) view { return from(2, "11.11.11.7", "10.129.2.6") }},
}

func TestRulesDoNotAllocate(t *testing.T) {
	for _, n := range []int{3, 2000} {
		c := sized(n)
		c.Rules = []FilterRule{{Name: "drop", Source: []netip.Prefix{pfx("203.0.113.0/24")}, Action: FilterDrop}}
		r := compiled(t, c)
		for _, ev := range evaluations {
			run := evaluation(t, r, ev.make(n-1))
			if got := testing.AllocsPerRun(200, func() {
				countRules(run().hits, true, 1, 60)
			}); got != 0 {
				t.Errorf("%s, %d: %v allocations", ev.name, n, got)
			}
		}
	}
}

// BenchmarkFirstPacketRules evaluates every stage, as for the first packet of a connection. N is
// the number of mappings, of pod routes and of rules.
func BenchmarkFirstPacketRules(b *testing.B) {
	seal := cost.Seal(b)
	for _, n := range []int{10, 1000, 50000} {
		r := compiled(b, sized(n))
		for _, ev := range evaluations {
			runs := make([]func() *Traversal, 512)
			for i := range runs {
				runs[i] = evaluation(b, r, ev.make(i*97%n))
			}
			b.Run(fmt.Sprintf("%s/N=%d/rules=%d", ev.name, n, len(r.all())), func(b *testing.B) {
				b.ReportAllocs()
				start := cost.ProcessorTime(b)
				for i := 0; b.Loop(); i++ {
					runs[i%len(runs)]()
				}
				b.ReportMetric(float64(cost.ProcessorTime(b)-start)/float64(b.N)/seal, "seals/op")
			})
		}
	}
}

// BenchmarkCompileRules makes a ruleset.
func BenchmarkCompileRules(b *testing.B) {
	for _, n := range []int{10, 1000, 50000} {
		c := sized(n)
		b.Run(fmt.Sprint("N=", n), func(b *testing.B) {
			b.ReportAllocs()
			used := cost.ProcessorTime(b)
			for b.Loop() {
				if _, err := newRuleset(c); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(cost.ProcessorTime(b)-used)/float64(b.N)/1e6, "cpu-ms/op")
		})
	}
}

// BenchmarkWithdrawRules commits a configuration that has three mappings left of the N before.
func BenchmarkWithdrawRules(b *testing.B) {
	for _, n := range []int{1000, 50000} {
		many, few := sized(n), sized(n)
		few.Addresses = few.Addresses[:3]
		b.Run(fmt.Sprint("N=", n), func(b *testing.B) {
			used := time.Duration(0)
			for b.Loop() {
				s := NewSet()
				d, err := s.Replace(many)
				need.NoError(b, err)
				s.Commit(d)
				if d, err = s.Replace(few); err != nil {
					b.Fatal(err)
				}
				began := cost.ProcessorTime(b)
				s.Commit(d)
				used += cost.ProcessorTime(b) - began
			}
			b.ReportMetric(float64(used)/float64(b.N)/1e6, "commit-cpu-ms/op")
		})
	}
}
