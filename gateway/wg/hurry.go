package wg

import (
	"sync"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
)

// hurryTime is the first timeout of a hurried handshake: longer than most round trips.
const hurryTime = 250 * time.Millisecond

// A hurry is the time until a gateway has a session with its peer. The gateway may take the place
// of another one, on whose session the peer relies.
//
// The peer may be behind a translation that admits only answers, such as a node's masquerade, and
// may have reached the other gateway by a third address, such as a NodePort. Then a message to the
// address where the peer was last seen does not arrive. But the peer's packets, in the other
// gateway's session, arrive here, and an answer to their source address reaches the peer. So an
// initiation goes to both addresses, and a restarted Server need not wait 15 s until the peer
// starts a handshake itself. Anybody can forge such packets: they cost two initiations each
// hurryTime.
type hurry struct {
	d *Device
	p *device.Peer
	// when the last session began, which is dead; zero = there was none
	dead time.Time

	mu    sync.Mutex
	from  *endpoint     // where the last data message came from; nil = none came; +checklocks:mu
	last  time.Time     // when an initiation was sent; +checklocks:mu
	after time.Duration // until the next one; +checklocks:mu
	timer *time.Timer   // +checklocks:mu
	ended bool          // +checklocks:mu
}

// hurry repeats the handshake with a peer without a session until there is one: after hurryTime,
// after pauses that double up to device.RekeyTimeout, and when the peer sends from a new address.
// WireGuard repeats one after device.RekeyTimeout (WireGuard paper, Section 6.4), which is too long
// for a gateway that replaces another one. Messages may be lost, and the peer discards an
// initiation that comes within 20 ms of another gateway's or whose timestamp is not newer
// (wireguard-go rounds timestamps to 16.8 ms).
//
// Preconditions: d.mu is held.
// +checklocks:d.mu
func (d *Device) hurry() {
	d.unhurried()
	p := d.device.LookupPeer(device.NoisePublicKey(d.peer.PublicKey))
	s, err := d.PeerStats()
	if p == nil || err != nil {
		return
	}
	h := &hurry{d: d, p: p, dead: s.LastHandshake, last: time.Now(), after: hurryTime}
	h.timer = time.AfterFunc(hurryTime, h.again)
	d.bind.hurry.Store(h)
}

// again starts another handshake, unless there is a session.
func (h *hurry) again() {
	d := h.d
	d.mu.Lock()
	defer d.mu.Unlock()
	s, err := d.PeerStats()
	if err != nil || s.LastHandshake != h.dead || d.device.LookupPeer(device.NoisePublicKey(d.peer.PublicKey)) != h.p {
		h.end()
		return
	}
	h.mu.Lock()
	if early := hurryTime - time.Since(h.last); early > 0 {
		h.timer.Reset(early)
		h.mu.Unlock()
		return
	}
	h.after = min(2*h.after, device.RekeyTimeout)
	h.timer.Reset(h.after)
	if h.after == device.RekeyTimeout { // wireguard-go repeats it as often
		h.mu.Unlock()
		return
	}
	h.last = time.Now()
	from := h.from
	h.mu.Unlock()
	switch {
	case d.endpoint.IsValid():
	case from != nil:
		h.p.SetEndpointFromPacket(from)
	default:
		return
	}
	d.initiate(h.p)
}

// unhurried ends the current hurry, if there is one.
//
// Preconditions: d.mu is held.
// +checklocks:d.mu
func (d *Device) unhurried() {
	if h := d.bind.hurry.Load(); h != nil {
		h.end()
	}
}

// end stops the hurry: it starts no further handshake.
func (h *hurry) end() {
	h.d.bind.hurry.CompareAndSwap(h, nil)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
	h.timer.Stop()
}

// heard records where a data message came from. If the address has changed, the next handshake
// starts as soon as it may. It does not start for each message, because a new initiation
// invalidates the answer to the last one.
func (h *hurry) heard(eps []conn.Endpoint, handed []uintptr) {
	for i := range eps {
		if handed[i] == 0 {
			continue
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		from := eps[i].(*endpoint)
		if !h.ended && (h.from == nil || h.from.addr != from.addr) {
			h.from, h.after = from, hurryTime
			h.timer.Reset(max(0, hurryTime-time.Since(h.last)))
		}
		return
	}
}

// also returns a second endpoint for messages to ep; nil = none.
func (h *hurry) also(bufs [][]byte, ep *endpoint) *endpoint {
	if kindOf(bufs[0]) != handshakeMessage || bufs[0][0] != device.MessageInitiationType {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.from == nil || h.from.addr == ep.addr {
		return nil
	}
	return h.from
}
