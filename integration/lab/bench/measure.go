package bench

import (
	"context"
	"errors"

	"culvert/integration/lab"
	"culvert/integration/lab/probe"
	"culvert/integration/lab/step"
)

// measurement is one purpose for which a pair of gateways is started.
type measurement struct {
	name    string
	refused bool // only for gateways without offloads
	take    func(context.Context, *lab.Variant) error
}

// streams measures TCP connections that send as fast as they can, in one or both directions:
// throughput, CPU time and system calls.
func (b *bench) streams(name string, id rowID, up, down int) measurement {
	return measurement{name: name, take: func(ctx context.Context, v *lab.Variant) error {
		f, err := measureBulk(ctx, b.path, up, down, &b.times, func() (resources,
			error) {
			return sample(ctx, b.lab, v)
		})
		if err != nil {
			return err
		}
		b.record(v, id, f.bytes*8/f.seconds)
		t := &b.totals[v.Name].streams
		t.bytes += f.bytes
		t.seconds += f.seconds
		t.used = t.used.plus(f.used)
		return nil
	}}
}

// datagrams measures the highest rate of datagrams with size bytes of payload.
func (b *bench) datagrams(name string, id rowID, size int) measurement {
	return measurement{name: name, take: func(ctx context.Context, v *lab.Variant) error {
		rate, err := b.path.MeasureUDP(ctx, size, b.times.bisections, b.times.udpStep)
		if err == nil {
			b.record(v, id, rate)
		}
		return err
	}}
}

// measurements are the measurements of a run, in the order of the table.
func (b *bench) measurements() []measurement {
	return []measurement{
		b.streams("one stream", rowTCP1, 1, 0),
		b.streams("one stream, reverse", rowTCP1Reverse, 0, 1),
		b.streams("four streams", rowTCP4, 4, 0),
		b.streams("four streams, reverse", rowTCP4Reverse, 0, 4),
		b.streams("both ways", rowTCPBoth, 1, 1),
		{name: "connections", take: b.takeDials},
		b.datagrams("datagrams of 64 bytes", rowUDP64, 64),
		b.datagrams("datagrams of 1200 bytes", rowUDP1200, 1200),
		{name: "ping", take: b.takeIdle},
		{name: "ping beside a stream", take: b.takeLoaded},
		{name: "one stream", refused: true, take: b.takeRefused},
	}
}

// totals are summed or kept over all measurements of a run, for one gateway.
type totals struct {
	streams        bulkFigures
	resident, peak float64 // bytes, of the larger gateway
}

func (b *bench) takeDials(ctx context.Context, v *lab.Variant) error {
	rate, err := b.path.MeasureDials(ctx, b.times.warmUp, b.times.dials)
	if err == nil {
		b.record(v, rowDials, rate)
	}
	return err
}

// takeIdle measures the cost and latency of gateways without traffic.
func (b *bench) takeIdle(ctx context.Context, v *lab.Variant) error {
	cost := func() (seconds, resident float64, err error) {
		for _, p := range b.lab.Gateways() {
			s, runErr := p.RunTime()
			m, memoryErr := p.Memory()
			seconds, resident = seconds+s, max(resident, m.Resident)
			err = errors.Join(err, runErr, memoryErr)
		}
		return seconds, resident, err
	}
	before, _, err := cost()
	if err != nil {
		return err
	}
	if err := step.Sleep(ctx, b.times.latency); err != nil {
		return err
	}
	after, resident, err := cost()
	if err != nil {
		return err
	}
	b.record(v, rowIdleGateway, (after-before)/float64(len(b.lab.Gateways()))/b.times.latency.Seconds())
	b.record(v, rowIdleResident, resident)
	idle, err := b.path.MeasureLatency(ctx, b.times.latency)
	if err == nil {
		b.record(v, rowIdleP50, idle.P50)
		b.record(v, rowIdleP99, idle.P99)
	}
	return err
}

// takeLoaded measures the latency while one stream runs.
func (b *bench) takeLoaded(ctx context.Context, v *lab.Variant) error {
	load, err := b.path.StartBulk(1, 0)
	if err != nil {
		return err
	}
	err = step.Sleep(ctx, b.times.warmUp)
	var loaded probe.Latency
	if err == nil {
		loaded, err = b.path.MeasureLatency(ctx, b.times.latency)
	}
	if err := errors.Join(err, load.Stop()); err != nil {
		return err
	}
	b.record(v, rowLoadedP50, loaded.P50)
	b.record(v, rowLoadedP99, loaded.P99)
	return nil
}

// takeRefused measures the figures promised for kernels without offloads, also compared with the
// reference on such a kernel.
func (b *bench) takeRefused(ctx context.Context, v *lab.Variant) error {
	rate, err := streamRate(ctx, b.path, &b.times)
	if err != nil {
		return err
	}
	as := &lab.CulvertGateway
	if v.Reference {
		as = &lab.ReferenceGateway
	} else {
		b.record(as, rowRefused, rate)
		b.rows.copy(rowTCP1, rowRefused, lab.ReferenceGateway.Name)
	}
	b.record(as, rowBothRefused, rate)
	return nil
}

// recordMemory records the resident set of the larger gateway.
func (b *bench) recordMemory(v *lab.Variant) error {
	t := b.totals[v.Name]
	for _, p := range b.lab.Gateways() {
		m, err := p.Memory()
		if err != nil {
			return err
		}
		t.resident, t.peak = max(t.resident, m.Resident), max(t.peak, m.Peak)
	}
	return nil
}

// recordTotals records the figures of a whole run.
func (b *bench) recordTotals(v *lab.Variant) {
	t := b.totals[v.Name]
	if v.NoOffloads {
		return
	}
	b.say("run: %s", v.Name)
	used := &t.streams.used
	b.record(v, rowCPU, used.busy/t.streams.bytes*1e9)
	b.record(v, rowOwnCPU, used.own/t.streams.bytes*1e9)
	b.record(v, rowIdleCPU, used.idle/(used.busy+used.idle))
	b.record(v, rowOthers, used.others())
	b.record(v, rowFaults, used.faults/t.streams.seconds)
	b.record(v, rowResident, t.resident)
	b.record(v, rowPeak, t.peak)
	if !v.Reference {
		b.record(v, rowCalls, used.calls/used.packets)
	}
}
