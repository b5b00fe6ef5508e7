package attack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"culvert/integration/lab"
	"culvert/integration/lab/netns"
	"culvert/integration/lab/plan"
	"culvert/integration/lab/probe"
	"culvert/integration/lab/step"
	"culvert/nat/nattest"
)

// forgeries are packets and files with false claims.
func (l *attacks) forgeries() []lab.Check {
	return []lab.Check{
		l.against("to a node", "milan/pod1 × rome/node1", l.hostilePeer, l.attackNodes),
		l.against("refused reload", "bad file × rome/pod2", nil, l.attackReload),
		l.against("forged too big", "milan/pod2 × rome/pod1", sourceCheckOff, l.attackPathMTU),
		l.against("own too big", "rome/pod1, milan/pod2 × rome/node1, rome/pod2", sourceCheckOff, l.attackColluding),
		l.against("forged too big", "stranger × milan/pod1", nil, l.attackOuterMTU),
		l.against("narrow device", "milan/gateway → rome", nil,
			l.checkNarrow("peer", l.Pair("milan/pod1", "rome/pod1"))),
		l.against("narrow device", "milan/gateway → node2", nil,
			l.checkNarrow("eth0", l.Pair("rome/pod2", "milan/pod2"))),
		l.against("blind FINs", "milan/node1 × rome/node2", setting("nat.maxConnections", smallTable), l.attackFIN),
		l.against("another's pod", "rome/node1 × rome/pod2", nil, l.attackSource),
		l.against("forged network", "rome/pod1 × rome/pod1, rome/pod2, milan/pod2", nil, l.attackNetwork),
		l.against("sourceCheck off", "rome/node1 for rome/pod2", sourceCheckOff, l.checkSourceAllowed),
	}
}

// sourceCheckOff lets nodes send from each other's pods' addresses.
var sourceCheckOff = setting("geneve.sourceCheck", "cluster")

// attackReload gives the gateway a file without the second node, which it must refuse because of a
// fault in a third one.
func (l *attacks) attackReload(ctx context.Context) (_ string, err error) {
	defer step.Catch(&err)
	config := l.GatewayConfig(0)
	third := l.ThirdNode(0)
	third["encap"], third["inner"] = "vxlan", "ip"
	lab.Set(config, "geneve.nodes", []lab.Object{lab.NodesOf(config)[0], third})
	step.Try(l.WriteYAML(plan.V4[0].Name, "gateway.yaml", config))
	step.Must(l.SendHangup(ctx, 0, lab.RefusedText))
	e := l.Pair("rome/pod2", "milan/pod2")
	return l.beside(ctx, nil, echoRequests("pings", 20, e.From, e.Target, 84), echoRequests("pings back", 20, e.To,
		e.WantSource, 84))
}

// attackPathMTU sends too-big messages about packets that nobody sent: of no connection, or with a
// sequence number that is not in flight.
func (l *attacks) attackPathMTU(ctx context.Context) (_ string, err error) {
	defer step.Catch(&err)
	e := l.Pair("rome/pod1", "milan/pod1")
	before := step.Must(segmentsReceived(e))
	live := step.Must(newIdle(e))
	defer live.close()
	near, local := step.Must2(live.farEnds())
	attacker, mtu := l.At("milan/pod2"), uint16(68)
	if attacker.Address.Is6() {
		mtu = probe.SmallMTU // IPv6 hosts ignore less than the minimum MTU (RFC 8200, Section 5)
	}
	forged := [][]byte{
		probe.SilentUDP(netip.AddrPortFrom(e.WantSource, 4000), netip.AddrPortFrom(e.To.Address, 4001)),
		probe.SilentTCP(netip.AddrPortFrom(e.WantSource, 4000), netip.AddrPortFrom(e.To.Address, 4001), nattest.ACK, 1,
			1),
		probe.SilentTCP(near, local, nattest.ACK, 0x0bad0bad, 0), // in flight by chance once in 65,536
	}
	f := &probe.Flood{From: attacker, Count: len(forged),
		Packet: func(i int) []byte { return probe.TooBigAbout(attacker.Address, forged[i], mtu) }}
	figure := step.Must(l.beside(ctx, []*probe.Flood{f}))
	// What the attacker sends next arrives last.
	step.Try(errors.Join(l.Pair("milan/pod2", "rome/pod1").Reach(ctx), live.speak(live.near, live.far)))
	after, err := segmentsReceived(e)
	if err == nil && after < before {
		err = fmt.Errorf("segments of %d bytes arrive after %d forged messages, %d before", after, len(forged), before)
	}
	return fmt.Sprintf("%s; segments %d, then %d", figure, before, after), err
}

// attackColluding lowers the path MTU of a connection of the attackers' own: one sends a segment
// after a gap, so that it stays in flight, and the other a message that it is too big. That must
// slow down nobody else who sends to the same pod, on the same node or on another.
func (l *attacks) attackColluding(ctx context.Context) (_ string, err error) {
	defer step.Catch(&err)
	own, accomplice := l.Pair("rome/pod1", "milan/pod1"), l.At("milan/pod2")
	innocents := []*probe.Ends{l.Pair("rome/node1", "milan/pod1"), l.Pair("rome/pod2", "milan/pod1")}
	sizes := make([]int, len(innocents))
	for i, e := range innocents {
		sizes[i] = step.Must(segmentsReceived(e))
	}
	before := step.Must(segmentsReceived(own))
	live := step.Must(newIdle(own))
	defer live.close()
	seq, ack := step.Must2(numbers(live.near))
	const gap = 100
	from, to := step.Must(unix.Getsockname(live.near.FD)), step.Must(unix.Getpeername(live.near.FD))
	segment := probe.SilentTCP(netns.AddrPortOf(from), netns.AddrPortOf(to), nattest.ACK, seq+gap, ack)
	step.Must(l.beside(ctx, []*probe.Flood{{From: own.From, Count: 1, Packet: func(int) []byte { return segment }}}))
	step.Try(own.Reach(ctx)) // behind the segment
	near, local := step.Must2(live.farEnds())
	mtu := uint16(552) // the lowest that a gateway believes
	if accomplice.Address.Is6() {
		mtu = probe.SmallMTU
	}
	// The kernel of the attacker, which has not sent the gap, does not believe it.
	message := probe.TooBigAbout(accomplice.Address, probe.SilentTCP(near, local, nattest.ACK, seq+gap/2, ack), mtu)
	figure := step.Must(l.beside(ctx, []*probe.Flood{{From: accomplice, Count: 1,
		Packet: func(int) []byte { return message }}}))
	step.Try(l.Pair("milan/pod2", "rome/pod1").Reach(ctx)) // behind the message
	if after := step.Must(segmentsReceived(own)); after >= before {
		return "", fmt.Errorf(
			"segments of the attacker's own have %d bytes before and %d after; want less: nothing was learnt",
			before, after)
	}
	for i, e := range innocents {
		if size := step.Must(segmentsReceived(e)); size < sizes[i] {
			return "", fmt.Errorf("segments of %d bytes from %s after one message about %s, %d before", size,
				e.From.Name, own.From.Name, sizes[i])
		}
	}
	return fmt.Sprintf("%s; segments of others %v as before", figure, sizes), nil
}

// numbers returns the sequence numbers that a TCP socket sends and expects next.
func numbers(s *netns.Socket) (seq, ack uint32, err error) {
	defer step.Catch(&err)
	const receiveQueue, sendQueue = 1, 2 // TCP_RECV_QUEUE and TCP_SEND_QUEUE, see tcp.h
	step.Try(unix.SetsockoptInt(s.FD, unix.IPPROTO_TCP, unix.TCP_REPAIR, 1))
	defer unix.SetsockoptInt(s.FD, unix.IPPROTO_TCP, unix.TCP_REPAIR, -1) // without a window probe
	step.Try(unix.SetsockoptInt(s.FD, unix.IPPROTO_TCP, unix.TCP_REPAIR_QUEUE, sendQueue))
	seq = uint32(step.Must(unix.GetsockoptInt(s.FD, unix.IPPROTO_TCP, unix.TCP_QUEUE_SEQ)))
	step.Try(unix.SetsockoptInt(s.FD, unix.IPPROTO_TCP, unix.TCP_REPAIR_QUEUE, receiveQueue))
	return seq, uint32(step.Must(unix.GetsockoptInt(s.FD, unix.IPPROTO_TCP, unix.TCP_QUEUE_SEQ))), nil
}

// segmentsReceived streams over a new connection and returns the segment size seen by the receiver.
func segmentsReceived(e *probe.Ends) (size int, err error) {
	defer step.Catch(&err)
	near, far := step.Must2(e.Connect())
	defer near.Close()
	defer far.Close()
	step.Try(transferOver(near, far, probe.SmallStream))
	info := step.Must(unix.GetsockoptTCPInfo(far.FD, unix.IPPROTO_TCP, unix.TCP_INFO))
	return int(info.Rcv_mss), nil
}

// transferOver sends n bytes from one end to the other.
func transferOver(from, to *netns.Socket, n int) error {
	sending := make(chan error, 1)
	go func() {
		_, err := from.Write(make([]byte, n))
		sending <- err
	}()
	buffer := make([]byte, probe.BulkBuffer)
	for got := 0; got < n; {
		m, err := to.Read(buffer)
		if err != nil {
			return errors.Join(err, <-sending)
		}
		got += m
	}
	return <-sending
}

// farEnds returns the near and the far end of the connection as the far end sees them.
func (i *idle) farEnds() (near, far netip.AddrPort, err error) {
	peer, err := unix.Getpeername(i.far.FD)
	local, e := unix.Getsockname(i.far.FD)
	return netns.AddrPortOf(peer), netns.AddrPortOf(local), errors.Join(err, e)
}

// attackFIN tries to end a connection without knowing its sequence numbers, from the far end's
// address, and then fills the table: an ended connection would be evicted.
func (l *attacks) attackFIN(ctx context.Context) (_ string, err error) {
	defer step.Catch(&err)
	victim := step.Must(newIdle(l.Pair("rome/node2", "milan/pod1")))
	defer victim.close()
	// A large window is easy to hit.
	step.Try(transferOver(victim.far, victim.near, 4*probe.SmallStream))
	info := step.Must(unix.GetsockoptTCPInfo(victim.near.FD, unix.IPPROTO_TCP, unix.TCP_INFO))
	near, far := step.Must2(victim.farEnds())
	// Of two acknowledgements half the sequence space apart, one is old.
	stride := max(info.Rcv_ssthresh/4, 1<<15)
	f := &probe.Flood{From: l.At("milan/node1"), Count: 2 * (int(1<<32/uint64(stride)) + 1),
		Packet: func(i int) []byte {
			return probe.SilentTCP(far, near, nattest.FIN|nattest.ACK, uint32(i/2)*stride, 0x0bad0bad+uint32(i%2)<<31)
		}}
	figure := step.Must(l.beside(ctx, []*probe.Flood{f}))
	more := step.Must(l.fillTable(ctx))
	return fmt.Sprintf("%s FINs; %s", figure, more), victim.serverSpeaks()
}

// sourceServer records who sends to it.
type sourceServer struct{ *net.UDPConn }

func newSourceServer(h *netns.Host) (sourceServer, error) {
	conn, err := h.ListenUDP(h.Address, attackPort)
	return sourceServer{conn}, err
}

// expect requires this datagram next, from this source.
func (s sourceServer) expect(want string, from netip.AddrPort) error {
	s.SetReadDeadline(time.Now().Add(probe.ReplyTimeout))
	buffer := make([]byte, 16)
	n, source, err := s.ReadFromUDPAddrPort(buffer)
	if err != nil {
		return err
	}
	if string(buffer[:n]) != want || source != from {
		return fmt.Errorf("received %q from %s, want %q from %s", buffer[:n], source, want, from)
	}
	return nil
}

// speakFor sends datagrams of count connections from the first node of rome, with pod e.from as
// their source. The first has the ports of a connection that this pod opens later.
func (l *attacks) speakFor(e *probe.Ends, count int) *probe.Flood {
	return &probe.Flood{From: l.At("rome/node1"), Count: count, Packet: func(i int) []byte {
		return probe.DatagramOf(netip.AddrPortFrom(e.From.Address, forgedPort+uint16(i)), netip.AddrPortFrom(e.Target,
			attackPort), []byte("forged")...).Bytes()
	}}
}

// forgedPort is the near port of a connection that an attacker opens first.
const forgedPort = 5000

// attackSource sends as a pod of another node, before that pod does.
func (l *attacks) attackSource(ctx context.Context) (_ string, err error) {
	defer step.Catch(&err)
	e := l.Pair("rome/pod2", "milan/pod1")
	server := step.Must(newSourceServer(e.To))
	defer server.Close()
	figure := step.Must(l.beside(ctx, []*probe.Flood{l.speakFor(e, 5000)}))
	if err := l.Pair("rome/node1", "milan/pod1").Reach(ctx); err != nil { // what it sends next arrives last
		return "", err
	}
	client := step.Must(e.From.DialFrom(ctx, netns.Over("udp", e.Target), netip.AddrPortFrom(e.From.Address,
		forgedPort), netip.AddrPortFrom(e.Target, attackPort), nil))
	defer client.Close()
	step.Must(client.Write([]byte("own")))
	return figure + " forged, none received", server.expect("own", netip.AddrPortFrom(e.WantSource, forgedPort))
}

// checkSourceAllowed requires that such packets pass where a node may send from the addresses of
// all pods.
func (l *attacks) checkSourceAllowed(ctx context.Context) (_ string, err error) {
	defer step.Catch(&err)
	e := l.Pair("rome/pod2", "milan/pod1")
	server := step.Must(newSourceServer(e.To))
	defer server.Close()
	step.Must(l.beside(ctx, []*probe.Flood{l.speakFor(e, 1)}))
	return "received", server.expect("forged", netip.AddrPortFrom(e.WantSource, forgedPort))
}
