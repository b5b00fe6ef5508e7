package packet

import (
	"encoding/binary"

	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// A Cutter turns a rewritten packet into what goes on the wire: the packet itself with its checksum
// completed, the segments of a TCP super-frame, the datagrams of a UDP train, or the fragments of
// an IPv4 packet. Its zero value is ready for Start.
type Cutter struct {
	// borrowed: the packet given to Start, until Next has returned 0.
	p *Packet

	size   int    // payload bytes of each unit; 0 means that the packet is one unit
	head   int    // bytes before the payload, repeated in each unit
	at     int    // offset in p.data of the next payload
	lead   []byte // what is left to write before the payload
	number int    // units made
	mtu    int    // size to which units are fragmented; 0 means never
	done   bool

	tcpSum uint16 // sum of what all segments share: pseudo-header without length, TCP header without sequence and flags
	cut    fragmenter
}

// Start begins with p. A positive segment cuts a TCP super-frame into segments with that many bytes
// of payload, including that of Packet.Lead. A positive mtu fragments units longer than mtu bytes;
// p is then IPv4. Preconditions: with segment, the packet is a whole TCP segment that has a partial
// checksum or a Lead; with p.SegmentSize, it is a datagram (Packet.IsDatagram).
func (c *Cutter) Start(p *Packet, segment, mtu int) {
	*c = Cutter{p: p, mtu: mtu}
	switch {
	case segment > 0 || p.lead != nil:
		if c.size = segment; p.lead != nil {
			c.lead = p.lead.Bytes()
		}
		c.head = p.transport + p.TCPHeaderLen()
		c.tcpSum = c.commonSum()
		if c.size == 0 {
			c.size = len(c.lead) + len(p.data) - c.head
		}
	case p.SegmentSize > 0:
		c.size = p.SegmentSize
		c.head = p.transport + header.UDPMinimumSize
	default:
		p.finish()
	}
	c.at = c.head
}

// Next writes the next packet to dst and returns its length, 0 when there is none left. dst must
// have room for the largest: the MTU, or the whole packet if it is not cut; otherwise Next panics.
func (c *Cutter) Next(dst []byte) int {
	if c.cut.left() {
		return c.cut.next(dst)
	}
	if c.done {
		return 0
	}
	if c.size == 0 {
		c.done = true
		if c.mtu > 0 && len(c.p.data) > c.mtu {
			c.cut.start(c.p.data[:c.p.transport], nil, c.p.data[c.p.transport:], c.mtu)
			return c.cut.next(dst)
		}
		return copy(dst[:len(c.p.data)], c.p.data)
	}
	if len(c.lead) > 0 {
		return c.leading(dst)
	}
	rest := c.p.data[c.at:]
	payload := rest[:min(c.size, len(rest))]
	last := len(payload) == len(rest)
	c.at += len(payload)
	c.done = last
	var n int
	if c.p.protocol == TCP {
		n = c.segment(dst, payload, last)
	} else {
		n = c.datagram(dst, payload)
	}
	c.number++
	return n
}

// leading writes the next segment of a stream with a lead in front.
func (c *Cutter) leading(dst []byte) int {
	payload := dst[c.head:][:min(c.size, len(c.lead)+len(c.p.data)-c.at)]
	n := copy(payload, c.lead)
	c.lead = c.lead[n:]
	c.at += copy(payload[n:], c.p.data[c.at:])
	c.done = len(c.lead) == 0 && c.at == len(c.p.data)
	n = c.segment(dst, payload, c.done)
	c.number++
	return n
}

// commonSum returns the part of the TCP checksum that the segments share.
func (c *Cutter) commonSum() uint16 {
	b := c.p.data
	tcp := b[c.p.transport:c.head]
	s := pseudoHeader(c.p.addresses(), TCP, 0)
	s = add(s, sum(tcp[:4]))
	s = add(s, sum(tcp[8:12]))
	s = add(s, sum(tcp[14:16]))
	return add(s, sum(tcp[18:]))
}

// segment writes the next segment of a super-frame: sequence number and IPv4 ID increase, CWR is
// only on the first (RFC 3168, Section 6.1.2), FIN and PSH only on the last.
func (c *Cutter) segment(dst, payload []byte, last bool) int {
	n := c.head + len(payload)
	dst = dst[:n]
	copy(dst, c.p.data[:c.head])
	copy(dst[c.head:], payload)
	c.length(dst)
	tcp := dst[c.p.transport:]
	binary.BigEndian.PutUint32(tcp[4:], binary.BigEndian.Uint32(tcp[4:])+uint32(c.number*c.size))
	if c.number > 0 {
		tcp[13] &^= CWR
	}
	if !last {
		tcp[13] &^= FIN | PSH
	}
	s := add(c.tcpSum, uint16(len(tcp)))
	s = add(s, sum(tcp[4:8]))
	s = add(s, uint16(tcp[12])<<8|uint16(tcp[13]))
	s = add(s, sum(payload))
	binary.BigEndian.PutUint16(tcp[16:], ^s)
	return n
}

// datagram writes the next datagram of a train, or its first fragment.
func (c *Cutter) datagram(dst, payload []byte) int {
	at := c.p.transport
	var udp [header.UDPMinimumSize]byte
	copy(udp[:4], c.p.data[at:])
	length := len(udp) + len(payload)
	binary.BigEndian.PutUint16(udp[4:], uint16(length))
	if c.p.partial || c.p.data[at+6] != 0 || c.p.data[at+7] != 0 {
		s := add(pseudoHeader(c.p.addresses(), UDP, length), sum(udp[:]))
		binary.BigEndian.PutUint16(udp[6:], ^add(s, sum(payload)))
		avoidZero(udp[6:])
	}
	n := c.head + len(payload)
	if c.mtu > 0 && n > c.mtu {
		c.cut.start(c.p.data[:at], udp[:], payload, c.mtu)
		c.cut.id = binary.BigEndian.Uint16(c.p.data[4:]) + uint16(c.number)
		return c.cut.next(dst)
	}
	dst = dst[:n]
	copy(dst, c.p.data[:at])
	copy(dst[at:], udp[:])
	copy(dst[c.head:], payload)
	c.length(dst)
	return n
}

// length puts the length of b into its IP header and, for IPv4, the ID of this unit and the
// checksum.
func (c *Cutter) length(b []byte) {
	if c.p.v6 {
		binary.BigEndian.PutUint16(b[4:], uint16(len(b)-header.IPv6MinimumSize))
		return
	}
	old := add(binary.BigEndian.Uint16(b[2:]), binary.BigEndian.Uint16(b[4:]))
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	binary.BigEndian.PutUint16(b[4:], binary.BigEndian.Uint16(b[4:])+uint16(c.number))
	adjustAt(b, 10, delta(old, add(binary.BigEndian.Uint16(b[2:]), binary.BigEndian.Uint16(b[4:]))))
}
