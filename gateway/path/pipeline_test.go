package path

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"go.uber.org/goleak"
	"golang.org/x/crypto/chacha20poly1305"

	"culvert/gateway/config"
	"culvert/gateway/config/configtest"
	"culvert/gateway/wg"
	"culvert/geneve"
	"culvert/geneve/genevetest"
	"culvert/integration/need"
	"culvert/nat"
	"culvert/nat/nattest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A pipeline is a packet path without WireGuard: its tests take the place of wireguard-go.
type pipeline struct {
	*Path
	node  *net.UDPConn // a node's underlay socket; nobody reads it
	vni   uint32
	bufs  [][]byte
	sizes []int
}

// nobody is a Local that takes nothing.
type nobody struct{}

func (nobody) Answered(nat.Link, []byte) bool              { return false }
func (nobody) Check([]byte) (answer []byte, ok, mine bool) { return nil, false, false }
func (nobody) Exports([]byte) (ok, mine bool)              { return false, false }

const headroom = 16 // wireguard-go's offset, device.MessageTransportHeaderSize

func newPipeline(t testing.TB) *pipeline {
	t.Helper()
	c := configtest.Cluster("rome", "milan", config.Client, "10.61.0.0/16", "10.71.0.0/16")
	for i := range c.Geneve.Nodes {
		c.Geneve.Nodes[i].Underlay = netip.AddrFrom4([4]byte{127, 0, 30, byte(2 + i)})
	}
	links := config.Links{}.Assign(c.Geneve.Nodes)
	engine, err := nat.New([16]byte{1}, c.NAT(links, 0))
	need.NoError(t, err)
	n := c.Geneve.Nodes[0]
	node, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(n.Underlay, 0)))
	need.NoError(t, err)
	t.Cleanup(func() { node.Close() })
	nodePort := node.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	endpoint, err := geneve.Listen(geneve.Options{
		Listen: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 30, 1}), 0), RemotePort: nodePort})
	need.NoError(t, err)
	t.Cleanup(func() { endpoint.Close() })
	need.NoError(t, endpoint.Apply(c.Tunnels(links)))
	own, peer := c.WireGuard.Role.TunnelAddresses()
	device := wg.New(wg.Options{PrivateKey: c.WireGuard.PrivateKey, MTU: int(c.MTU), Own: own.V4, Peer: peer.V4,
		Log: logrus.NewEntry(logrus.New())})
	p := &pipeline{Path: New(engine, endpoint, device, int(c.MTU)), node: node, vni: uint32(n.VNI),
		bufs: make([][]byte, wg.BatchSize), sizes: make([]int, wg.BatchSize)}
	p.Local = nobody{}
	for i := range p.bufs {
		p.bufs[i] = make([]byte, 65535)
	}
	return p
}

// send sends ip from the node.
func (p *pipeline) send(t testing.TB, ip []byte) { p.sendRaw(t, p.encap(ip)) }

func (p *pipeline) encap(ip []byte) []byte {
	mac := geneve.MAC(geneve.VNI(p.vni), geneve.Gateway)
	return genevetest.Geneve(p.vni, 0x6558, genevetest.Frame(mac, [6]byte{2, 'n', 0, 0, 0, 1}, genevetest.IPv4, ip))
}

func (p *pipeline) sendRaw(t testing.TB, datagram []byte) {
	if _, err := p.node.WriteToUDPAddrPort(datagram, p.Endpoint.LocalAddr()); err != nil {
		t.Fatal(err)
	}
}

// read takes one batch, as wireguard-go does.
func (p *pipeline) read(t testing.TB) int {
	n, err := p.out.read(p.bufs, p.sizes, headroom)
	need.NoError(t, err)
	return n
}

func tcpPacket(payload int, partial bool) []byte {
	return nattest.IP{Source: "10.0.1.5", Destination: "10.61.2.7", DF: true, Body: nattest.TCP{
		SourcePort: 4001, DestinationPort: 80, Seq: 1, Ack: 1, Flags: nattest.ACK, Payload: nattest.Payload(payload, 1),
		Partial: partial}}.Bytes()
}

func inboundPacket(payload int) []byte {
	return nattest.IP{Source: "10.0.2.7", Destination: "10.0.1.5", DF: true, Body: nattest.TCP{
		SourcePort: 80, DestinationPort: 4001, Seq: 1, Ack: 1, Flags: nattest.ACK,
		Payload: nattest.Payload(payload, 1)}}.Bytes()
}

// TestOutboundAllocations: a small packet, a super-frame and a dropped packet.
func TestOutboundAllocations(t *testing.T) {
	p := newPipeline(t)
	super := tcpPacket(50000, true)
	bad := nattest.IP{Source: "127.0.0.1", Destination: "10.61.2.7", Body: nattest.UDP{}}.Bytes()
	small := tcpPacket(100, false)
	datagrams := [][]byte{p.encap(bad), p.encap(super), p.encap(small)}
	want := (50000+int(config.DefaultMTU)-40-1)/(int(config.DefaultMTU)-40) + 1
	cycle := func() {
		for _, d := range datagrams {
			p.sendRaw(t, d)
		}
		for n := 0; n < want; {
			n += p.read(t)
		}
	}
	cycle()
	if n := testing.AllocsPerRun(50, cycle); n != 0 {
		t.Errorf("%v allocations per cycle", n)
	}
}

// TestInboundAllocations: forwarded packets, and packets refused with an ICMP error.
func TestInboundAllocations(t *testing.T) {
	p := newPipeline(t)
	p.send(t, tcpPacket(10, false)) // teaches the node's MAC
	p.read(t)
	good, refused := inboundPacket(1200), nattest.IP{Source: "10.0.2.7", Destination: "10.0.99.1",
		Body: nattest.UDP{}}.Bytes()
	bufs := [][]byte{make([]byte, headroom+len(good)), make([]byte, headroom+len(refused))}
	cycle := func() {
		copy(bufs[0][headroom:], good)
		copy(bufs[1][headroom:], refused)
		p.in.write(bufs, headroom)
		p.out.queue.drain(p.bufs, p.sizes, headroom)
	}
	for range 300 { // lets buffers grow that grow once
		cycle()
	}
	if n := testing.AllocsPerRun(100, cycle); n != 0 {
		t.Errorf("%v allocations per cycle", n)
	}
}

// reportSeal reports the time per packet relative to a ChaCha20-Poly1305 seal of 1400 bytes,
// measured now.
func reportSeal(b *testing.B, packets int) {
	perPacket := float64(b.Elapsed().Nanoseconds()) / float64(packets)
	b.ReportMetric(perPacket, "ns/packet")
	aead, err := chacha20poly1305.New(make([]byte, 32))
	need.NoError(b, err)
	plain, out := make([]byte, 1400), make([]byte, 0, 1500)
	nonce := make([]byte, aead.NonceSize())
	const seals = 20000
	start := time.Now()
	for range seals {
		out = aead.Seal(out[:0], nonce, plain, nil)
	}
	b.ReportMetric(perPacket*seals/float64(time.Since(start)), "seals/packet")
}

// BenchmarkOutbound takes a super-frame from the Geneve socket into wireguard-go's buffers,
// including the sender's system call.
func BenchmarkOutbound(b *testing.B) {
	p := newPipeline(b)
	super := p.encap(tcpPacket(61100, true)) // 47 segments
	packets := 0
	b.ReportAllocs()
	for b.Loop() {
		p.sendRaw(b, super)
		for n := 0; n < 47; {
			n += p.read(b)
		}
		packets += 47
	}
	reportSeal(b, packets)
}

// BenchmarkInbound takes a batch from wireguard-go's buffers to the Geneve socket.
func BenchmarkInbound(b *testing.B) {
	p := newPipeline(b)
	p.send(b, tcpPacket(10, false))
	p.read(b)
	packet := inboundPacket(1300)
	bufs := make([][]byte, 47)
	for i := range bufs {
		bufs[i] = make([]byte, headroom+len(packet))
	}
	packets := 0
	b.ReportAllocs()
	for b.Loop() {
		for i := range bufs {
			copy(bufs[i][headroom:], packet)
		}
		p.in.write(bufs, headroom)
		packets += len(bufs)
	}
	reportSeal(b, packets)
}
