package gateway

import (
	"context"
	"time"

	"culvert/gateway/path"
	"culvert/gateway/sweep"
)

// askPace lies between two requests by ARP: many times as long as one takes to be answered by a node that is near.
const askPace = time.Millisecond

// sweep removes connections whose time has come while no packets do it, and looks
// each second whether trains arrive, what nodes speak and what else is the case.
func (g *Gateway) sweep(ctx context.Context) {
	duties := func() {
		g.monitor.ProbeTrains(path.Uptime())
		g.monitor.LogEncaps()
		g.wg.Settle()
		if g.Role().Forwards() {
			g.endpoint.AskAll(func() { time.Sleep(askPace) })
		}
		g.monitor.Look(path.Uptime())
		g.monitor.LookAtProgress(path.Uptime())
		g.inspect.Look()
	}
	defer g.monitor.Close()
	sweep.Beside(ctx, func() bool { return g.engine.Sweep(path.Now()) }, duties)
}
