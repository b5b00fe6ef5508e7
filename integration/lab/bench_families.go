package lab

import (
	"context"
	"errors"
	"fmt"
)

// takeFamilies measures one stream over IPv6 beside one over IPv4, between the same pods of a dual-stack lab below dir. The order of the families
// alternates from run to run.
func (b *bench) takeFamilies(ctx context.Context, dir string, o Options) (err error) {
	o.Inside = IPv4AndIPv6
	l, err := Start(ctx, dir, o)
	defer func() { err = errors.Join(err, l.Stop()) }()
	if err == nil {
		err = l.bypassBridgeFilters()
	}
	if err != nil {
		return err
	}
	plans := l.plans()
	for run := range b.times.runs {
		b.say("run %d of %d, one stream over each family: %s", run+1, b.times.runs, culvertGateway.Name)
		rates := make([]float64, len(plans))
		for i := range plans {
			which := (run + i) % len(plans)
			rates[which], err = l.pairOf(plans[which], "rome/pod1", "milan/pod1").streamRate(ctx, &b.times)
			if err != nil {
				return fmt.Errorf("families: %w", err)
			}
		}
		b.record(&culvertGateway, rowTCP6, rates[1])
		b.record(&culvertGateway, rowFamilies, rates[1]/rates[0])
	}
	return nil
}

// streamRate returns what one stream reaches, in bits a second.
func (e *ends) streamRate(ctx context.Context, t *benchTimes) (float64, error) {
	reaching, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	if err := e.reach(reaching); err != nil {
		return 0, err
	}
	f, err := e.measureBulk(ctx, 1, 0, t, func() (sample, error) { return sample{}, nil })
	return f.bytes * 8 / f.seconds, err
}
