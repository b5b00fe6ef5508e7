package path

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
	// DropNoService: a packet for the gateway itself, but nothing there answers it.
	DropNoService DropReason = iota
	// DropBadCheck: a packet to the connection check that is not one of its messages, is not
	// expected, or exceeds the rate that a peer needs.
	DropBadCheck
	// DropBadExports: a packet to the exchange of exports that is not part of a list, is part of a
	// list that is too long, or exceeds the rate that a peer needs.
	DropBadExports
	// DropLocalQueueFull: a packet made by the gateway itself, or turned back into the tunnel, when
	// the queue was full and its source had its share.
	DropLocalQueueFull
	// DropOutput: a packet made by the gateway itself that a rule or policy at output or
	// postrouting drops.
	DropOutput
	// DropStandby: a datagram to a gateway that does not forward, because another one does. Its
	// contents were not read, so it is outside of the ledger below.
	DropStandby

	numDropReasons
)

var dropReasonNames = [numDropReasons]string{
	DropNoService:      "no-service",
	DropBadCheck:       "bad-check",
	DropBadExports:     "bad-exports",
	DropLocalQueueFull: "local-queue-full",
	DropOutput:         "output",
	DropStandby:        "standby",
}

func (r DropReason) String() string { return dropReasonNames[r] }

// Counters are the gateway's own part of the ledger of one direction. Together with those of
// nat.Engine, counted in inner packets after segmentation:
//
//	received (nat) = forwarded (nat) + delivered (nat) + drops (nat)
//	forwarded + generated = sent + held (geneve) + drops (geneve, wg, gateway)
//	delivered = answered echo requests + answers to probes + messages of the check and about exports + DropNoService +
//	DropBadCheck + DropBadExports
//
// The second line holds for both directions together, because a packet from one node to another
// arrives outbound and leaves inbound.
type Counters struct {
	generated atomic.Uint64 // made by the gateway itself, for this direction
	drops     [numDropReasons]atomic.Uint64
	decided   latency.Histogram             // time to decide about a batch
	witnesses []atomic.Pointer[Observation] // by nat.Reason
}

func newCounters() Counters {
	all := nat.Reasons()
	return Counters{witnesses: make([]atomic.Pointer[Observation], all[len(all)-1]+1)}
}

// Generated returns how many packets the gateway itself made for this direction.
func (c *Counters) Generated() uint64 { return c.generated.Load() }

// Dropped returns how many packets the gateway itself has dropped for a reason.
func (c *Counters) Dropped(r DropReason) uint64 { return c.drops[r].Load() }

// Discard counts datagrams as DropStandby.
func (c *Counters) Discard(datagrams int) { c.drops[DropStandby].Add(uint64(datagrams)) }

// Decided returns how long it took to decide about batches.
func (c *Counters) Decided() latency.Counts { return c.decided.Counts() }

// EachDrop calls yield for each counter of dropped packets, of every layer.
func (p *Path) EachDrop(s *nat.Stats, tunnels *geneve.Stats, tunnel *wg.Stats, yield func(direction, reason string,
	packets uint64)) {
	for _, d := range []struct {
		name string
		nat  *nat.Direction
		own  *Counters
		wg   *[wg.NumReasons]uint64
	}{{"outbound", &s.Outbound, &p.out.Counters, &tunnel.Outbound}, {"inbound", &s.Inbound, &p.in.Counters,
		&tunnel.Inbound}} {
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
