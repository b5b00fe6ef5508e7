package nat

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcpconntrack"
)

// A host is one end of a simulated TCP connection.
type host struct {
	next, acked uint32 // what it sends and expects next
	fin         bool
	sent        []segmentView
	payload     []int
}

// A bout is a simulated connection: what both hosts send, as a gateway between them sees it.
type bout struct {
	r     *rand.Rand
	hosts [2]host
}

func (b *bout) segment(d int, flags byte, n int) (segmentView, int) {
	h := &b.hosts[d]
	s := segmentView{seq: h.next, ack: h.acked, flags: flags, window: 65535, length: uint32(n)}
	if flags&tcpFlagACK == 0 {
		s.ack = 0
	}
	if flags&(tcpFlagSYN|tcpFlagFIN) != 0 {
		s.length++
	}
	h.next += s.length
	h.sent, h.payload = append(h.sent, s), append(h.payload, n)
	return s, n
}

// arrive is what the other host makes of a segment that was not lost.
func (b *bout) arrive(d int, s segmentView) {
	to := &b.hosts[1-d]
	if s.seq == to.acked {
		to.acked += s.length
	}
}

// step returns the next segment of the bout and who sent it.
func (b *bout) step() (d int, s segmentView, n int) {
	d = b.r.IntN(2)
	h := &b.hosts[d]
	switch k := b.r.IntN(20); {
	case k < 3 && len(h.sent) > 1: // a retransmission, of anything that is not acknowledged yet
		i := b.r.IntN(len(h.sent))
		if int32(h.sent[i].seq-b.hosts[1-d].acked) < 0 {
			i = len(h.sent) - 1
		}
		s, n = h.sent[i], h.payload[i]
		s.ack = h.acked
	case k < 12 && !h.fin && int32(h.next-b.hosts[1-d].acked) < 20000:
		s, n = b.segment(d, tcpFlagACK, b.r.IntN(1400))
	case k == 12 && !h.fin:
		h.fin = true
		s, n = b.segment(d, tcpFlagACK|tcpFlagFIN, b.r.IntN(100))
	case k == 13 && b.r.IntN(20) == 0:
		s = segmentView{seq: h.next, ack: h.acked, flags: tcpFlagRST | tcpFlagACK}
	default:
		s = segmentView{seq: h.next, ack: h.acked, flags: tcpFlagACK, window: 65535}
	}
	return d, s, n
}

func tcpBytes(s segmentView) header.TCP {
	h := header.TCP(make([]byte, header.TCPMinimumSize))
	h.Encode(&header.TCPFields{SeqNum: s.seq, AckNum: s.ack, Flags: header.TCPFlags(s.flags), WindowSize: s.window, DataOffset: header.TCPMinimumSize})
	return h
}

// TestTCPOracle compares the state of random connections with gVisor's tcpconntrack, segment by segment. What the oracle is known to get
// wrong is left out here and has tests of its own below.
func TestTCPOracle(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	ends := map[tcpconntrack.Result]int{}
	for i := range 5_000 {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		b := bout{r: r}
		b.hosts[0].next, b.hosts[1].next = r.Uint32(), r.Uint32()
		var state tcpState
		var tcb tcpconntrack.TCB
		var log []string
		note := func(d int, s segmentView, now fmt.Stringer) {
			log = append(log, fmt.Sprintf("%d %+v -> %v %v", d, s, now, tcb.State()))
		}
		s, _ := b.segment(0, tcpFlagSYN, 0)
		now := state.open(&s, 0)
		tcb.Init(tcpBytes(s), 0)
		b.hosts[1].acked = s.seq + 1
		s, _ = b.segment(1, tcpFlagSYN|tcpFlagACK, 0)
		now = state.next(now, &s, 1)
		tcb.UpdateStateReply(tcpBytes(s), 0)
		b.hosts[0].acked = s.seq + 1
		s = segmentView{seq: b.hosts[0].next, ack: b.hosts[0].acked, flags: tcpFlagACK, window: 65535}
		now = state.next(now, &s, 0)
		tcb.UpdateStateOriginal(tcpBytes(s), 0)
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

// What tcpconntrack does not do, or does otherwise (libraries-and-performance.md, C.2), and what an attacker might try.
func TestTCPBeyondOracle(t *testing.T) {
	syn := segmentView{seq: 100, length: 1, flags: tcpFlagSYN, window: 1000, mss: 1400}
	synAck := segmentView{seq: 500, ack: 101, length: 1, flags: tcpFlagSYN | tcpFlagACK, window: 1000, mss: 1300}
	ack := segmentView{seq: 101, ack: 501, flags: tcpFlagACK, window: 1000}
	with := func(s segmentView, change func(*segmentView)) segmentView { change(&s); return s }
	type step struct {
		d int
		s segmentView
	}
	tests := []struct {
		name  string
		steps []step
		want  state
	}{
		{"SYN retransmitted with ECN", []step{{0, syn}, {0, with(syn, func(s *segmentView) { s.flags |= 0xc0 })}, {1, synAck}, {0, ack}}, stateEstablished},
		{"RST by the originator in SYN-SENT", []step{{0, syn}, {0, segmentView{seq: 101, flags: tcpFlagRST}}}, stateClosed},
		{"RST by the responder that acknowledges nothing", []step{{0, syn}, {1, segmentView{seq: 0, ack: 7, flags: tcpFlagRST | tcpFlagACK}}}, stateSynSent},
		{"connection refused", []step{{0, syn}, {1, segmentView{ack: 101, flags: tcpFlagRST | tcpFlagACK}}}, stateClosed},
		{"SYN with another ISN in SYN-SENT", []step{{0, syn}, {0, with(syn, func(s *segmentView) { s.seq = 9000 })},
			{1, with(synAck, func(s *segmentView) { s.ack = 9001 })}, {0, with(ack, func(s *segmentView) { s.seq = 9001 })}}, stateEstablished},
		{"SYN-ACK for another SYN", []step{{0, syn}, {1, with(synAck, func(s *segmentView) { s.ack = 77 })}}, stateSynSent},
		{"simultaneous open", []step{{0, syn}, {1, with(synAck, func(s *segmentView) { s.flags, s.ack = tcpFlagSYN, 0 })},
			{0, with(synAck, func(s *segmentView) { s.seq, s.ack = 100, 501 })}, {1, with(ack, func(s *segmentView) { s.seq, s.ack = 501, 101 })}}, stateEstablished},
		{"mid-stream", []step{{0, ack}, {1, with(ack, func(s *segmentView) { s.seq, s.ack = 501, 101 })}}, stateEstablished},
		{"mid-stream FIN both ways", []step{{0, with(ack, func(s *segmentView) { s.flags |= tcpFlagFIN; s.length = 1 })},
			{1, segmentView{seq: 501, ack: 102, length: 1, flags: tcpFlagACK | tcpFlagFIN, window: 9}}, {0, segmentView{seq: 102, ack: 502, flags: tcpFlagACK, window: 9}}}, stateTimeWait},
		{"inexact RST in the window, RFC 5961", []step{{0, syn}, {1, synAck}, {0, ack}, {1, segmentView{seq: 511, flags: tcpFlagRST}}}, stateEstablished},
		{"RST outside of the window", []step{{0, syn}, {1, synAck}, {0, ack}, {1, segmentView{seq: 1 << 30, flags: tcpFlagRST}}}, stateEstablished},
		{"exact RST", []step{{0, syn}, {1, synAck}, {0, ack}, {1, segmentView{seq: 501, flags: tcpFlagRST}}}, stateClosed},
		{"SYN in ESTABLISHED, RFC 5961", []step{{0, syn}, {1, synAck}, {0, ack}, {0, with(syn, func(s *segmentView) { s.seq = 77 })}}, stateEstablished},
		{"FIN outside of the window", []step{{0, syn}, {1, synAck}, {0, ack}, {1, segmentView{seq: 1 << 29, ack: 101, length: 1, flags: tcpFlagFIN | tcpFlagACK}}}, stateEstablished},
		{"FIN that acknowledges what was never sent", []step{{0, syn}, {1, synAck}, {0, ack}, {1, segmentView{seq: 501, ack: 1 << 20, length: 1, flags: tcpFlagFIN | tcpFlagACK}}}, stateEstablished},
		{"ports used again after RST", []step{{0, syn}, {1, synAck}, {0, ack}, {1, segmentView{seq: 501, flags: tcpFlagRST}}, {0, with(syn, func(s *segmentView) { s.seq = 7777 })}}, stateSynSent},
		{"late segment after RST", []step{{0, syn}, {1, synAck}, {0, ack}, {1, segmentView{seq: 501, flags: tcpFlagRST}}, {0, ack}}, stateClosed},
		{"SYN-ACK first, the SYN went another way", []step{{0, synAck}, {1, with(ack, func(s *segmentView) { s.seq, s.ack = 101, 501 })}}, stateEstablished},
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
