package bench

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"culvert/integration/lab"
	"culvert/integration/lab/plan"
	"culvert/integration/lab/probe"
	"culvert/integration/need"
)

// twoPods is a lab of rome alone, and two of its pods, whose kernels route without NAT.
func twoPods(t *testing.T) (*lab.Lab, *probe.Ends) {
	t.Helper()
	need.Namespace(t)
	l, err := lab.BuildRome(t.TempDir(), lab.Standard("", true))
	t.Cleanup(func() {
		if err := l.Stop(); err != nil {
			t.Error(err)
		}
	})
	need.NoError(t, err)
	e := &probe.Ends{From: l.Host("rome/pod1"), To: l.Host("rome/pod2")}
	e.Target, e.WantSource = e.To.Address, e.From.Address
	return l, e
}

// The generators are tried over plain kernel routing between two pods.
func TestBenchGenerators(t *testing.T) {
	_, e := twoPods(t)
	const short = 100 * time.Millisecond

	times := times{warmUp: short, bulk: short}
	t.Run("streams", func(t *testing.T) {
		for _, set := range []struct{ up, down int }{{1, 0}, {0, 1}, {3, 2}} {
			moments := 0
			f, err := measureBulk(t.Context(), e, set.up, set.down, &times, func() (resources, error) {
				moments++
				return resources{calls: float64(10 * moments)}, nil
			})
			need.NoError(t, err)
			if f.bytes == 0 || f.seconds < short.Seconds() || f.used != (resources{calls: 10}) {
				t.Errorf("%d up, %d down: %+v", set.up, set.down, f)
			}
		}
	})
	t.Run("dials", func(t *testing.T) {
		rate, err := e.MeasureDials(t.Context(), short, 5*short)
		if err != nil || rate < 100 {
			t.Errorf("%.0f connections per second (%v), want hundreds at least", rate, err)
		}
	})
	t.Run("latency", func(t *testing.T) {
		l, err := e.MeasureLatency(t.Context(), short)
		if err != nil || l.P50 <= 0 || l.P99 < l.P50 {
			t.Errorf("%+v (%v)", l, err)
		}
	})
	t.Run("paced datagrams", func(t *testing.T) {
		const rate = 2000
		sent, received, err := e.SendPaced(rate, 64, short)
		if most := rate*short.Seconds() + 1; err != nil || sent == 0 || sent > most || received != sent {
			t.Errorf("sent %.0f, received %.0f (%v), want the same and at most %.0f", sent, received, err, most)
		}
	})
	t.Run("connections", func(t *testing.T) {
		// More than there are source ports, so that destination ports change, too.
		if err := e.FillConnections(t.Context(), probe.FlowPorts+7); err != nil {
			t.Error(err)
		}
	})
	t.Run("ended", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := measureBulk(ctx, e, 1, 0, &times, func() (resources, error) {
			return resources{},
				nil
		}); err == nil {
			t.Error("streams: no error from a context that is done")
		}
		if _, err := e.MeasureUDP(ctx, 64, 1, short); err == nil {
			t.Error("datagrams: no error from a context that is done")
		}
	})
}

func TestSummarise(t *testing.T) {
	for _, c := range []struct {
		values           []float64
		median, min, max float64
	}{
		{[]float64{7}, 7, 7, 7},
		{[]float64{9, 1}, 5, 1, 9},
		{[]float64{5, 1, 9}, 5, 1, 9},
		{[]float64{4, 1, 3, 2}, 2.5, 1, 4},
	} {
		f := summarise(c.values, 10)
		if f.Median != 10*c.median || f.Min != 10*c.min || f.Max != 10*c.max {
			t.Errorf("%v: %+v, want median %v, range %v to %v, all tenfold", c.values, f, c.median, c.min, c.max)
		}
		if f.Runs[0] != 10*c.values[0] {
			t.Errorf("%v: runs %v are out of order", c.values, f.Runs)
		}
	}
}

func TestJudge(t *testing.T) {
	r := newRows()
	for _, v := range []float64{1.2e9, 1.3e9, 1.1e9} {
		r.add(rowTCP1, "culvert", v)
		r.add(rowTCP1, "reference", 1e9)
		r.add(rowTCP1, "reference, 1 P", 1.25e9)
		r.add(rowLoadedP50, "culvert", v)
		r.add(rowLoadedP50, "reference", 1e9)
		r.add(rowCalls, "culvert", 0.06)
		r.add(rowFamilies, "culvert", v/1.25e9)
	}
	all := r.judge()
	if len(all) != 4 {
		t.Fatalf("%d rows, want those 4 that have figures", len(all))
	}
	for _, c := range []struct {
		row       Row
		against   string
		ratio     float64
		low, high float64
		met       bool
	}{
		{all[0], "reference", 1.2, 1.1, 1.3, true},
		{all[0], "reference, 1 P", 0.96, 0.88, 1.04, false},
		{all[2], "reference", 1.2, 1.1, 1.3, false}, // lower is better
	} {
		q := c.row.Ratios[c.against]
		near := func(a, b float64) bool { return math.Abs(a-b) < 1e-9 }
		if !near(q.Ratio, c.ratio) || !near(q.Min, c.low) || !near(q.Max, c.high) || q.Met == nil || *q.Met != c.met {
			t.Errorf("%s against %s: %+v, want %+v", c.row.Name, c.against, q, c)
		}
	}
	for i, want := range map[int]bool{1: true, 3: false} { // 0.96 is at least 0.95, and 0.06 not at most 0.05
		if m := all[i].BoundMet; m == nil || *m != want {
			t.Errorf("%s: bound met %v, want %v", all[i].Name, m, want)
		}
	}
}

// TestReportWidth: the table fits 100 columns, with and without a reference.
func TestReportWidth(t *testing.T) {
	for _, names := range [][]string{{"culvert"}, {"culvert", "reference", "reference, 1 P"}} {
		r := newRows()
		for id, plan := range rowPlans {
			for _, name := range names {
				// Figures of three digits in the row's unit, and ranges of them.
				r.add(rowID(id), name, 12.3/plan.scale)
				r.add(rowID(id), name, 14.5/plan.scale)
			}
		}
		result := report{conditions: conditions{Machine: describeMachine(), Nodes: "vxlan", Runs: 5}, Rows: r.judge()}
		for _, s := range growthSettings {
			g := GrowthRow{Setting: s.name, Figures: make(map[string]Figure)}
			for _, column := range growthRows {
				g.Figures[column.title] = summarise([]float64{12.3, 45.6}, 1)
			}
			result.Growth = append(result.Growth, g)
		}
		var b strings.Builder
		need.NoError(t, result.print(&b, false))
		for line := range strings.Lines(b.String()) {
			if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > 100 {
				t.Errorf("%d columns: %s", n, line)
			}
		}
		if want := int(numRows); strings.Count(b.String(), "\n") < want {
			t.Errorf("%d lines, want at least %d:\n%s", strings.Count(b.String(), "\n"), want, b.String())
		}
		b.Reset()
		if err := result.print(&b, true); err != nil || !strings.HasPrefix(b.String(), "{") {
			t.Errorf("JSON: %v: %.40s", err, b.String())
		}
	}
}

func TestFormatFigure(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.0372: "0.037", 0.1: "0.10", 3.456: "3.46", 9.996: "10.0",
		31.4: "31.4", 99.96: "100", 7215: "7215"} {
		if got := formatFigure(v); got != want {
			t.Errorf("%v: %q, want %q", v, got, want)
		}
	}
}

// TestGrownNodes: each setting has as many nodes and routes as it says, and no
// route twice.
func TestGrownNodes(t *testing.T) {
	l := &lab.Lab{Dir: t.TempDir(), Options: lab.Standard("vxlan", true)}
	need.NoError(t, l.WriteConfigs())
	for _, s := range growthSettings {
		for i := range plan.V4 {
			c := &plan.V4[i]
			var nodes []any
			for _, n := range c.Nodes {
				nodes = append(nodes, lab.Object{"name": n.Name, "podCIDRs": []any{n.PodCIDR.Masked().String()}})
			}
			nodes = grownNodes(c, nodes, s.nodes, s.routes)
			seen := make(map[any]bool)
			for _, n := range nodes {
				for _, p := range n.(lab.Object)["podCIDRs"].([]any) {
					if seen[p] {
						t.Fatalf("%s, %s: route %v twice", s.name, c.Name, p)
					}
					seen[p] = true
				}
			}
			if len(nodes) != s.nodes || len(seen) != s.routes {
				t.Errorf("%s, %s: %d nodes and %d routes, want %d and %d", s.name, c.Name, len(nodes), len(seen),
					s.nodes, s.routes)
			}
		}
	}
}

// TestSample: numbers of a process that works grow, and a difference undone is
// the sum.
func TestSample(t *testing.T) {
	before, err := lab.ProcessStat("self")
	need.NoError(t, err)
	busy, idle, err := readCPU()
	if err != nil || busy <= 0 || idle <= 0 {
		t.Errorf("CPU seconds: busy %v, idle %v (%v)", busy, idle, err)
	}
	touched := make([]byte, 64<<20)
	for i := 0; i < len(touched); i += 4096 {
		touched[i] = 1
	}
	after, err := lab.ProcessStat("self")
	need.NoError(t, err)
	if after[lab.StatMinorFaults] <= before[lab.StatMinorFaults] ||
		after[lab.StatUser]+after[lab.StatSystem] < before[lab.StatUser]+
			before[lab.StatSystem] {
		t.Errorf("fields before %v, after %v", before, after)
	}
	x, y := resources{1, 2, 3, 4, 5, 6}, resources{60, 50, 40, 30, 20, 10}
	if got := x.minus(y).plus(y); got != x {
		t.Errorf("%+v, want %+v", got, x)
	}
}
