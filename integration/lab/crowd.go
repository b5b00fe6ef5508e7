package lab

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"
)

// A crowd is connections of all kinds that are open while something happens to a gateway: between pods, from behind U through NodePorts
// of two nodes with equal ports, to a mapped host, to a service. Of each kind a third is idle, in a third the near end
// sends and in a third the far end does.
type crowd struct {
	lab    *Lab
	number int // of the lab's crowds
	flows  []*flow
	close  []func() error
	done   chan struct{} // closed when flows are to be silent

	running sync.WaitGroup
}

// What a flow does meanwhile.
type doing int

const (
	idles doing = iota
	sends
	receives
	doings
)

// flow is one connection. Its two ends send messages of messageSize bytes: the numbers of the flow and the
// crowd, and when it was sent.
type flow struct {
	crowd  int // its number
	kind   string
	number int // in the crowd
	does   doing
	first  int // end that speaks first after a pause, if it idles
	udp    bool

	mu   sync.Mutex
	ends [2]flowEnd // near, far
	err  error      // the first thing that went wrong
	// when the last message came to each end
	came [2]time.Time
	late time.Duration // the longest that the other end waited for a message
}

func (f *flow) String() string {
	protocol := "TCP"
	if f.udp {
		protocol = "UDP"
	}
	return fmt.Sprintf("%s, %s, %s", f.kind, protocol, [...]string{"idle", "sends", "receives"}[f.does])
}

// flowEnd is one end of a flow.
type flowEnd struct {
	conn net.Conn       // nil at the far end of UDP
	from netip.AddrPort // at the far end, what it takes for the near one
	send func([]byte) error
}

const (
	messageSize = 16
	flowPause   = 200 * time.Millisecond // between two messages of a flow
	crowdPort   = 9000                   // of its listeners
	crowdClient = 20000                  // the first of the clients' ports that are equal
	udpPart     = 5                      // one of so many flows is UDP, but for services
	idleWait    = 5 * time.Second        // for a message of a flow that was idle
	crowdDials  = 16                     // at once
	crowdMeets  = 256                    // at once
)

// newCrowd opens n connections of each kind.
func newCrowd(ctx context.Context, l *Lab, n int) (c *crowd, err error) {
	c = &crowd{lab: l, number: l.crowds, done: make(chan struct{})}
	l.crowds++
	p := &clusters
	rome, milan := &p[0], &p[1]
	client, far := l.Host("rome/client"), l.Host("milan/pod1")
	port := crowdClient + c.number*crowdOf // of its own: nobody remembers them
	var opens []func() error
	add := func(kind string, i int, udp bool, open func(f *flow) error) {
		f := &flow{crowd: c.number, kind: kind, number: len(c.flows), does: doing(i) % doings, first: i / int(doings) % 2, udp: udp}
		c.flows = append(c.flows, f)
		opens = append(opens, func() error { return open(f) })
	}
	for _, h := range []*Host{far, l.Host("rome/client").at(rome.Mapped)} {
		if err := errors.Join(c.listen(h, crowdPort), c.listenUDP(h)); err != nil {
			return c, err
		}
	}
	for _, node := range milan.Nodes {
		if err := c.listen(l.Host("milan/"+node.PodName), backendPort); err != nil {
			return c, err
		}
	}
	seen := netip.AddrPortFrom(milan.Seen(far.Address), crowdPort)
	entrances, err := c.nodePorts(ctx, client, seen)
	if err != nil {
		return c, err
	}
	for i := range n {
		udp := i%udpPart == 0
		other := i / udpPart % 2 // of UDP, and of TCP
		add("pod", i, udp, c.dial(ctx, l.Host("rome/pod2"), netip.AddrPort{}, seen))
		if udp {
			add("U", i, true, c.dial(ctx, l.Host("rome/pod1"), netip.AddrPortFrom([]netip.Addr{rome.BehindFirst, rome.BehindOther}[other], uint16(port+i/(2*udpPart))), seen))
		} else {
			add("U", i, false, c.dial(ctx, client, netip.AddrPortFrom(client.Address, uint16(port+i/2)), entrances[i%2]))
		}
		add("mapped host", i, udp, c.dial(ctx, l.Host("milan/pod2"), netip.AddrPort{}, netip.AddrPortFrom(rome.Seen(rome.MappedAs), crowdPort)))
		add("service", i, false, c.dial(ctx, l.Host("rome/pod1"), netip.AddrPort{}, netip.AddrPortFrom(milan.Seen(milan.Balanced), servicePort)))
	}
	if err := atOnce(crowdDials, opens); err != nil {
		return c, err
	}
	var meets []func() error
	for _, f := range c.flows {
		meets = append(meets, func() error { return c.meet(f) })
	}
	if err := atOnce(crowdMeets, meets); err != nil {
		return c, err
	}
	for _, f := range c.flows {
		if f.does != idles {
			c.running.Go(func() { c.talk(f) })
		}
	}
	return c, nil
}

// atOnce calls all functions, n at a time.
func atOnce(n int, all []func() error) error {
	var calls sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	next := make(chan func() error)
	for range n {
		calls.Go(func() {
			for fn := range next {
				if err := fn(); err != nil {
					mu.Lock()
					errs = append(errs, err)
					mu.Unlock()
				}
			}
		})
	}
	for _, fn := range all {
		next <- fn
	}
	close(next)
	calls.Wait()
	return errors.Join(errs[:min(len(errs), 3)]...)
}

// nodePorts lets both nodes of rome forward to a pod, with the clients' addresses.
func (c *crowd) nodePorts(ctx context.Context, client *Host, to netip.AddrPort) (entrances []netip.AddrPort, err error) {
	for _, n := range clusters[0].Nodes {
		f := &forwarder{node: c.lab.Host("rome/" + n.Name), target: to, entrance: netip.AddrPortFrom(n.Underlay, nodePort), keepClient: true}
		if err := f.start(ctx, client.Address); err != nil {
			return nil, err
		}
		c.close = append(c.close, func() error { f.close(); return nil }) // what fails there, the flow tells
		entrances = append(entrances, f.entrance)
	}
	return entrances, nil
}

// dial returns what opens the near end of a flow.
func (c *crowd) dial(ctx context.Context, from *Host, local, to netip.AddrPort) func(*flow) error {
	return func(f *flow) error {
		ctx, cancel := context.WithTimeout(ctx, dialTimeout)
		defer cancel()
		network := "tcp"
		if f.udp {
			network = "udp"
		}
		conn, err := from.DialFrom(ctx, over(network, to.Addr()), local, to, nil)
		if err != nil {
			return fmt.Errorf("%s, %s: %w", f.kind, from.Name, err)
		}
		f.ends[0] = flowEnd{conn: conn, send: func(b []byte) error { _, err := conn.Write(b); return err }}
		return nil
	}
}

// message is what an end of f sends at this moment.
func (f *flow) message() []byte {
	b := make([]byte, messageSize)
	binary.BigEndian.PutUint32(b, uint32(f.number))
	binary.BigEndian.PutUint32(b[4:], uint32(f.crowd))
	binary.BigEndian.PutUint64(b[8:], uint64(time.Now().UnixNano()))
	return b
}

// flow returns the flow that a message is of.
func (c *crowd) flow(b []byte) *flow {
	if len(b) != messageSize || binary.BigEndian.Uint32(b[4:]) != uint32(c.number) {
		return nil
	}
	if n := binary.BigEndian.Uint32(b); int(n) < len(c.flows) {
		return c.flows[n]
	}
	return nil
}

// listen takes TCP connections at h, the first message of which tells of what flow they are.
func (c *crowd) listen(h *Host, port uint16) error {
	listener, err := h.Listen(over("tcp", h.Address), netip.AddrPortFrom(h.Address, port).String())
	if err != nil {
		return fmt.Errorf("%s: %w", h.Name, err)
	}
	c.close = append(c.close, listener.Close)
	c.running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			c.running.Go(func() { c.accept(conn) })
		}
	})
	return nil
}

func (c *crowd) accept(conn net.Conn) {
	b := make([]byte, messageSize)
	if _, err := io.ReadFull(conn, b); err != nil {
		conn.Close()
		return
	}
	f := c.flow(b)
	if f == nil {
		conn.Close()
		return
	}
	f.mu.Lock()
	f.ends[1] = flowEnd{conn: conn, send: func(b []byte) error { _, err := conn.Write(b); return err }}
	f.mu.Unlock()
	f.take(1, b)
	c.read(f, 1)
}

// read takes messages at an end of a TCP flow, or at the near one of UDP.
func (c *crowd) read(f *flow, end int) {
	conn, b := f.ends[end].conn, make([]byte, messageSize)
	for {
		_, err := io.ReadFull(conn, b)
		if err != nil {
			if f.udp && !errors.Is(err, net.ErrClosed) {
				continue // an ICMP error; nobody is there for a moment
			}
			f.fail(fmt.Errorf("reading at end %d: %w", end, err))
			return
		}
		if c.flow(b) != f {
			f.fail(fmt.Errorf("bytes of another connection at end %d", end))
			return
		}
		f.take(end, b)
	}
}

// listenUDP takes datagrams at h, which tell of what flow they are.
func (c *crowd) listenUDP(h *Host) error {
	packets, err := h.ListenPacket(over("udp", h.Address), netip.AddrPortFrom(h.Address, crowdPort).String())
	if err != nil {
		return fmt.Errorf("%s: %w", h.Name, err)
	}
	conn := packets.(*net.UDPConn)
	c.close = append(c.close, conn.Close)
	c.running.Go(func() {
		b := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(b)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				continue // an ICMP error
			}
			f := c.flow(b[:n])
			if f == nil {
				continue
			}
			f.mu.Lock()
			if was := f.ends[1].from; was.IsValid() && was != from {
				f.err = errors.Join(f.err, fmt.Errorf("comes from %s, before from %s", from, was))
			}
			f.ends[1] = flowEnd{from: from, send: func(b []byte) error { _, err := conn.WriteToUDPAddrPort(b, from); return err }}
			f.mu.Unlock()
			f.take(1, b[:n])
		}
	})
	return nil
}

// take notes that a message has come to an end.
func (f *flow) take(end int, b []byte) {
	now := time.Now()
	late := now.Sub(time.Unix(0, int64(binary.BigEndian.Uint64(b[8:]))))
	f.mu.Lock()
	defer f.mu.Unlock()
	if last := f.came[end]; f.udp && f.does != idles && !last.IsZero() {
		late = max(late, now.Sub(last)-flowPause) // those that are lost do not come late
	}
	f.came[end], f.late = now, max(f.late, late)
}

func (f *flow) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = err
	}
}

// meet sends the first messages of f, one each way.
func (c *crowd) meet(f *flow) error {
	c.running.Go(func() { c.read(f, 0) })
	for end := range 2 {
		if err := c.deliver(f, end); err != nil {
			return fmt.Errorf("%s: %w", f.kind, err)
		}
	}
	return nil
}

// deliver sends a message from an end until it has come to the other; of TCP, once.
func (c *crowd) deliver(f *flow, from int) error {
	began := time.Now()
	for tries := 0; ; tries++ {
		f.mu.Lock()
		send, err, came := f.ends[from].send, f.err, f.came[1-from]
		f.mu.Unlock()
		switch {
		case err != nil:
			return err
		case came.After(began):
			return nil
		case time.Since(began) > idleWait:
			return fmt.Errorf("no message from end %d within %v", from, idleWait)
		case tries == 0 || f.udp && tries%20 == 0:
			if err := send(f.message()); err != nil && !f.udp {
				return err
			}
		}
		time.Sleep(pollInterval)
	}
}

// talk sends messages from one end of f until the crowd is to be silent.
func (c *crowd) talk(f *flow) {
	from := 0
	if f.does == receives {
		from = 1
	}
	tick := time.NewTicker(flowPause)
	defer tick.Stop()
	for {
		select {
		case <-c.done:
			return
		case <-tick.C:
		}
		f.mu.Lock()
		send := f.ends[from].send
		f.mu.Unlock()
		if err := send(f.message()); err != nil && !f.udp {
			f.fail(fmt.Errorf("writing at end %d: %w", from, err))
			return
		}
	}
}

// survived is what became of a crowd.
type survived struct {
	pause   time.Duration
	longest string         // the flow that paused for so long
	lost    map[string]int // flows by kind
	first   error          // of one of them
}

// begin forgets how late messages were so far.
func (c *crowd) begin() {
	for _, f := range c.flows {
		f.mu.Lock()
		f.late = 0
		f.mu.Unlock()
	}
}

// judge waits until every flow has had messages since a time, both ways where it was idle, and says what became of them.
func (c *crowd) judge(since time.Time) survived {
	s := survived{lost: make(map[string]int)}
	var mu sync.Mutex
	var checks []func() error
	for _, f := range c.flows {
		checks = append(checks, func() error {
			err := c.alive(f, since)
			mu.Lock()
			defer mu.Unlock()
			f.mu.Lock()
			defer f.mu.Unlock()
			if err = errors.Join(err, f.err); err != nil {
				s.lost[f.kind]++
				s.first = fmt.Errorf("%v: %w", f, err)
				return nil
			}
			if f.late > s.pause {
				s.pause, s.longest = f.late, f.String()
			}
			return nil
		})
	}
	atOnce(len(checks), checks)
	return s
}

// alive waits for messages of a flow; one that idles is spoken to both ways.
func (c *crowd) alive(f *flow, since time.Time) error {
	if f.does == idles {
		return errors.Join(c.deliver(f, f.first), c.deliver(f, 1-f.first))
	}
	to := 1
	if f.does == receives {
		to = 0
	}
	for deadline := time.Now().Add(idleWait); ; time.Sleep(pollInterval) {
		f.mu.Lock()
		came, err := f.came[to], f.err
		f.mu.Unlock()
		switch {
		case err != nil || came.After(since):
			return err
		case time.Now().After(deadline):
			return fmt.Errorf("no message at end %d for %v", to, time.Since(came).Round(time.Millisecond))
		}
	}
}

func (s *survived) all() int {
	n := 0
	for _, lost := range s.lost {
		n += lost
	}
	return n
}

func (s *survived) String() string {
	return fmt.Sprintf("lost: %s; the last: %v", count(s.lost), s.first)
}

// end closes everything.
func (c *crowd) end() error {
	close(c.done)
	for _, f := range c.flows {
		f.mu.Lock()
		for _, e := range f.ends {
			if conn, ok := e.conn.(*net.TCPConn); ok {
				conn.SetLinger(0)
			}
			if e.conn != nil {
				e.conn.Close()
			}
		}
		f.mu.Unlock()
	}
	var errs []error
	for _, undo := range c.close {
		errs = append(errs, undo())
	}
	c.running.Wait()
	return errors.Join(errs...)
}
