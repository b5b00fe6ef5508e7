package nat

import "culvert/nat/packet"

// minSegment is the smallest TCP payload into which a super-frame is cut, whatever MSS a peer
// announced.
const minSegment = 48

// A plan is what the translation stages decided for a packet to be forwarded.
type plan struct {
	to               packet.Tuple // addresses and ports after translation
	addresses, ports uint16       // checksum deltas of the translation
	out              Link
	pathMTU          int    // from too-big messages; 0 = none
	peerMSS          uint16 // MSS of the SYN that travelled towards the sender; 0 = unknown
	clamp            uint16 // bound for the MSS option of a SYN; 0 = off
	mtu              int
	stream           streamPlan
}

// translate computes the deltas between a packet's tuple and pl.to.
func (pl *plan) translate(from *packet.Tuple) {
	pl.addresses, pl.ports = packet.Deltas(from, &pl.to)
}

// rewrite applies the plan to a forwarded packet.
func (pl *plan) rewrite(p *packet.Packet) {
	if pl.clamp != 0 && p.IsSYN() {
		p.ClampMSS(pl.clamp)
	}
	if p.Protocol() == packet.SCTP && !p.IsFragment() {
		p.AdjustSCTP(&pl.to)
	}
	if pl.stream.step != streamAsIs {
		pl.stream.rewrite(p)
	}
	p.Rewrite(&pl.to, pl.addresses, pl.ports)
	p.DecrementHops()
	if p.SegmentSize > 0 && p.SegmentSize >= p.Len()-p.HeaderLen()-8 {
		p.SegmentSize = 0 // one datagram is not a train
	}
}

// forward sets the verdict for a packet that may pass. It returns false if TTL or size forbid it.
func (d *decision) forward(p *packet.Packet) bool {
	v := &d.verdict
	// RFC 1812, Section 5.3.1; RFC 8200, Section 3.
	if p.Hops() <= 1 {
		*v = refuse(ReasonTTLExceeded, packet.TimeExceeded)
	} else if v.Packets = 1; d.plan.fits(p) || d.plan.fit(p, v) {
		v.Action, v.Out = Forward, d.plan.out
	}
	return d.check("TTL and size", v.Action == Forward)
}

// fits reports whether a packet goes on unsegmented.
func (pl *plan) fits(p *packet.Packet) bool {
	return p.Len() <= pl.mtu && !p.IsPartial() && p.SegmentSize == 0 && pl.stream.step != streamLeads
}

// fit decides how a packet larger than the MTU, a super-frame or a train goes on: segmented,
// fragmented or, if it returns false, not at all.
func (pl *plan) fit(p *packet.Packet, v *Verdict) bool {
	n := p.Len()
	if pl.stream.dropsPayload(p) {
		n = p.HeaderLen() + p.TCPHeaderLen()
	}
	if p.Protocol() == packet.TCP && p.SegmentSize == 0 && (p.IsPartial() || pl.stream.step == streamLeads) {
		pl.fitTCP(p, n, v)
		return true
	}
	header, unit, units := p.HeaderLen(), n, 1
	if p.SegmentSize > 0 {
		if !p.IsDatagram() {
			*v = drop(ReasonMalformed)
			return false
		}
		if payload := n - header - 8; payload > p.SegmentSize {
			unit = header + 8 + p.SegmentSize
			units = (payload + p.SegmentSize - 1) / p.SegmentSize
		}
		v.Packets = units
	}
	if unit <= pl.mtu {
		return true
	}
	if p.DontFragment() {
		*v = refuse(ReasonTooBig, packet.TooBig)
		v.MTU = pl.mtu
		return false
	}
	v.MTU = pl.mtu
	v.Packets = packet.Fragments(header, unit, pl.mtu)
	if units > 1 {
		last := unit - p.SegmentSize + (n-header-8-1)%p.SegmentSize + 1
		v.Packets = v.Packets*(units-1) + packet.Fragments(header, last, pl.mtu)
	}
	return true
}

// fitTCP sets the segment size of a super-frame, or of a segment that a header makes longer and of
// which n bytes go on: what the MTU, the path MTU and the receiver's MSS allow, less the TCP
// options. The sender of a super-frame left segmentation to a network card, so no size chosen here
// can be too small for it.
func (pl *plan) fitTCP(p *packet.Packet, n int, v *Verdict) {
	limit := pl.mtu
	if pl.pathMTU > 0 && pl.pathMTU < limit {
		limit = pl.pathMTU
	}
	header, length := p.HeaderLen(), p.TCPHeaderLen()
	segment := limit - header - 20
	if mss := int(pl.peerMSS); mss > 0 && mss < segment {
		segment = mss
	}
	segment = max(segment-(length-20), minSegment)
	payload := n - header - length
	if pl.stream.step == streamLeads {
		payload += int(pl.stream.proxyStream.length())
	}
	if payload > segment {
		v.SegmentSize = segment
		v.Packets = (payload + segment - 1) / segment
	}
}
