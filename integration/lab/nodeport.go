package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"

	"culvert/integration/lab/netns"
	"culvert/integration/lab/plan"
	"culvert/integration/lab/probe"
	"culvert/integration/lab/step"
)

const (
	nodePort      = 30080
	nodePortBytes = 6 << 20 // each way, of a stream through a NodePort
	collidingPort = 41000   // the first of those that clients use at both nodes
	collisions    = 6

	nodePortTimeout = 30 * time.Second // for all streams of a check
)

// nodePortCheck is a client outside the cluster that reaches a remote pod through a node.
type nodePortCheck struct {
	client     *netns.Host
	nodes      []*netns.Host // entered concurrently, from equal client ports
	entrance   netip.Addr
	pod        *netns.Host
	target     netip.Addr // the pod, as the nodes see it
	source     netip.Addr // as the pod must see it
	keepClient bool
	header     func(client, entrance netip.AddrPort) []byte
	nodeSource netip.Addr // of what the node sends, unless keepClient
}

// nodePort is a check that enters the cluster of a client by one of its nodes.
func (l *Lab) nodePort(p *plan.Plan, client, node, pod string) *nodePortCheck {
	c, far := p.Of(client), p.Of(pod)
	n := &nodePortCheck{client: l.HostOf(p, client), nodes: []*netns.Host{l.HostOf(p, node)}, pod: l.HostOf(p, pod)}
	n.entrance = n.nodes[0].Address
	n.target, n.source = far.Seen(n.pod.Address), c.Seen(c.UnknownSource())
	for i := range c.Nodes {
		if c.Nodes[i].Underlay == n.nodes[0].Address {
			n.nodeSource = c.Nodes[i].Internal
		}
	}
	return n
}

func (n *nodePortCheck) path() string { return n.client.Name + " → " + n.pod.Name }

// listen opens the pod's service and reports each connection, after it has read the required
// header.
func (n *nodePortCheck) listen(ctx context.Context) (port uint16, seen chan *probe.Transfer, stop func(), err error) {
	listener, err := n.pod.ListenTCP(0)
	if err != nil {
		return 0, nil, nil, err
	}
	seen = make(chan *probe.Transfer, len(n.nodes)*collisions)
	cancel := context.AfterFunc(ctx, func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				headerErr := n.readHeader(conn)
				t := probe.NewTransfer(ctx, conn, nodePortBytes, nodePortBytes, 2)
				t.Err = errors.Join(headerErr, t.Err)
				seen <- t
			}()
		}
	}()
	return uint16(listener.Addr().(*net.TCPAddr).Port), seen, func() { cancel(); listener.Close() }, nil
}

func (n *nodePortCheck) readHeader(conn net.Conn) error {
	if n.header == nil {
		return nil
	}
	want := n.header(netip.AddrPortFrom(n.client.Address, collidingPort), netip.AddrPortFrom(n.entrance, nodePort))
	got := make([]byte, len(want))
	if _, err := io.ReadFull(conn, got); err != nil {
		return fmt.Errorf("PROXY header: %w", err)
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("PROXY header %q arrived, want %q", got, want)
	}
	return nil
}

// run sends a stream in each direction through every node at once, from the client ports
// collidingPort and following.
func (n *nodePortCheck) run(ctx context.Context) (_ string, err error) {
	defer step.Catch(&err)
	streams := 1
	if len(n.nodes) > 1 {
		streams = collisions
	}
	ctx, cancel := context.WithTimeout(ctx, nodePortTimeout)
	defer cancel()
	port, seen, stop, err := n.listen(ctx)
	if err != nil {
		return "", err
	}
	defer stop()
	before := step.Must(n.received())
	var forwarders []*forwarder
	var errs []error
	for _, node := range n.nodes {
		entrance := n.entrance
		if len(n.nodes) > 1 {
			entrance = node.Address
		}
		f := &forwarder{node: node, target: netip.AddrPortFrom(n.target, port),
			entrance:   netip.AddrPortFrom(entrance, nodePort),
			keepClient: n.keepClient, header: n.header}
		if err := f.start(ctx, n.client.Address); err != nil {
			errs = append(errs, err)
			break
		}
		forwarders = append(forwarders, f)
	}
	if len(errs) == 0 {
		errs = append(errs, n.streams(ctx, forwarders, streams, seen))
	}
	if errors.Join(errs...) != nil {
		cancel() // no stream will succeed
	}
	for _, f := range forwarders {
		errs = append(errs, f.close())
	}
	step.Try(errors.Join(errs...))
	return n.judge(forwarders, streams, before)
}

// streams are the clients' results, and what the pod saw of them.
func (n *nodePortCheck) streams(ctx context.Context, forwarders []*forwarder, each int,
	seen chan *probe.Transfer) error {
	near := make(chan *probe.Transfer)
	for _, f := range forwarders {
		for i := range each {
			local := netip.AddrPortFrom(n.client.Address, uint16(collidingPort+i))
			go func() {
				conn, err := n.client.DialFrom(ctx, netns.Over("tcp", f.entrance.Addr()), local, f.entrance, nil)
				if err != nil {
					near <- &probe.Transfer{Err: fmt.Errorf("connect to %s: %w", f.entrance, err)}
					return
				}
				near <- probe.NewTransfer(ctx, conn, nodePortBytes, nodePortBytes, 1)
			}()
		}
	}
	ports := make(map[uint16]bool)
	kept := 0
	var errs []error
	for range len(forwarders) * each {
		t := <-near
		errs = append(errs, t.Err)
		if t.Err != nil {
			continue
		}
		var far *probe.Transfer
		select {
		case far = <-seen:
		case <-ctx.Done():
			return errors.Join(append(errs, ctx.Err())...)
		}
		if errs = append(errs, far.Err); far.Err != nil {
			continue
		}
		if far.Peer != n.source {
			errs = append(errs, fmt.Errorf("%s saw source %s, want %s", n.pod.Name, far.Peer, n.source))
		}
		// All near ends send the same bytes, and so do all far ends.
		if far.Received != t.Sent || far.Sent != t.Received {
			errs = append(errs, errors.New("SHA-256 of what was sent and of what arrived differ"))
		}
		if ports[far.PeerPort] {
			errs = append(errs, fmt.Errorf("%s saw port %d twice", n.pod.Name, far.PeerPort))
		}
		ports[far.PeerPort] = true
		if far.PeerPort >= collidingPort && far.PeerPort < collidingPort+uint16(each) {
			kept++
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if n.keepClient && kept != each { // of each colliding pair, one keeps its port
		return fmt.Errorf("%s saw %d of %d client ports unchanged", n.pod.Name, kept, each)
	}
	return nil
}

// judge checks what the nodes did.
func (n *nodePortCheck) judge(forwarders []*forwarder, each int, before []uint64) (_ string, err error) {
	defer step.Catch(&err)
	var sent netip.Addr
	for _, f := range forwarders {
		if len(f.sources) != each {
			return "", fmt.Errorf("%s forwarded %d connections, want %d", f.node.Name, len(f.sources), each)
		}
		sent = n.nodeSource
		if n.keepClient {
			sent = n.client.Address
		}
		for _, s := range f.sources {
			if s.Addr() != sent {
				return "", fmt.Errorf("%s sent from %s, want %s", f.node.Name, s, sent)
			}
		}
	}
	after := step.Must(n.received())
	want := uint64(each) * nodePortBytes
	for i, node := range n.nodes {
		// A reply that leaves by the other node makes one count too small. Headers and repeated
		// segments are less than the other node's replies.
		if got := after[i] - before[i]; got < want || got > want+want/2 {
			return "", fmt.Errorf("%s received %d bytes from the tunnel, want %d and headers", node.Name, got, want)
		}
	}
	if len(n.nodes) > 1 {
		return fmt.Sprintf("%d streams, %d equal ports, from %s", len(n.nodes)*each, each, n.source), nil
	}
	return fmt.Sprintf("from %s for %s", n.source, sent), nil
}

// received returns how many bytes came to each node from its tunnel link.
func (n *nodePortCheck) received() (bytes []uint64, err error) {
	for _, node := range n.nodes {
		err = errors.Join(err, node.Do(func() error {
			l, err := netlink.LinkByName(TunnelLink)
			if err != nil {
				return fmt.Errorf("%s: %w", node.Name, err)
			}
			bytes = append(bytes, l.Attrs().Statistics.RxBytes)
			return nil
		}))
	}
	return bytes, err
}
