package path

import (
	"time"

	"culvert/gateway/latency"
	"culvert/gateway/wg"
	"culvert/geneve"
	"culvert/geneve/udp"
	"culvert/nat"
)

// A Path is the packet path of one gateway, in both directions. Its exported fields are set before
// Open and do not change afterwards.
type Path struct {
	Engine   *nat.Engine
	Endpoint *geneve.Endpoint
	WG       *wg.Device
	MTU      int   // of the tunnels, in bytes
	Local    Local // takes what is addressed to the gateway itself

	out *outbound
	in  *inbound
	tap tap
}

// Local takes packets that are addressed to the gateway itself, before the path answers echo
// requests. Both directions call it.
type Local interface {
	// Answered handles an answer to a path MTU probe that came by a link. It returns false for any
	// other packet.
	Answered(link nat.Link, packet []byte) bool
	// Check handles a packet from the tunnel to the connection check; mine is false for any other
	// packet. It returns the answer to send, or nil. ok is false if the check has no use for the
	// packet.
	Check(packet []byte) (answer []byte, ok, mine bool)
	// Exports is Check for datagrams about the Services that clusters export to each other, which
	// have no answer.
	Exports(packet []byte) (ok, mine bool)
}

// New connects the Geneve endpoint, the engine and the WireGuard device. No packet passes before
// Open.
func New(engine *nat.Engine, endpoint *geneve.Endpoint, device *wg.Device, mtu int) *Path {
	p := &Path{Engine: engine, Endpoint: endpoint, WG: device, MTU: mtu}
	p.out = &outbound{
		Path:     p,
		Counters: newCounters(),
		receiver: endpoint.NewReceiver(),
		replies:  endpoint.NewSender(),
		queue:    newQueue(endpoint.Wake),
		piece:    make([]byte, mtu),
	}
	p.in = &inbound{
		Path:     p,
		Counters: newCounters(),
		sender:   endpoint.NewSender(),
		answers:  p.out.queue,
		piece:    make([]byte, mtu),
	}
	p.in.other = &p.out.Counters
	return p
}

// Open opens the WireGuard device, which from then on pulls packets from p and pushes packets into
// it.
func (p *Path) Open(peer wg.Peer) error {
	return p.WG.Open(wg.Path{Read: p.Read, Write: p.in.write, Send: p.Send, Close: func() { p.Endpoint.Close() }}, peer)
}

// Read fills bufs[i][offset:] with packets for the peer and sizes[i] with their lengths, as
// wg.Path.Read says.
func (p *Path) Read(bufs [][]byte, sizes []int, offset int) (int, error) {
	return p.out.read(bufs, sizes, offset)
}

// Outbound returns the counters of packets that leave the local cluster; Inbound those of packets
// that enter it.
func (p *Path) Outbound() *Counters { return &p.out.Counters }

// Inbound is described at Outbound.
func (p *Path) Inbound() *Counters { return &p.in.Counters }

// Send queues a packet of the gateway's own for the peer.
func (p *Path) Send(packet []byte) { p.out.send(packet) }

// SendTo is Send to the end of any link. A packet to a node is sent by sender, with the next Flush
// at the latest.
func (p *Path) SendTo(sender *geneve.Sender, link nat.Link, packet []byte) {
	if link == nat.Tunnel {
		p.Send(packet)
		return
	}
	p.in.generated.Add(1)
	if !p.Engine.LetsOut(packet, link) {
		p.dropMade(&p.in.Counters, DropOutput, packet, link)
		return
	}
	sender.Send(uint16(link), packet)
}

// Delivered returns how many packets to the gateway itself came by a link, except answers to
// probes.
func (p *Path) Delivered(link nat.Link) uint64 { return p.out.local.of(link) }

// Carry carries packets of the peer, bufs[i][offset:], to nodes. Only one goroutine may call it at
// a time: the device does, unless Divert is set.
func (p *Path) Carry(bufs [][]byte, offset int) { p.in.carry(bufs, offset) }

// Divert passes packets that the device decrypts to take instead of Carry; nil passes them to Carry
// again.
func (p *Path) Divert(take func(bufs [][]byte, offset int)) {
	if take == nil {
		p.in.divert.Store(nil)
		return
	}
	p.in.divert.Store(&take)
}

// SentToNodes returns how long it took to send batches to nodes.
func (p *Path) SentToNodes() latency.Counts { return p.in.sent.Counts() }

// Diverted returns the last value of Divert.
func (p *Path) Diverted() func(bufs [][]byte, offset int) {
	if take := p.in.divert.Load(); take != nil {
		return *take
	}
	return nil
}

// Sockets returns the statistics of each UDP socket by its name in metrics. tunnel is what WG.Stats
// returned.
func (p *Path) Sockets(tunnel *wg.Stats) map[string]udp.Stats {
	sockets := map[string]udp.Stats{"geneve": p.Endpoint.Stats().Socket}
	for i, s := range tunnel.Sockets {
		sockets[[]string{"wireguard", "wireguard6"}[i]] = s
	}
	return sockets
}

// Now is the engine's monotonic time: since the start of the process.
func Now() nat.Time { return nat.Time(time.Since(started)) }

// Uptime is Now as a Duration.
func Uptime() time.Duration { return time.Since(started) }

var started = time.Now()
