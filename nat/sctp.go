package nat

import "culvert/nat/packet"

// sctpNext returns the state after an SCTP packet of direction d. end[d] is the verification tag of
// packets of direction d, chosen by the other side in its INIT or INIT ACK, or else learnt from the
// first packet seen. A shutdown or abort counts only with the right tag (RFC 9260, Section 8.5).
func (t *tcpState) sctpNext(now state, p *packet.Packet, d int, replied bool) state {
	c := p.Chunk()
	if c.Initiates {
		t.end[1-d] = c.InitiateTag
		t.flags[1-d] |= tcpHeard
	}
	if c.Type != packet.ChunkInit && t.flags[d]&tcpHeard == 0 {
		t.end[d] = c.Tag
		t.flags[d] |= tcpHeard
	}
	switch {
	case c.Type == packet.ChunkInit:
		if now == stateSCTPClosing || now == stateSCTPOpening {
			return stateSCTPOpening
		}
		return now
	case c.Type == packet.ChunkAbort || c.Type == packet.ChunkShutdownComplete:
		// With the T bit the tag is the one that the packet's sender would have expected.
		want := t.end[d]
		if c.Flags&1 != 0 {
			want = t.end[1-d]
		}
		if c.Tag == want {
			return stateSCTPClosing
		}
		return now
	case now == stateSCTPOpening && replied && c.Type != packet.ChunkInitAck:
		return stateSCTP
	}
	return now
}
