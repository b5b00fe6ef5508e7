package gateway

import (
	"sync/atomic"

	"culvert/gateway/latency"
	"culvert/gateway/wg"
	"culvert/geneve"
	"culvert/nat"
)

// DropReason is why the gateway itself dropped a packet. The reasons of the
// tunnel headers are geneve.Reason, those of the packet's contents nat.Reason, those
// of WireGuard wg.Reason; their names do not overlap, so one label serves all in the metrics.
type DropReason uint8

// Reasons of the gateway.
const (
	// DropNoService: addressed to the gateway itself, but not to something that
	// answers there.
	DropNoService DropReason = iota
	// DropBadCheck: for the connection check, and no message of it, none that is waited
	// for, or more of them than a peer needs.
	DropBadCheck
	// DropLocalQueueFull: made by the gateway itself, or turned back into the tunnel,
	// while its queue was full and its cause had its share of it.
	DropLocalQueueFull
	// DropOutput: made by the gateway itself, and a rule or policy at output or
	// postrouting does not let it out.
	DropOutput

	numDropReasons
)

var dropReasonNames = [numDropReasons]string{
	DropNoService:      "no-service",
	DropBadCheck:       "bad-check",
	DropLocalQueueFull: "local-queue-full",
	DropOutput:         "output",
}

func (r DropReason) String() string { return dropReasonNames[r] }

// counters are what the gateway itself adds to the ledger of one direction. With
// those of nat.Engine, and in inner packets after segmentation:
//
//	received (nat) = forwarded (nat) + delivered (nat) + drops (nat)
//	forwarded + generated = sent + held (geneve) + drops (geneve, wg, gateway)
//	delivered = answered echo requests + answers to probes + messages of the check + DropNoService + DropBadCheck
//
// The second line holds for both directions together: what one node sends to another comes outbound, and goes inbound.
type counters struct {
	generated atomic.Uint64 // made by the gateway itself, to be sent this way
	drops     [numDropReasons]atomic.Uint64
	decided   latency.Histogram         // how long it took to decide about a batch
	witnesses []atomic.Pointer[witness] // by nat.Reason
	seen      []uint64                  // packets of each nat.Reason at the last look; for watch
}

// eachDrop calls yield for each counter of dropped packets, of every layer.
func eachDrop(g *Gateway, s *nat.Stats, tunnels *geneve.Stats, tunnel *wg.Stats, yield func(direction, reason string, packets uint64)) {
	for _, d := range []struct {
		name string
		nat  *nat.Direction
		own  *counters
		wg   *[wg.NumReasons]uint64
	}{{"outbound", &s.Outbound, &g.out.counters, &tunnel.Outbound}, {"inbound", &s.Inbound, &g.in.counters, &tunnel.Inbound}} {
		for _, r := range nat.Reasons() {
			yield(d.name, r.String(), d.nat.Dropped[r])
		}
		for r := range numDropReasons {
			yield(d.name, r.String(), d.own.drops[r].Load())
		}
		for r := range wg.NumReasons {
			yield(d.name, r.String(), d.wg[r])
		}
	}
	for r := geneve.Accepted + 1; r < geneve.NumReasons; r++ {
		direction := "outbound"
		if r >= geneve.UnknownTunnel {
			direction = "inbound"
		}
		yield(direction, r.String(), tunnels.Drops[r])
	}
}
