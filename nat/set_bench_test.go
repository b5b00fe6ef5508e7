package nat

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"culvert/integration/need"
	"culvert/nat/nattest/cost"
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// goalSize returns a configuration with 5,000 nodes, 500 services and, apart, 50,000 mappings as
// resources.
func goalSize() (*Config, func(i int, internal netip.Addr) (rules.Key, rules.Resource)) {
	c := sized(50_000)
	mappings := c.Addresses
	c.Addresses, c.Routes, c.MaxConnections = nil, c.Routes[:len(c.Nodes)], 1<<19 // a pod CIDR each
	for i := range 500 {
		c.Services = append(c.Services, rules.Service{
			Name: fmt.Sprint("s", i), Address: netip.AddrFrom4([4]byte{10, 67, byte(i >> 8), byte(i)}), Port: 80,
			Protocol: packet.TCP,
			Backends: []rules.Backend{{Address: pod(i), Port: 8080}},
		})
	}
	return c, func(i int, internal netip.Addr) (rules.Key, rules.Resource) {
		m := rules.MappingRules{External: mappings[i].External, Internal: mappings[i].Internal, Device: c.Nodes[0].Name}
		if internal.IsValid() {
			m.Internal = internal
		}
		return rules.Key{Kind: "IP", Namespace: "default", Name: m.External.String()}, rules.Resource{Mapping: &m}
	}
}

// BenchmarkChange changes one of 50,000 mappings, beside 500 services, 5,000 nodes and 300,000
// connections. The goals are 2 ms of processor time and 256 KiB of garbage for a change, 1 s for
// loading everything, and 100 MiB for the rules in memory.
func BenchmarkChange(b *testing.B) {
	c, mapping := goalSize()
	put := func(e *Engine, key rules.Key, r rules.Resource) {
		need.NoError(b, e.Put(key, r))
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	used := cost.ProcessorTime(b)
	e, err := New([16]byte{}, c)
	need.NoError(b, err)
	for i := range 50_000 {
		key, r := mapping(i, netip.Addr{})
		put(e, key, r)
	}
	e.CommitRules()
	first := cost.ProcessorTime(b) - used
	runtime.GC()
	runtime.ReadMemStats(&after)
	const connections = 300_000
	for i := range connections {
		if v, _ := send(e, Link(i%5000+1), pod(i%50_000), addr("10.129.2.6"), uint16(1+i/50_000),
			53); v.Action != Forward || v.Untracked {
			b.Fatalf("connection %d: %+v", i, v)
		}
	}
	b.ReportAllocs()
	b.ResetTimer()
	used = cost.ProcessorTime(b)
	for i := range b.N {
		key, r := mapping(i%50_000, netip.AddrFrom4([4]byte{198, byte(18 + i>>16&1), byte(i >> 8), byte(i)}))
		put(e, key, r)
		e.CommitRules()
	}
	b.ReportMetric(float64(cost.ProcessorTime(b)-used)/float64(b.N)/1e3, "cpu-µs/change")
	b.ReportMetric(first.Seconds(), "cpu-s-first")
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/(1<<20), "live-MiB")
	if st := e.Stats(); st.Connections != connections || st.Evicted != 0 {
		b.Errorf("%d connections, %d evicted", st.Connections, st.Evicted)
	}
}

// BenchmarkSweepAfterChanges sweeps 100,000 connections, as a gateway does each second, after 20 of
// 1,000 mappings have changed.
func BenchmarkSweepAfterChanges(b *testing.B) {
	const connections, changes = 100_000, 20
	c := sized(1000)
	c.MaxConnections = 2 * connections
	mappings := c.Addresses
	c.Addresses = nil
	e, err := New([16]byte{}, c)
	need.NoError(b, err)
	nodes := len(c.Nodes)
	for i := range connections {
		if v, _ := send(e, Link(i%nodes+1), pod(i%1000), addr("10.129.2.6"), uint16(1+i/1000),
			53); v.Action != Forward || v.Untracked {
			b.Fatalf("connection %d: %+v", i, v)
		}
	}
	for !e.Sweep(1) {
	}
	var used time.Duration
	rounds := 0
	for b.Loop() {
		b.StopTimer()
		for i := range changes {
			m := &mappings[(rounds*changes+i)%len(mappings)]
			r := rules.MappingRules{External: m.External, Internal: netip.AddrFrom4([4]byte{198, 18, byte(rounds),
				byte(i)}), Device: c.Nodes[0].Name}
			need.NoError(b, e.Put(rules.Key{Kind: "IP", Name: m.External.String()}, rules.Resource{Mapping: &r}))
			e.CommitRules()
		}
		b.StartTimer()
		began := cost.ProcessorTime(b)
		for !e.Sweep(1) {
		}
		used += cost.ProcessorTime(b) - began
		rounds++
	}
	b.ReportMetric(float64(used)/float64(rounds)/1e6, "cpu-ms/round")
	if st := e.Stats(); st.Connections != connections || st.Evicted != 0 {
		b.Errorf("%d connections, %d evicted", st.Connections, st.Evicted)
	}
}

// BenchmarkApplyChange applies a whole configuration in which one mapping of 50,000 has changed.
func BenchmarkApplyChange(b *testing.B) {
	c := sized(50_000)
	e, err := New([16]byte{}, c)
	need.NoError(b, err)
	b.ReportAllocs()
	b.ResetTimer()
	used := cost.ProcessorTime(b)
	for i := range b.N {
		c.Addresses[i%50_000].Internal = netip.AddrFrom4([4]byte{198, byte(18 + i>>16&1), byte(i >> 8), byte(i)})
		need.NoError(b, e.Apply(c))
	}
	b.ReportMetric(float64(cost.ProcessorTime(b)-used)/float64(b.N)/1e6, "cpu-ms/change")
}
