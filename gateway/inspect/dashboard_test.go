package inspect

import (
	"encoding/json"
	"maps"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"culvert/gateway/control"
	"culvert/gateway/health"
	"culvert/gateway/monitor"
	"culvert/gateway/pathmtu"
	"culvert/gateway/seats"
	"culvert/gateway/wg"
	"culvert/geneve"
	"culvert/geneve/udp"
	"culvert/integration/need"
	"culvert/nat"
	"culvert/nat/rules"
)

// families returns the labels of each culvert metric on a page; nil for one without a sample.
func families(text string) map[string][]string {
	all := make(map[string][]string)
	kinds := make(map[string]string)
	label := regexp.MustCompile(`(\w+)="`)
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); strings.HasPrefix(line, "# TYPE culvert_") {
			all[fields[2]], kinds[fields[2]] = nil, fields[3]
			continue
		}
		name, rest, _ := strings.Cut(line[:max(0, strings.LastIndexByte(line, ' '))], "{")
		if base := histogramSuffix.ReplaceAllString(name, ""); kinds[base] == "histogram" {
			name = base
		}
		if labels, ok := all[name]; ok && labels == nil {
			all[name] = []string{}
			for _, m := range label.FindAllStringSubmatch(rest, -1) {
				all[name] = append(all[name], m[1])
			}
		}
	}
	return all
}

var histogramSuffix = regexp.MustCompile(`_(bucket|sum|count)$`)

// fullPage returns a page with a sample of each metric.
func fullPage(t *testing.T) string {
	t.Helper()
	src := newSource(t)
	p := new(page)
	p.packets(&nat.Stats{}, &geneve.Stats{}, &wg.Stats{}, src.Path)
	p.connections(&nat.Stats{})
	p.shares(&nat.Stats{})
	p.rules([]rules.FilterRule{{Name: "a"}}, func(yield func(rules.RuleCount)) {
		yield(rules.RuleCount{Table: rules.RulesTable, Rule: "a"})
	})
	p.neighbours(&geneve.Stats{})
	p.nodes(map[string]nat.Link{"rome-1": 1}, func(uint16) (geneve.TunnelStats, bool) {
		return geneve.TunnelStats{MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, Encap: geneve.VXLAN}, true
	})
	p.peer("milan", &wg.PeerStats{}, &wg.Stats{})
	p.stages(&wg.Stats{}, src.Path)
	p.paths("milan", nil, map[nat.Link]pathmtu.Result{nat.Tunnel: {Size: 1340}})
	p.check("milan", monitor.CheckStatus{State: monitor.CheckConnected})
	p.legs("milan", nil, func(nat.Link) monitor.Traffic { return monitor.Traffic{RTT: 1} })
	p.sockets(map[string]udp.Stats{"geneve": {OverflowsKnown: true}})
	p.listener(seats.New(nil))
	src.Life.WriteMetrics(&p.Page)
	p.build(control.Version{})
	p.findings([]health.Finding{{Cause: health.NodeSilent, Of: "rome-1"}})
	text := p.Text.String()
	all := families(text)
	for name := range families(string(src.Metrics(seats.New(nil), 0))) {
		if all[name] == nil {
			t.Errorf("fullPage has no sample of %s", name)
		}
	}
	return text
}

// notShown are the metrics that the dashboard omits, with the reason.
var notShown = map[string]string{
	"culvert_socket_waiting":                     "what /healthz looks at; an overflow is what it comes to",
	"culvert_listener_connections":               "about whoever reads the metrics",
	"culvert_listener_refused_connections_total": "about whoever reads the metrics",
}

// TestDashboard: kube/manifests/grafana.json shows each metric, and names only metrics and labels
// that a gateway has.
func TestDashboard(t *testing.T) {
	text, err := os.ReadFile("../../kube/manifests/grafana.json")
	need.NoError(t, err)
	var board struct {
		Panels []struct {
			ID      int
			Type    string
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr, LegendFormat string }
		}
	}
	need.NoError(t, json.Unmarshal(text, &board))
	known, shown, ids := families(fullPage(t)), make(map[string]bool), make(map[int]bool)
	places := make(map[[2]int]string)
	for _, p := range board.Panels {
		if ids[p.ID] || p.Title == "" || p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("panel %d %q: no title, no expression, or an ID that another has", p.ID, p.Title)
		}
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := places[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("panel %q lies on %q, or outside", p.Title, other)
				}
				places[[2]int{x, y}] = p.Title
			}
		}
		for _, target := range p.Targets {
			metrics, faults := readExpression(target.Expr, target.LegendFormat, known)
			for _, fault := range faults {
				t.Errorf("panel %q: %s in %s", p.Title, fault, target.Expr)
			}
			for _, name := range metrics {
				shown[name] = true
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(known)) {
		if shown[name] == (notShown[name] != "") {
			t.Errorf("%s: shown %v; either the dashboard shows it, or notShown says why not", name, shown[name])
		}
	}
	for name := range notShown {
		if _, ok := known[name]; !ok {
			t.Errorf("notShown has %s, which is no metric", name)
		}
	}
}

var (
	selectorPattern = regexp.MustCompile(`\b(culvert_\w+)(\{[^}]*\})?`)
	matcherPattern  = regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)\s*"[^"]*"`)
	byPattern       = regexp.MustCompile(`\bby \(([^)]*)\)`)
	legendPattern   = regexp.MustCompile(`\{\{(\w+)\}\}`)
)

// readExpression returns the metrics of an expression, and what is wrong with the expression and
// its legend.
func readExpression(expr, legend string, known map[string][]string) (metrics, faults []string) {
	fault := func(text string) { faults = append(faults, text) }
	var common []string // labels of all metrics in the expression
	selectors := selectorPattern.FindAllStringSubmatch(expr, -1)
	for i, m := range selectors {
		name := m[1]
		labels, ok := known[name]
		if base := histogramSuffix.ReplaceAllString(name, ""); !ok && base != name {
			name = base
			labels, ok = known[name]
		}
		if !ok {
			fault("no metric " + m[1])
			continue
		}
		metrics = append(metrics, name)
		labels = append([]string{"instance"}, labels...)
		for _, matcher := range matcherPattern.FindAllStringSubmatch(m[2], -1) {
			if !slices.Contains(labels, matcher[1]) {
				fault(name + " has no label " + matcher[1])
			}
		}
		if !strings.Contains(m[2], `instance=~"$instance"`) {
			fault(name + " of whichever gateway")
		}
		if i == 0 {
			common = labels
		}
		common = slices.DeleteFunc(slices.Clone(common), func(l string) bool { return !slices.Contains(labels, l) })
	}
	if len(selectors) == 0 {
		fault("no metric")
	}
	if strings.Count(expr, "(") != strings.Count(expr, ")") {
		fault("a bracket too many")
	}
	kept := common
	for _, m := range byPattern.FindAllStringSubmatch(expr, -1) {
		kept = strings.Split(m[1], ", ")
		for _, label := range kept {
			if !slices.Contains(common, label) {
				fault("no label " + label)
			}
		}
	}
	for _, m := range legendPattern.FindAllStringSubmatch(legend, -1) {
		if !slices.Contains(kept, m[1]) {
			fault("no label " + m[1] + " for the legend")
		}
	}
	return metrics, faults
}

// TestExpressionsAreRead: readExpression finds the mistakes that TestDashboard relies on it to
// find.
func TestExpressionsAreRead(t *testing.T) {
	known := map[string][]string{"culvert_a": {"peer"}, "culvert_b_seconds": {"stage", "le"}}
	for expr, want := range map[string]string{
		`culvert_a{instance=~"$instance"}`:                                                       "",
		`sum by (peer) (rate(culvert_a{instance=~"$instance", peer="x"}[5m]))`:                   "",
		`histogram_quantile(0.5, sum by (le) (culvert_b_seconds_bucket{instance=~"$instance"}))`: "no label peer for the legend",
		`culvert_c{instance=~"$instance"}`:                                                       "no metric culvert_c",
		`culvert_a{instance=~"$instance", node="x"}`:                                             "culvert_a has no label node",
		`culvert_a`: "culvert_a of whichever gateway",
		`sum by (node) (culvert_a{instance=~"$instance"})`: "no label node",
		`sum by (peer) (culvert_a{instance=~"$instance"}`:  "a bracket too many",
		`1`: "no metric",
		`culvert_a{instance=~"$instance"} / on (peer) culvert_b_seconds_sum{instance=~"$instance"}`: "no label peer for the legend",
	} {
		if _, faults := readExpression(expr, "{{peer}}", known); want == "" && len(faults) > 0 || want != "" &&
			!slices.Contains(faults, want) {
			t.Errorf("%s: %q, want %q", expr, faults, want)
		}
	}
}
