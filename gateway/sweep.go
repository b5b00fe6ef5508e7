package gateway

import (
	"context"
	"time"

	"culvert/gateway/path"
	"culvert/gateway/sweep"
)

// askPace is the pause between two ARP requests: many times the time in which a nearby node
// answers.
const askPace = time.Millisecond

// sweep removes expired connections while no packet does so. Beside that it does what is due each
// second: it asks the nodes whether they are there, checks whether trains arrive and which
// encapsulations nodes use, and lets the monitor look at everything else. The monitor looks right
// after the requests, so the last one to a healthy node may have no answer yet.
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
