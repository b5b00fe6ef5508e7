package nat

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"culvert/nat/packet"

	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcpconntrack"
)

// A host is one end of a simulated TCP connection.
type host struct {
	next, acked uint32 // what it sends and expects next
	fin         bool
	sent        []packet.Segment
	payload     []int
}

// A bout is a simulated connection: what both hosts send, as a gateway between them sees it.
type bout struct {
	r     *rand.Rand
	hosts [2]host
}

func (b *bout) segment(d int, flags byte, n int) (packet.Segment, int) {
	h := &b.hosts[d]
	s := packet.Segment{Seq: h.next, Ack: h.acked, Flags: flags, Window: b.window(), Length: uint32(n)}
	if flags&packet.ACK == 0 {
		s.Ack = 0
	}
	if flags&(packet.SYN|packet.FIN) != 0 {
		s.Length++
	}
	h.next += s.Length
	h.sent, h.payload = append(h.sent, s), append(h.payload, n)
	return s, n
}

// window returns one that has room for all that step keeps in flight, so that no sender overruns
// it.
func (b *bout) window() uint16 { return uint16(22_000 + b.r.IntN(65536-22_000)) }

// arrive is what the other host makes of a segment that was not lost.
func (b *bout) arrive(d int, s packet.Segment) {
	to := &b.hosts[1-d]
	if s.Seq == to.acked {
		to.acked += s.Length
	}
}

// step returns the next segment of the bout and who sent it.
func (b *bout) step() (d int, s packet.Segment, n int) {
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
		s, n = b.segment(d, packet.ACK, b.r.IntN(1400))
	case k == 12 && !h.fin:
		h.fin = true
		s, n = b.segment(d, packet.ACK|packet.FIN, b.r.IntN(100))
	case k == 13 && b.r.IntN(20) == 0:
		s = packet.Segment{Seq: h.next, Ack: h.acked, Flags: packet.RST | packet.ACK}
	default:
		s = packet.Segment{Seq: h.next, Ack: h.acked, Flags: packet.ACK, Window: b.window()}
	}
	return d, s, n
}

func tcpBytes(s packet.Segment) header.TCP {
	h := header.TCP(make([]byte, header.TCPMinimumSize))
	h.Encode(&header.TCPFields{SeqNum: s.Seq, AckNum: s.Ack, Flags: header.TCPFlags(s.Flags), WindowSize: s.Window,
		DataOffset: header.TCPMinimumSize})
	return h
}

// TestTCPOracle compares the state of random connections with gVisor's tcpconntrack, segment by
// segment. What the oracle is known to get wrong is left out here and has tests of its own below.
// NAT_SEED replays a run.
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
		note := func(d int, s packet.Segment, now fmt.Stringer) {
			log = append(log, fmt.Sprintf("%d %+v -> %v %v", d, s, now, tcb.State()))
		}
		s, n := b.segment(0, packet.SYN, r.IntN(2)*r.IntN(1000))
		now := state.open(&s, 0)
		tcb.Init(tcpBytes(s), n)
		end := b.hosts[0].next
		b.hosts[1].acked = s.Seq + 1 + uint32(r.IntN(n+1)) // it need not take all data of a SYN
		b.hosts[0].next = b.hosts[1].acked
		s, _ = b.segment(1, packet.SYN|packet.ACK, 0)
		now = state.next(now, &s, 1)
		tcb.UpdateStateReply(tcpBytes(s), 0)
		b.hosts[0].acked = s.Seq + 1
		s, n = b.segment(0, packet.ACK, int(end-b.hosts[0].next)) // and is sent the rest again
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
		return s == stateSynReceived || s == stateEstablished || s == stateFinWait || s == stateCloseWait ||
			s == stateLastAck
	case tcpconntrack.ResultReset:
		return s == stateClosed
	}
	return s == stateTimeWait
}

// What tcpconntrack does not do, or does otherwise, and what an attacker might try.
func TestTCPBeyondOracle(t *testing.T) {
	for _, test := range slices.Concat(openings, opened, fastOpens) {
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

type tcpStep struct {
	d int
	s packet.Segment
}

type tcpCase struct {
	name  string
	steps []tcpStep
	want  state
}

// A handshake, and a SYN with data.
var (
	syn      = packet.Segment{Seq: 100, Length: 1, Flags: packet.SYN, Window: 1000, MSS: 1400}
	synAck   = packet.Segment{Seq: 500, Ack: 101, Length: 1, Flags: packet.SYN | packet.ACK, Window: 1000, MSS: 1300}
	ack      = packet.Segment{Seq: 101, Ack: 501, Flags: packet.ACK, Window: 1000}
	fastOpen = with(syn, func(s *packet.Segment) { s.Length = 101 })
)

func with(s packet.Segment, change func(*packet.Segment)) packet.Segment { change(&s); return s }

// at returns a segment with other numbers.
func at(s packet.Segment, seq, ack uint32) packet.Segment { s.Seq, s.Ack = seq, ack; return s }

func refusing(n uint32) packet.Segment { return packet.Segment{Ack: n, Flags: packet.RST | packet.ACK} }

var openings = []tcpCase{
	{"SYN retransmitted with ECN", []tcpStep{{0, syn}, {0, with(syn, func(s *packet.Segment) { s.Flags |= 0xc0 })},
		{1, synAck}, {0, ack}}, stateEstablished},
	{"RST by the originator in SYN-SENT", []tcpStep{{0, syn}, {0, packet.Segment{Seq: 101, Flags: packet.RST}}},
		stateClosed},
	{"RST by the responder that acknowledges nothing", []tcpStep{{0, syn}, {1, refusing(7)}}, stateSynSent},
	{"connection refused", []tcpStep{{0, syn}, {1, refusing(101)}}, stateClosed},
	{"SYN with another ISN in SYN-SENT", []tcpStep{{0, syn}, {0, at(syn, 9000, 0)}, {1, at(synAck, 500, 9001)},
		{0, at(ack, 9001, 501)}}, stateEstablished},
	{"SYN-ACK for another SYN", []tcpStep{{0, syn}, {1, at(synAck, 500, 77)}}, stateSynSent},
	{"simultaneous open", []tcpStep{{0, syn}, {1, with(synAck, func(s *packet.Segment) {
		s.Flags, s.Ack = packet.SYN, 0
	})},
		{0, at(synAck, 100, 501)}, {1, at(ack, 501, 101)}}, stateEstablished},
	{"simultaneous open with SYN-ACKs", []tcpStep{{0, syn}, {1, with(synAck, func(s *packet.Segment) {
		s.Flags, s.Ack = packet.SYN, 0
	})},
		{0, at(synAck, 100, 501)}, {1, at(synAck, 500, 101)}, {0, ack}}, stateEstablished},
	{"SYN-ACK first, the SYN went another way", []tcpStep{{0, synAck}, {1, at(ack, 101, 501)}}, stateEstablished},
	{"mid-stream", []tcpStep{{0, ack}, {1, at(ack, 501, 101)}}, stateEstablished},
	{"mid-stream FIN both ways", []tcpStep{{0, with(ack, func(s *packet.Segment) {
		s.Flags |= packet.FIN
		s.Length = 1
	})},
		{1, packet.Segment{Seq: 501, Ack: 102, Length: 1, Flags: packet.ACK | packet.FIN, Window: 9}},
		{0, packet.Segment{Seq: 102, Ack: 502, Flags: packet.ACK, Window: 9}}}, stateTimeWait},
}

var opened = []tcpCase{
	{"inexact RST in the window, RFC 5961", []tcpStep{{0, syn}, {1, synAck}, {0, ack},
		{1, packet.Segment{Seq: 511, Flags: packet.RST}}}, stateEstablished},
	{"RST outside of the window", []tcpStep{{0, syn}, {1, synAck}, {0, ack},
		{1, packet.Segment{Seq: 1 << 30, Flags: packet.RST}}}, stateEstablished},
	{"exact RST", []tcpStep{{0, syn}, {1, synAck}, {0, ack}, {1, packet.Segment{Seq: 501, Flags: packet.RST}}},
		stateClosed},
	{"late segment after RST", []tcpStep{{0, syn}, {1, synAck}, {0, ack},
		{1, packet.Segment{Seq: 501, Flags: packet.RST}}, {0, ack}}, stateClosed},
	{"SYN in ESTABLISHED, RFC 5961", []tcpStep{{0, syn}, {1, synAck}, {0, ack}, {0, at(syn, 77, 0)}}, stateEstablished},
	{"FIN outside of the window", []tcpStep{{0, syn}, {1, synAck}, {0, ack},
		{1, packet.Segment{Seq: 1 << 29, Ack: 101, Length: 1, Flags: packet.FIN | packet.ACK}}}, stateEstablished},
	{"FIN that acknowledges what was never sent", []tcpStep{{0, syn}, {1, synAck}, {0, ack},
		{1, packet.Segment{Seq: 501, Ack: 1 << 20, Length: 1, Flags: packet.FIN | packet.ACK}}}, stateEstablished},
	{"FIN with an acknowledgement that is too old", []tcpStep{{0, syn}, {1, synAck}, {0, ack},
		{1, packet.Segment{Seq: 501, Ack: 1<<32 - 1<<17, Length: 1, Flags: packet.FIN | packet.ACK}}},
		stateEstablished},
	{"FIN with an old acknowledgement", []tcpStep{{0, syn}, {1, synAck}, {0, ack},
		{0, with(ack, func(s *packet.Segment) { s.Length = 900 })},
		{1, packet.Segment{Seq: 501, Ack: 1001, Flags: packet.ACK}},
		{1, packet.Segment{Seq: 501, Ack: 501, Length: 1, Flags: packet.FIN | packet.ACK}}}, stateFinWait},
	{"FIN without an acknowledgement", []tcpStep{{0, syn}, {1, synAck}, {0, ack},
		{1, packet.Segment{Seq: 501, Length: 1, Flags: packet.FIN}}}, stateEstablished},
}

var fastOpens = []tcpCase{
	{"data of a SYN taken, RFC 7413", []tcpStep{{0, fastOpen}, {1, at(synAck, 500, 201)}, {0, at(ack, 201, 501)}},
		stateEstablished},
	{"data of a SYN taken in part", []tcpStep{{0, fastOpen}, {1, at(synAck, 500, 150)}, {0, at(ack, 150, 501)}},
		stateEstablished},
	{"data of a SYN not taken", []tcpStep{{0, fastOpen}, {1, synAck}, {0, ack}}, stateEstablished},
	{"data of a SYN sent again without a SYN", []tcpStep{{0, fastOpen}, {1, synAck},
		{0, with(ack, func(s *packet.Segment) { s.Length = 100 })}}, stateEstablished},
	{"SYN-ACK that does not acknowledge the SYN", []tcpStep{{0, fastOpen}, {1, at(synAck, 500, 100)}}, stateSynSent},
	{"SYN-ACK of more data than a SYN has", []tcpStep{{0, fastOpen}, {1, at(synAck, 500, 202)}}, stateSynSent},
	{"SYN repeated without its data, which the server has taken", []tcpStep{{0, fastOpen}, {0, syn},
		{1, at(synAck, 500, 201)}, {0, at(ack, 201, 501)}}, stateEstablished},
	{"data of the server before the handshake ends", []tcpStep{{0, fastOpen}, {1, at(synAck, 500, 201)},
		{1, packet.Segment{Seq: 501, Ack: 201, Length: 1000, Flags: packet.ACK}},
		{0, packet.Segment{Seq: 201, Ack: 501, Flags: packet.ACK}}}, stateEstablished},
	{"SYN with data refused", []tcpStep{{0, fastOpen}, {1, refusing(201)}}, stateClosed},
	{"SYN with data refused, its data ignored", []tcpStep{{0, fastOpen}, {1, refusing(101)}}, stateClosed},
	{"RST that acknowledges more than a SYN has", []tcpStep{{0, fastOpen}, {1, refusing(202)}}, stateSynSent},
}

// What a window means follows from the newest acknowledgement. Segments that overtake one another
// tell nothing about it.
func TestTCPWindow(t *testing.T) {
	var tcp tcpState
	now := tcp.open(&packet.Segment{Seq: 100, Length: 1, Flags: packet.SYN, Window: 1000, Shift: 7, Scaled: true}, 0)
	steps := []struct {
		name string
		d    int
		s    packet.Segment
		want uint32 // of direction 1
	}{
		{"a SYN's is not scaled", 1, packet.Segment{Seq: 500, Ack: 101, Length: 1, Flags: packet.SYN | packet.ACK,
			Window: 5120, Shift: 7, Scaled: true}, 5120},
		{"handshake", 0, packet.Segment{Seq: 101, Ack: 501, Flags: packet.ACK}, 5120},
		{"an acknowledgement opens it", 1, packet.Segment{Seq: 501, Ack: 101, Length: 10, Flags: packet.ACK,
			Window: 4000}, 4000 << 7},
		{"data", 0, packet.Segment{Seq: 101, Ack: 511, Length: 1000, Flags: packet.ACK}, 4000 << 7},
		{"the newest acknowledgement opens it further", 1, packet.Segment{Seq: 511, Ack: 1101, Flags: packet.ACK,
			Window: 8000}, 8000 << 7},
		{"an older acknowledgement is late", 1, packet.Segment{Seq: 511, Ack: 601, Flags: packet.ACK,
			Window: 3}, 8000 << 7},
		{"an older segment is late", 1, packet.Segment{Seq: 501, Ack: 1101, Length: 10, Flags: packet.ACK,
			Window: 3}, 8000 << 7},
		{"the same acknowledgement, the window filled", 1, packet.Segment{Seq: 511, Ack: 1101, Flags: packet.ACK,
			Window: 2}, 2 << 7},
		{"a retransmission that acknowledges more", 1, packet.Segment{Seq: 501, Ack: 1101, Length: 20,
			Flags: packet.ACK, Window: 9}, 9 << 7},
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

// talk sends data both ways between two ends that have got as far as next, as a gateway between
// them sees it.
func talk(tcp *tcpState, now state, next *[2]uint32, rounds int) state {
	for range rounds {
		for d := range 2 {
			now = tcp.next(now, &packet.Segment{Seq: next[d], Ack: next[1-d], Length: 1000, Flags: packet.ACK,
				Window: 1000}, d)
			next[d] += 1000
		}
	}
	return now
}

// inMidLife returns an established connection and the numbers that both ends send next.
func inMidLife() (tcp tcpState, now state, next [2]uint32) {
	tcp.open(&packet.Segment{Seq: 99, Length: 1, Flags: packet.SYN}, 0)
	now = tcp.next(stateSynSent, &packet.Segment{Seq: 499, Ack: 100, Length: 1, Flags: packet.SYN | packet.ACK}, 1)
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
		s    packet.Segment
		want state
	}{
		{0, packet.Segment{Seq: next[0], Ack: next[1], Length: 1, Flags: packet.FIN | packet.ACK}, stateFinWait},
		{1, packet.Segment{Seq: next[1], Ack: next[0] + 1, Length: 1, Flags: packet.FIN | packet.ACK}, stateLastAck},
		{0, packet.Segment{Seq: next[0] + 1, Ack: next[1] + 1, Flags: packet.ACK}, stateTimeWait},
	} {
		if now = tcp.next(now, &step.s, step.d); now != step.want {
			t.Fatalf("%v, want %v", now, step.want)
		}
	}
}

// Ends that do not hear each other say the same again. That tells nothing new, and a connection
// that is over stays so.
func TestTCPRepetitions(t *testing.T) {
	tcp, now, next := inMidLife()
	fins := [2]packet.Segment{
		{Seq: next[0], Ack: next[1], Length: 1, Flags: packet.FIN | packet.ACK},
		{Seq: next[1], Ack: next[0] + 1, Length: 1, Flags: packet.FIN | packet.ACK},
	}
	now = tcp.next(now, &fins[0], 0)
	now = tcp.next(now, &fins[1], 1)
	now = tcp.next(now, &packet.Segment{Seq: next[0] + 1, Ack: next[1] + 1, Flags: packet.ACK}, 0)
	for range 2 * strays {
		for d := range fins {
			if now = tcp.next(now, &fins[d], d); now != stateTimeWait {
				t.Fatalf("%v, want %v", now, stateTimeWait)
			}
		}
	}
}

// Who speaks for one end alone cannot make the gateway forget what it knows: the other end goes on
// as before.
func TestTCPKeepsItsGroundAgainstOneSide(t *testing.T) {
	tcp, now, next := inMidLife()
	junk := packet.Segment{Seq: next[1] + 1<<24, Ack: next[0] + 1<<24, Length: 1000, Flags: packet.ACK, Window: 1}
	for range 3 * strays {
		for range 100 {
			now = tcp.next(now, &junk, 1)
			junk.Seq += 1000
		}
		challenge := packet.Segment{Seq: next[0], Ack: next[1], Flags: packet.ACK, Window: 1000} // RFC 5961, Section 5
		now = tcp.next(now, &challenge, 0)
	}
	if now != stateEstablished || tcp.end != next {
		t.Fatalf("%v, knows %v of %v", now, tcp.end, next)
	}
	if now = tcp.next(now, &packet.Segment{Seq: next[1], Flags: packet.RST}, 1); now != stateClosed {
		t.Fatalf("%v after an exact RST", now)
	}
}
