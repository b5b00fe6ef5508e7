package packet

import "encoding/binary"

// Rewrite gives p, a packet or a quoted packet, the addresses and ports of to. addresses and ports
// are the Deltas from p's tuple to it; both may be
// 0. AdjustSCTP handles the checksum of SCTP. Preconditions: to has the family of p.
func (p *Packet) Rewrite(to *Tuple, addresses, ports uint16) {
	b := p.data
	if p.v6 {
		_ = b[39]
		binary.BigEndian.PutUint64(b[8:], to.Words[0])
		binary.BigEndian.PutUint64(b[16:], to.Words[1])
		binary.BigEndian.PutUint64(b[24:], to.Words[2])
		binary.BigEndian.PutUint64(b[32:], to.Words[3])
	} else {
		binary.BigEndian.PutUint64(b[12:], to.Words[0])
		adjustAt(b, 10, addresses)
	}
	if p.hasPorts {
		binary.BigEndian.PutUint32(b[p.transport:], to.Ports)
	} else if p.hasIdent {
		binary.BigEndian.PutUint16(b[p.transport+4:], uint16(to.Ports))
	}
	if p.checksumAt == 0 {
		return
	}
	switch {
	case p.partial:
		// The field holds only the uncomplemented pseudo-header; the ports are added when it is
		// completed.
		field := add(binary.BigEndian.Uint16(b[p.checksumAt:]), addresses)
		binary.BigEndian.PutUint16(b[p.checksumAt:], field)
		return
	case p.protocol == ICMP: // RFC 792: no pseudo-header
		if ports != 0 {
			adjustAt(b, p.checksumAt, ports)
			KeepZeroSum(b[p.transport:], b[p.checksumAt:])
		}
		return
	case p.protocol == UDP && b[p.checksumAt] == 0 && b[p.checksumAt+1] == 0:
		return // RFC 768: the sender made none
	}
	adjustAt(b, p.checksumAt, add(addresses, ports))
	if p.protocol == UDP || p.protocol == UDPLite {
		avoidZero(b[p.checksumAt:])
	}
}

// avoidZero writes a computed checksum of zero as all ones (RFC 768; RFC 3828, Section 3.1).
func avoidZero(field []byte) {
	if field[0] == 0 && field[1] == 0 {
		field[0], field[1] = 0xff, 0xff
	}
}

// KeepZeroSum writes an adjusted checksum of zero as all ones if the covered bytes are all zero, as
// in an echo reply with identifier, sequence number and payload 0: their sum is the other zero,
// which equation 3 of RFC 1624, Section 3, never produces.
func KeepZeroSum(covered, field []byte) {
	if field[0] == 0 && field[1] == 0 && sum(covered) == 0 {
		field[0], field[1] = 0xff, 0xff
	}
}

// DecrementHops takes one from the TTL or hop limit. Preconditions: p.Hops() is at least 1.
func (p *Packet) DecrementHops() {
	if p.v6 {
		p.data[7]--
		return
	}
	p.data[8]--
	adjustAt(p.data, 10, ^uint16(0x0100))
}

// finish completes a partial checksum in place: the field already holds the sum of the
// pseudo-header.
func (p *Packet) finish() {
	if !p.partial {
		return
	}
	p.partial = false
	binary.BigEndian.PutUint16(p.data[p.checksumAt:], ^sum(p.data[p.transport:]))
	if p.protocol == UDP {
		avoidZero(p.data[p.checksumAt:])
	}
}
