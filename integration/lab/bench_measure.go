package lab

import (
	"context"
	"errors"
)

// measurement is what one pair of gateways is started for.
type measurement struct {
	name    string
	refused bool // of the gateways that are refused offloads, and no others
	take    func(context.Context, *variant) error
}

// measurements are those of a run, in the order of the table.
func (b *bench) measurements() []measurement {
	streams := func(name string, id rowID, up, down int) measurement {
		return measurement{name: name, take: func(ctx context.Context, v *variant) error { return b.takeStreams(ctx, v, id, up, down) }}
	}
	datagrams := func(name string, id rowID, size int) measurement {
		return measurement{name: name, take: func(ctx context.Context, v *variant) error {
			rate, err := b.path.measureUDP(ctx, size, b.times.bisections, b.times.udpStep)
			if err == nil {
				b.record(v, id, rate)
			}
			return err
		}}
	}
	return []measurement{
		streams("one stream", rowTCP1, 1, 0),
		streams("one stream, reverse", rowTCP1Reverse, 0, 1),
		streams("four streams", rowTCP4, 4, 0),
		streams("four streams, reverse", rowTCP4Reverse, 0, 4),
		streams("both ways", rowTCPBoth, 1, 1),
		{name: "connections", take: b.takeDials},
		datagrams("datagrams of 64 bytes", rowUDP64, 64),
		datagrams("datagrams of 1200 bytes", rowUDP1200, 1200),
		{name: "ping", take: b.takeIdle},
		{name: "ping beside a stream", take: b.takeLoaded},
		{name: "one stream", refused: true, take: b.takeRefused},
	}
}

// totals are summed or kept over all measurements of a run, for one gateway.
type totals struct {
	streams        bulkFigures
	idleSeconds    float64 // of the share of idle CPU during streams
	calls, packets float64 // of both gateways, culvert only
	resident, peak float64 // bytes, of the larger gateway
}

// Metrics of a gateway, in packets after segmentation.
const (
	metricCalls    = "culvert_socket_calls_total"
	metricReceived = "culvert_received_packets_total"
)

// takeStreams takes throughput, CPU time and system calls of bulk streams.
func (b *bench) takeStreams(ctx context.Context, v *variant, id rowID, up, down int) error {
	t := b.totals[v.Name]
	count := func(sign float64) error {
		if v.reference {
			return nil
		}
		now, err := b.lab.counters(ctx, metricCalls, metricReceived)
		t.calls += sign * now[metricCalls]
		t.packets += sign * now[metricReceived]
		return err
	}
	if err := count(-1); err != nil {
		return err
	}
	f, err := b.path.measureBulk(ctx, up, down, b.times.warmUp, b.times.bulk)
	if err := errors.Join(err, count(+1)); err != nil {
		return err
	}
	b.record(v, id, f.bytes*8/f.seconds)
	t.streams.bytes += f.bytes
	t.streams.seconds += f.seconds
	t.streams.busy += f.busy
	t.idleSeconds += f.idle * f.seconds
	return nil
}

func (b *bench) takeDials(ctx context.Context, v *variant) error {
	rate, err := b.path.measureDials(ctx, b.times.warmUp, b.times.dials)
	if err == nil {
		b.record(v, rowDials, rate)
	}
	return err
}

func (b *bench) takeIdle(ctx context.Context, v *variant) error {
	idle, err := b.path.measureLatency(ctx, b.times.latency)
	if err == nil {
		b.record(v, rowIdleP50, idle.p50)
		b.record(v, rowIdleP99, idle.p99)
	}
	return err
}

// takeLoaded takes the latency beside one stream.
func (b *bench) takeLoaded(ctx context.Context, v *variant) error {
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

// takeRefused takes what is promised for kernels without offloads, and compares
// with the reference on such a kernel, too.
func (b *bench) takeRefused(ctx context.Context, v *variant) error {
	f, err := b.path.measureBulk(ctx, 1, 0, b.times.warmUp, b.times.bulk)
	if err != nil {
		return err
	}
	as := &culvertGateway
	if v.reference {
		as = &referenceAsIs
	} else {
		b.record(as, rowRefused, f.bytes*8/f.seconds)
		b.rows.copy(rowTCP1, rowRefused, referenceAsIs.Name)
	}
	b.record(as, rowBothRefused, f.bytes*8/f.seconds)
	return nil
}

// noteMemory remembers the resident set of the larger gateway.
func (b *bench) noteMemory(v *variant) error {
	t := b.totals[v.Name]
	for _, p := range b.lab.gateways() {
		resident, peak, err := p.memory()
		if err != nil {
			return err
		}
		t.resident, t.peak = max(t.resident, resident), max(t.peak, peak)
	}
	return nil
}

// recordTotals records what only a whole run shows.
func (b *bench) recordTotals(v *variant) {
	t := b.totals[v.Name]
	if v.noOffloads {
		return
	}
	b.say("run: %s", v.Name)
	b.record(v, rowCPU, t.streams.busy/t.streams.bytes*1e9)
	b.record(v, rowIdleCPU, t.idleSeconds/t.streams.seconds)
	b.record(v, rowResident, t.resident)
	b.record(v, rowPeak, t.peak)
	if !v.reference {
		b.record(v, rowCalls, t.calls/t.packets)
	}
}
