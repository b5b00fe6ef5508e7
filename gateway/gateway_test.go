package gateway

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"go.uber.org/goleak"

	"culvert/gateway/config"
	"culvert/gateway/config/configtest"
	"culvert/gateway/lifecycle"
	"culvert/gateway/path"
	"culvert/gateway/wg"
	"culvert/gateway/wgkey"
	"culvert/geneve"
	"culvert/geneve/genevetest"
	"culvert/integration/need"
	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/rules"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// cluster is a running gateway with doubles for its nodes, on loopback.
type cluster struct {
	*Gateway
	nodes []*genevetest.Node
	stop  func() // stops the gateway before the end of the test
}

// start runs a gateway with configuration c. Its nodes get underlay addresses 127.0.<net>.2 and up.
func start(t testing.TB, c *config.Config, net byte) *cluster {
	t.Helper()
	log := logrus.New()
	log.SetOutput(io.Discard)
	cl := open(t, c, net, log, nil)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- cl.Run(ctx) }()
	stopped := false
	cl.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("%s: %v", c.Cluster, err)
		}
	}
	t.Cleanup(cl.stop)
	return cl
}

// open makes a gateway that carries packets, by a clock (nil: the system's), and its nodes. The
// caller must Run or close it.
func open(t testing.TB, c *config.Config, net byte, log *logrus.Logger, now func() time.Duration) *cluster {
	t.Helper()
	cl := new(cluster)
	for i := range c.Geneve.Nodes {
		c.Geneve.Nodes[i].Underlay = netip.AddrFrom4([4]byte{127, 0, net, byte(2 + i)})
	}
	// The nodes use the gateway's port at addresses of their own.
	listen := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, net, 1}), freePort(t))
	var err error
	if cl.Gateway, err = newGateway(c, Budget{}, log, geneve.Options{Listen: listen, Now: now}); err != nil {
		t.Fatal(err)
	}
	for _, n := range c.Geneve.Nodes {
		cl.nodes = append(cl.nodes, genevetest.NewNode(t, genevetest.NodeConfig{
			Listen: netip.AddrPortFrom(n.Underlay, cl.endpoint.LocalAddr().Port()), Gateway: cl.endpoint.LocalAddr(),
			VNI: uint32(n.VNI), VXLAN: n.Encap == geneve.VXLAN, Address: n.Address.V4,
			GatewayAddress: c.Geneve.GatewayAddress.V4,
			Address6:       n.Address.V6, GatewayAddress6: c.Geneve.GatewayAddress.V6,
		}))
	}
	return cl
}

func (g *Gateway) config() *config.Config { c, _ := g.current.Get(); return c }

func (g *Gateway) links() config.Links { _, l := g.current.Get(); return l }

// unopened returns a gateway that has no WireGuard socket and no nodes.
func unopened(t testing.TB) *Gateway {
	t.Helper()
	c := configtest.Cluster("rome", "milan", config.Client, "10.61.0.0/16", "10.71.0.0/16")
	g := &Gateway{log: logrus.NewEntry(logrus.New())}
	links := config.Links{}.Assign(c.Geneve.Nodes)
	g.current.Set(c, links)
	g.life = lifecycle.New(lifecycle.Options{Log: g.log, Current: &g.current, Applying: &g.applying,
		Ready: g.ready.Load, Listeners: g.listeners}, nil)
	var err error
	if err = g.life.Open(c); err != nil {
		t.Fatal(err)
	}
	if g.engine, err = nat.New([16]byte{1}, c.NAT(links, 0)); err != nil {
		t.Fatal(err)
	}
	if g.endpoint, err = geneve.Listen(geneve.Options{Listen: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 30,
		1}), 0)}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.endpoint.Close() })
	g.connectPath(c)
	return g
}

// pair is two clusters with equal CIDRs and unequal views of each other, joined by
// WireGuard over loopback.
type pair struct{ rome, milan *cluster }

func newPair(t testing.TB, edit func(rome, milan *config.Config)) *pair {
	t.Helper()
	p := startPair(t, edit)
	need.Eventually(t, genevetest.Timeout, "a session", p.settled)
	return p
}

// startPair is newPair of gateways that need not have a session yet.
func startPair(t testing.TB, edit func(rome, milan *config.Config)) *pair {
	t.Helper()
	rc := configtest.Cluster("rome", "milan", config.Client, "10.61.0.0/16", "10.71.0.0/16")
	mc := configtest.Cluster("milan", "rome", config.Server, "10.62.0.0/16", "10.72.0.0/16")
	rc.WireGuard.PeerPublicKey = mc.WireGuard.PrivateKey.Public()
	mc.WireGuard.PeerPublicKey = rc.WireGuard.PrivateKey.Public()
	if edit != nil {
		edit(rc, mc)
	}
	p := new(pair)
	p.milan = start(t, mc, 20)
	rc.WireGuard.Endpoint = fmt.Sprintf("127.0.0.1:%d", p.milan.wg.Port())
	p.rome = start(t, rc, 10)
	return p
}

// settled returns an error until both gateways have a session, and no message of a handshake is
// under way. A gateway without a session starts a handshake for each pause in which it gets no
// answer, and handshakes of both may cross. wireguard-go has one session before the current one, so
// that a packet which is under way meanwhile can be lost.
func (p *pair) settled() error {
	rome, milan := p.rome.wg, p.milan.wg
	for _, d := range []*wg.Device{rome, milan} {
		s, err := d.PeerStats()
		if err != nil {
			return err
		}
		if s.LastHandshake.IsZero() {
			return fmt.Errorf("no session: %+v", s)
		}
	}
	r, m := rome.Stats().Talk, milan.Stats().Talk
	if r.SentInitiations != m.ReceivedInitiations || r.SentAnswers != m.ReceivedAnswers ||
		m.SentInitiations != r.ReceivedInitiations ||
		m.SentAnswers != r.ReceivedAnswers {
		return fmt.Errorf("a handshake is under way: rome %+v, milan %+v", r, m)
	}
	return nil
}

// deaf makes a node, which may have spoken to the gateway before, ignore the gateway's probes and
// packets. Then only the test's own packets are counted, however long it takes.
func deaf(n *genevetest.Node) { n.LoseLarge(1, 1) }

func udpPacket(source, destination string, payload []byte) []byte {
	return nattest.IP{Source: source, Destination: destination, ID: 77,
		Body: nattest.UDP{SourcePort: 4000, DestinationPort: 53, Payload: payload}}.Bytes()
}

// expect returns the next packet that n receives. It checks the whole packet and its addresses.
func expect(t testing.TB, n *genevetest.Node, source, destination string) nattest.View {
	t.Helper()
	v, err := nattest.Check(n.Receive())
	need.NoError(t, err)
	if v.Source.String() != source || v.Destination.String() != destination {
		t.Fatalf("got %v > %v, want %s > %s", v.Source, v.Destination, source, destination)
	}
	return v
}

// TestEveryNodePair: a packet from each node of one cluster reaches each node of the
// other with the addresses of the receiver's view, and the answer comes back.
func TestEveryNodePair(t *testing.T) {
	p := newPair(t, nil)
	podOf := []string{"1.5", "3.9"} // behind node 1 and 2
	for _, way := range []struct {
		from, to *cluster
		// prefixes: the remote pods as the sender sees them, the sender's pods as the receiver does
		seenThere, seenRet string
	}{{p.rome, p.milan, "10.61.", "10.62."}, {p.milan, p.rome, "10.62.", "10.61."}} {
		for i, from := range way.from.nodes {
			for k, to := range way.to.nodes {
				payload := nattest.Payload(100+7*i+k, uint32(i))
				from.Send(udpPacket("10.0."+podOf[i], way.seenThere+podOf[k], payload))
				v := expect(t, to, way.seenRet+podOf[i], "10.0."+podOf[k])
				if v.TTL != 62 || !bytes.Equal(v.Payload, payload) || v.ID != 77 {
					t.Errorf("TTL %d, ID %d, payload %d bytes", v.TTL, v.ID, len(v.Payload))
				}
				to.Send(udpPacket("10.0."+podOf[k], way.seenRet+podOf[i], payload))
				expect(t, from, way.seenThere+podOf[k], "10.0."+podOf[i])
			}
		}
	}
}

// TestSuperFrame: a TCP super-frame with an unfinished checksum arrives as MTU-sized segments with
// the same content.
func TestSuperFrame(t *testing.T) {
	p := newPair(t, nil)
	payload := nattest.Payload(60000, 1)
	p.rome.nodes[0].Send(nattest.IP{Source: "10.0.1.5", Destination: "10.61.2.7", DF: true, Body: nattest.TCP{
		SourcePort: 1, DestinationPort: 2, Seq: 1000, Ack: 1, Flags: nattest.ACK | nattest.PSH, Payload: payload,
		Partial: true}}.Bytes())
	var got []byte
	for len(got) < len(payload) {
		v := expect(t, p.milan.nodes[1], "10.62.1.5", "10.0.2.7")
		if v.Seq != 1000+uint32(len(got)) || len(v.Header)+len(v.Body) > int(config.DefaultMTU) {
			t.Fatalf("segment at %d, %d bytes", v.Seq, len(v.Header)+len(v.Body))
		}
		got = append(got, v.Payload...)
		if last := len(got) == len(payload); last != (v.Flags&nattest.PSH != 0) {
			t.Errorf("PSH %v on segment that ends at %d", !last, len(got))
		}
	}
	if !bytes.Equal(got, payload) {
		t.Error("other bytes")
	}
}

// TestFragmentsWithoutDF: packets without DF that are too long are fragmented, on the way out and,
// by a far gateway with a smaller MTU, on the way in.
func TestFragmentsWithoutDF(t *testing.T) {
	for _, far := range []config.TunnelMTU{config.DefaultMTU, 1280} {
		t.Run(fmt.Sprint(far), func(t *testing.T) {
			p := newPair(t, func(_, milan *config.Config) { milan.MTU = far })
			payload := nattest.Payload(1400, 2)
			p.rome.nodes[0].Send(udpPacket("10.0.1.5", "10.61.1.7", payload))
			var fragments [][]byte
			for {
				b := p.milan.nodes[0].Receive()
				if len(b) > int(far) {
					t.Fatalf("fragment of %d bytes", len(b))
				}
				fragments = append(fragments, b)
				if whole := nattest.Reassemble(fragments); whole != nil {
					v, err := nattest.Check(whole)
					if err != nil || !bytes.Equal(v.Payload, payload) {
						t.Fatalf("%v, %d bytes", err, len(v.Payload))
					}
					return
				}
			}
		})
	}
}

// TestTooBig: the near gateway sends the error from its internal address, the far one through the
// tunnel. Either error quotes the packet as the sender sent it, and comes from an address that the
// sender can reach.
func TestTooBig(t *testing.T) {
	p := newPair(t, func(_, milan *config.Config) { milan.MTU = 1280 })
	for _, tt := range []struct {
		size int
		from string // source of the error
		mtu  uint32
	}{{1400, "10.80.0.4", 1340}, {1300, "10.71.0.0", 1280}} {
		sent := nattest.IP{Source: "10.0.1.5", Destination: "10.61.1.7", DF: true,
			Body: nattest.UDP{SourcePort: 4000, DestinationPort: 53, Payload: nattest.Payload(tt.size-28, 3)}}.Bytes()
		p.rome.nodes[0].Send(sent)
		b := p.rome.nodes[0].Receive()
		v, err := nattest.Check(b)
		need.NoError(t, err)
		if v.Source.String() != tt.from || v.Destination.String() != "10.0.1.5" || v.Body[0] != 3 || v.Body[1] != 4 {
			t.Errorf("got ICMP %d/%d from %v", v.Body[0], v.Body[1], v.Source)
		}
		if mtu := binary.BigEndian.Uint32(v.Body[4:]); mtu != tt.mtu {
			t.Errorf("MTU %d, want %d", mtu, tt.mtu)
		}
		quoted, err := nattest.Quoted(b)
		need.NoError(t, err)
		if quoted.Source.String() != "10.0.1.5" || quoted.Destination.String() != "10.61.1.7" ||
			quoted.SourcePort != 4000 {
			t.Errorf("quoted %v > %v", quoted.Source, quoted.Destination)
		}
	}
}

func echo(source, destination string, ttl uint8, payload int) []byte {
	return nattest.IP{Source: source, Destination: destination, TTL: ttl,
		Body: nattest.ICMP{Type: 8, Rest: 0x1234_0001, Payload: nattest.Payload(payload, 4)}}.Bytes()
}

// TestOwnAddress: the gateway answers pings of its internal address to the node that asked, also in
// fragments and for sources without a route. It sends "time exceeded" for packets with TTL 1, and
// refuses everything else but echo replies.
func TestOwnAddress(t *testing.T) {
	p := newPair(t, nil)
	for i, n := range p.rome.nodes {
		for _, source := range []string{n.Address.String(), []string{"10.0.1.5", "10.0.2.5"}[i], "198.51.100.9"} {
			n.Send(echo(source, "10.80.0.4", 1, 56+i))
			v := expect(t, n, "10.80.0.4", source)
			if v.Body[0] != 0 || !bytes.Equal(v.Body[8:], nattest.Payload(56+i, 4)) {
				t.Errorf("ICMP %d, %d bytes", v.Body[0], len(v.Body))
			}
		}
	}
	node := p.rome.nodes[1]
	node.Send(echo("10.0.2.5", "10.61.1.7", 1, 56))
	if v := expect(t, node, "10.80.0.4", "10.0.2.5"); v.Body[0] != 11 {
		t.Errorf("ICMP %d for TTL 1", v.Body[0])
	}
	node.Send(nattest.IP{Source: node.Address.String(), Destination: "10.80.0.4",
		Body: nattest.ICMP{Type: 0, Rest: 0x1234_0001}}.Bytes()) // it answers a gateway that is gone
	node.Send(udpPacket("10.0.2.5", "10.80.0.4", nil))
	if v := expect(t, node, "10.80.0.4", "10.0.2.5"); v.Body[0] != 3 || v.Body[1] != 3 {
		t.Errorf("ICMP %d/%d for UDP", v.Body[0], v.Body[1])
	}
	if n := p.rome.path.Outbound().Dropped(path.DropNoService); n != 2 {
		t.Errorf("%d drops with no-service, want 2", n)
	}

	whole := echo("10.0.2.5", "10.80.0.4", 64, 4000)
	var answer [][]byte
	for _, f := range nattest.Fragment(whole, 1480) {
		node.Send(f)
	}
	for {
		answer = append(answer, node.Receive())
		if b := nattest.Reassemble(answer); b != nil {
			v, err := nattest.Check(b)
			if err != nil || v.Body[0] != 0 || !bytes.Equal(v.Body[8:], nattest.Payload(4000, 4)) {
				t.Errorf("%v, ICMP %d", err, v.Body[0])
			}
			break
		}
	}
}

// TestApply: a configuration takes effect at once; one that is invalid or needs a restart changes
// nothing.
func TestApply(t *testing.T) {
	p := newPair(t, nil)
	p.rome.nodes[0].Send(udpPacket("10.0.1.5", "10.61.1.7", []byte("before")))
	expect(t, p.milan.nodes[0], "10.62.1.5", "10.0.1.7")

	next := *p.rome.config()
	next.Remote = append([]rules.RemoteCIDR(nil), next.Remote...)
	next.Remote[0].Remapped = netip.MustParsePrefix("10.99.0.0/16")
	need.NoError(t, p.rome.Apply(&next))
	p.rome.nodes[0].Send(udpPacket("10.0.1.5", "10.99.1.7", []byte("after")))
	expect(t, p.milan.nodes[0], "10.62.1.5", "10.0.1.7")

	bad := next
	bad.MTU, bad.WireGuard.ListenPort = 1400, 1
	err := p.rome.Apply(&bad)
	if err == nil || !strings.Contains(err.Error(), "mtu: ") || !strings.Contains(err.Error(),
		"wireguard.listenPort: ") {
		t.Errorf("Apply of what takes a restart: %v", err)
	}
	bad = next
	bad.Remote = append([]rules.RemoteCIDR(nil), next.Remote...)
	bad.Remote[0].Remapped = bad.Local.PodCIDRs[0]
	if err := p.rome.Apply(&bad); err == nil {
		t.Error("Apply of overlapping CIDRs succeeded")
	}
	p.rome.nodes[0].Send(udpPacket("10.0.1.5", "10.99.1.7", []byte("still")))
	expect(t, p.milan.nodes[0], "10.62.1.5", "10.0.1.7")
}

// TestHostilePackets: random and corrupted packets from nodes never stop the gateway, and each is
// counted once.
func TestHostilePackets(t *testing.T) {
	p := newPair(t, nil)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	node := p.rome.nodes[0]
	good := udpPacket("10.0.1.5", "10.61.1.7", nattest.Payload(64, 1))
	node.GatewayMAC()
	for range 3000 {
		b := bytes.Clone(good)
		for range 1 + r.IntN(4) {
			b[r.IntN(len(b))] = byte(r.Uint32())
		}
		datagram := genevetest.Geneve(node.VNI, 0x6558, genevetest.Frame(node.GatewayMAC(), node.MAC,
			genevetest.IPv4, b))
		node.SendRaw(datagram[:r.IntN(len(datagram)+1)])
	}
	last := nattest.Payload(64, 2) // no corrupted packet has this payload
	node.Send(udpPacket("10.0.1.5", "10.61.1.7", last))
	for {
		v, err := nattest.Check(p.milan.nodes[0].Receive())
		if err == nil && v.Source.String() == "10.62.1.5" && bytes.Equal(v.Payload, last) && v.SourcePort == 4000 {
			break
		}
	}
	s := p.rome.engine.Stats().Outbound
	var drops uint64
	for _, n := range s.Dropped {
		drops += n
	}
	if s.Received != s.Forwarded+s.Delivered+drops {
		t.Errorf("received %d, forwarded %d, delivered %d, dropped %d", s.Received, s.Forwarded, s.Delivered, drops)
	}
}

// TestNoSession: packets that WireGuard discards for lack of a session are counted, and the gateway
// continues to answer its nodes.
func TestNoSession(t *testing.T) {
	p := startPair(t, func(rome, _ *config.Config) { rome.WireGuard.PeerPublicKey = wgkey.NewPrivate().Public() })
	const sent = 500
	for i := range sent {
		p.rome.nodes[0].Send(udpPacket("10.0.1.5", "10.61.1.7", nattest.Payload(100, uint32(i))))
	}
	for range 2 { // the second is answered after the batch of the first was passed on
		p.rome.nodes[0].Send(echo("10.0.1.5", "10.80.0.4", 64, 56))
		if v := expect(t, p.rome.nodes[0], "10.80.0.4", "10.0.1.5"); v.Body[0] != 0 {
			t.Errorf("ICMP %d", v.Body[0])
		}
	}
	p.rome.wg.Settle()
	p.rome.wg.Settle()
	// the gateway sends probes each second
	n, own := p.rome.wg.Stats().Outbound[wg.TunnelDiscard], p.rome.path.Outbound().Generated()
	if n < sent || n > sent+own {
		t.Errorf("%d counted as discarded, want %d and some of %d", n, sent, own)
	}
}
