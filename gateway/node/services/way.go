package services

import (
	"encoding/binary"
	"io"

	"golang.org/x/sys/unix"

	"culvert/nat"
	"culvert/nat/packet"
	"culvert/nat/rules"
)

const (
	virtioLen  = 10    // bytes before each packet to and from the device: struct virtio_net_hdr
	headroom   = 16    // bytes before each packet, the last of which are that header
	packetRoom = 65535 // maximum size of a super-frame in bytes
	errorRoom  = 1280  // maximum size of an error in bytes (nat.Engine.AppendError)
	heldRoom   = 2048  // maximum size of a fragment that has waited, in bytes (nat.Engine.Release)
)

// A virtio is a packet's header in this machine's byte order: it says what the sender left to a
// network card. A packet returns to the device with the header it came with, because neither its
// header lengths nor its payload change: super-frames stay whole, and partial checksums partial.
type virtio []byte

// sums reports whether the transport checksum is left to a network card.
func (h virtio) sums(p *packet.Packet) bool {
	return h[0]&unix.VIRTIO_NET_HDR_F_NEEDS_CSUM != 0 && int(binary.NativeEndian.Uint16(h[6:])) == p.HeaderLen()
}

// isTrain reports whether the packet is a train of UDP datagrams.
func (h virtio) isTrain() bool { return h[1] == unix.VIRTIO_NET_HDR_GSO_UDP_L4 }

// segment returns the payload, in bytes, of each segment or datagram; 0: there is one.
func (h virtio) segment() int {
	if h[1] == unix.VIRTIO_NET_HDR_GSO_NONE {
		return 0
	}
	return int(binary.NativeEndian.Uint16(h[4:]))
}

// A way processes packets from the device and back to it.
type way struct {
	engine *nat.Engine
	device io.Writer
	packet packet.Packet
	held   [headroom + heldRoom]byte
	answer [headroom + errorRoom]byte
}

// take decides about the packet in buffer, of n bytes including its header, and writes the result.
func (w *way) take(buffer []byte, n int, now nat.Time) {
	if n < virtioLen {
		return
	}
	p := &w.packet
	p.Parse(buffer[headroom : headroom-virtioLen+n])
	if h := header(buffer); h.isTrain() && p.Fault() == packet.NoFault && p.IsDatagram() {
		p.SegmentSize = h.segment()
	}
	v := w.engine.Process(p, rules.HostLink, now)
	held := v.Held
	w.act(p, &v, buffer, now)
	for ; held > 0; held-- {
		if v, ok := w.engine.Release(p, w.held[headroom:], rules.HostLink, now); ok {
			w.act(p, &v, w.held[:], now)
		}
	}
}

// header returns the header of the packet in buffer.
func header(buffer []byte) virtio { return virtio(buffer[headroom-virtioLen : headroom]) }

// act executes v for p, whose bytes are in buffer after the headroom.
func (w *way) act(p *packet.Packet, v *nat.Verdict, buffer []byte, now nat.Time) {
	switch v.Action {
	case nat.Forward:
		// One complete checksum in 65,536 looks like the sum of its pseudo-header, and is completed
		// again.
		if h := header(buffer); p.LeadLen() > 0 || p.IsPartial() && !h.sums(p) {
			w.cut(p, v, h)
			return
		}
		w.write(buffer, p.Len())
	case nat.Drop:
		if answer := w.engine.AppendError(w.answer[headroom:headroom], p, rules.HostLink, *v, now); answer != nil {
			w.write(w.answer[:], len(answer))
		}
	}
}

// cut writes a packet that gets longer, in as many as needed, with their checksums.
func (w *way) cut(p *packet.Packet, v *nat.Verdict, h virtio) {
	size, room := v.SegmentSize, p.Len()+p.LeadLen()
	if p.Protocol() == packet.TCP {
		if n := h.segment(); n > 0 && (n < size || size == 0) {
			size = n
		}
		if size > 0 {
			room = p.HeaderLen() + p.TCPHeaderLen() + size
		}
	}
	var c packet.Cutter
	c.Start(p, size, v.MTU)
	b := make([]byte, headroom+room)
	for n := c.Next(b[headroom:]); n > 0; n = c.Next(b[headroom:]) {
		w.write(b, n)
	}
}

// write gives the n bytes after the headroom back to the device. An error means that the kernel
// refuses a packet, or that the device is closed, which reading reports.
func (w *way) write(buffer []byte, n int) { w.device.Write(buffer[headroom-virtioLen : headroom+n]) }
