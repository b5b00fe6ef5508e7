package lab

import (
	"context"
	"errors"
	"fmt"

	"culvert/gateway/node"
)

// takeTUN measures one stream in a lab below dir whose nodes have TUN devices, as on nodes whose kernel has no link for tunnels, and
// compares it with the row of kernel links, of the same run.
func (b *bench) takeTUN(ctx context.Context, dir, culvert string) (err error) {
	o := Standard(node.TUN, true)
	o.Culvert = culvert
	l, err := Start(ctx, dir, o)
	defer func() { err = errors.Join(err, l.Stop()) }()
	if err == nil {
		err = l.bypassBridgeFilters()
	}
	if err != nil {
		return err
	}
	for run := range b.times.runs {
		b.say("run %d of %d, one stream by TUN nodes: %s", run+1, b.times.runs, culvertGateway.Name)
		tun, err := l.pair("rome/pod1", "milan/pod1").streamRate(ctx, &b.times)
		if err != nil {
			return fmt.Errorf("TUN nodes: %w", err)
		}
		b.record(&culvertGateway, rowTUN, tun)
		b.record(&culvertGateway, rowTUNToKernel, tun/b.rows[rowTCP1].figures[culvertGateway.Name][run])
	}
	return nil
}
