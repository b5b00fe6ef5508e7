package inspect

import (
	"bytes"
	"fmt"
	"net"
	"reflect"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"culvert/gateway/monitor"
	"culvert/gateway/wg"
	"culvert/geneve"
	"culvert/geneve/udp"
	"culvert/nat"
	"culvert/nat/rules"
)

// TestEachCounterHasAReader changes each number of each type of statistics, and checks that the
// page changes.
func TestEachCounterHasAReader(t *testing.T) {
	of := newSource(t).Path // it counts nothing meanwhile
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	for _, tt := range []struct {
		stats any // pointer; unchanged, it leaves the page unchanged
		write func(*page, any)
	}{
		{&nat.Stats{}, func(page *page, s any) {
			page.packets(s.(*nat.Stats), &geneve.Stats{}, &wg.Stats{}, of)
			page.connections(s.(*nat.Stats))
			page.shares(s.(*nat.Stats))
		}},
		{&geneve.Stats{Socket: udp.Stats{OverflowsKnown: true}}, func(page *page, s any) {
			page.packets(&nat.Stats{}, s.(*geneve.Stats), &wg.Stats{}, of)
			page.neighbours(s.(*geneve.Stats))
			page.sockets(map[string]udp.Stats{"geneve": s.(*geneve.Stats).Socket})
		}},
		{&wg.Stats{}, func(page *page, s any) {
			page.packets(&nat.Stats{}, &geneve.Stats{}, s.(*wg.Stats), of)
			page.peer("milan", &wg.PeerStats{}, s.(*wg.Stats))
			page.stages(s.(*wg.Stats), of)
		}},
		{&geneve.TunnelStats{MAC: mac}, func(page *page, s any) {
			page.nodes(map[string]nat.Link{"rome-1": 1}, func(uint16) (geneve.TunnelStats, bool) {
				return *s.(*geneve.TunnelStats), true
			})
		}},
		{&udp.Stats{OverflowsKnown: true}, func(page *page, s any) {
			page.sockets(map[string]udp.Stats{"geneve": *s.(*udp.Stats)})
		}},
	} {
		text := func() string {
			p := new(page)
			tt.write(p, tt.stats)
			return p.Text.String()
		}
		kind := reflect.TypeOf(tt.stats).Elem()
		without := text()
		numbers := 0
		eachNumber(reflect.ValueOf(tt.stats).Elem(), kind.String(), func(path string, v reflect.Value) {
			numbers++
			old := reflect.ValueOf(v.Interface())
			switch {
			case v.CanUint():
				v.SetUint(4711)
			case v.CanInt():
				v.SetInt(4711e9)
			default:
				v.SetBool(!v.Bool())
			}
			if text() == without {
				t.Errorf("no metric shows %s", path)
			}
			v.Set(old)
		})
		if text() != without || numbers < 8 {
			t.Errorf("%v: %d numbers, page as at first: %v", kind, numbers, text() == without)
		}
	}
}

// eachNumber calls f for each number and each bool in v, except those about packets that were not
// dropped.
func eachNumber(v reflect.Value, path string, f func(string, reflect.Value)) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			eachNumber(v.Field(i), path+"."+v.Type().Field(i).Name, f)
		}
	case reflect.Array:
		for i := range v.Len() {
			if i > 0 || !strings.Contains(path, ".Drop") {
				eachNumber(v.Index(i), fmt.Sprintf("%s[%d]", path, i), f)
			}
		}
	case reflect.Slice: // MAC
	default:
		f(path, v)
	}
}

// TestOverflowsThatNobodyCounts: the metric of overflows is missing for a socket whose kernel does
// not count them.
func TestOverflowsThatNobodyCounts(t *testing.T) {
	p := new(page)
	p.sockets(map[string]udp.Stats{"geneve": {}, "wireguard": {OverflowsKnown: true, Overflows: 5}})
	text := p.Text.String()
	if strings.Contains(text, `overflows_total{socket="geneve"}`) ||
		!strings.Contains(text, `overflows_total{socket="wireguard"} 5`) {
		t.Error(text)
	}
}

// TestRuleMetrics: rules have metrics by name, up to a limit; tables count all of them.
func TestRuleMetrics(t *testing.T) {
	var filters []rules.FilterRule
	for i := range 2 * monitor.MaxRules {
		filters = append(filters, rules.FilterRule{Name: fmt.Sprint("rule ", i)})
	}
	filters[0].Name = "a \"quoted\"\\\n{name}"
	p := new(page)
	p.rules(filters, func(yield func(rules.RuleCount)) {
		for _, r := range filters {
			yield(rules.RuleCount{Table: rules.RulesTable, Chain: "forward", Rule: r.Name, Packets: 2, Bytes: 100})
		}
		yield(rules.RuleCount{Table: "remap-podcidr", Chain: "outgoing", Rule: filters[1].Name, Packets: 7, Bytes: 70})
		yield(rules.RuleCount{Table: "remap-podcidr", Chain: "incoming", Rule: "x", Packets: 1, Bytes: 1})
	})
	text := p.Text.String()
	for _, line := range []string{
		`culvert_rule_packets_total{rule="a \"quoted\"\\\n{name}"} 2`,
		`culvert_rule_bytes_total{rule="rule 1"} 100`,
		fmt.Sprintf(`culvert_rule_packets_total{rule="rule %d"} 2`, monitor.MaxRules-1),
		`culvert_table_packets_total{table="rules"} 4000`,
		`culvert_table_bytes_total{table="remap-podcidr"} 71`,
	} {
		if !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("no line %s", line)
		}
	}
	if n := strings.Count(text, "culvert_rule_packets_total{"); n != monitor.MaxRules {
		t.Errorf("%d rules have metrics, want %d", n, monitor.MaxRules)
	}
	if problems, err := promlint.New(bytes.NewReader(p.Text.Bytes())).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("promlint: %v, %v", problems, err)
	}
}

// BenchmarkMetricsPage prints the metrics of 5,000 nodes.
func BenchmarkMetricsPage(b *testing.B) {
	links := map[string]nat.Link{}
	for i := range 5000 {
		links[fmt.Sprintf("node-%d.example.internal", i)] = nat.Link(i + 1)
	}
	stats := geneve.TunnelStats{ReceivedPackets: 123456789, SentBytes: 1 << 40, MAC: net.HardwareAddr{1, 2, 3, 4, 5, 6}}
	b.ReportAllocs()
	size := 0
	for b.Loop() {
		page := new(page)
		page.Text.Grow(size + size/8)
		page.nodes(links, func(uint16) (geneve.TunnelStats, bool) { return stats, true })
		size = page.Text.Len()
	}
	b.ReportMetric(float64(size), "bytes/page")
}
