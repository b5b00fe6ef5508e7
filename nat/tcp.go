package nat

import (
	"math/bits"

	"culvert/nat/packet"
)

// A tcpState is what is remembered of a TCP connection, by direction of the sender. For SCTP, end
// holds the verification tags that packets of each direction carry.
//
// Segments are never dropped for their sequence numbers; segments that a receiver would not process
// change nothing. This is nf_conntrack's "liberal" mode: windows are for end points to enforce.
type tcpState struct {
	end    [2]uint32 // highest sequence number sent, FIN and SYN counted, plus one
	ack    [2]uint32 // highest acknowledgement sent; without tcpAcked, a lower bound for the first one
	window [2]uint16 // announced with the newest acknowledgement, unscaled
	mss    [2]uint16 // MSS option of the SYN as forwarded; 0 if none
	shift  [2]uint8  // window scale, RFC 7323; unknownShift if the SYN was not seen
	flags  [2]tcpFlags
}

type tcpFlags uint8

const (
	tcpHeard  tcpFlags = 1 << iota // end is known
	tcpAcked                       // ack is known
	tcpFIN                         // sent a FIN, which end includes
	tcpClosed                      // its FIN was acknowledged
	tcpStray                       // this and the next two bits count segments that were not acceptable
)

const (
	tcpStrays = 7 * tcpStray
	// tcpShifted, for original only: the connection is a proxyStream.
	tcpShifted = tcpFlags(1 << 7)
	// tcpEnds, for reply only: the connection ends with its service.
	tcpEnds = tcpFlags(1 << 7)
)

// strays is how many unacceptable segments in a row, in each direction, make the state of a
// connection be forgotten.
const strays = 4

// maxWindow is the largest window (RFC 7323, Section 2.3), and so the largest distance between
// acknowledgements.
const maxWindow = 1 << 30

// unknownShift is the window scale assumed of a connection picked up in mid-stream: the largest.
const unknownShift = packet.MaxWindowShift

// open initialises the state from the first packet, of direction d.
func (t *tcpState) open(s *packet.Segment, d int) state {
	*t = tcpState{flags: [2]tcpFlags{t.flags[original] & tcpShifted, t.flags[reply] & tcpEnds}}
	switch {
	case s.Flags&packet.RST != 0:
		t.hear(s, d)
		return stateClosed
	case s.Flags&packet.SYN == 0:
		t.shift = [2]uint8{unknownShift, unknownShift}
		t.join(s, d)
		if s.Flags&packet.FIN != 0 {
			t.flags[d] |= tcpFIN
		}
		return stateEstablished
	case s.Flags&packet.ACK != 0:
		t.hear(s, d)
		t.shift[1-d] = unknownShift
		return stateSynReceived // the SYN took another path
	}
	t.hear(s, d)
	return stateSynSent
}

// join starts in mid-stream, from s of direction d alone.
func (t *tcpState) join(s *packet.Segment, d int) {
	t.flags = [2]tcpFlags{t.flags[original] & tcpShifted, t.flags[reply] & tcpEnds}
	t.hear(s, d)
	t.ack[1-d] = t.end[d] - maxWindow
}

// hear updates what a segment says about its sender.
func (t *tcpState) hear(s *packet.Segment, d int) {
	end := s.Seq + s.Length
	if t.flags[d]&tcpHeard == 0 || before(t.end[d], end) {
		t.end[d] = end
	}
	t.flags[d] |= tcpHeard
	if s.Flags&packet.ACK == 0 || t.flags[d]&tcpAcked == 0 || before(t.ack[d], s.Ack) || s.Ack == t.ack[d] &&
		end == t.end[d] {
		// Acknowledgements never go back, so the highest one has the newest window (RFC 9293,
		// Section 3.10.7.4: SND.WL1, SND.WL2).
		t.window[d] = s.Window
	}
	if s.Flags&packet.ACK != 0 {
		if t.flags[d]&tcpAcked == 0 || before(t.ack[d], s.Ack) {
			t.ack[d] = s.Ack
		}
		t.flags[d] |= tcpAcked
	}
	if s.Flags&packet.SYN == 0 {
		return
	}
	t.mss[d] = s.MSS
	t.shift[d] = 0
	if s.Scaled {
		t.shift[d] = s.Shift
		t.window[d] >>= s.Shift // RFC 7323, Section 2.2: a SYN's window is not scaled
	}
	if t.flags[1-d]&tcpAcked == 0 {
		t.ack[1-d] = s.Seq
	}
}

// before reports whether sequence number a comes before b.
func before(a, b uint32) bool { return int32(a-b) < 0 }

// next returns the state that follows now after a segment of direction d.
func (t *tcpState) next(now state, s *packet.Segment, d int) state {
	switch {
	case s.Flags&packet.RST != 0:
		if now == stateClosed || t.exactReset(now, s, d) {
			return stateClosed
		}
		return now
	case s.Flags&packet.SYN != 0:
		return t.synchronize(now, s, d)
	}
	switch now {
	case stateSynSent, stateClosed:
		return now // only a SYN changes this state (RFC 9293, Section 3.10.7.3)
	}
	if !t.acceptable(s, d) {
		return t.stray(now, s, d)
	}
	if (t.flags[original]|t.flags[reply])&tcpStrays != 0 {
		t.flags[original] &^= tcpStrays
		t.flags[reply] &^= tcpStrays
	}
	t.hear(s, d)
	if s.Flags&packet.FIN != 0 {
		t.flags[d] |= tcpFIN
	}
	if other := 1 - d; s.Flags&packet.ACK != 0 && t.flags[other]&tcpFIN != 0 && s.Ack == t.end[other] {
		t.flags[other] |= tcpClosed
	}
	return t.progress(now)
}

// stray counts an unacceptable segment. If the last few of both directions were unacceptable, the
// state has fallen behind, because packets passed elsewhere or while the table was full. It then
// starts again from s, as in mid-stream.
//
// An attacker who can speak for only one end does not get here: the end that receives the forged
// segments answers them (RFC 9293, Section 3.10.7.4; RFC 5961, Section 5), and the answer is
// acceptable, like all segments of the true ends.
//
// A segment that only repeats what was acknowledged up to a window ago is no stray: ends that lose
// each other's acknowledgements send it.
func (t *tcpState) stray(now state, s *packet.Segment, d int) state {
	other := 1 - d
	if t.flags[other]&tcpAcked != 0 && t.ack[other]-(s.Seq+s.Length) <= t.room(other) {
		return now
	}
	if t.flags[d]&tcpStrays < strays*tcpStray {
		t.flags[d] += tcpStray
	}
	if min(t.flags[original]&tcpStrays, t.flags[reply]&tcpStrays) < strays*tcpStray {
		return now
	}
	t.join(s, d)
	return stateEstablished
}

// progress derives the state from what both sides have sent.
func (t *tcpState) progress(now state) state {
	fins := bits.OnesCount8(uint8(t.flags[original]&tcpFIN)) + bits.OnesCount8(uint8(t.flags[reply]&tcpFIN))
	closed := bits.OnesCount8(uint8(t.flags[original]&tcpClosed)) + bits.OnesCount8(uint8(t.flags[reply]&tcpClosed))
	switch {
	case closed == 2:
		return stateTimeWait
	case fins == 2:
		return stateLastAck
	case closed == 1:
		return stateCloseWait
	case fins == 1:
		return stateFinWait
	case now == stateSynReceived && t.flags[original]&t.flags[reply]&(tcpHeard|tcpAcked) == tcpHeard|tcpAcked:
		return stateEstablished
	}
	return now
}

// synchronize handles SYN and SYN-ACK.
func (t *tcpState) synchronize(now state, s *packet.Segment, d int) state {
	switch now {
	case stateSynSent, stateSynReceived:
		if d == original && s.Flags&packet.ACK == 0 {
			if now == stateSynSent || s.Seq+s.Length == t.end[original] {
				// retransmitted, with or without ECN (RFC 3168, Section 6.1.1), or a new attempt on
				// the same ports
				t.reopen(s, d)
			}
			return now
		}
		// A SYN-ACK must acknowledge the SYN; a bare SYN is a simultaneous open (RFC 9293, Section
		// 3.5).
		if s.Flags&packet.ACK != 0 && !(t.credible(s.Ack, d) && (t.flags[d]&tcpAcked == 0 || s.Ack == t.ack[d])) {
			return now
		}
		t.reopen(s, d)
		if t.flags[1-d]&tcpHeard != 0 && (t.shift[1-d] != 0 && !s.Scaled) {
			t.shift[1-d] = 0 // RFC 7323, Section 2.2: only if both offer it
		}
		return stateSynReceived
	}
	return now // RFC 5961, Section 4.2: an end point answers with a challenge ACK
}

// reopen starts direction d again from its SYN, and forgets an attempt with another number. A
// repeated SYN may lack the data of the first (RFC 7413, Section 4.1.3), which its receiver may
// acknowledge all the same.
func (t *tcpState) reopen(s *packet.Segment, d int) {
	if t.ack[1-d] != s.Seq {
		t.flags[d] &= tcpShifted
	}
	t.hear(s, d)
}

// exactReset reports whether a RST ends the connection. RFC 5961, Section 3.2, requires the
// receiver's next sequence number. It is known from the receiver's acknowledgements; those still in
// flight will acknowledge up to the end of what was sent. In SYN-SENT, RFC 9293, Section 3.10.7.3,
// requires that the RST acknowledges the SYN.
func (t *tcpState) exactReset(now state, s *packet.Segment, d int) bool {
	other := 1 - d
	if now == stateSynSent {
		if d == original {
			return s.Seq == t.end[original] || s.Seq+1 == t.end[original]
		}
		return s.Flags&packet.ACK != 0 && t.credible(s.Ack, d)
	}
	if t.flags[other]&tcpAcked != 0 && s.Seq == t.ack[other] {
		return true
	}
	// A side that was not heard yet is reset by a RST that acknowledges all that was sent to it.
	if t.flags[d]&tcpHeard == 0 {
		return s.Flags&packet.ACK != 0 && s.Ack == t.end[other]
	}
	return s.Seq == t.end[d]
}

// acceptable reports whether a receiver would process a segment (RFC 9293, Section 3.10.7.4), so
// that its flags can be believed: it overlaps the window and has a credible acknowledgement.
func (t *tcpState) acceptable(s *packet.Segment, d int) bool {
	other := 1 - d
	if t.flags[other]&tcpAcked != 0 {
		first, last := int32(s.Seq-t.ack[other]), int32(s.Seq+s.Length-t.ack[other])
		if first > int32(t.room(other)) || last < 0 || s.Length > 0 && last == 0 {
			return false
		}
	}
	return s.Flags&packet.ACK != 0 && t.credible(s.Ack, d)
}

// credible reports whether the other end would believe an acknowledgement of direction d: it covers
// nothing that was never sent, and is at most a window older than the SYN or the last
// acknowledgement (RFC 5961, Section 5.2).
func (t *tcpState) credible(ack uint32, d int) bool {
	switch other := 1 - d; {
	case t.flags[other]&tcpHeard == 0:
		return true
	case before(t.end[other], ack):
		return false
	case t.flags[d]&tcpAcked == 0:
		return before(t.ack[d], ack)
	}
	return !before(ack, t.ack[d]-t.room(d))
}

// room is the window announced by direction d, or the size that both ends' first windows may have.
func (t *tcpState) room(d int) uint32 { return max(uint32(t.window[d])<<t.shift[d], 1<<16) }

// inFlight reports whether a segment of direction d with sequence number seq was sent and is not
// yet acknowledged (RFC 5927, Section 4.1).
func (t *tcpState) inFlight(seq uint32, d int) bool {
	return t.flags[d]&tcpHeard != 0 && t.flags[1-d]&tcpAcked != 0 && !before(seq, t.ack[1-d]) && before(seq, t.end[d])
}
