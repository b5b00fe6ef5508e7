package geneve

import "net/netip"

// A Datagram is what a tap is shown: one of a tunnel's, or a packet that never became one.
type Datagram struct {
	Outbound bool
	Peer     netip.AddrPort // outer address of the other end
	Tunnel   uint16         // ID of the tunnel that Inner belongs to
	Data     []byte         // from the tunnel header on; nil: Inner was dropped before it got one
	Inner    []byte         // the IP packet in it; nil: none, or not known to be one
	Reason   Reason         // why it is dropped; Accepted = it is not
}

// SetTap has tap called for each datagram that is received, or is about to be sent; nil ends that. It is called by several goroutines, and
// keeps packets waiting. borrowed: what it is given is valid until it returns.
func (e *Endpoint) SetTap(tap func(*Datagram)) {
	if tap == nil {
		e.tap.Store(nil)
		return
	}
	e.tap.Store(&tap)
}

// show calls the tap, if there is one, for a message that was received: datagram by datagram if the kernel has merged it.
func (r *Receiver) show(source netip.AddrPort, data []byte, size int, reason Reason) {
	tap := r.e.tap.Load()
	if tap == nil {
		return
	}
	if size <= 0 {
		size = len(data)
	}
	for len(data) > 0 {
		n := min(size, len(data))
		(*tap)(&Datagram{Peer: source, Data: data[:n], Reason: reason})
		data = data[n:]
	}
}
