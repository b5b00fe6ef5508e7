package geneve

import (
	"bytes"
	"net/netip"
	"slices"

	"culvert/geneve/udp"
)

// A Datagram is shown to a tap: a tunnel's datagram, or a packet that never became one.
type Datagram struct {
	Outbound bool
	Peer     netip.AddrPort // outer address of the other end
	Tunnel   uint16         // ID of the tunnel that Inner belongs to
	Data     []byte         // starts with the tunnel header; nil: Inner was dropped before it got one
	Inner    []byte         // the IP packet in it; nil: none, or not recognised
	Reason   Reason         // why it is dropped; Accepted: it is not
}

// SetTap registers tap, which is called for each datagram that is received or about to be sent; nil
// unregisters. Several goroutines call it, and packets wait for it. borrowed: its argument is valid
// until it returns.
func (e *Endpoint) SetTap(tap func(*Datagram)) {
	if tap == nil {
		e.tap.Store(nil)
		return
	}
	e.tap.Store(&tap)
}

// show calls the tap, if there is one, for a received message: once per datagram if the kernel has
// merged it.
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

// showRefused calls the tap, if there is one, for a packet to a tunnel that never becomes a
// datagram.
func (e *Endpoint) showRefused(t *tunnel, packet []byte, reason Reason) {
	if tap := e.tap.Load(); tap != nil {
		(*tap)(&Datagram{Outbound: true, Peer: t.destination, Tunnel: t.ID, Inner: packet, Reason: reason})
	}
}

// showUnsent calls the tap, if there is one, for the datagrams of a train that the kernel did not
// accept.
func (e *Endpoint) showUnsent(train *udp.Train) {
	tap := e.tap.Load()
	if tap == nil {
		return
	}
	all := bytes.Join(train.Parts, nil)
	size := train.SegmentSize
	if size <= 0 {
		size = len(all)
	}
	for datagram := range slices.Chunk(all[min(train.Sent*size, len(all)):], size) {
		(*tap)(&Datagram{Outbound: true, Peer: train.Destination, Data: datagram, Reason: SendFailed})
	}
}
