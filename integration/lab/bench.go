package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"culvert/gateway/node"
)

// BenchOptions say how much to measure.
type BenchOptions struct {
	Runs  int  // alternating runs of each gateway, 0: as many as are worth reporting
	Quick bool // fewer and shorter ones
	JSON  bool // the result as one object instead of a table
}

// benchTimes are how long the parts of one run take.
type benchTimes struct {
	runs         int
	warmUp, bulk time.Duration // of each set of TCP streams
	latency      time.Duration
	dials        time.Duration
	udpStep      time.Duration
	bisections   int // of the UDP rate, after the ladder
}

var (
	fullTimes  = benchTimes{5, time.Second, 4 * time.Second, 4 * time.Second, 4 * time.Second, 800 * time.Millisecond, 4}
	quickTimes = benchTimes{2, 300 * time.Millisecond, 1200 * time.Millisecond, time.Second, 1200 * time.Millisecond, 300 * time.Millisecond, 2}
)

// The gateways that are compared, in the order of a run.
var (
	culvertGateway  = variant{Name: "culvert"}
	referenceAsIs   = variant{Name: "reference", reference: true}
	referenceOneP   = variant{Name: "reference, 1 P", reference: true, procs: 1}
	culvertOffloads = variant{Name: "culvert, offloads refused", noOffloads: true}
)

// benchProcs is GOMAXPROCS while measuring: a thread that returns from a system
// call must find a P at once, however many wait in one.
const benchProcs = 64

// bench is a bench under way.
type bench struct {
	lab      *Lab
	times    benchTimes
	path     *ends
	rows     rows
	progress io.Writer
	began    time.Time
}

// RunBench builds a lab below dir, measures the path between two pods through
// culvert's gateways and through reference gateways in the same namespaces, and
// prints the result to out. Progress goes to progress, line by line.
func RunBench(ctx context.Context, dir string, o BenchOptions, out, progress io.Writer) (err error) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(benchProcs))
	b := &bench{times: fullTimes, progress: progress, began: time.Now(), rows: newRows()}
	if o.Quick {
		b.times = quickTimes
	}
	if o.Runs > 0 {
		b.times.runs = o.Runs
	}
	mode := node.VXLAN
	if err := Probe("vxlan"); err != nil {
		b.say("no kernel VXLAN links (%v): nodes use TUN devices", err)
		mode = node.TUN
	}
	variants := []*variant{&culvertGateway, &referenceAsIs, &referenceOneP, &culvertOffloads}
	if err := MissingForReference(); err != nil {
		b.say("no reference gateway here, ratios are left out: %v", err)
		variants = []*variant{&culvertGateway, &culvertOffloads}
	}
	dir = filepath.Join(dir, "bench")
	b.lab, err = Start(ctx, dir, Standard(mode, true))
	if err == nil {
		b.path = b.lab.pair("rome/pod1", "milan/pod1")
		err = b.alternate(ctx, variants)
	}
	if err = errors.Join(err, b.lab.Stop()); err != nil {
		if keepErr := os.WriteFile(filepath.Join(filepath.Dir(dir), keepFile), nil, 0o600); keepErr == nil {
			err = fmt.Errorf("%w; configurations and logs are in %s until `culvert lab down`", err, dir)
		}
		return err
	}
	r := report{Machine: describeMachine(), Nodes: string(mode), Runs: b.times.runs, Quick: o.Quick,
		Seconds: time.Since(b.began).Seconds(), Rows: b.rows.judge()}
	return errors.Join(r.print(out, o.JSON), os.RemoveAll(dir))
}

// alternate runs one gateway after the other, and all again.
func (b *bench) alternate(ctx context.Context, variants []*variant) error {
	for run := range b.times.runs {
		for _, v := range variants {
			b.say("run %d of %d: %s", run+1, b.times.runs, v.Name)
			if err := b.lab.useGateways(ctx, v); err != nil {
				return err
			}
			measure := b.measure
			if v.noOffloads {
				measure = b.measureRefused
			}
			if err := measure(ctx, v); err != nil {
				return fmt.Errorf("%s: %w", v.Name, err)
			}
		}
	}
	return nil
}

// say prints a line of progress with the time since the start.
func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(b.progress, "%6.1f s  %s\n", time.Since(b.began).Seconds(), fmt.Sprintf(format, args...))
}

// record notes a figure of one run.
func (b *bench) record(v *variant, id rowID, value float64) {
	b.rows.add(id, v.Name, value)
	row := b.rows[id]
	b.say("  %-26s %s %s", row.Name, formatFigure(value*row.scale), row.Unit)
}

// measure takes all figures of one gateway.
func (b *bench) measure(ctx context.Context, v *variant) error {
	if err := b.measureIdle(ctx, v); err != nil {
		return err
	}
	if err := b.measureStreams(ctx, v); err != nil {
		return err
	}
	if err := b.measureLoaded(ctx, v); err != nil {
		return err
	}
	rate, err := b.path.measureDials(ctx, b.times.warmUp, b.times.dials)
	if err != nil {
		return err
	}
	b.record(v, rowDials, rate)
	for id, size := range map[rowID]int{rowUDP64: 64, rowUDP1200: 1200} {
		rate, err := b.path.measureUDP(ctx, size, b.times.bisections, b.times.udpStep)
		if err != nil {
			return err
		}
		b.record(v, id, rate)
	}
	return b.measureMemory(v)
}

func (b *bench) measureIdle(ctx context.Context, v *variant) error {
	idle, err := b.path.measureLatency(ctx, b.times.latency)
	if err != nil {
		return err
	}
	b.record(v, rowIdleP50, idle.p50)
	b.record(v, rowIdleP99, idle.p99)
	return nil
}

// measureStreams takes throughput, CPU time and system calls of bulk streams.
func (b *bench) measureStreams(ctx context.Context, v *variant) error {
	var all bulkFigures
	var before map[string]float64
	for _, set := range []struct {
		id       rowID
		up, down int
	}{{rowTCP1, 1, 0}, {rowTCP1Reverse, 0, 1}, {rowTCP4, 4, 0}, {rowTCP4Reverse, 0, 4}, {rowTCPBoth, 1, 1}} {
		if !v.reference && before == nil {
			var err error
			if before, err = b.lab.counters(ctx, metricCalls, metricReceived); err != nil {
				return err
			}
		}
		f, err := b.path.measureBulk(ctx, set.up, set.down, b.times.warmUp, b.times.bulk)
		if err != nil {
			return err
		}
		b.record(v, set.id, f.bytes*8/f.seconds)
		all.bytes += f.bytes
		all.seconds += f.seconds
		all.busy += f.busy
		all.idle += f.idle * f.seconds
	}
	b.record(v, rowCPU, all.busy/all.bytes*1e9)
	b.record(v, rowIdleCPU, all.idle/all.seconds)
	if v.reference {
		return nil
	}
	after, err := b.lab.counters(ctx, metricCalls, metricReceived)
	if err != nil {
		return err
	}
	b.record(v, rowCalls, (after[metricCalls]-before[metricCalls])/(after[metricReceived]-before[metricReceived]))
	return nil
}

// Metrics of a gateway, in packets after segmentation.
const (
	metricCalls    = "culvert_socket_calls_total"
	metricReceived = "culvert_received_packets_total"
)

// measureLoaded takes the latency beside one stream.
func (b *bench) measureLoaded(ctx context.Context, v *variant) error {
	load, err := b.path.startBulk(1, 0)
	if err != nil {
		return err
	}
	err = sleep(ctx, b.times.warmUp)
	var loaded latency
	if err == nil {
		loaded, err = b.path.measureLatency(ctx, b.times.latency)
	}
	if err := errors.Join(err, load.stop()); err != nil {
		return err
	}
	b.record(v, rowLoadedP50, loaded.p50)
	b.record(v, rowLoadedP99, loaded.p99)
	return nil
}

// measureMemory takes the resident set of the larger gateway.
func (b *bench) measureMemory(v *variant) error {
	var resident, peak float64
	for _, p := range b.lab.gateways() {
		r, k, err := p.memory()
		if err != nil {
			return err
		}
		resident, peak = max(resident, r), max(peak, k)
	}
	b.record(v, rowResident, resident)
	b.record(v, rowPeak, peak)
	return nil
}

// measureRefused takes what is promised for kernels without offloads.
func (b *bench) measureRefused(ctx context.Context, _ *variant) error {
	f, err := b.path.measureBulk(ctx, 1, 0, b.times.warmUp, b.times.bulk)
	if err == nil {
		b.record(&culvertGateway, rowRefused, f.bytes*8/f.seconds)
		b.rows.copy(rowTCP1, rowRefused, referenceAsIs.Name)
	}
	return err
}
