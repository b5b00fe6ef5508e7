package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"culvert/gateway/node"
	"culvert/integration/lab"
)

// conditions are those under which a bench has measured.
type conditions struct {
	Machine Machine `json:"machine"`
	Nodes   string  `json:"nodes"` // their mode
	Runs    int     `json:"runs"`
	Quick   bool    `json:"quick"`
	Seconds float64 `json:"seconds"`
}

func (b *bench) conditions(mode node.Mode, o Options) conditions {
	return conditions{describeMachine(), string(mode), b.times.runs, o.Quick, time.Since(b.began).Seconds()}
}

func (c *conditions) String() string {
	return fmt.Sprintf("%s, %d CPUs, %s; nodes %s; median (range) of %d alternating runs; %.0f s\n",
		c.Machine.Kernel, c.Machine.CPUs, c.Machine.Go, c.Nodes, c.Runs, c.Seconds)
}

// report is the result of a bench.
type report struct {
	conditions
	Rows   []Row       `json:"rows"`
	Growth []GrowthRow `json:"growth,omitempty"`

	others float64 // see rows.others
}

// Machine is where a bench ran.
type Machine struct {
	Kernel string `json:"kernel"`
	CPUs   int    `json:"cpus"`
	Go     string `json:"go"`
}

func describeMachine() Machine {
	m := Machine{CPUs: runtime.NumCPU(), Go: runtime.Version()}
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		m.Kernel = unix.ByteSliceToString(name.Sysname[:]) + " " + unix.ByteSliceToString(name.Release[:])
	}
	return m
}

// Columns of the table, 100 with the gaps.
const (
	benchNameWidth   = 25
	benchFigureWidth = 15
	benchRatioWidth  = 13
	growthWidth      = 14
)

func (r *report) print(out io.Writer, asJSON bool) error {
	if asJSON {
		return printJSON(out, r)
	}
	var b strings.Builder
	fmt.Fprint(&b, r.conditions.String(),
		"reference = kernel VXLAN + nftables + wireguard-go on a TUN device; 1 P = with GOMAXPROCS=1\n"+
			"ClusterIP: one node to another without gateways; reference = kube-proxy's rules, nftables mode\n")
	line := func(cells ...string) {
		writeLine(&b, []int{benchNameWidth, benchFigureWidth, benchFigureWidth, benchRatioWidth, benchFigureWidth,
			benchRatioWidth}, cells)
	}
	line("", "culvert", "reference", "ratio budget", "reference 1 P", "ratio budget")
	var met, judged int
	for _, row := range r.Rows {
		first, second := row.ratio(lab.ReferenceGateway.Name), row.ratio(referenceOneP.Name)
		if row.Bound != nil {
			first += " " + row.mark(*row.BoundMet, *row.Bound)
		}
		line(strings.TrimSpace(row.Name+" "+row.Unit), row.figure(lab.CulvertGateway.Name),
			row.figure(lab.ReferenceGateway.Name), strings.TrimSpace(first),
			row.figure(referenceOneP.Name), second)
		for _, m := range row.verdicts() {
			judged++
			if m {
				met++
			}
		}
	}
	fmt.Fprintf(&b, "%d of %d budgets met; * = missed\n", met, judged)
	warnOfOthers(&b, r.others)
	if len(r.Growth) > 0 {
		r.printGrowth(&b)
	}
	_, err := io.WriteString(out, b.String())
	return err
}

func printJSON(out io.Writer, report any) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(report)
}

// othersLimit is the percentage of CPU time used by others, including interrupts, above which a
// report warns.
const othersLimit = 15

func warnOfOthers(b *strings.Builder, share float64) {
	if share > othersLimit {
		fmt.Fprintf(b, "Other processes used %.0f %% of the CPUs meanwhile: do not rely on these figures.\n", share)
	}
}

// printGrowth prints culvert's figures at growing sizes.
func (r *report) printGrowth(b *strings.Builder) {
	widths := []int{benchNameWidth}
	cells := []string{"culvert as it grows"}
	for _, column := range growthRows {
		widths, cells = append(widths, growthWidth), append(cells, column.title)
	}
	b.WriteByte('\n')
	writeLine(b, widths, cells)
	for _, g := range r.Growth {
		cells = append(cells[:0], g.Setting)
		for _, column := range growthRows {
			cells = append(cells, g.Figures[column.title].String())
		}
		writeLine(b, widths, cells)
	}
}

func writeLine(b *strings.Builder, widths []int, cells []string) {
	var text strings.Builder
	for i, cell := range cells {
		fmt.Fprintf(&text, "%-*s ", widths[i], cell)
	}
	b.WriteString(strings.TrimRight(text.String(), " ") + "\n")
}

func (r *Row) figure(variant string) string {
	if f, have := r.Figures[variant]; have {
		return f.String()
	}
	return "–"
}

// String is the median, with the range if there was more than one run.
func (f Figure) String() string {
	if len(f.Runs) < 2 {
		return formatFigure(f.Median)
	}
	return fmt.Sprintf("%s %s–%s", formatFigure(f.Median), formatFigure(f.Min), formatFigure(f.Max))
}

func (r *Row) ratio(reference string) string {
	q, have := r.Ratios[reference]
	if !have {
		return ""
	}
	text := formatFigure(q.Ratio)
	if q.Budget == nil {
		return text
	}
	return text + " " + r.mark(*q.Met, *q.Budget)
}

// mark formats a bound, with a star if it was missed.
func (r *Row) mark(met bool, bound float64) string {
	text := "≥" + formatFigure(bound)
	if r.LowerBetter {
		text = "≤" + formatFigure(bound)
	}
	if !met {
		text += " *"
	}
	return text
}

// verdicts returns for each budget of the row whether it was met.
func (r *Row) verdicts() (met []bool) {
	for _, q := range r.Ratios {
		if q.Met != nil {
			met = append(met, *q.Met)
		}
	}
	if r.BoundMet != nil {
		met = append(met, *r.BoundMet)
	}
	return met
}
