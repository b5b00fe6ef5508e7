package wg

import "net/netip"

// A Message is shown to a tap: a WireGuard message, or another datagram to its port.
type Message struct {
	Outbound bool
	Peer     netip.AddrPort // the other end
	Data     []byte
	Dropped  bool
	Reason   Reason // why, if Dropped
}

// SetTap registers tap, which is called for each message received or about to be sent; nil
// unregisters. Several goroutines call it, and packets wait for it. borrowed: its argument is valid
// until it returns.
func (d *Device) SetTap(tap func(*Message)) {
	if tap == nil {
		d.bind.tap.Store(nil)
		return
	}
	d.bind.tap.Store(&tap)
}

// refusal returns why admit has just refused message m.
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
