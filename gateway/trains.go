package gateway

import (
	"time"

	"culvert/nat"
)

// What to do when trains are lost: known faults of kernels, by version.
const (
	nodeRemedy = "update the node's kernel to 6.8.5 or later, but not 7.0 to 7.1.4"
	peerRemedy = "update the kernels of both gateways' nodes if they are 7.0 to 7.1.4, or turn tx-udp-segmentation of the network interface off"
)

// probeTrains looks whether trains arrive, and tells what has changed.
func (g *Gateway) probeTrains(now time.Duration) {
	for _, change := range g.endpoint.ProbeTrains() {
		entry := g.log.WithField("node", g.nodeName(nat.Link(change.Tunnel)))
		if change.On {
			entry.Info("trains arrive at the node again")
		} else {
			entry.WithField("remedy", nodeRemedy).Warn("the node loses UDP_SEGMENT trains: sending it single datagrams, which is slower")
		}
	}
	if change, changed := g.wg.ProbeTrains(now); changed {
		entry := g.log.WithField("endpoint", change.Endpoint)
		if change.On {
			entry.Info("sending trains to the peer again")
		} else {
			entry.WithField("remedy", peerRemedy).Warn("UDP_SEGMENT trains do not arrive at the peer: sending single datagrams, which is slower")
		}
	}
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
