package nat

import (
	"encoding/binary"
	"hash/crc32"
)

// SCTP chunk types (RFC 9260, Section 3.2).
const (
	chunkInit             = 1
	chunkInitAck          = 2
	chunkAbort            = 6
	chunkShutdownComplete = 14
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sumSCTP computes the checksum of an SCTP packet anew (RFC 9260, Section 6.8 and Appendix A): CRC32c knows no useful increments.
// Preconditions: p is no fragment.
func (p *Packet) sumSCTP() {
	b := p.data[p.transport:]
	binary.LittleEndian.PutUint32(b[8:], 0)
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, castagnoli))
}

// sctpNext returns the state after an SCTP packet of direction d. end[d] is the verification tag of packets of direction d, which
// the other side has chosen in its INIT or INIT ACK; the first packet seen tells it otherwise. An end of the association counts
// only with the right tag (RFC 9260, Section 8.5).
func (t *tcpState) sctpNext(now state, p *Packet, d int, replied bool) state {
	b := p.data[p.transport:]
	tag := binary.BigEndian.Uint32(b[4:])
	var kind, flags byte
	if len(b) >= 16 {
		kind, flags = b[12], b[13]
	}
	if (kind == chunkInit || kind == chunkInitAck) && len(b) >= 20 {
		t.end[1-d] = binary.BigEndian.Uint32(b[16:])
		t.flags[1-d] |= tcpHeard
	}
	if kind != chunkInit && t.flags[d]&tcpHeard == 0 {
		t.end[d] = tag
		t.flags[d] |= tcpHeard
	}
	switch {
	case kind == chunkInit:
		if now == stateSCTPClosing || now == stateSCTPOpening {
			return stateSCTPOpening
		}
		return now
	case kind == chunkAbort || kind == chunkShutdownComplete:
		// With the T bit the tag is the one that the sender of the packet would have expected.
		want := t.end[d]
		if flags&1 != 0 {
			want = t.end[1-d]
		}
		if tag == want {
			return stateSCTPClosing
		}
		return now
	case now == stateSCTPOpening && replied && kind != chunkInitAck:
		return stateSCTP
	}
	return now
}
