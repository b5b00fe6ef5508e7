package nat

import "encoding/binary"

// minSegment is the smallest TCP payload that a super-frame is cut into, whatever MSS a peer announced.
const minSegment = 48

// A plan is what the translation stages decided for a packet that is to be forwarded.
type plan struct {
	to               tuple  // addresses and ports that it gets
	addresses, ports uint16 // deltas from what it has
	out              Port
	pathMTU          int    // learnt from too-big messages; 0 = none
	peerMSS          uint16 // MSS of the SYN that travelled towards the sender; 0 = unknown
	clamp            uint16 // bound for the MSS option of a SYN; 0 = off
	mtu              int
}

// translate notes the difference between what a packet has and what it gets.
func (pl *plan) translate(from *tuple) {
	pl.addresses = delta(from.addressSum(), pl.to.addressSum())
	pl.ports = delta(from.portSum(), pl.to.portSum())
}

// forward checks TTL and size and then, only then, rewrites the packet. It returns false if v is to drop.
func (p *Packet) forward(pl *plan, v *Verdict) bool {
	if !p.passable(pl, v) {
		return false
	}
	v.Action, v.Out = Forward, pl.out
	if pl.clamp != 0 && p.isSYN() {
		p.clampMSS(pl.clamp)
	}
	p.rewrite(&pl.to, pl.addresses, pl.ports)
	p.decrementHops()
	return true
}

// passable checks TTL and size. It returns false if v is to drop.
func (p *Packet) passable(pl *plan, v *Verdict) bool {
	// RFC 1812, Section 5.3.1; RFC 8200, Section 3.
	if p.hops() <= 1 {
		*v = refuse(ReasonTTLExceeded, AnswerTimeExceeded)
		return false
	}
	v.Packets = 1
	return p.fit(pl, v)
}

// fit decides how a packet larger than the MTU goes on: in segments, in fragments or, returning false, not at all.
func (p *Packet) fit(pl *plan, v *Verdict) bool {
	n := len(p.data)
	if n <= pl.mtu && !p.partial && p.SegmentSize == 0 {
		return true
	}
	if p.partial && p.protocol == protocolTCP && p.SegmentSize == 0 {
		p.fitTCP(pl, v)
		return true
	}
	unit, units := n, 1
	if p.SegmentSize > 0 {
		payload := n - p.transport - 8
		if p.protocol != protocolUDP || p.fragment || int(binary.BigEndian.Uint16(p.data[p.transport+4:])) != payload+8 {
			*v = drop(ReasonMalformed)
			return false
		}
		if payload > p.SegmentSize {
			unit = p.transport + 8 + p.SegmentSize
			units = (payload + p.SegmentSize - 1) / p.SegmentSize
		} else {
			p.SegmentSize = 0
		}
		v.Packets = units
	}
	if unit <= pl.mtu {
		return true
	}
	if p.dontFragment() {
		*v = refuse(ReasonTooBig, AnswerTooBig)
		v.MTU = pl.mtu
		return false
	}
	v.MTU = pl.mtu
	v.Packets = fragments(p.transport, unit, pl.mtu)
	if units > 1 {
		last := unit - p.SegmentSize + (n-p.transport-8-1)%p.SegmentSize + 1
		v.Packets = v.Packets*(units-1) + fragments(p.transport, last, pl.mtu)
	}
	return true
}

// fitTCP sets the segment size of a super-frame: what the MTU, the path MTU and the MSS of its receiver allow, less the TCP options. Its
// sender left the segmentation to a network card, so that no size of ours can be too small for it.
func (p *Packet) fitTCP(pl *plan, v *Verdict) {
	limit := pl.mtu
	if pl.pathMTU > 0 && pl.pathMTU < limit {
		limit = pl.pathMTU
	}
	length := int(p.data[p.transport+12]>>4) * 4
	segment := limit - p.transport - 20
	if mss := int(pl.peerMSS); mss > 0 && mss < segment {
		segment = mss
	}
	segment = max(segment-(length-20), minSegment)
	if payload := len(p.data) - p.transport - length; payload > segment {
		v.SegmentSize = segment
		v.Packets = (payload + segment - 1) / segment
	}
}

// fragments returns how many IPv4 packets of at most mtu bytes the Cutter makes of one of n bytes.
func fragments(header, n, mtu int) int {
	if n <= mtu {
		return 1
	}
	piece := (mtu - header) &^ 7
	return (n - header + piece - 1) / piece
}
