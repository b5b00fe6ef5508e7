package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"time"

	"culvert/gateway/node"
	"culvert/integration/lab"
	"culvert/integration/lab/holder"
	"culvert/integration/lab/netns"
	"culvert/integration/lab/probe"
	"culvert/integration/lab/reference"
)

// Options select what to measure.
type Options struct {
	Culvert string // absolute path of the measured program
	Runs    int    // alternating runs of each gateway, 0: as many as needed for a report
	Quick   bool   // fewer and shorter ones
	Growth  bool   // also with many connections, nodes and routes
	CPUs    bool   // instead, by the number of Ps of the gateways
	JSON    bool   // the result as one object instead of a table
}

// times are how long the parts of one run take.
type times struct {
	runs         int
	warmUp, bulk time.Duration // for each set of TCP streams
	latency      time.Duration
	dials        time.Duration
	udpStep      time.Duration
	bisections   int // of the UDP rate, after the ladder
	growthRuns   int // of each size of culvert's tables
}

var (
	fullTimes = times{5, 700 * time.Millisecond, 3 * time.Second, 2500 * time.Millisecond, 3 * time.Second,
		500 * time.Millisecond, 3, 2}
	quickTimes = times{2, 300 * time.Millisecond, time.Second, 800 * time.Millisecond, time.Second,
		250 * time.Millisecond, 2, 1}
)

// The gateways that are compared, in the order of a run.
var (
	referenceOneP = lab.Variant{Name: "reference, 1 P", Reference: true, Procs: 1}

	culvertNoOffloads   = lab.Variant{Name: "culvert, offloads refused", NoOffloads: true}
	referenceNoOffloads = lab.Variant{Name: "reference, offloads refused", Reference: true, NoOffloads: true}
)

// benchProcs is GOMAXPROCS while measuring: a thread that returns from a system call must find a P
// at once, even if many wait in system calls.
const benchProcs = 64

// bench is a bench under way.
type bench struct {
	lab      *lab.Lab
	times    times
	path     *probe.Ends
	rows     rows
	progress io.Writer
	began    time.Time

	totals map[string]*totals // of the current run, by gateway
}

// Run builds a lab below dir, measures the path between two pods through culvert's gateways
// and through reference gateways in the same namespaces, and prints the result to out. Progress
// goes to progress, line by line.
func Run(ctx context.Context, dir string, o Options, out, progress io.Writer) (err error) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(benchProcs))
	b := &bench{times: fullTimes, progress: progress, began: time.Now(), rows: newRows()}
	if o.Quick {
		b.times = quickTimes
	}
	if o.Runs > 0 {
		b.times.runs = o.Runs
	}
	mode := node.VXLAN
	if err := netns.Probe("vxlan"); err != nil {
		b.say("no kernel VXLAN links (%v): nodes use TUN devices", err)
		mode = node.TUN
	}
	variants := []*lab.Variant{&lab.CulvertGateway, &lab.ReferenceGateway, &referenceOneP, &culvertNoOffloads,
		&referenceNoOffloads}
	servers := []*lab.Variant{&lab.CulvertGateway, &lab.ReferenceGateway}
	if err := reference.Missing(); err != nil {
		b.say("no reference gateway here, ratios are left out: %v", err)
		variants, servers = []*lab.Variant{&lab.CulvertGateway, &culvertNoOffloads}, servers[:1]
	}
	standard := lab.Standard(mode, true)
	standard.Culvert = o.Culvert
	b.lab, err = lab.Start(ctx, filepath.Join(dir, "bench"), standard)
	if err == nil {
		b.path = b.lab.Pair("rome/pod1", "milan/pod1")
		err = bypassBridgeFilters(b.lab)
	}
	var growth []GrowthRow
	switch {
	case err != nil:
	case o.CPUs:
		err = b.takeCPUs(ctx, len(servers) > 1)
	default:
		err = b.alternate(ctx, b.times.runs, b.measurements(), variants, b.recordTotals)
		if err == nil {
			err = b.takeServices(ctx, servers)
		}
		if err == nil && o.Growth {
			growth, err = b.grow(ctx)
		}
	}
	err = errors.Join(err, b.lab.Stop())
	if err == nil && !o.CPUs {
		err = b.takeOtherLabs(ctx, dir, standard)
	}
	switch {
	case err != nil:
		return holder.KeepLogs(dir, err)
	case o.CPUs:
		return b.printCPUs(out, mode, o)
	}
	r := report{b.conditions(mode, o), b.rows.judge(), growth, b.rows.others()}
	return r.print(out, o.JSON)
}

// takeOtherLabs measures what needs labs of other kinds than the standard one.
func (b *bench) takeOtherLabs(ctx context.Context, dir string, standard lab.Options) error {
	if standard.Mode != node.TUN {
		if err := b.takeTUN(ctx, filepath.Join(dir, "tun"), standard); err != nil {
			return err
		}
	}
	if err := netns.Probe("ipv6"); err != nil {
		b.say("no IPv6 here, its rows are left out: %v", err)
		return nil
	}
	return b.takeFamilies(ctx, filepath.Join(dir, "6"), standard)
}

// alternate takes each measurement with every gateway in turn, and repeats that for each run. At
// the end of a run, record stores the totals of a gateway.
func (b *bench) alternate(ctx context.Context, runs int, all []measurement, variants []*lab.Variant,
	record func(*lab.Variant)) error {
	for run := range runs {
		b.totals = make(map[string]*totals)
		for _, v := range variants {
			b.totals[v.Name] = new(totals)
		}
		for _, m := range all {
			for _, v := range variants {
				if v.NoOffloads != m.refused {
					continue
				}
				b.say("run %d of %d, %s: %s", run+1, runs, m.name, v.Name)
				if err := b.lab.UseGateways(ctx, v); err != nil {
					return err
				}
				if err := m.take(ctx, v); err != nil {
					return fmt.Errorf("%s: %s: %w", v.Name, m.name, err)
				}
				if err := b.recordMemory(v); err != nil {
					return err
				}
			}
		}
		for _, v := range variants {
			record(v)
		}
	}
	return nil
}

// say prints a line of progress with the time since the start.
func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(b.progress, "%6.1f s  %s\n", time.Since(b.began).Seconds(), fmt.Sprintf(format, args...))
}

// record stores a figure of one run.
func (b *bench) record(v *lab.Variant, id rowID, value float64) {
	b.rows.add(id, v.Name, value)
	row := b.rows[id]
	b.say("  %-26s %s %s", row.Name, formatFigure(value*row.scale), row.Unit)
}
