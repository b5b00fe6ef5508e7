package lab

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"culvert/integration/lab/netns"
	"culvert/integration/lab/plan"
	"culvert/integration/lab/probe"
)

// A flowSet is connections of all kinds that are open while something happens to a gateway: between
// pods, from behind U through NodePorts of two nodes with equal ports, to a mapped host, to a
// service. In a third of each kind nobody sends, in a third the near end sends and in a third the
// far end does.
type flowSet struct {
	lab         *Lab
	number      int // of the lab's flow sets
	flows       []*flow
	close       []func() error
	undisturbed time.Duration // the longest pause in normal operation
	wait        time.Duration // for a message of an idle flow

	mayLose bool // losses are a figure, not a failure

	done chan struct{} // closed when flows must stop sending

	running sync.WaitGroup
}

const (
	messageSize = 16
	flowPause   = 200 * time.Millisecond // between two messages of a flow
	flowsPort   = 9000                   // of its listeners
	flowClient  = 20000                  // the first of the equal client ports
	udpPart     = 5                      // one of this many flows is UDP, except for services
	idleWait    = 5 * time.Second
	flowDials   = 16  // at once
	flowsOpened = 256 // at once
	flowsJudged = 32  // at once
)

// newFlowSet opens n connections of each kind, or only those between pods, for gateways that
// support no others.
func newFlowSet(ctx context.Context, l *Lab, n int, podsAlone bool) (c *flowSet, err error) {
	c = &flowSet{lab: l, number: l.flowSets, wait: idleWait, done: make(chan struct{})}
	l.flowSets++
	p := &plan.V4
	rome, milan := &p[0], &p[1]
	client, far := l.Host("rome/client"), l.Host("milan/pod1")
	port := flowClient + c.number*flowsOf // unused ones, which nobody remembers
	var opens []func() error
	add := func(kind string, i int, udp bool, open func(f *flow) error) {
		f := &flow{set: c.number, kind: kind, number: len(c.flows), does: doing(i) % doings,
			first: i / int(doings) % 2, udp: udp}
		c.flows = append(c.flows, f)
		opens = append(opens, func() error { return open(f) })
	}
	for _, h := range []*netns.Host{far, l.Host("rome/client").At(rome.Mapped)} {
		if err := errors.Join(c.listen(h, flowsPort), c.listenUDP(h)); err != nil {
			return c, err
		}
	}
	for _, node := range milan.Nodes {
		if err := c.listen(l.Host("milan/"+node.PodName), BackendPort); err != nil {
			return c, err
		}
	}
	seen := netip.AddrPortFrom(milan.Seen(far.Address), flowsPort)
	entrances, err := c.nodePorts(ctx, client, seen)
	if err != nil {
		return c, err
	}
	for i := range n {
		udp := i%udpPart == 0
		other := i / udpPart % 2 // of UDP, and of TCP
		add("pod", i, udp, c.dial(ctx, l.Host("rome/pod2"), netip.AddrPort{}, seen))
		if podsAlone {
			continue
		}
		if udp {
			add("U", i, true, c.dial(ctx, l.Host("rome/pod1"),
				netip.AddrPortFrom([]netip.Addr{rome.BehindFirst, rome.BehindOther}[other], uint16(port+i/(2*udpPart))),
				seen))
		} else {
			add("U", i, false, c.dial(ctx, client, netip.AddrPortFrom(client.Address, uint16(port+i/2)),
				entrances[i%2]))
		}
		add("mapped host", i, udp, c.dial(ctx, l.Host("milan/pod2"), netip.AddrPort{},
			netip.AddrPortFrom(rome.Seen(rome.MappedAs), flowsPort)))
		add("service", i, false, c.dial(ctx, l.Host("rome/pod1"), netip.AddrPort{},
			netip.AddrPortFrom(milan.Seen(milan.Balanced), ServicePort)))
	}
	if err := atOnce(flowDials, opens); err != nil {
		return c, err
	}
	var exchanges []func() error
	for _, f := range c.flows {
		exchanges = append(exchanges, func() error { return c.exchangeFirst(f) })
	}
	if err := atOnce(flowsOpened, exchanges); err != nil {
		return c, err
	}
	for _, f := range c.flows {
		if f.does != idles {
			c.running.Go(func() { c.send(f) })
		}
	}
	return c, nil
}

// atOnce calls all functions, n at a time. It returns some of their errors.
func atOnce(n int, all []func() error) error {
	errs := make([]error, len(all))
	running := make(chan struct{}, n)
	var calls sync.WaitGroup
	for i, fn := range all {
		running <- struct{}{}
		calls.Go(func() {
			errs[i] = fn()
			<-running
		})
	}
	calls.Wait()
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	return errors.Join(errs[:min(len(errs), 3)]...)
}

// nodePorts makes both nodes of rome forward to a pod, keeping the clients' addresses.
func (c *flowSet) nodePorts(ctx context.Context, client *netns.Host, to netip.AddrPort) (entrances []netip.AddrPort,
	err error) {
	for _, n := range plan.V4[0].Nodes {
		f := &forwarder{node: c.lab.Host("rome/" + n.Name), target: to, entrance: netip.AddrPortFrom(n.Underlay,
			nodePort), keepClient: true}
		if err := f.start(ctx, client.Address); err != nil {
			return nil, err
		}
		c.close = append(c.close, func() error { f.close(); return nil }) // the flow reports its failures
		entrances = append(entrances, f.entrance)
	}
	return entrances, nil
}

// dial returns a function that opens the near end of a flow.
func (c *flowSet) dial(ctx context.Context, from *netns.Host, local, to netip.AddrPort) func(*flow) error {
	return func(f *flow) error {
		ctx, cancel := context.WithTimeout(ctx, probe.DialTimeout)
		defer cancel()
		network := "tcp"
		if f.udp {
			network = "udp"
		}
		conn, err := from.DialFrom(ctx, netns.Over(network, to.Addr()), local, to, nil)
		if err != nil {
			return fmt.Errorf("%s, %s: %w", f.kind, from.Name, err)
		}
		f.ends[0] = endOf(conn)
		return nil
	}
}

// flow returns the flow of a message.
func (c *flowSet) flow(b []byte) *flow {
	if len(b) != messageSize || binary.BigEndian.Uint32(b[4:]) != uint32(c.number) {
		return nil
	}
	if n := binary.BigEndian.Uint32(b); int(n) < len(c.flows) {
		return c.flows[n]
	}
	return nil
}

// listen accepts TCP connections at h, whose first message identifies the flow.
func (c *flowSet) listen(h *netns.Host, port uint16) error {
	listener, err := h.ListenTCP(port)
	if err != nil {
		return err
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

func (c *flowSet) accept(conn net.Conn) {
	b := make([]byte, messageSize)
	_, err := io.ReadFull(conn, b)
	f := c.flow(b)
	if err != nil || f == nil {
		conn.Close()
		return
	}
	f.mu.Lock()
	f.ends[1] = endOf(conn)
	f.mu.Unlock()
	f.arrived(1, b)
	c.read(f, 1)
}

// read receives messages at an end of a TCP flow, or at the near end of a UDP flow.
func (c *flowSet) read(f *flow, end int) {
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
		f.arrived(end, b)
	}
}

// ListenUDP receives datagrams at h, which identify their flow.
func (c *flowSet) listenUDP(h *netns.Host) error {
	conn, err := h.ListenUDP(h.Address, flowsPort)
	if err != nil {
		return err
	}
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
			f.ends[1] = flowEnd{from: from, send: func(b []byte) error {
				_, err := conn.WriteToUDPAddrPort(b, from)
				return err
			}}
			f.mu.Unlock()
			f.arrived(1, b[:n])
		}
	})
	return nil
}

// exchangeFirst sends the first messages of f, one in each direction.
func (c *flowSet) exchangeFirst(f *flow) error {
	c.running.Go(func() { c.read(f, 0) })
	for end := range 2 {
		if err := c.deliver(f, end); err != nil {
			return fmt.Errorf("%s: %w", f.kind, err)
		}
	}
	return nil
}

// end closes everything.
func (c *flowSet) end() error {
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
