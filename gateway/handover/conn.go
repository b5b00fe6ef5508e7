package handover

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"sync/atomic"

	"culvert/geneve/udp"
)

// Conn is a udp.Conn that two processes have, one of which forwards. In one that forwards,
// and is alone, it is the socket and one load more for each batch.
type Conn struct {
	udp.Conn
	way    atomic.Pointer[way] // nil = the socket
	closed chan struct{}
	once   sync.Once

	mu  sync.Mutex
	own map[uint32]bool // +checklocks:mu
}

// way is what is done in place of receiving from the socket and sending by it. The zero way
// does neither.
type way struct {
	relay  *Relay // to and from the other process; nil = none
	reads  bool   // from the socket; what is not for this process is passed on
	lends  bool   // what may be for the other process is passed on as well
	sends  bool
	greets func() // not nil: sends what begins a session, and calls it when there is one
	parked chan struct{}
	park   sync.Once
	ended  chan struct{} // there is another way
}

// NewConn returns a Conn that is the socket.
func NewConn(socket udp.Conn) *Conn {
	return &Conn{Conn: socket, closed: make(chan struct{}), own: make(map[uint32]bool)}
}

// Stop has the Conn receive from the socket no more, but from a Relay if there is one, and
// still send. The channel is closed when who receives has come back for more, and so has done
// all with what it received before.
func (c *Conn) Stop(r *Relay) (parked <-chan struct{}) {
	return c.set(&way{relay: r, sends: true}).parked
}

// Silence is Stop and sends nothing either.
func (c *Conn) Silence(r *Relay) { c.set(&way{relay: r}) }

// Greet is Silence for a Conn of WireGuard in the new process: it sends what begins a session,
// and receives what the other process passes on. It calls session when there is one, and may do
// so again. A socket that is this process's alone it reads, too: the peer sends to where it has
// last heard the gateway (WireGuard paper, Section 2.1), in sessions of the other process as well,
// and those are passed back.
func (c *Conn) Greet(r *Relay, alone bool, session func()) {
	c.set(&way{relay: r, reads: alone, greets: session})
}

// Lend passes answers to handshakes on to the other process, which may have begun them, and receives
// what that one passes back.
func (c *Conn) Lend(r *Relay) {
	r.wakes(c.Conn)
	c.set(&way{relay: r, reads: true, lends: true, sends: true})
}

// Lead has the new process receive and send, and passes back data of sessions that it has not
// made.
func (c *Conn) Lead(r *Relay) {
	r.wakes(c.Conn)
	c.set(&way{relay: r, reads: true, sends: true})
}

// Drain reads a socket that the new process has no use for, until it is closed or fails: data of sessions that
// c has not made is passed back, and c receives the rest.
func (c *Conn) Drain(socket udp.Conn, r *Relay) {
	m := []udp.Message{{Buffer: make([]byte, udp.BufferSize)}}
	for {
		n, err := socket.Receive(m)
		if err != nil && !errors.Is(err, udp.ErrWoken) {
			return
		}
		if n > 0 && c.keepOwn(r, &m[0]) {
			each(&m[0], func(b []byte) { r.receive(message{m[0].Source, bytes.Clone(b)}) })
		}
	}
}

// Own has the Conn be the socket again.
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
				messages[kept], messages[i] = messages[i], messages[kept] // buffers stay the caller's, each once
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

// WireGuard's messages, by their first four bytes (WireGuard paper, Section 5.4). An initiation
// and an answer tell the index of their sender's session, which data messages to it then have.
const (
	initiation = 1
	answer     = 2
	cookie     = 3
	data       = 4

	indexAt = 4
	minimum = 8 // bytes of what has an index
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

// lend passes on what answers a handshake.
func lend(r *Relay, m *udp.Message) {
	each(m, func(b []byte) {
		if k := kindOf(b); k == answer || k == cookie {
			r.pass(m.Source, b)
		}
	})
}

// keepOwn passes data of other sessions back, and reports whether anything is left of m.
func (c *Conn) keepOwn(r *Relay, m *udp.Message) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	kept, own := 0, c.own
	each(m, func(b []byte) {
		if kindOf(b) == data && !own[indexOf(b)] {
			r.pass(m.Source, b)
			return
		}
		if kindOf(b) == data {
			r.met.Store(true)
		}
		kept += copy(m.Data[kept:], b)
	})
	m.Data = m.Data[:kept]
	return kept > 0
}

// maxOwn is more sessions than WireGuard keeps: the one before, the one in use and the next.
const maxOwn = 16

// note keeps the index of a session that this process begins or answers.
func (c *Conn) note(b []byte) {
	if k := kindOf(b); k != initiation && k != answer {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.own) == maxOwn {
		clear(c.own)
	}
	c.own[indexOf(b)] = true
}

// NewSender implements udp.Conn.
func (c *Conn) NewSender() udp.Sender { return &sender{c, c.Conn.NewSender(), nil} }

type sender struct {
	conn *Conn
	udp.Sender
	greetings []udp.Train
}

// Send implements udp.Sender. What a parked Conn does not send counts as sent: the other
// process sends what matters.
func (s *sender) Send(trains []udp.Train) (sent int, err error) {
	w := s.conn.way.Load()
	if w == nil {
		return s.Sender.Send(trains)
	}
	for i := range trains {
		for _, part := range trains[i].Parts {
			s.conn.note(part)
		}
	}
	if w.sends {
		return s.Sender.Send(trains)
	}
	s.greetings = s.greetings[:0]
	for i := range trains {
		t := &trains[i]
		switch {
		case w.greets == nil || len(t.Parts) == 0:
		case kindOf(t.Parts[0]) == initiation:
			s.greetings = append(s.greetings, *t)
		case kindOf(t.Parts[0]) == data: // in a session
			w.greets()
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
	if len(s.greetings) > 0 {
		_, err = s.Sender.Send(s.greetings)
	}
	return sent, err
}
