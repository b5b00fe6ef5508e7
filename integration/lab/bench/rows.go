package bench

import (
	"fmt"
	"slices"

	"culvert/integration/lab"
)

// rowID names what is measured.
type rowID int

// All rows, in the order of the tables; each table has those that were measured.
const (
	rowTCP1 rowID = iota
	rowTCP1Reverse
	rowTCP4
	rowTCP4Reverse
	rowTCPBoth
	rowTCP8
	rowTCP8Both
	rowTCP6
	rowFamilies
	rowTUN
	rowTUNToKernel
	rowDials
	rowUDP64
	rowUDP1200
	rowAlone
	rowAloneCost
	rowAloneSmall
	rowAloneSmallCost
	rowIdleP50
	rowIdleP99
	rowLoadedP50
	rowLoadedP99
	rowCPU
	rowOwnCPU
	rowIdleCPU
	rowOthers
	rowResident
	rowPeak
	rowIdleResident
	rowIdleGateway
	rowFaults
	rowCalls
	rowRefused
	rowBothRefused
	rowService
	rowServiceDials
	numRows
)

// rowPlan is the promise of a row. Budgets are from the architecture.
type rowPlan struct {
	Name  string
	Unit  string
	scale float64 // from SI units to Unit

	lower bool    // lower is better
	asIs  float64 // bound of the ratio to the reference at its defaults, 0: none
	oneP  float64 // and to the reference on one P
	bound float64 // of culvert's own figure in Unit, 0: none
}

var rowPlans = [numRows]rowPlan{
	rowTCP1:           {Name: "TCP, 1 stream", Unit: "Gb/s", scale: 1e-9, asIs: 1.15, oneP: 1},
	rowTCP1Reverse:    {Name: "TCP, 1 reverse", Unit: "Gb/s", scale: 1e-9, asIs: 1.10, oneP: 1},
	rowTCP4:           {Name: "TCP, 4 streams", Unit: "Gb/s", scale: 1e-9, asIs: 1.18, oneP: 1},
	rowTCP4Reverse:    {Name: "TCP, 4 reverse", Unit: "Gb/s", scale: 1e-9, asIs: 1.18, oneP: 1},
	rowTCPBoth:        {Name: "TCP, both ways", Unit: "Gb/s", scale: 1e-9, asIs: 1.05, oneP: 1},
	rowTCP8:           {Name: "TCP, 8 streams", Unit: "Gb/s", scale: 1e-9},
	rowTCP8Both:       {Name: "TCP, 8 each way", Unit: "Gb/s", scale: 1e-9},
	rowTCP6:           {Name: "TCP, 1 over IPv6", Unit: "Gb/s", scale: 1e-9},
	rowFamilies:       {Name: "TCP 1, IPv6 to IPv4", Unit: "", scale: 1, bound: 0.95},
	rowTUN:            {Name: "TCP 1, TUN nodes", Unit: "Gb/s", scale: 1e-9},
	rowTUNToKernel:    {Name: "TCP 1, TUN to VXLAN", Unit: "", scale: 1},
	rowDials:          {Name: "connections", Unit: "k/s", scale: 1e-3, asIs: 2, oneP: 1.5},
	rowUDP64:          {Name: "UDP 64 B", Unit: "k/s", scale: 1e-3, asIs: 2, oneP: 1.3},
	rowUDP1200:        {Name: "UDP 1200 B", Unit: "k/s", scale: 1e-3, asIs: 2, oneP: 1.3},
	rowAlone:          {Name: "alone, 1312 B", Unit: "Gb/s", scale: 1e-9},
	rowAloneCost:      {Name: "alone, 1312 B, CPU", Unit: "s/GB", scale: 1e9},
	rowAloneSmall:     {Name: "alone, 64 B", Unit: "k/s", scale: 1e-3},
	rowAloneSmallCost: {Name: "alone, 64 B, CPU", Unit: "µs", scale: 1e6},
	rowIdleP50:        {Name: "ping idle p50", Unit: "µs", scale: 1e6, lower: true, asIs: 0.65, oneP: 0.7},
	rowIdleP99:        {Name: "ping idle p99", Unit: "µs", scale: 1e6, lower: true},
	rowLoadedP50:      {Name: "ping loaded p50", Unit: "ms", scale: 1e3, lower: true, asIs: 0.75, oneP: 0.8},
	rowLoadedP99:      {Name: "ping loaded p99", Unit: "ms", scale: 1e3, lower: true, asIs: 0.75, oneP: 0.8},
	rowCPU:            {Name: "CPU, all rows TCP", Unit: "s/GB", scale: 1, lower: true, asIs: 0.9, oneP: 1},
	rowOwnCPU:         {Name: "CPU, the lab's own", Unit: "s/GB", scale: 1, lower: true},
	rowIdleCPU:        {Name: "CPU idle there", Unit: "%", scale: 100, lower: true},
	rowOthers:         {Name: "CPU of others there", Unit: "%", scale: 100, lower: true},
	rowResident:       {Name: "resident after load", Unit: "MiB", scale: 1.0 / (1 << 20), lower: true, bound: 30},
	rowPeak:           {Name: "resident peak", Unit: "MiB", scale: 1.0 / (1 << 20), lower: true},
	rowIdleResident:   {Name: "resident, no traffic", Unit: "MiB", scale: 1.0 / (1 << 20), lower: true, bound: 20},
	rowIdleGateway:    {Name: "a core, no traffic", Unit: "%", scale: 100, lower: true, bound: 0.5},
	rowFaults:         {Name: "page faults under load", Unit: "/s", scale: 1, lower: true},
	rowCalls:          {Name: "calls per packet", Unit: "", scale: 1, lower: true, bound: 0.05},
	rowRefused:        {Name: "TCP 1, no offloads", Unit: "Gb/s", scale: 1e-9, asIs: 0.6},
	rowBothRefused:    {Name: "TCP 1, both without", Unit: "Gb/s", scale: 1e-9},
	rowService:        {Name: "ClusterIP, TCP 1", Unit: "Gb/s", scale: 1e-9, asIs: 0.9},
	rowServiceDials:   {Name: "ClusterIP, new", Unit: "k/s", scale: 1e-3, asIs: 0.7},
}

// row is a plan with the figures of all runs, by variant, in SI units.
type row struct {
	rowPlan
	figures map[string][]float64
}

type rows []row

func newRows() rows {
	r := make(rows, numRows)
	for id, plan := range rowPlans {
		r[id] = row{plan, make(map[string][]float64)}
	}
	return r
}

// others returns the largest share of CPU time in percent that others used during streams, with one
// of the gateways.
func (r rows) others() (share float64) {
	for _, figures := range r[rowOthers].figures {
		share = max(share, summarise(figures, r[rowOthers].scale).Median)
	}
	return share
}

func (r rows) add(id rowID, variant string, value float64) {
	r[id].figures[variant] = append(r[id].figures[variant], value)
}

// copy takes the figures of one row for another, of one variant.
func (r rows) copy(from, to rowID, variant string) {
	if have := r[from].figures[variant]; len(have) > 0 {
		r[to].figures[variant] = slices.Clone(have)
	}
}

// Figure is a measured value in the unit of its row.
type Figure struct {
	Median float64   `json:"median"`
	Min    float64   `json:"min"`
	Max    float64   `json:"max"`
	Runs   []float64 `json:"runs"`
}

// Ratio is culvert's median over a reference's, and what was promised.
type Ratio struct {
	Ratio  float64  `json:"ratio"`
	Min    float64  `json:"min"` // of the runs of one round
	Max    float64  `json:"max"`
	Budget *float64 `json:"budget,omitempty"`
	Met    *bool    `json:"met,omitempty"`
}

// Row is one line of the result.
type Row struct {
	Name        string            `json:"name"`
	Unit        string            `json:"unit"`
	LowerBetter bool              `json:"lowerIsBetter"`
	Figures     map[string]Figure `json:"figures"`         // by gateway
	Ratios      map[string]Ratio  `json:"ratios"`          // by reference
	Bound       *float64          `json:"bound,omitempty"` // of culvert's own figure
	BoundMet    *bool             `json:"boundMet,omitempty"`
}

// judge summarises all rows that have figures.
func (r rows) judge() (all []Row) {
	for i := range r {
		if len(r[i].figures) > 0 {
			all = append(all, r[i].judge())
		}
	}
	return all
}

func (r *row) judge() Row {
	out := Row{Name: r.Name, Unit: r.Unit, LowerBetter: r.lower, Figures: make(map[string]Figure),
		Ratios: make(map[string]Ratio)}
	for name, values := range r.figures {
		out.Figures[name] = summarise(values, r.scale)
	}
	own, have := out.Figures[lab.CulvertGateway.Name]
	if !have {
		return out
	}
	for name, budget := range map[string]float64{lab.ReferenceGateway.Name: r.asIs, referenceOneP.Name: r.oneP} {
		if other, have := out.Figures[name]; have && other.Median > 0 {
			out.Ratios[name] = compare(own, other, budget, r.lower)
		}
	}
	if r.bound > 0 {
		met := keeps(own.Median, r.bound, r.lower)
		out.Bound, out.BoundMet = &r.bound, &met
	}
	return out
}

func compare(own, other Figure, budget float64, lower bool) Ratio {
	q := Ratio{Ratio: own.Median / other.Median}
	for i := range min(len(own.Runs), len(other.Runs)) {
		round := own.Runs[i] / other.Runs[i]
		if i == 0 {
			q.Min, q.Max = round, round
		}
		q.Min, q.Max = min(q.Min, round), max(q.Max, round)
	}
	if budget > 0 {
		met := keeps(q.Ratio, budget, lower)
		q.Budget, q.Met = &budget, &met
	}
	return q
}

// keeps reports whether a value keeps its bound.
func keeps(value, bound float64, lower bool) bool {
	if lower {
		return value <= bound
	}
	return value >= bound
}

func summarise(values []float64, scale float64) Figure {
	f := Figure{Runs: make([]float64, len(values))}
	for i, v := range values {
		f.Runs[i] = v * scale
	}
	sorted := slices.Sorted(slices.Values(f.Runs))
	n := len(sorted)
	f.Median, f.Min, f.Max = (sorted[(n-1)/2]+sorted[n/2])/2, sorted[0], sorted[n-1]
	return f
}

// formatFigure prints three significant digits.
func formatFigure(v float64) string {
	switch {
	case v >= 99.95 || v == 0:
		return fmt.Sprintf("%.0f", v)
	case v >= 9.995:
		return fmt.Sprintf("%.1f", v)
	case v >= 0.1:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.3f", v)
}
