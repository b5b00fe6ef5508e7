package sim

import (
	"bytes"
	"net"
	"net/netip"
	"sync"

	"culvert/geneve/udp"
)

// socket is a udp.Conn of the world's network.
type socket struct {
	local netip.AddrPort
	send  func(to netip.AddrPort, data []byte)
	close func()

	mu     sync.Mutex
	queue  []arrival // +checklocks:mu
	woken  bool      // +checklocks:mu
	closed bool      // +checklocks:mu
	stats  udp.Stats // +checklocks:mu
	taken  uint64    // datagrams; +checklocks:mu
	ready  chan struct{}
}

type arrival struct {
	from netip.AddrPort
	data []byte
}

// socketRoom is how many datagrams wait at a socket before it overflows.
const socketRoom = 1024

func newSocket(local netip.AddrPort, send func(to netip.AddrPort, data []byte), closed func()) *socket {
	return &socket{
		local: local, send: send, close: sync.OnceFunc(closed), ready: make(chan struct{}, 1),
		stats: udp.Stats{GRO: true, GSO: true, OverflowsKnown: true, ReceiveBuffer: udp.DefaultSocketBuffer, SendBuffer: udp.DefaultSocketBuffer},
	}
}

// arrive queues a datagram.
func (s *socket) arrive(from netip.AddrPort, data []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) == socketRoom {
		s.stats.Overflows++
		return
	}
	s.queue = append(s.queue, arrival{from, data})
	s.signal()
}

// +checklocks:s.mu
func (s *socket) signal() {
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

// Receive implements udp.Conn.
func (s *socket) Receive(messages []udp.Message) (int, error) {
	for {
		if n, err := s.take(messages); n > 0 || err != nil {
			return n, err
		}
		<-s.ready
	}
}

func (s *socket) take(messages []udp.Message) (n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		s.signal() // for who comes after this one
		return 0, net.ErrClosed
	case s.woken:
		s.woken = false
		return 0, udp.ErrWoken
	}
	at := 0
	for ; n < len(messages) && at < len(s.queue); n++ {
		at += gather(&messages[n], s.queue[at:])
		s.stats.ReceivedMessages++
		s.stats.ReceivedBytes += uint64(len(messages[n].Data))
	}
	s.taken += uint64(at)
	s.queue = append(s.queue[:0], s.queue[at:]...)
	return n, nil
}

// gather makes one message of what has come one after the other from one address in one size, the last one in no larger one, as UDP_GRO does. It
// returns how many that are.
func gather(m *udp.Message, queue []arrival) (n int) {
	first := &queue[0]
	size := copy(m.Buffer, first.data)
	for n = 1; n < min(len(queue), udp.MaxSegments) && len(queue[n-1].data) == len(first.data); n++ {
		if x := &queue[n]; x.from != first.from || len(x.data) > len(first.data) || size+len(x.data) > len(m.Buffer) {
			break
		}
		size += copy(m.Buffer[size:], queue[n].data)
	}
	m.Data, m.Source, m.SegmentSize, m.TOS = m.Buffer[:size], first.from, 0, 0
	if n > 1 {
		m.SegmentSize = len(first.data)
	}
	return n
}

// NewSender implements udp.Conn.
func (s *socket) NewSender() udp.Sender { return sender{s} }

type sender struct{ *socket }

// Send implements udp.Sender.
func (s sender) Send(trains []udp.Train) (sent int, err error) {
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	for i := range trains {
		t := &trains[i]
		t.Sent = 0
		if closed {
			continue
		}
		all := bytes.Join(t.Parts, nil)
		size := t.SegmentSize
		if size <= 0 {
			size = len(all)
		}
		for {
			n := min(size, len(all))
			s.send(t.Destination, all[:n:n])
			t.Sent++
			if all = all[n:]; len(all) == 0 {
				break
			}
		}
		sent += t.Sent
	}
	if closed {
		return 0, net.ErrClosed
	}
	return sent, nil
}

// Wake implements udp.Conn.
func (s *socket) Wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.woken = true
	s.signal()
}

// Close implements udp.Conn.
func (s *socket) Close() error {
	s.mu.Lock()
	s.closed = true
	s.signal()
	s.mu.Unlock()
	s.close()
	return nil
}

// Stats implements udp.Conn.
func (s *socket) Stats() udp.Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Waits = len(s.queue) > 0
	return st
}

// The rest of udp.Conn. Receive misses nothing, so that Poll has nothing to do.
func (s *socket) LocalAddr() netip.AddrPort { return s.local }
func (s *socket) Poll()                     {}
func (s *socket) GSO(netip.Addr) bool       { return true }
func (s *socket) SetMark(uint32) error      { return nil }
