package wg

import "net/netip"

// A Message is what a tap is shown: one of WireGuard's, or what came to its port.
type Message struct {
	Outbound bool
	Peer     netip.AddrPort // the other end
	Data     []byte
	Dropped  bool
	Reason   Reason // why, if Dropped
}

// SetTap has tap called for each message that came, or is about to be sent; nil ends that.
// It is called by several goroutines, and keeps packets waiting. borrowed: what it is given
// is valid until it returns.
func (d *Device) SetTap(tap func(*Message)) {
	if tap == nil {
		d.bind.tap.Store(nil)
		return
	}
	d.bind.tap.Store(&tap)
}

// refusal tells why admit has just refused message m.
func (a *admission) refusal(kind messageKind, m []byte) Reason {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case kind == noMessage:
		return NotWireGuard
	case kind == dataMessage:
		return StrangerData
	case kind == handshakeMessage && !a.knowsKey(m):
		return BadMAC1
	}
	return HandshakeRate
}
