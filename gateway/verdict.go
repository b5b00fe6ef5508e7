package gateway

import "sync/atomic"

// DropReason is why the gateway itself dropped a packet. The reasons of the
// tunnel headers are geneve.Reason, those of the packet's contents nat.Reason;
// their names do not overlap, so one label serves all in the metrics.
type DropReason uint8

// Reasons of the gateway.
const (
	// DropNoService: addressed to the gateway itself, but not to something that
	// answers there.
	DropNoService DropReason = iota
	// DropLocalQueueFull: made by the gateway itself, or turned back into the tunnel,
	// while its queue was full and its cause had its share of it.
	DropLocalQueueFull
	// DropTunnelDiscard: handed to WireGuard, which discarded it. Outbound: no session
	// with the peer, or its queue was full. Inbound: a message that was forged, a
	// replay or of no session. Counted a second late.
	DropTunnelDiscard
	// DropNotWireGuard: came to WireGuard's port and is no message of WireGuard.
	DropNotWireGuard
	// DropBadMAC1: a handshake message of someone who does not know our public key.
	DropBadMAC1
	// DropHandshakeRate: more handshake messages, cookies or keepalives than are looked
	// at from one address, or from all addresses together that are not the peer's.
	DropHandshakeRate
	// DropStrangerData: a data message from another address than the peer's, faster than
	// a peer that moves needs.
	DropStrangerData

	numDropReasons
)

var dropReasonNames = [numDropReasons]string{
	DropNoService:      "no-service",
	DropLocalQueueFull: "local-queue-full",
	DropTunnelDiscard:  "tunnel-discard",
	DropNotWireGuard:   "not-wireguard",
	DropBadMAC1:        "bad-mac1",
	DropHandshakeRate:  "handshake-rate",
	DropStrangerData:   "stranger-data",
}

func (r DropReason) String() string { return dropReasonNames[r] }

// counters are what the gateway itself adds to the ledger of one direction. With
// those of nat.Engine, and in inner packets after segmentation:
//
//	received (nat) = forwarded (nat) + delivered (nat) + drops (nat)
//	forwarded + generated = sent + held (geneve) + drops (geneve, gateway)
//	delivered = answered echo requests + answers to probes + DropNoService
type counters struct {
	generated atomic.Uint64 // made by the gateway itself, to be sent this way
	drops     [numDropReasons]atomic.Uint64
}

// settle is called once a second: it counts what WireGuard has discarded.
func (c *counters) settle(w *window) {
	w.settleIdle()
	c.drops[DropTunnelDiscard].Store(uint64(w.gone.Load()))
}
