package nat_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"culvert/nat"
	"culvert/nat/nattest"
)

// A streamEnd is one end of a TCP connection. It sends data and a FIN, and receives what the other
// end sends. Numbers are offsets: 0 is the first byte after the SYN.
type streamEnd struct {
	isn  uint32
	data []byte
	una  int // acknowledged
	next int // sent
	edge int // up to which the other end has room

	peer     uint32 // its ISN
	open     bool   // the other end's SYN has arrived
	got      []byte // in order
	finished bool   // its FIN has arrived, in order
	apart    []span // received out of order
	twice    span   // received twice, to be reported in the next D-SACK
	window   int
	most     int // end of the widest window announced
}

// A span is bytes from to until another, of a stream.
type span struct{ from, to int }

// A streamNet is a path between two ends that loses, repeats and reorders, before and behind an
// Engine that restarts.
type streamNet struct {
	*path
	r       *rand.Rand
	change  func(*nat.Config)
	ends    [2]*streamEnd // client, server
	queues  [2][2][][]byte
	expect  [2][]byte // what each end must receive
	options []byte    // of segments with neither SYN nor SACK
	partial bool
	largest int
	loss    float64
	moved   bool
}

// total is the number of bytes that an end sends, including its FIN.
func (s *streamEnd) total() int { return len(s.data) + 1 }

// segment returns the segment from one offset to another.
func (s *streamEnd) segment(from, to int) nattest.TCP {
	t := nattest.TCP{Seq: s.isn + 1 + uint32(from), Ack: s.peer + 1 + uint32(s.received()), Flags: ack,
		Window: uint16(s.window)}
	t.Payload = s.data[min(max(from, 0), len(s.data)):min(to, len(s.data))]
	if from < to && to == s.total() {
		t.Flags |= nattest.FIN
	}
	s.most = max(s.most, s.received()+s.window)
	return t
}

func (s *streamEnd) received() int {
	if s.finished {
		return len(s.got) + 1
	}
	return len(s.got)
}

// synAck answers a SYN.
func (s *streamEnd) synAck() nattest.TCP {
	s.most = max(s.most, s.window)
	return nattest.TCP{Seq: s.isn, Ack: s.peer + 1, Flags: nattest.SYN | ack, Window: uint16(s.window)}
}

// blocks returns SACK blocks: first what was received twice (RFC 2883, Section 4), then what was
// received out of order.
func (s *streamEnd) blocks() (numbers []uint32) {
	all := s.apart
	if s.twice.to > s.twice.from {
		all = append([]span{s.twice}, all...)
		s.twice = span{}
	}
	for _, x := range all[:min(len(all), 3)] {
		numbers = append(numbers, s.peer+1+uint32(x.from), s.peer+1+uint32(x.to))
	}
	return numbers
}

// say queues a segment from an end.
func (n *streamNet) say(of int, t nattest.TCP) {
	from, to := n.from, n.to
	if of == reply {
		from, to = n.at, n.as
	}
	if t.Flags&nattest.SYN == 0 {
		t.Options = n.options
		if blocks := n.ends[of].blocks(); len(blocks) > 0 {
			t.Options = append(slices.Clone(t.Options), 1, 1, 5, byte(2+4*len(blocks)))
			for _, number := range blocks {
				t.Options = binary.BigEndian.AppendUint32(t.Options, number)
			}
		}
	}
	t.Partial = n.partial && n.r.IntN(2) == 0 || len(t.Payload) > 1200
	n.put(of, 0, segmentOf(from, to, t))
}

const original, reply = 0, 1

// put queues a packet before or behind the engine, unless it is lost.
func (n *streamNet) put(of, at int, b []byte) {
	for range 2 {
		if n.r.Float64() >= n.loss {
			n.queues[of][at] = append(n.queues[of][at], b)
		}
		if n.r.IntN(20) > 0 {
			return
		}
	}
}

// take removes a packet from a queue, not always the first.
func (n *streamNet) take(of, at int) []byte {
	q := &n.queues[of][at]
	i := 0
	if n.r.IntN(4) == 0 {
		i = n.r.IntN(len(*q))
	}
	b := (*q)[i]
	*q = slices.Delete(*q, i, i+1)
	return b
}

// step does one thing at random.
func (n *streamNet) step() {
	n.now += nat.Time(time.Millisecond)
	of := n.r.IntN(2)
	switch kind := n.r.IntN(8); {
	case kind < 3 && len(n.queues[of][0]) > 0:
		in := n.client
		if of == reply {
			in = n.server
		}
		v, out := process(n.t, n.e, in, n.take(of, 0), n.now)
		if v.Action != nat.Forward {
			n.t.Fatalf("%v %v", v.Action, v.Reason)
		}
		for _, b := range out {
			n.put(of, 1, b)
		}
	case kind < 6 && len(n.queues[of][1]) > 0:
		v, err := nattest.Check(n.take(of, 1))
		if err != nil {
			n.t.Fatal(err)
		}
		n.hear(1-of, v)
	case kind == 6 && n.r.IntN(100) == 0: // another process takes over
		other := engine(n.t, n.change)
		if got := restore(other, n.now, records(n.e, 0, n.now)); !got.Whole ||
			got.Connections+got.Unbound != n.e.Stats().Connections {
			n.t.Fatalf("%+v of %d", got, n.e.Stats().Connections)
		}
		n.e, n.moved = other, true
	case len(n.queues[of][0]) < 8:
		n.speak(of)
	}
}

// speak makes an end send something that it may send.
func (n *streamNet) speak(of int) {
	s := n.ends[of]
	switch {
	case of == original && !s.open:
		t := nattest.TCP{Seq: s.isn, Flags: nattest.SYN, Window: uint16(min(s.window, 65535))}
		if n.r.IntN(3) == 0 {
			t.Payload = s.data[:min(len(s.data), 100)] // TCP Fast Open
		}
		n.say(of, t)
	case !s.open:
	case of == reply && s.una == 0 && s.next == 0 && s.received() == 0 && n.r.IntN(3) == 0:
		n.say(of, s.synAck())
	case n.r.IntN(10) == 0: // a keepalive
		n.say(of, nattest.TCP{Seq: s.isn + uint32(s.una), Ack: s.peer + 1 + uint32(s.received()), Flags: ack,
			Window: uint16(s.window)})
		s.most = max(s.most, s.received()+s.window)
	case s.una < s.next && n.r.IntN(4) == 0: // repeats, in other pieces
		n.say(of, s.segment(s.una, min(s.una+1+n.r.IntN(n.largest), s.next)))
	default:
		end := min(s.next+1+n.r.IntN(n.largest), s.edge, s.total())
		if end <= s.next {
			end = s.next
		}
		n.say(of, s.segment(s.next, end))
		s.next = end
	}
}

// hear gives a segment to an end.
func (n *streamNet) hear(at int, v nattest.View) {
	s, t := n.ends[at], n.t
	if v.Flags&nattest.SYN != 0 {
		if v.Flags&ack != 0 && v.Ack != s.isn+1 {
			t.Fatalf("a SYN-ACK acknowledges %d, want %d", v.Ack-s.isn, 1)
		}
		if len(v.Payload) > 0 {
			t.Fatalf("data of a SYN: %q", v.Payload)
		}
		s.peer, s.open = v.Seq, true
		if at == reply && s.received() == 0 {
			n.say(at, s.synAck())
			return
		}
		if at == original {
			s.edge = max(s.edge, int(binary.BigEndian.Uint16(v.Body[14:])))
		}
		n.say(at, s.segment(s.next, s.next)) // the challenge of a server that has data: RFC 5961, Section 4.2
		return
	}
	if !s.open {
		return
	}
	n.acknowledged(at, v)
	from := int(int32(v.Seq - s.peer - 1))
	fin := v.Flags&nattest.FIN != 0
	to := from + len(v.Payload)
	switch want := n.expect[at]; {
	case from == to && from == len(want)+1 && !fin: // behind the FIN
	case from < 0:
		if from != -1 || len(v.Payload) > 0 {
			t.Fatalf("end %d: %d bytes at %d", at, len(v.Payload), from)
		}
	case to > len(want) || !bytes.Equal(v.Payload, want[from:to]) || fin && to != len(want):
		t.Fatalf("end %d: %d bytes at %d are not those of the stream of %d", at, len(v.Payload), from, len(want))
	case to > s.most:
		t.Fatalf("end %d: bytes up to %d, there is room up to %d", at, to, s.most)
	}
	if from < len(s.got) && to > from {
		s.twice = span{max(from, 0), min(to, len(s.got))}
	}
	if to > from && to > len(s.got) {
		s.apart = append(s.apart, span{from, to})
	}
	for changed := true; changed; {
		changed = false
		s.apart = slices.DeleteFunc(s.apart, func(x span) bool {
			if x.from > len(s.got) {
				return false
			}
			if x.to > len(s.got) {
				s.got, changed = append(s.got, n.expect[at][len(s.got):x.to]...), true
			}
			return true
		})
	}
	if fin && to == len(s.got) {
		s.finished = true
	}
	if to > from || fin || from < 0 {
		n.say(at, s.segment(s.next, s.next))
	}
}

// oldest returns the lowest number that an end may receive. Once a connection has moved, segments
// under way from the beginning of the client's stream are mapped like the rest, to numbers that
// mean nothing to a client (RFC 9293, Section 3.10.7.4: they are ignored).
func (n *streamNet) oldest(at int) int {
	if at == original && n.moved {
		return -len(n.header)
	}
	return 0
}

// acknowledged handles an acknowledgement. The end believes none of bytes that it has not sent.
func (n *streamNet) acknowledged(at int, v nattest.View) {
	s := n.ends[at]
	upTo := int(int32(v.Ack - s.isn - 1))
	if upTo < n.oldest(at) || upTo > s.next {
		n.t.Fatalf("end %d: %d acknowledged of %d", at, upTo, s.next)
	}
	s.una = max(s.una, upTo)
	s.edge = max(s.edge, upTo+int(binary.BigEndian.Uint16(v.Body[14:])))
	for i := 0; i+1 < len(v.Options); {
		kind, length := v.Options[i], 1
		if kind > 1 {
			length = int(v.Options[i+1])
		}
		if kind == 5 {
			for j := i + 2; j < i+length; j += 8 {
				left, right := int(int32(binary.BigEndian.Uint32(v.Options[j:])-s.isn-1)),
					int(int32(binary.BigEndian.Uint32(v.Options[j+4:])-s.isn-1))
				if left < n.oldest(at) || left >= right || right > s.next {
					n.t.Fatalf("end %d: SACK of %d to %d, sent %d", at, left, right, s.next)
				}
			}
		}
		i += length
	}
}

func newStreamNet(t testing.TB, seed uint64, change func(*nat.Config)) *streamNet {
	r := rand.New(rand.NewPCG(seed, 3))
	n := &streamNet{path: pathTo(t, engine(t, change), pathNames[r.IntN(3)]), r: r, change: change, largest: 1200,
		loss: []float64{0, 0.05, 0.3}[r.IntN(3)]}
	if r.IntN(2) == 0 {
		n.options = []byte{1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8}
	}
	n.partial = r.IntN(2) == 0
	if n.partial && r.IntN(2) == 0 {
		n.largest = 60_000
	}
	for i := range n.ends {
		s := &streamEnd{isn: r.Uint32(), data: nattest.Payload(r.IntN(3*n.largest), uint32(seed)),
			window: 100 + r.IntN(65_000)}
		if r.IntN(3) == 0 {
			s.isn = -uint32(r.IntN(100)) // numbers wrap soon
		}
		if r.IntN(4) == 0 {
			s.data = nil
		}
		n.ends[i] = s
	}
	n.expect = [2][]byte{n.ends[reply].data, slices.Concat(n.header, n.ends[original].data)}
	return n
}

func (n *streamNet) done() bool {
	for _, s := range n.ends {
		if !s.finished || s.una < s.total() {
			return false
		}
	}
	return true
}

// Whatever is lost, repeated or late, the server receives the header and then its client's bytes,
// within its window, and each end sees only its own numbers. A connection moves to another Engine
// again and again.
func TestProxyProtocolStreams(t *testing.T) {
	streams := 150
	if testing.Short() {
		streams = 20
	}
	for seed := range streams {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { playStream(t, uint64(seed)) })
	}
}

func playStream(t testing.TB, seed uint64) {
	n := newStreamNet(t, seed, proxied)
	for range 1_000_000 {
		if n.done() {
			break
		}
		n.step()
	}
	for at, s := range n.ends {
		if !n.done() || !bytes.Equal(s.got, n.expect[at]) {
			t.Fatalf("end %d has %d of %d bytes, FIN %t, and %d of its own acknowledged of %d", at, len(s.got),
				len(n.expect[at]), s.finished, s.una, s.total())
		}
	}
	ledger(t, n.e)
}

func FuzzProxyProtocolStream(f *testing.F) {
	f.Add(uint64(1000))
	f.Fuzz(func(t *testing.T, seed uint64) { playStream(t, seed) })
}
