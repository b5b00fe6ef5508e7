package wg

import (
	"sync/atomic"
	"time"

	"golang.zx2c4.com/wireguard/device"
)

// A Voice says what a Device may send to the peer. A peer follows every authenticated message, so
// an unsolicited message draws the peer's packets away from another gateway.
type Voice int32

// Voices.
const (
	// Speaking: whatever WireGuard sends.
	Speaking Voice = iota
	// Answering: packets, answers to handshakes, and handshakes for a packet. No keepalive, and no
	// handshake by WireGuard's own timers.
	Answering
	// Calling: answers to handshakes, and one handshake for each Call. Neither packets nor
	// keepalives. A peer that has only answered our handshake stays in its session with another
	// gateway (WireGuard paper, Section 5.4.6: a responder waits for a message in the new session).
	Calling
)

// voice decides which messages a bind withholds.
type voice struct {
	is    atomic.Int32 // a Voice
	asked atomic.Int64 // when a packet for the peer was last read, in nanoseconds since born; kept while not Speaking
	calls atomic.Int32 // handshakes that a Calling one may start
	born  time.Time
}

// SetVoice says what the device may send from now on.
func (d *Device) SetVoice(v Voice) {
	d.bind.voice.calls.Store(0)
	d.bind.voice.is.Store(int32(v))
}

// Call makes a Calling device start one handshake, unless it started one in the last
// device.RekeyTimeout.
func (d *Device) Call() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.device.LookupPeer(device.NoisePublicKey(d.peer.PublicKey)); p != nil {
		d.bind.voice.calls.Store(1)
		p.SendHandshakeInitiation(false)
	}
}

// Carried returns how many packets have come from the peer: authenticated, and not empty.
func (d *Device) Carried() uint64 { return d.bind.carried.Load() }

// read records that there is a packet for the peer.
func (v *voice) read() {
	if Voice(v.is.Load()) != Speaking {
		v.asked.Store(int64(time.Since(v.born)))
	}
}

// lets reports whether message m may be sent.
func (v *voice) lets(is Voice, m []byte) bool {
	switch kind := kindOf(m); {
	case kind == keepaliveMessage:
		return false
	case kind == dataMessage:
		return is == Answering
	case m[0] != device.MessageInitiationType: // an answer
		return true
	case is == Calling:
		return v.calls.CompareAndSwap(1, 0)
	}
	asked := time.Duration(v.asked.Load())
	return asked != 0 && time.Since(v.born)-asked < device.RekeyTimeout
}

// withhold returns the bufs that may be sent.
func (b *bind) withhold(is Voice, bufs [][]byte) (left [][]byte) {
	for _, m := range bufs {
		if b.voice.lets(is, m) {
			left = append(left, m)
		}
	}
	return left
}
