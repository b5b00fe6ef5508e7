package wg

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.zx2c4.com/wireguard/conn"

	"culvert/gateway/latency"
	"culvert/geneve/udp"
)

// bind is wireguard-go's conn.Bind: one UDP socket per address family, read and written in trains.
// Unlike the standard Bind it allocates nothing per packet and survives socket errors.
type bind struct {
	mu   sync.Mutex
	legs []*leg // +checklocks:mu

	current      atomic.Pointer[[]*leg] // copy of legs for Send
	active       atomic.Pointer[leg]    // the last that received
	out, in      *window                // for data messages
	admission    *admission             // for all other messages
	passed       stageTimers
	receiveStops atomic.Uint64 // pauses after receive errors
	trains       peerTrains    // whether trains may be sent
	tap          atomic.Pointer[func(*Message)]
	voice        voice
	hurry        atomic.Pointer[hurry] // nil = none
	carried      atomic.Uint64         // packets from the peer

	sockets udp.Options // of each leg
}

// leg is the socket of one address family.
type leg struct {
	socket udp.Conn
	is4    bool

	// Received but not yet handed over: messages[next:filled], starting at byte offset of the
	// first.
	messages  []udp.Message
	next      int
	filled    int
	offset    int
	endpoints [endpointCache]*endpoint
	handed    []uintptr // buffers of the data messages handed over last, by index; 0 = not a data message
	sample    latency.Sampler

	mu     sync.Mutex
	sender udp.Sender  // +checklocks:mu
	trains []udp.Train // +checklocks:mu
}

const (
	// receiveMessages of 64 KiB are read by one system call. More cause cache misses without a
	// gain: a train of 48 datagrams already amortises the call.
	receiveMessages = 4
	// Without UDP_GRO each message is one datagram.
	receiveDatagrams = 64
	datagramBuffer   = 10 << 10 // holds jumbo frames
	endpointCache    = 64
	receiveBackoff   = 100 * time.Millisecond
)

func newBind(out, in *window, a *admission) *bind {
	return &bind{out: out, in: in, admission: a, voice: voice{born: time.Now()}}
}

// Open implements conn.Bind. On a machine without IPv6 there is one leg.
func (b *bind) Open(port uint16) ([]conn.ReceiveFunc, uint16, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.legs != nil {
		return nil, 0, conn.ErrBindAlreadyOpen
	}
	v4, err := openLeg("udp4", netip.IPv4Unspecified(), port, b.sockets)
	if err != nil {
		return nil, 0, err
	}
	legs := []*leg{v4}
	port = v4.socket.LocalAddr().Port()
	v6, err := openLeg("udp6", netip.IPv6Unspecified(), port, b.sockets)
	switch {
	case err == nil:
		legs = append(legs, v6)
	case !errors.Is(err, syscall.EAFNOSUPPORT) && !errors.Is(err, syscall.EADDRNOTAVAIL):
		v4.socket.Close()
		return nil, 0, err
	}
	var fns []conn.ReceiveFunc
	for _, l := range legs {
		fns = append(fns, func(packets [][]byte, sizes []int, eps []conn.Endpoint) (int, error) {
			return b.receive(l, packets, sizes, eps)
		})
	}
	b.legs = legs
	b.current.Store(&legs)
	return fns, port, nil
}

func openLeg(network string, addr netip.Addr, port uint16, o udp.Options) (*leg, error) {
	s, err := udp.Open(network, netip.AddrPortFrom(addr, port), o)
	if err != nil {
		return nil, err
	}
	messages, size := receiveMessages, udp.BufferSize
	if !s.Stats().GRO {
		messages, size = receiveDatagrams, datagramBuffer
	}
	l := &leg{socket: s, is4: addr.Is4(), sender: s.NewSender(), messages: make([]udp.Message, messages)}
	for i := range l.messages {
		l.messages[i].Buffer = make([]byte, size)
	}
	return l, nil
}

// Close implements conn.Bind.
func (b *bind) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var errs []error
	for _, l := range b.legs {
		errs = append(errs, l.socket.Close())
	}
	b.legs = nil
	return errors.Join(errs...)
}

// SetMark implements conn.Bind.
func (b *bind) SetMark(mark uint32) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range b.legs {
		if err := l.socket.SetMark(mark); err != nil {
			return err
		}
	}
	return nil
}

// BatchSize implements conn.Bind.
func (b *bind) BatchSize() int { return BatchSize }

// ParseEndpoint implements conn.Bind.
func (b *bind) ParseEndpoint(s string) (conn.Endpoint, error) {
	ap, err := netip.ParseAddrPort(s)
	if err != nil {
		return nil, err
	}
	e := &endpoint{addr: ap}
	if last := b.admission.peer.Load(); last != nil && last.addr == ap {
		e.local = last.SrcIP() // the peer was re-created at the same address
		e.untried.Store(true)
	}
	return e, nil
}

// Send implements conn.Bind. wireguard-go calls it from its sender goroutine and, for handshakes,
// from others. The socket counts what it cannot send; that is not returned as an error, which
// wireguard-go could only log once per batch.
func (b *bind) Send(bufs [][]byte, ep conn.Endpoint) error {
	if is := Voice(b.voice.is.Load()); is != Speaking {
		if bufs = b.withhold(is, bufs); len(bufs) == 0 {
			return nil
		}
	}
	b.admission.sent(bufs, ep.(*endpoint))
	if h := b.hurry.Load(); h != nil {
		if also := h.also(bufs, ep.(*endpoint)); also != nil {
			b.sendTo(bufs, also)
		}
	}
	return b.sendTo(bufs, ep.(*endpoint))
}

func (b *bind) sendTo(bufs [][]byte, ep *endpoint) error {
	to := ep.addr
	legs := b.current.Load()
	if legs == nil {
		return net.ErrClosed
	}
	for _, l := range *legs {
		if l.is4 == to.Addr().Is4() {
			if tap := b.tap.Load(); tap != nil {
				for _, m := range bufs {
					(*tap)(&Message{Outbound: true, Peer: to, Data: m})
				}
			}
			timed, begun := b.passed.encrypt.leave(bufs), time.Time{}
			if timed {
				begun = time.Now()
			}
			err := l.send(bufs, ep, &b.trains)
			if timed {
				b.passed.send.Observe(time.Since(begun))
			}
			data := dataMessages(bufs)
			b.out.take(data)
			if data < len(bufs) {
				b.admission.handshakes.sent(bufs)
			}
			return err
		}
	}
	return syscall.EAFNOSUPPORT
}

// dataMessages counts the data messages in bufs.
func dataMessages(bufs [][]byte) (n int) {
	for _, b := range bufs {
		if kindOf(b) == dataMessage {
			n++
		}
	}
	return n
}

// send groups bufs into trains: datagrams of one size, of which only the last may
// be shorter. An endpoint that loses trains gets single datagrams; only probes still go as a train.
func (l *leg) send(bufs [][]byte, ep *endpoint, trains *peerTrains) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.trains = l.trains[:0]
	to, from := ep.addr, ep.SrcIP()
	if ep.untried.Load() {
		ep.untried.Store(false)
	}
	single := trains.lostTo(to)
	for first := 0; first < len(bufs); {
		size := len(bufs[first])
		end, bytes := first+1, size
		for end < len(bufs) && end-first < udp.MaxSegments && len(bufs[end-1]) == size &&
			len(bufs[end]) <= size && bytes+len(bufs[end]) <= udp.MaxPayload {
			bytes += len(bufs[end])
			end++
		}
		probe := single && trains.takeProbe(bufs[first:])
		if probe {
			end = first + 2
		}
		l.trains = append(l.trains, udp.Train{Destination: to, Source: from, SegmentSize: size, Parts: bufs[first:end],
			Single: single && !probe})
		if end-first > 1 {
			trains.count(to, bufs[first:end])
		}
		first = end
	}
	if _, err := l.sender.Send(l.trains); errors.Is(err, net.ErrClosed) {
		return err
	}
	for i := range l.trains {
		if from.IsValid() && !l.trains[i].Source.IsValid() {
			ep.ClearSrc() // the address is gone
		}
	}
	return nil
}

// receive implements conn.ReceiveFunc for one leg.
func (b *bind) receive(l *leg, packets [][]byte, sizes []int, eps []conn.Endpoint) (int, error) {
	b.in.discard(l.untaken(packets))
	b.in.wait()
	for l.next == l.filled {
		n, err := l.socket.Receive(l.messages)
		switch {
		case err == nil:
			l.next, l.filled, l.offset = 0, n, 0
			if b.active.Load() != l {
				b.active.Store(l)
			}
		case errors.Is(err, udp.ErrWoken): // by poll
		case errors.Is(err, net.ErrClosed):
			return 0, net.ErrClosed
		default:
			// Any error except ErrClosed would eventually stop wireguard-go's receiver for good.
			// The kernel's errors here are transient, but must not cause a busy loop.
			b.receiveStops.Add(1)
			time.Sleep(receiveBackoff)
		}
	}
	n, data := l.take(b.admission, b.tap.Load(), packets, sizes, eps)
	b.in.give(data)
	if h := b.hurry.Load(); h != nil && data > 0 {
		h.heard(eps[:n], l.handed)
	}
	if n > 0 {
		b.passed.decrypt.enter(n, func(i int) uintptr { return l.handed[i] }, l.sample.Picks(n))
	}
	return n, nil // n may be 0
}

// untaken counts the data messages of the previous batch that wireguard-go dropped for lack
// of a session. It replaces the buffer of each message it keeps, so an unchanged buffer means a
// drop.
func (l *leg) untaken(packets [][]byte) (n int) {
	for i, buffer := range l.handed[:min(len(l.handed), len(packets))] {
		if buffer != 0 && buffer == bufferOf(packets[i]) {
			n++
		}
	}
	l.handed = l.handed[:0]
	return n
}

// bufferOf identifies a buffer without keeping it alive.
func bufferOf(packet []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(packet))) }

// poll wakes the blocked receive of the peer's leg, if data has arrived.
func (b *bind) poll() {
	if l := b.active.Load(); l != nil {
		l.socket.Poll()
	}
}

// take moves received datagrams that a admits into packets. It returns their number, and the number
// of data messages among them.
func (l *leg) take(a *admission, tap *func(*Message), packets [][]byte, sizes []int,
	eps []conn.Endpoint) (n, data int) {
	for n < len(packets) && l.next < l.filled {
		m := &l.messages[l.next]
		rest := m.Data[l.offset:]
		size := len(rest)
		if m.SegmentSize > 0 && m.SegmentSize < size {
			size = m.SegmentSize
		}
		kind, ok := a.admit(rest[:size], m.Source.Addr())
		if tap != nil {
			shown := Message{Peer: m.Source, Data: rest[:size], Dropped: !ok}
			if !ok {
				shown.Reason = a.refusal(kind, rest[:size])
			}
			(*tap)(&shown)
		}
		if ok {
			sizes[n] = copy(packets[n], rest[:size])
			if last := a.peer.Load(); last != nil && last.addr == m.Source && !m.Destination.IsValid() {
				eps[n] = last // received by another process, which does not say at which address
			} else {
				eps[n] = l.endpoint(m.Source, m.Destination)
			}
			buffer := uintptr(0)
			if kind == dataMessage {
				buffer = bufferOf(packets[n])
				data++
			}
			l.handed = append(l.handed, buffer)
			n++
		}
		if l.offset += size; l.offset >= len(m.Data) {
			l.next++
			l.offset = 0
		}
	}
	return n, data
}

// endpoint returns the Endpoint of addr, heard at our address local. It is the same object until
// another address takes its place in the cache.
func (l *leg) endpoint(addr netip.AddrPort, local netip.Addr) *endpoint {
	b := addr.Addr().As16()
	place := &l.endpoints[(uint16(b[15])^uint16(b[14])<<2^addr.Port())%endpointCache]
	if e := *place; e == nil || e.addr != addr || e.local != local || e.cleared.Load() {
		*place = &endpoint{addr: addr, local: local}
	}
	return *place
}

// port is the sockets' port.
func (b *bind) port() uint16 {
	if legs := b.current.Load(); legs != nil {
		return (*legs)[0].socket.LocalAddr().Port()
	}
	return 0
}

// stats returns the statistics of each leg, IPv4 first.
func (b *bind) stats() (s []udp.Stats) {
	if legs := b.current.Load(); legs != nil {
		for _, l := range *legs {
			s = append(s, l.socket.Stats())
		}
	}
	return s
}

// endpoint is a conn.Endpoint: the peer's outer address, and our address at which it was heard.
// Messages to it are sent from there, as firewalls expect. The kernel chooses the source if nothing
// was heard, and after ClearSrc, which wireguard-go calls after an unanswered handshake.
type endpoint struct {
	addr    netip.AddrPort
	local   netip.Addr // the zero Addr: none
	cleared atomic.Bool
	untried atomic.Bool // nothing was sent from local yet: wireguard-go also calls ClearSrc when it opens its sockets
}

func (e *endpoint) ClearSrc()           { e.cleared.Store(!e.untried.Load()) }
func (e *endpoint) SrcToString() string { return e.SrcIP().String() }
func (e *endpoint) DstIP() netip.Addr   { return e.addr.Addr() }
func (e *endpoint) DstToString() string { return e.addr.String() }

// SrcIP returns the source address; the zero Addr leaves it to the kernel.
func (e *endpoint) SrcIP() netip.Addr {
	if e.cleared.Load() {
		return netip.Addr{}
	}
	return e.local
}

// DstToBytes is what a handshake's cookie is bound to (WireGuard paper, Section 5.4.7).
func (e *endpoint) DstToBytes() []byte {
	b, _ := e.addr.MarshalBinary() // never fails (net/netip)
	return b
}
