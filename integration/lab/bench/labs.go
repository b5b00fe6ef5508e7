package bench

import (
	"context"
	"errors"
	"fmt"

	"culvert/gateway/node"
	"culvert/integration/lab"
	"culvert/integration/lab/probe"
)

// takeFamilies compares one stream over IPv6 with one over IPv4, between the same pods of a
// dual-stack lab below dir. The order of the families alternates from run to run.
func (b *bench) takeFamilies(ctx context.Context, dir string, o lab.Options) error {
	o.Inside = lab.IPv4AndIPv6
	return b.inLab(ctx, dir, o, "one stream over each family", func(l *lab.Lab, run int) error {
		plans := l.Plans()
		rates := make([]float64, len(plans))
		for i := range plans {
			which := (run + i) % len(plans)
			rate, err := streamRate(ctx, l.PairOf(plans[which], "rome/pod1", "milan/pod1"), &b.times)
			if err != nil {
				return err
			}
			rates[which] = rate
		}
		b.record(&lab.CulvertGateway, rowTCP6, rates[1])
		b.record(&lab.CulvertGateway, rowFamilies, rates[1]/rates[0])
		return nil
	})
}

// takeTUN measures one stream in a lab below dir whose nodes have TUN devices, as on nodes whose
// kernel has no link for tunnels, and compares it with the row of kernel links, of the same run.
func (b *bench) takeTUN(ctx context.Context, dir string, o lab.Options) error {
	o.Mode = node.TUN
	return b.inLab(ctx, dir, o, "one stream by TUN nodes", func(l *lab.Lab, run int) error {
		rate, err := streamRate(ctx, l.Pair("rome/pod1", "milan/pod1"), &b.times)
		if err == nil {
			b.record(&lab.CulvertGateway, rowTUN, rate)
			b.record(&lab.CulvertGateway, rowTUNToKernel, rate/b.rows[rowTCP1].figures[lab.CulvertGateway.Name][run])
		}
		return err
	})
}

// inLab measures in another lab below dir, once for each run.
func (b *bench) inLab(ctx context.Context, dir string, o lab.Options, what string,
	measure func(l *lab.Lab, run int) error) (err error) {
	l, err := lab.Start(ctx, dir, o)
	defer func() { err = errors.Join(err, l.Stop()) }()
	if err == nil {
		err = bypassBridgeFilters(l)
	}
	for _, p := range l.Plans() {
		if err == nil {
			err = l.PairOf(p, "rome/pod1", "milan/pod1").Reach(ctx)
		}
	}
	for run := 0; err == nil && run < b.times.runs; run++ {
		b.say("run %d of %d, %s: %s", run+1, b.times.runs, what, lab.CulvertGateway.Name)
		if err = measure(l, run); err != nil {
			err = fmt.Errorf("%s: %w", what, err)
		}
	}
	return err
}

// streamRate returns what one stream reaches, in bits a second.
func streamRate(ctx context.Context, e *probe.Ends, t *times) (float64, error) {
	f, err := measureBulk(ctx, e, 1, 0, t, func() (resources, error) { return resources{}, nil })
	return f.bytes * 8 / f.seconds, err
}
