package gateway

import (
	"context"
	"time"
)

const (
	// dutyInterval is how often the gateway does what is due without packets.
	dutyInterval = time.Second
	// sweepPause lies between two sweeps of the connection table, each of which takes
	// up to 0.1 ms. The sweeper sleeps, because Go's scheduler asks the network for
	// packets only when a P has nothing else to run: a goroutine that merely yields
	// would hold up packets for 10 ms.
	sweepPause = time.Millisecond
	// askPace lies between two requests by ARP: many times as long as one takes to be
	// answered by a node that is near.
	askPace = time.Millisecond
)

// sweep removes connections whose time has come while no packets do it, and looks
// each second whether trains arrive, what nodes speak and what else is the case.
func (g *Gateway) sweep(ctx context.Context) {
	duties := func() {
		g.probeTrains(time.Since(started))
		g.tellEncaps()
		g.wg.Settle()
		g.tellDiscards()
		g.endpoint.AskAll(func() { time.Sleep(askPace) })
		g.watch.look(time.Since(started))
		g.lookAtProgress()
		g.dropRates.note(time.Since(started), func() map[dropKey]uint64 {
			stats, tunnels, tunnel := g.engine.Stats(), g.endpoint.Stats(), g.wg.Stats()
			return g.drops(&stats, &tunnels, &tunnel)
		})
	}
	defer g.watch.knocker.close()
	sweepBeside(ctx, func() bool { return g.engine.Sweep(clock()) }, duties)
}

// sweepBeside calls duties each dutyInterval and then sweep, until that returns true:
// however much there is to sweep, duties are not late.
func sweepBeside(ctx context.Context, sweep func() bool, duties func()) {
	tick := time.NewTicker(dutyInterval)
	defer tick.Stop()
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			duties()
		case <-pause.C:
		}
		if !sweep() {
			pause.Reset(sweepPause)
		}
	}
}
