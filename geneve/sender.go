package geneve

import (
	"errors"
	"net"
	"time"

	"culvert/geneve/udp"
)

const (
	// arenaSize is the room in bytes for the packets of one flush: three full trains of one tunnel,
	// or 128 packets to many.
	arenaSize = 256 << 10
	// maxTrains is the number of trains of one flush.
	maxTrains = 64
	// singleTime is how long a tunnel goes without trains after the kernel has refused one.
	singleTime = 10 * time.Second
	// stallTime is more than a flush takes unless the socket's send buffer was full for all of it.
	stallTime = 100 * time.Millisecond
)

// Sender sends to tunnels for one goroutine. It copies packets into its own arena until Flush, or
// until the arena is full.
type Sender struct {
	e      *Endpoint
	out    udp.Sender
	arena  []byte
	used   int
	trains []udp.Train
	open   []openTrain // the same trains
	now    time.Duration
	fresh  bool // now was read since the last Flush

	// The reservation.
	t    *tunnel
	room int
}

// openTrain is the state of a train that is being built.
type openTrain struct {
	t                *tunnel
	bytes, datagrams int
	end              int  // end of its last datagram in the arena
	full             bool // a shorter datagram has ended it
	single           bool // must be sent as single datagrams
}

// NewSender returns a Sender.
func (e *Endpoint) NewSender() *Sender {
	return &Sender{
		e: e, out: e.socket.NewSender(), arena: make([]byte, arenaSize),
		trains: make([]udp.Train, 0, maxTrains), open: make([]openTrain, 0, maxTrains),
	}
}

// Send sends a copy of an inner IP packet to the tunnel with this ID, at the latest with the next
// Flush. The Reason is also Accepted for a packet that waits for its neighbour; otherwise the
// packet is dropped and counted.
func (s *Sender) Send(id uint16, packet []byte) Reason {
	buffer, r := s.Reserve(id, len(packet))
	if r != Accepted {
		return r
	}
	return s.Commit(copy(buffer, packet))
}

// Reserve returns room for a packet of up to size bytes to the tunnel with this ID, to be written
// there and sent by Commit. If the Reason is not Accepted, the packet counts as dropped. borrowed:
// the room belongs to the Sender and is valid until the next call of any method.
func (s *Sender) Reserve(id uint16, size int) ([]byte, Reason) {
	s.room = 0
	t := s.e.table.Load().byID(id)
	if t == nil {
		return nil, s.e.drop(UnknownTunnel, 1)
	}
	if size > t.maxPacket() {
		return nil, s.e.drop(TooLong, 1)
	}
	need := t.templateLen + size
	if len(s.arena)-s.used < need || len(s.trains) == maxTrains {
		s.Flush()
	}
	s.t, s.room = t, size
	start := s.used + t.templateLen
	return s.arena[start : start+size : start+size], Accepted
}

// Commit sends the first n bytes of the reserved room, at the latest with the next Flush. It panics
// if n is larger than the reservation. Commit of 0 cancels it.
func (s *Sender) Commit(n int) Reason {
	if n > s.room {
		panic("geneve: commit of more than was reserved")
	}
	t := s.t
	s.t, s.room = nil, 0
	if n == 0 {
		return Accepted
	}
	datagram := s.arena[s.used : s.used+t.templateLen+n]
	packet := datagram[t.templateLen:]
	if !isIP(packet) {
		s.e.showRefused(t, packet, BadPacket)
		return s.e.drop(BadPacket, 1)
	}
	if !s.fresh {
		s.now, s.fresh = s.e.now(), true
	}
	to := newSpeaker(Geneve, 0)
	if t.Inner == Ethernet {
		to = t.neighbour.load()
		if to.mac() == 0 {
			var r Reason
			if r, to = s.e.neighbours.hold(t, packet); to.mac() == 0 {
				if r != Accepted {
					s.e.showRefused(t, packet, r)
				}
				return s.e.drop(r, 1)
			}
		}
		if s.now-time.Duration(t.neighbour.lastHeard.Load()) > reachableTime {
			s.e.neighbours.confirm(t, s.now)
		}
	}
	t.encap(datagram, to, etherTypeOf(packet))
	if tap := s.e.tap.Load(); tap != nil {
		(*tap)(&Datagram{Outbound: true, Peer: t.destination, Tunnel: t.ID, Data: datagram, Inner: packet})
	}
	// RFC 6040, Section 4.1: in normal mode the outer ECN field is a copy of the inner one. DSCP is
	// not copied.
	s.add(t, datagram, ecnOf(packet))
	s.used += len(datagram)
	return Accepted
}

// isIP reports whether b begins like an IP packet.
func isIP(b []byte) bool {
	return len(b) >= 20 && b[0]>>4 == 4 || len(b) >= 40 && b[0]>>4 == 6
}

// add appends a datagram, which is at s.used, to its tunnel's open train or to a new one.
func (s *Sender) add(t *tunnel, datagram []byte, tos uint8) {
	for i := len(s.open) - 1; i >= 0; i-- {
		o, train := &s.open[i], &s.trains[i]
		if o.t != t {
			continue
		}
		// Only the newest train of a tunnel is open, which keeps its packets in order.
		if o.full || train.TOS != tos || len(datagram) > train.SegmentSize || o.datagrams == udp.MaxSegments ||
			o.bytes+len(datagram) > udp.MaxPayload {
			break
		}
		if o.end == s.used { // flat: the datagrams are adjacent in the arena
			last := len(train.Parts) - 1
			train.Parts[last] = s.arena[o.end-len(train.Parts[last]) : s.used+len(datagram)]
		} else {
			train.Parts = append(train.Parts, datagram)
		}
		o.bytes += len(datagram)
		o.datagrams++
		o.end = s.used + len(datagram)
		o.full = len(datagram) < train.SegmentSize
		return
	}
	i := len(s.trains)
	s.trains = s.trains[:i+1]
	single := !t.trains(s.now)
	train := &s.trains[i]
	*train = t.train(append(train.Parts[:0], datagram))
	train.SegmentSize, train.TOS, train.Single = len(datagram), tos, single
	s.open = append(s.open, openTrain{t: t, bytes: len(datagram), datagrams: 1, end: s.used + len(datagram),
		single: single})
}

// Flush sends everything committed. It blocks while the socket's send buffer is full. Datagrams
// that the kernel refuses are dropped and counted. The error is net.ErrClosed after Close, else
// nil.
func (s *Sender) Flush() error {
	s.fresh = false
	if len(s.trains) == 0 {
		return nil
	}
	_, err := s.out.Send(s.trains)
	for i := range s.trains {
		train, o := &s.trains[i], &s.open[i]
		o.t.sentPackets.Add(uint64(train.Sent))
		o.t.sentBytes.Add(uint64(min(o.bytes, train.Sent*train.SegmentSize) - train.Sent*o.t.templateLen))
		if o.datagrams > 1 && !train.Single {
			o.t.sentTrains.Add(1)
		}
		if train.Single && !o.single {
			o.t.refusedTrains.Add(1)
			o.t.singleUntil.Store(int64(s.now + singleTime))
		}
		if lost := o.datagrams - train.Sent; lost > 0 {
			s.e.drop(SendFailed, uint64(lost))
			s.e.showUnsent(train)
		}
	}
	s.used, s.trains, s.open = 0, s.trains[:0], s.open[:0]
	if now := s.e.now(); now-s.now >= stallTime {
		s.e.neighbours.doubt(now)
	}
	if errors.Is(err, net.ErrClosed) {
		return net.ErrClosed
	}
	return nil
}
