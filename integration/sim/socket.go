package sim

import (
	"bytes"
	"net"
	"net/netip"
	"slices"
	"sync"

	"golang.zx2c4.com/wireguard/device"

	"culvert/geneve/udp"
)

// port is a place in the world's network where datagrams come to. Two gateways have it while one
// takes over from the other.
type port struct {
	local netip.AddrPort
	send  func(to netip.AddrPort, data []byte)
	close func() // when nobody has it any more

	mu        sync.Mutex
	sockets   []*socket // +checklocks:mu
	queue     []arrival // +checklocks:mu
	overflows uint64    // +checklocks:mu
}

// socket is a udp.Conn, a gateway's way to a port.
type socket struct {
	*port
	greets func() // is called before a handshake begins
	ready  chan struct{}
	woken  bool      // +checklocks:port.mu
	closed bool      // +checklocks:port.mu
	stats  udp.Stats // +checklocks:port.mu
	taken  uint64    // datagrams received; +checklocks:port.mu
	data   uint64    // WireGuard's messages with packets in them that were sent; +checklocks:port.mu
}

type arrival struct {
	from netip.AddrPort
	data []byte
}

// socketRoom is how many datagrams wait at a socket before it overflows.
const socketRoom = 1024

// open returns a socket that has the port, beside those that do already.
func (p *port) open(greets func()) *socket {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &socket{port: p, greets: greets, ready: make(chan struct{}, 1),
		stats: udp.Stats{GRO: true, GSO: true, OverflowsKnown: true, ReceiveBuffer: udp.DefaultSocketBuffer,
			SendBuffer: udp.DefaultSocketBuffer}}
	p.sockets = append(p.sockets, s)
	return s
}

// arrive queues a datagram.
func (p *port) arrive(from netip.AddrPort, data []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.queue) == socketRoom {
		p.overflows++
		return
	}
	p.queue = append(p.queue, arrival{from, data})
	for _, s := range p.sockets {
		s.signal()
	}
}

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

// gather makes one message of what has come one after the other from one address in one size, the
// last one in no larger one, as UDP_GRO does. It returns how many that are.
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
		all := bytes.Join(t.Parts, nil)
		if len(all) > 0 && all[0] == device.MessageInitiationType {
			s.greets()
		}
		if closed {
			continue
		}
		size := t.SegmentSize
		if size <= 0 {
			size = len(all)
		}
		for {
			n := min(size, len(all))
			if n > device.MessageKeepaliveSize && all[0] == device.MessageTransportType {
				s.mu.Lock()
				s.data++
				s.mu.Unlock()
			}
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
	last := !s.closed && len(s.sockets) == 1
	s.closed = true
	s.sockets = slices.DeleteFunc(s.sockets, func(x *socket) bool { return x == s })
	s.signal()
	s.mu.Unlock()
	if last {
		s.port.close()
	}
	return nil
}

// Stats implements udp.Conn.
func (s *socket) Stats() udp.Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Overflows, st.Waits = s.overflows, len(s.queue) > 0
	return st
}

// counts returns how many datagrams were received, and how many messages with packets in them were
// sent.
func (s *socket) counts() (taken, data uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taken, s.data
}

// The rest of udp.Conn. Receive misses nothing, so that Poll has nothing to do.
func (s *socket) LocalAddr() netip.AddrPort { return s.local }
func (s *socket) Poll()                     {}
func (s *socket) GSO(netip.Addr) bool       { return true }
func (s *socket) SetMark(uint32) error      { return nil }
