package gateway

import (
	"time"

	"culvert/nat"
)

// probeTrains looks whether trains arrive. The watch tells what that has found.
func (g *Gateway) probeTrains(now time.Duration) {
	g.endpoint.ProbeTrains()
	g.wg.ProbeTrains(now)
}

// nodeName returns the name of the node that has a link.
func (g *Gateway) nodeName(link nat.Link) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	for name, p := range g.links.ByName {
		if p == link {
			return name
		}
	}
	return "" // removed meanwhile
}
