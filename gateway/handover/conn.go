package handover

import (
	"encoding/binary"
	"net"
	"slices"
	"sync"
	"sync/atomic"

	"culvert/geneve/udp"
)

// Conn is a udp.Conn shared by two processes, one of which forwards. In a process that forwards
// alone, it costs one load per batch over the socket itself.
type Conn struct {
	udp.Conn
	way    atomic.Pointer[way] // nil = the socket
	closed chan struct{}
	once   sync.Once

	mu  sync.Mutex
	own []uint32 // indexes of sessions, the newest last; +checklocks:mu
}

// A way replaces the socket for receiving and sending. The zero way does neither.
type way struct {
	relay  *Relay // to and from the other process; nil = none
	reads  bool   // from the socket; messages for the other process are passed on
	lends  bool   // messages that may be for the other process are also passed on
	sends  bool
	only   uint32              // unless sends: the only kind of messages that it sends; 0 = none
	greets func()              // if not nil: called once there is a session
	mute   func(datagrams int) // if not nil: reads the socket and discards what comes
	parked chan struct{}
	park   sync.Once
	ended  chan struct{} // closed when another way replaces this one
}

// NewConn returns a Conn for socket.
func NewConn(socket udp.Conn) *Conn {
	return &Conn{Conn: socket, closed: make(chan struct{})}
}

// Stop makes the Conn receive only from a Relay, if there is one, but still send. The channel is
// closed when the receiving goroutine returns for more, and so has finished with what it received
// before.
func (c *Conn) Stop(r *Relay) (parked <-chan struct{}) {
	return c.set(&way{relay: r, sends: true}).parked
}

// Silence is Stop, and stops sending too.
func (c *Conn) Silence(r *Relay) { c.set(&way{relay: r}) }

// Retire is Silence for a Conn of WireGuard in the old process, with one exception: it sends data
// that was encrypted too late for the cut. The peer still knows the session.
func (c *Conn) Retire(r *Relay) { c.set(&way{relay: r, only: data}) }

// Greet is Silence for a Conn of WireGuard in the new process, with one exception: it sends what
// starts a session, and receives what the other process passes on. It calls session, possibly more
// than once, when there is one.
func (c *Conn) Greet(r *Relay, session func()) {
	c.set(&way{relay: r, only: initiation, greets: session})
}

// Lend passes answers to handshakes on to the other process, which may have initiated them, and
// receives what that process passes back.
func (c *Conn) Lend(r *Relay) {
	r.wakes(c.Conn)
	c.set(&way{relay: r, reads: true, lends: true, sends: true})
}

// Lead makes the new process receive and send. It passes back data of sessions that it did not
// start.
func (c *Conn) Lead(r *Relay) {
	r.wakes(c.Conn)
	c.set(&way{relay: r, reads: true, sends: true})
}

// Mute makes the Conn send nothing and discard what comes to the socket; it calls heard with the
// number of datagrams. One batch that has already been received may still be handed over.
func (c *Conn) Mute(heard func(datagrams int)) { c.set(&way{mute: heard}) }

// Own makes the Conn plain again: it is the only user of the socket.
func (c *Conn) Own() { c.set(nil) }

func (c *Conn) set(w *way) *way {
	if w != nil {
		w.parked, w.ended = make(chan struct{}), make(chan struct{})
	}
	if old := c.way.Swap(w); old != nil {
		close(old.ended)
	}
	c.Conn.Wake()
	return w
}

// Close implements udp.Conn.
func (c *Conn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// Receive implements udp.Conn.
func (c *Conn) Receive(messages []udp.Message) (int, error) {
	w := c.way.Load()
	if w == nil {
		return c.Conn.Receive(messages)
	}
	if w.mute != nil {
		n, err := c.Conn.Receive(messages)
		if n == 0 || c.way.Load() != w { // right after the end of a Mute, the answer to a first handshake comes
			return n, err
		}
		heard := 0
		for i := range n {
			each(&messages[i], func([]byte) { heard++ })
		}
		w.mute(heard)
		return 0, udp.ErrWoken
	}
	if w.reads {
		select {
		case m := <-w.relay.inbox:
			m.fill(&messages[0])
			return 1, nil
		default:
		}
		n, err := c.Conn.Receive(messages)
		kept := 0
		for i := range n {
			if m := &messages[i]; w.lends || c.keepOwn(w.relay, m) {
				if w.lends {
					lend(w.relay, m)
				}
				// buffers stay the caller's, each exactly once
				messages[kept], messages[i] = messages[i], messages[kept]
				kept++
			}
		}
		if n > 0 && kept == 0 {
			return 0, udp.ErrWoken
		}
		return kept, err
	}
	w.park.Do(func() { close(w.parked) })
	var inbox <-chan message
	if w.relay != nil {
		inbox = w.relay.inbox
	}
	select {
	case m := <-inbox:
		m.fill(&messages[0])
		return 1, nil
	case <-w.ended:
		return 0, udp.ErrWoken
	case <-c.closed:
		return 0, net.ErrClosed
	}
}

// WireGuard's message types, by their first four bytes (WireGuard paper, Section 5.4). An
// initiation and a response contain the index of their sender's session, which data messages to it
// then carry.
const (
	initiation = 1
	answer     = 2
	cookie     = 3
	data       = 4

	indexAt = 4
	minimum = 8 // length of a message with an index
)

func kindOf(b []byte) uint32 {
	if len(b) < minimum {
		return 0
	}
	return binary.LittleEndian.Uint32(b)
}

func indexOf(b []byte) uint32 { return binary.LittleEndian.Uint32(b[indexAt:]) }

// each calls yield for each datagram of m.
func each(m *udp.Message, yield func([]byte)) {
	size := m.SegmentSize
	if size <= 0 {
		size = max(len(m.Data), 1)
	}
	for rest := m.Data; len(rest) > 0; {
		n := min(size, len(rest))
		yield(rest[:n])
		rest = rest[n:]
	}
}

// lend passes on responses to handshakes.
func lend(r *Relay, m *udp.Message) {
	each(m, func(b []byte) {
		if k := kindOf(b); k == answer || k == cookie {
			r.pass(m.Source, b)
		}
	})
}

// keepOwn passes back data of other sessions, and reports whether anything of m is left.
func (c *Conn) keepOwn(r *Relay, m *udp.Message) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	kept := 0
	each(m, func(b []byte) {
		if kindOf(b) == data && !slices.Contains(c.own, indexOf(b)) {
			r.pass(m.Source, b)
			return
		}
		kept += copy(m.Data[kept:], b)
	})
	m.Data = m.Data[:kept]
	return kept > 0
}

// maxOwn is more sessions than WireGuard keeps: the previous, the current and the next one.
const maxOwn = 16

// addOwn records the index of a session that this process starts or answers.
func (c *Conn) addOwn(b []byte, w *way) {
	if k := kindOf(b); k != initiation && k != answer {
		return
	}
	if w.relay != nil { // after Stop too: packets received before it may still cause messages
		w.relay.spoke.Store(Monotonic())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.own) == maxOwn {
		c.own = slices.Delete(c.own, 0, 1)
	}
	c.own = append(c.own, indexOf(b))
}

// NewSender implements udp.Conn.
func (c *Conn) NewSender() udp.Sender { return &sender{c, c.Conn.NewSender(), nil} }

type sender struct {
	conn *Conn
	udp.Sender
	allowed []udp.Train // the trains of one call that a way sends
}

// Send implements udp.Sender. Packets that a parked Conn does not send count as sent: the other
// process sends what matters.
func (s *sender) Send(trains []udp.Train) (sent int, err error) {
	w := s.conn.way.Load()
	if w == nil {
		return s.Sender.Send(trains)
	}
	for i := range trains {
		for _, part := range trains[i].Parts {
			s.conn.addOwn(part, w)
		}
	}
	if w.sends {
		return s.Sender.Send(trains)
	}
	s.allowed = s.allowed[:0]
	for i := range trains {
		t := &trains[i]
		if len(t.Parts) > 0 {
			switch kind := kindOf(t.Parts[0]); {
			case w.only != 0 && kind == w.only:
				s.allowed = append(s.allowed, *t)
			case w.greets != nil && kind == data: // within a session
				w.greets()
			}
		}
		t.Sent = 1
		if t.SegmentSize > 0 {
			size := 0
			for _, p := range t.Parts {
				size += len(p)
			}
			t.Sent = (size + t.SegmentSize - 1) / t.SegmentSize
		}
		sent += t.Sent
	}
	if len(s.allowed) > 0 {
		_, err = s.Sender.Send(s.allowed)
	}
	return sent, err
}
