package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// forgeries are packets and files with false claims.
func (l *Lab) forgeries() []Check {
	return []Check{
		l.against("to a node", "milan/pod1 × rome/node1", l.hostilePeer, l.attackNodes),
		l.against("refused reload", "bad file × rome/pod2", nil, l.attackReload),
		l.against("forged too big", "milan/pod2 × rome/pod1", sourceCheckOff, l.attackPathMTU),
		l.against("forged too big", "stranger × milan/pod1", nil, l.attackOuterMTU),
		l.against("narrow device", "milan/gateway → rome", nil, l.checkNarrow("peer", l.pair("milan/pod1", "rome/pod1"))),
		l.against("narrow device", "milan/gateway → node2", nil, l.checkNarrow("eth0", l.pair("rome/pod2", "milan/pod2"))),
		l.against("blind FINs", "milan/node1 × rome/node2", func(_ int, config object) {
			config["nat"].(object)["maxConnections"] = smallTable
		}, l.attackFIN),
		l.against("another's pod", "rome/node1 × rome/pod2", nil, l.attackSource),
		l.against("forged network", "rome/pod1 × rome/pod1, rome/pod2, milan/pod2", nil, l.attackNetwork),
		l.against("sourceCheck off", "rome/node1 for rome/pod2", sourceCheckOff, l.checkSourceAllowed),
	}
}

// sourceCheckOff lets nodes send from each other's pods' addresses.
func sourceCheckOff(_ int, config object) { config["geneve"].(object)["sourceCheck"] = "cluster" }

// attackReload gives the gateway a file without the second node, which it must refuse because of a fault in a third one.
func (l *Lab) attackReload(ctx context.Context) (string, error) {
	config := l.gatewayConfig(0)
	nodes, third := config["geneve"].(object)["nodes"].([]object), l.thirdNode(0)
	third["encap"], third["inner"] = "vxlan", "ip"
	config["geneve"].(object)["nodes"] = []object{nodes[0], third}
	if err := l.writeYAML(clusters[0].Name, "gateway.yaml", config); err != nil {
		return "", err
	}
	if err := l.sendHangup(ctx, 0, refusedText); err != nil {
		return "", err
	}
	e := l.pair("rome/pod2", "milan/pod2")
	return l.beside(ctx, nil, echoRequests("pings", 20, e.from, e.target, 84), echoRequests("pings back", 20, e.to, e.wantSource, 84))
}

// attackPathMTU sends too-big messages about packets that nobody sent: of no connection, or with a sequence number that is not in flight.
func (l *Lab) attackPathMTU(ctx context.Context) (string, error) {
	e := l.pair("rome/pod1", "milan/pod1")
	before, err := e.segmentsReceived()
	if err != nil {
		return "", err
	}
	live, err := newIdle(e)
	if err != nil {
		return "", err
	}
	defer live.close()
	near, err := live.far.peer()
	if err != nil {
		return "", err
	}
	local, err := live.far.local()
	if err != nil {
		return "", err
	}
	attacker, mtu := l.at("milan/pod2"), uint16(68)
	if attacker.Address.Is6() {
		mtu = smallMTU // IPv6 hosts ignore less than the minimum MTU (RFC 8200, Section 5)
	}
	forged := [][]byte{
		silentUDP(netip.AddrPortFrom(e.wantSource, 4000), netip.AddrPortFrom(e.to.Address, 4001)),
		silentTCP(netip.AddrPortFrom(e.wantSource, 4000), netip.AddrPortFrom(e.to.Address, 4001), tcpACK, 1, 1),
		silentTCP(near, local, tcpACK, 0x0bad0bad, 0), // in flight by chance once in 65,536
	}
	f := &flood{attacker, len(forged), func(i int) []byte { return tooBigAbout(attacker.Address, forged[i], mtu) }}
	figure, err := l.beside(ctx, []*flood{f})
	if err != nil {
		return "", err
	}
	// What the attacker sends next arrives last.
	if err := errors.Join(l.pair("milan/pod2", "rome/pod1").reach(ctx), live.speak(live.near, live.far)); err != nil {
		return "", err
	}
	after, err := e.segmentsReceived()
	if err == nil && after < before {
		err = fmt.Errorf("segments of %d bytes arrive after %d forged messages, %d before", after, len(forged), before)
	}
	return fmt.Sprintf("%s; segments %d, then %d", figure, before, after), err
}

// segmentsReceived streams over a new connection and returns the segment size seen by the receiver.
func (e *ends) segmentsReceived() (size int, err error) {
	near, far, err := e.connect()
	if err != nil {
		return 0, err
	}
	defer near.close()
	defer far.close()
	if err := transferOver(near, far, smallStream); err != nil {
		return 0, err
	}
	info, err := unix.GetsockoptTCPInfo(far.fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return 0, err
	}
	return int(info.Rcv_mss), nil
}

// transferOver sends n bytes from one end to the other.
func transferOver(from, to *socket, n int) error {
	sending := make(chan error, 1)
	go func() {
		_, err := from.write(make([]byte, n))
		sending <- err
	}()
	buffer := make([]byte, bulkBuffer)
	for got := 0; got < n; {
		m, err := to.read(buffer)
		if err != nil {
			return errors.Join(err, <-sending)
		}
		got += m
	}
	return <-sending
}

func (s *socket) peer() (netip.AddrPort, error) {
	a, err := unix.Getpeername(s.fd)
	return addrPort(a), err
}

func (s *socket) local() (netip.AddrPort, error) {
	a, err := unix.Getsockname(s.fd)
	return addrPort(a), err
}

// attackFIN tries to end a connection without knowing its sequence numbers, from the far end's address, and then fills the table: an ended connection
// would be evicted.
func (l *Lab) attackFIN(ctx context.Context) (string, error) {
	victim, err := newIdle(l.pair("rome/node2", "milan/pod1"))
	if err != nil {
		return "", err
	}
	defer victim.close()
	// A large window is easy to hit.
	if err := transferOver(victim.far, victim.near, 4*smallStream); err != nil {
		return "", err
	}
	info, err := unix.GetsockoptTCPInfo(victim.near.fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return "", err
	}
	near, err := victim.far.peer()
	if err != nil {
		return "", err
	}
	far, err := victim.far.local()
	if err != nil {
		return "", err
	}
	// Of two acknowledgements half the sequence space apart, one is old.
	step := max(info.Rcv_ssthresh/4, 1<<15)
	f := &flood{l.at("milan/node1"), 2 * (int(1<<32/uint64(step)) + 1), func(i int) []byte {
		return silentTCP(far, near, tcpFIN|tcpACK, uint32(i/2)*step, 0x0bad0bad+uint32(i%2)<<31)
	}}
	figure, err := l.beside(ctx, []*flood{f})
	if err != nil {
		return "", err
	}
	more, err := l.fillTable(ctx)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s FINs; %s", figure, more), victim.serverSpeaks()
}

// sourceServer records who sends to it.
type sourceServer struct{ *net.UDPConn }

func newSourceServer(h *Host) (sourceServer, error) {
	conn, err := h.listenUDP(h.Address, attackPort)
	return sourceServer{conn}, err
}

// expect requires this datagram next, from this source.
func (s sourceServer) expect(want string, from netip.AddrPort) error {
	s.SetReadDeadline(time.Now().Add(replyTimeout))
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

// speakFor sends datagrams of count connections from the first node of rome, with pod e.from as their source. The first has the ports of a connection
// that this pod opens later.
func (l *Lab) speakFor(e *ends, count int) *flood {
	return &flood{l.at("rome/node1"), count, func(i int) []byte {
		return rawUDP(netip.AddrPortFrom(e.from.Address, forgedPort+uint16(i)), netip.AddrPortFrom(e.target, attackPort), []byte("forged")...)
	}}
}

// forgedPort is the near port of a connection that an attacker opens first.
const forgedPort = 5000

// attackSource sends as a pod of another node, before that pod does.
func (l *Lab) attackSource(ctx context.Context) (string, error) {
	e := l.pair("rome/pod2", "milan/pod1")
	server, err := newSourceServer(e.to)
	if err != nil {
		return "", err
	}
	defer server.Close()
	figure, err := l.beside(ctx, []*flood{l.speakFor(e, 5000)})
	if err != nil {
		return "", err
	}
	if err := l.pair("rome/node1", "milan/pod1").reach(ctx); err != nil { // what it sends next arrives last
		return "", err
	}
	client, err := e.from.DialFrom(ctx, over("udp", e.target), netip.AddrPortFrom(e.from.Address, forgedPort), netip.AddrPortFrom(e.target, attackPort), nil)
	if err != nil {
		return "", err
	}
	defer client.Close()
	if _, err := client.Write([]byte("own")); err != nil {
		return "", err
	}
	return figure + " forged, none received", server.expect("own", netip.AddrPortFrom(e.wantSource, forgedPort))
}

// checkSourceAllowed requires that such packets pass where a node may send from the addresses of all pods.
func (l *Lab) checkSourceAllowed(ctx context.Context) (string, error) {
	e := l.pair("rome/pod2", "milan/pod1")
	server, err := newSourceServer(e.to)
	if err != nil {
		return "", err
	}
	defer server.Close()
	if _, err := l.beside(ctx, []*flood{l.speakFor(e, 1)}); err != nil {
		return "", err
	}
	return "received", server.expect("forged", netip.AddrPortFrom(e.wantSource, forgedPort))
}
