package nat

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcpconntrack"
)

// A host is one end of a simulated TCP connection.
type host struct {
	next, acked uint32 // what it sends and expects next
	fin         bool
	sent        []Segment
	payload     []int
}

// A bout is a simulated connection: what both hosts send, as a gateway between them sees it.
type bout struct {
	r     *rand.Rand
	hosts [2]host
}

func (b *bout) segment(d int, flags byte, n int) (Segment, int) {
	h := &b.hosts[d]
	s := Segment{Seq: h.next, Ack: h.acked, Flags: flags, Window: b.window(), Length: uint32(n)}
	if flags&tcpFlagACK == 0 {
		s.Ack = 0
	}
	if flags&(tcpFlagSYN|tcpFlagFIN) != 0 {
		s.Length++
	}
	h.next += s.Length
	h.sent, h.payload = append(h.sent, s), append(h.payload, n)
	return s, n
}

// window returns one that has room for all that step keeps in flight, so that no sender overruns it.
func (b *bout) window() uint16 { return uint16(22_000 + b.r.IntN(65536-22_000)) }

// arrive is what the other host makes of a segment that was not lost.
func (b *bout) arrive(d int, s Segment) {
	to := &b.hosts[1-d]
	if s.Seq == to.acked {
		to.acked += s.Length
	}
}

// step returns the next segment of the bout and who sent it.
func (b *bout) step() (d int, s Segment, n int) {
	d = b.r.IntN(2)
	h := &b.hosts[d]
	switch k := b.r.IntN(20); {
	case k < 3 && len(h.sent) > 1: // a retransmission, of anything that is not acknowledged yet
		i := b.r.IntN(len(h.sent))
		if int32(h.sent[i].Seq-b.hosts[1-d].acked) < 0 {
			i = len(h.sent) - 1
		}
		s, n = h.sent[i], h.payload[i]
		s.Ack = h.acked
	case k < 12 && !h.fin && int32(h.next-b.hosts[1-d].acked) < 20000:
		s, n = b.segment(d, tcpFlagACK, b.r.IntN(1400))
	case k == 12 && !h.fin:
		h.fin = true
		s, n = b.segment(d, tcpFlagACK|tcpFlagFIN, b.r.IntN(100))
	case k == 13 && b.r.IntN(20) == 0:
		s = Segment{Seq: h.next, Ack: h.acked, Flags: tcpFlagRST | tcpFlagACK}
	default:
		s = Segment{Seq: h.next, Ack: h.acked, Flags: tcpFlagACK, Window: b.window()}
	}
	return d, s, n
}

func tcpBytes(s Segment) header.TCP {
	h := header.TCP(make([]byte, header.TCPMinimumSize))
	h.Encode(&header.TCPFields{SeqNum: s.Seq, AckNum: s.Ack, Flags: header.TCPFlags(s.Flags), WindowSize: s.Window, DataOffset: header.TCPMinimumSize})
	return h
}

// TestTCPOracle compares the state of random connections with gVisor's tcpconntrack, segment by segment. What the oracle is known to get
// wrong is left out here and has tests of its own below. NAT_SEED replays a run.
func TestTCPOracle(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if s, err := strconv.ParseUint(os.Getenv("NAT_SEED"), 10, 64); err == nil {
		seed = s
	}
	t.Logf("NAT_SEED=%d", seed)
	ends := map[tcpconntrack.Result]int{}
	for i := range 5_000 {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		b := bout{r: r}
		b.hosts[0].next, b.hosts[1].next = r.Uint32(), r.Uint32()
		var state tcpState
		var tcb tcpconntrack.TCB
		var log []string
		note := func(d int, s Segment, now fmt.Stringer) {
			log = append(log, fmt.Sprintf("%d %+v -> %v %v", d, s, now, tcb.State()))
		}
		s, n := b.segment(0, tcpFlagSYN, r.IntN(2)*r.IntN(1000))
		now := state.open(&s, 0)
		tcb.Init(tcpBytes(s), n)
		end := b.hosts[0].next
		b.hosts[1].acked = s.Seq + 1 + uint32(r.IntN(n+1)) // it need not take all data of a SYN
		b.hosts[0].next = b.hosts[1].acked
		s, _ = b.segment(1, tcpFlagSYN|tcpFlagACK, 0)
		now = state.next(now, &s, 1)
		tcb.UpdateStateReply(tcpBytes(s), 0)
		b.hosts[0].acked = s.Seq + 1
		s, n = b.segment(0, tcpFlagACK, int(end-b.hosts[0].next)) // and is sent the rest again
		now = state.next(now, &s, 0)
		tcb.UpdateStateOriginal(tcpBytes(s), n)
		b.hosts[1].acked = end
		for range 80 {
			d, s, n := b.step()
			now = state.next(now, &s, d)
			if d == original {
				tcb.UpdateStateOriginal(tcpBytes(s), n)
			} else {
				tcb.UpdateStateReply(tcpBytes(s), n)
			}
			note(d, s, now)
			if r.IntN(10) > 0 {
				b.arrive(d, s)
			}
			if !agree(now, tcb.State()) {
				for _, l := range log {
					t.Log(l)
				}
				t.Fatalf("connection %d: %v, the oracle says %d", i, now, tcb.State())
			}
			if tcb.State() == tcpconntrack.ResultReset {
				break
			}
		}
		ends[tcb.State()]++
	}
	if len(ends) < 4 {
		t.Fatalf("not every end was seen: %v", ends)
	}
	t.Log("ends:", ends)
}

func agree(s state, r tcpconntrack.Result) bool {
	switch r {
	case tcpconntrack.ResultConnecting:
		return s == stateSynSent
	case tcpconntrack.ResultAlive:
		return s == stateSynReceived || s == stateEstablished || s == stateFinWait || s == stateCloseWait || s == stateLastAck
	case tcpconntrack.ResultReset:
		return s == stateClosed
	}
	return s == stateTimeWait
}

// What tcpconntrack does not do, or does otherwise, and what an attacker might try.
func TestTCPBeyondOracle(t *testing.T) {
	syn := Segment{Seq: 100, Length: 1, Flags: tcpFlagSYN, Window: 1000, MSS: 1400}
	synAck := Segment{Seq: 500, Ack: 101, Length: 1, Flags: tcpFlagSYN | tcpFlagACK, Window: 1000, MSS: 1300}
	ack := Segment{Seq: 101, Ack: 501, Flags: tcpFlagACK, Window: 1000}
	with := func(s Segment, change func(*Segment)) Segment { change(&s); return s }
	fastOpen := with(syn, func(s *Segment) { s.Length = 101 })
	acknowledging := func(n uint32) Segment { return with(synAck, func(s *Segment) { s.Ack = n }) }
	refusing := func(n uint32) Segment { return Segment{Ack: n, Flags: tcpFlagRST | tcpFlagACK} }
	type step struct {
		d int
		s Segment
	}
	tests := []struct {
		name  string
		steps []step
		want  state
	}{
		{"SYN retransmitted with ECN", []step{{0, syn}, {0, with(syn, func(s *Segment) { s.Flags |= 0xc0 })}, {1, synAck}, {0, ack}}, stateEstablished},
		{"RST by the originator in SYN-SENT", []step{{0, syn}, {0, Segment{Seq: 101, Flags: tcpFlagRST}}}, stateClosed},
		{"RST by the responder that acknowledges nothing", []step{{0, syn}, {1, Segment{Seq: 0, Ack: 7, Flags: tcpFlagRST | tcpFlagACK}}}, stateSynSent},
		{"connection refused", []step{{0, syn}, {1, Segment{Ack: 101, Flags: tcpFlagRST | tcpFlagACK}}}, stateClosed},
		{"SYN with another ISN in SYN-SENT", []step{{0, syn}, {0, with(syn, func(s *Segment) { s.Seq = 9000 })},
			{1, with(synAck, func(s *Segment) { s.Ack = 9001 })}, {0, with(ack, func(s *Segment) { s.Seq = 9001 })}}, stateEstablished},
		{"SYN-ACK for another SYN", []step{{0, syn}, {1, with(synAck, func(s *Segment) { s.Ack = 77 })}}, stateSynSent},
		{"simultaneous open", []step{{0, syn}, {1, with(synAck, func(s *Segment) { s.Flags, s.Ack = tcpFlagSYN, 0 })},
			{0, with(synAck, func(s *Segment) { s.Seq, s.Ack = 100, 501 })}, {1, with(ack, func(s *Segment) { s.Seq, s.Ack = 501, 101 })}}, stateEstablished},
		{"mid-stream", []step{{0, ack}, {1, with(ack, func(s *Segment) { s.Seq, s.Ack = 501, 101 })}}, stateEstablished},
		{"mid-stream FIN both ways", []step{{0, with(ack, func(s *Segment) { s.Flags |= tcpFlagFIN; s.Length = 1 })},
			{1, Segment{Seq: 501, Ack: 102, Length: 1, Flags: tcpFlagACK | tcpFlagFIN, Window: 9}}, {0, Segment{Seq: 102, Ack: 502, Flags: tcpFlagACK, Window: 9}}}, stateTimeWait},
		{"inexact RST in the window, RFC 5961", []step{{0, syn}, {1, synAck}, {0, ack}, {1, Segment{Seq: 511, Flags: tcpFlagRST}}}, stateEstablished},
		{"RST outside of the window", []step{{0, syn}, {1, synAck}, {0, ack}, {1, Segment{Seq: 1 << 30, Flags: tcpFlagRST}}}, stateEstablished},
		{"exact RST", []step{{0, syn}, {1, synAck}, {0, ack}, {1, Segment{Seq: 501, Flags: tcpFlagRST}}}, stateClosed},
		{"SYN in ESTABLISHED, RFC 5961", []step{{0, syn}, {1, synAck}, {0, ack}, {0, with(syn, func(s *Segment) { s.Seq = 77 })}}, stateEstablished},
		{"FIN outside of the window", []step{{0, syn}, {1, synAck}, {0, ack}, {1, Segment{Seq: 1 << 29, Ack: 101, Length: 1, Flags: tcpFlagFIN | tcpFlagACK}}}, stateEstablished},
		{"FIN that acknowledges what was never sent", []step{{0, syn}, {1, synAck}, {0, ack}, {1, Segment{Seq: 501, Ack: 1 << 20, Length: 1, Flags: tcpFlagFIN | tcpFlagACK}}}, stateEstablished},
		{"FIN with an acknowledgement that is too old", []step{{0, syn}, {1, synAck}, {0, ack}, {1, Segment{Seq: 501, Ack: 1<<32 - 1<<17, Length: 1, Flags: tcpFlagFIN | tcpFlagACK}}}, stateEstablished},
		{"FIN with an old acknowledgement", []step{{0, syn}, {1, synAck}, {0, ack}, {0, with(ack, func(s *Segment) { s.Length = 900 })},
			{1, Segment{Seq: 501, Ack: 1001, Flags: tcpFlagACK}}, {1, Segment{Seq: 501, Ack: 501, Length: 1, Flags: tcpFlagFIN | tcpFlagACK}}}, stateFinWait},
		{"FIN without an acknowledgement", []step{{0, syn}, {1, synAck}, {0, ack}, {1, Segment{Seq: 501, Length: 1, Flags: tcpFlagFIN}}}, stateEstablished},
		{"data of a SYN taken, RFC 7413", []step{{0, fastOpen}, {1, acknowledging(201)}, {0, with(ack, func(s *Segment) { s.Seq = 201 })}}, stateEstablished},
		{"data of a SYN taken in part", []step{{0, fastOpen}, {1, acknowledging(150)}, {0, with(ack, func(s *Segment) { s.Seq = 150 })}}, stateEstablished},
		{"data of a SYN not taken", []step{{0, fastOpen}, {1, acknowledging(101)}, {0, ack}}, stateEstablished},
		{"data of a SYN sent again without a SYN", []step{{0, fastOpen}, {1, acknowledging(101)}, {0, with(ack, func(s *Segment) { s.Length = 100 })}}, stateEstablished},
		{"SYN-ACK that does not acknowledge the SYN", []step{{0, fastOpen}, {1, acknowledging(100)}}, stateSynSent},
		{"SYN-ACK of more data than a SYN has", []step{{0, fastOpen}, {1, acknowledging(202)}}, stateSynSent},
		{"SYN repeated without its data, which the server has taken", []step{{0, fastOpen}, {0, syn}, {1, acknowledging(201)}, {0, with(ack, func(s *Segment) { s.Seq = 201 })}}, stateEstablished},
		{"data of the server before the handshake ends", []step{{0, fastOpen}, {1, acknowledging(201)}, {1, Segment{Seq: 501, Ack: 201, Length: 1000, Flags: tcpFlagACK}},
			{0, Segment{Seq: 201, Ack: 501, Flags: tcpFlagACK}}}, stateEstablished},
		{"SYN with data refused", []step{{0, fastOpen}, {1, refusing(201)}}, stateClosed},
		{"SYN with data refused, its data ignored", []step{{0, fastOpen}, {1, refusing(101)}}, stateClosed},
		{"RST that acknowledges more than a SYN has", []step{{0, fastOpen}, {1, refusing(202)}}, stateSynSent},
		{"simultaneous open with SYN-ACKs", []step{{0, syn}, {1, with(synAck, func(s *Segment) { s.Flags, s.Ack = tcpFlagSYN, 0 })},
			{0, with(synAck, func(s *Segment) { s.Seq, s.Ack = 100, 501 })}, {1, with(synAck, func(s *Segment) { s.Seq, s.Ack = 500, 101 })},
			{0, ack}}, stateEstablished},
		{"ports used again after RST", []step{{0, syn}, {1, synAck}, {0, ack}, {1, Segment{Seq: 501, Flags: tcpFlagRST}}, {0, with(syn, func(s *Segment) { s.Seq = 7777 })}}, stateSynSent},
		{"late segment after RST", []step{{0, syn}, {1, synAck}, {0, ack}, {1, Segment{Seq: 501, Flags: tcpFlagRST}}, {0, ack}}, stateClosed},
		{"SYN-ACK first, the SYN went another way", []step{{0, synAck}, {1, with(ack, func(s *Segment) { s.Seq, s.Ack = 101, 501 })}}, stateEstablished},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var tcp tcpState
			now := tcp.open(&test.steps[0].s, test.steps[0].d)
			for _, s := range test.steps[1:] {
				now = tcp.next(now, &s.s, s.d)
			}
			if now != test.want {
				t.Fatalf("%v, want %v", now, test.want)
			}
		})
	}
}

// What a window means follows from the newest acknowledgement. Segments that overtake one another tell nothing about it.
func TestTCPWindow(t *testing.T) {
	var tcp tcpState
	now := tcp.open(&Segment{Seq: 100, Length: 1, Flags: tcpFlagSYN, Window: 1000, Shift: 7, Scaled: true}, 0)
	steps := []struct {
		name string
		d    int
		s    Segment
		want uint32 // of direction 1
	}{
		{"a SYN's is not scaled", 1, Segment{Seq: 500, Ack: 101, Length: 1, Flags: tcpFlagSYN | tcpFlagACK, Window: 5120, Shift: 7, Scaled: true}, 5120},
		{"handshake", 0, Segment{Seq: 101, Ack: 501, Flags: tcpFlagACK}, 5120},
		{"an acknowledgement opens it", 1, Segment{Seq: 501, Ack: 101, Length: 10, Flags: tcpFlagACK, Window: 4000}, 4000 << 7},
		{"data", 0, Segment{Seq: 101, Ack: 511, Length: 1000, Flags: tcpFlagACK}, 4000 << 7},
		{"the newest acknowledgement opens it further", 1, Segment{Seq: 511, Ack: 1101, Flags: tcpFlagACK, Window: 8000}, 8000 << 7},
		{"an older acknowledgement is late", 1, Segment{Seq: 511, Ack: 601, Flags: tcpFlagACK, Window: 3}, 8000 << 7},
		{"an older segment is late", 1, Segment{Seq: 501, Ack: 1101, Length: 10, Flags: tcpFlagACK, Window: 3}, 8000 << 7},
		{"the same acknowledgement, the window filled", 1, Segment{Seq: 511, Ack: 1101, Flags: tcpFlagACK, Window: 2}, 2 << 7},
		{"a retransmission that acknowledges more", 1, Segment{Seq: 501, Ack: 1101, Length: 20, Flags: tcpFlagACK, Window: 9}, 9 << 7},
	}
	for _, step := range steps {
		now = tcp.next(now, &step.s, step.d)
		if got := uint32(tcp.window[1]) << tcp.shift[1]; got != step.want {
			t.Fatalf("%s: window %d, want %d", step.name, got, step.want)
		}
	}
	if now != stateEstablished {
		t.Fatal(now)
	}
}

// talk sends data both ways between two ends that have got as far as next, as a gateway between them sees it.
func talk(tcp *tcpState, now state, next *[2]uint32, rounds int) state {
	for range rounds {
		for d := range 2 {
			now = tcp.next(now, &Segment{Seq: next[d], Ack: next[1-d], Length: 1000, Flags: tcpFlagACK, Window: 1000}, d)
			next[d] += 1000
		}
	}
	return now
}

// inMidLife returns an established connection and the numbers that both ends send next.
func inMidLife() (tcp tcpState, now state, next [2]uint32) {
	tcp.open(&Segment{Seq: 99, Length: 1, Flags: tcpFlagSYN}, 0)
	now = tcp.next(stateSynSent, &Segment{Seq: 499, Ack: 100, Length: 1, Flags: tcpFlagSYN | tcpFlagACK}, 1)
	next = [2]uint32{100, 500}
	return tcp, talk(&tcp, now, &next, 10), next
}

// A connection whose packets went another way for a while is followed again when they return.
func TestTCPResynchronises(t *testing.T) {
	tcp, now, next := inMidLife()
	next[0] += 10_000_000
	next[1] += 20_000_000
	now = talk(&tcp, now, &next, strays+1)
	if now != stateEstablished || tcp.end != next {
		t.Fatalf("%v, knows %v of %v", now, tcp.end, next)
	}
	for _, step := range []struct {
		d    int
		s    Segment
		want state
	}{
		{0, Segment{Seq: next[0], Ack: next[1], Length: 1, Flags: tcpFlagFIN | tcpFlagACK}, stateFinWait},
		{1, Segment{Seq: next[1], Ack: next[0] + 1, Length: 1, Flags: tcpFlagFIN | tcpFlagACK}, stateLastAck},
		{0, Segment{Seq: next[0] + 1, Ack: next[1] + 1, Flags: tcpFlagACK}, stateTimeWait},
	} {
		if now = tcp.next(now, &step.s, step.d); now != step.want {
			t.Fatalf("%v, want %v", now, step.want)
		}
	}
}

// Who speaks for one end alone cannot make the gateway forget what it knows: the other end goes on as before.
func TestTCPKeepsItsGroundAgainstOneSide(t *testing.T) {
	tcp, now, next := inMidLife()
	junk := Segment{Seq: next[1] + 1<<24, Ack: next[0] + 1<<24, Length: 1000, Flags: tcpFlagACK, Window: 1}
	for range 3 * strays {
		for range 100 {
			now = tcp.next(now, &junk, 1)
			junk.Seq += 1000
		}
		challenge := Segment{Seq: next[0], Ack: next[1], Flags: tcpFlagACK, Window: 1000} // RFC 5961, Section 5
		now = tcp.next(now, &challenge, 0)
	}
	if now != stateEstablished || tcp.end != next {
		t.Fatalf("%v, knows %v of %v", now, tcp.end, next)
	}
	if now = tcp.next(now, &Segment{Seq: next[1], Flags: tcpFlagRST}, 1); now != stateClosed {
		t.Fatalf("%v after an exact RST", now)
	}
}
