package path

import (
	"net/netip"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/header"

	"culvert/gateway/latency"
	"culvert/geneve"
	"culvert/nat"
	"culvert/nat/packet"
)

// inbound carries packets from the remote cluster to the local one: it takes them from
// wireguard-go's buffers, asks the engine to decide and translate, encapsulates them and sends them
// to the node. It runs on wireguard-go's receiving goroutine for the only peer.
type inbound struct {
	*Path
	Counters
	pollAt  nat.Time // when to poll the endpoint
	sender  *geneve.Sender
	answers *queue    // ICMP errors and answers, back into the tunnel
	other   *Counters // of outbound: answers go in its direction

	packets  [nat.MaxLoad]packet.Packet
	source   [16]byte // source address of the packet that is being handled, before translation
	cutter   packet.Cutter
	fragment fragmentRoom
	piece    []byte // of MTU bytes, on its way back into the tunnel
	scratch  []byte
	sight    sight
	divert   atomic.Pointer[func(bufs [][]byte, offset int)] // takes packets instead of carry during a hand-over
	sample   latency.Sampler
	sent     latency.Histogram // batches to nodes
}

// write is Write of the Path.
func (in *inbound) write(bufs [][]byte, offset int) {
	if divert := in.divert.Load(); divert != nil {
		(*divert)(bufs, offset)
		return
	}
	in.carry(bufs, offset)
}

// carry carries packets of the peer to nodes.
func (in *inbound) carry(bufs [][]byte, offset int) {
	now, sampled := Now(), in.sample.Picks(len(bufs))
	for len(bufs) > 0 {
		batch := bufs[:min(len(bufs), nat.MaxLoad)]
		bufs = bufs[len(batch):]
		for i, b := range batch {
			in.packets[i].Parse(b[offset:]) // Process drops what is malformed
		}
		in.Engine.Load(in.packets[:len(batch)], nat.Tunnel)
		for i, b := range batch {
			in.decide(&in.packets[i], b[offset:], now)
		}
	}
	if sampled {
		in.flushTimed(now)
	} else {
		in.sender.Flush()
	}
	if now >= in.pollAt {
		in.pollAt = now.Add(pollInterval)
		in.Endpoint.Poll()
	}
}

// flushTimed flushes, and records how long the decisions since begun and the flush took.
func (in *inbound) flushTimed(begun nat.Time) {
	decided := Now()
	in.decided.Observe(time.Duration(decided - begun))
	in.sender.Flush()
	in.sent.Observe(time.Duration(Now() - decided))
}

// decide decides about p, whose bytes are data.
func (in *inbound) decide(p *packet.Packet, data []byte, now nat.Time) {
	copy(in.source[:], data[min(sourceAt, len(data)):])
	if in.sight.tap = in.tap.Load(); in.sight.tap != nil {
		in.sight.arrive(in.Engine, p, data, nat.Tunnel, now)
	}
	v := in.Engine.Process(p, nat.Tunnel, now)
	if in.sight.tap != nil {
		in.sight.decided(p, &v)
	}
	held := v.Held
	in.act(p, v, now)
	for ; held > 0; held-- {
		if v, ok := in.Engine.Release(p, in.fragment[:], nat.Tunnel, now); ok {
			if in.sight.tap != nil {
				in.sight.released(p, &v)
			}
			in.act(p, v, now)
		}
	}
}

// act carries out verdict v for p.
func (in *inbound) act(p *packet.Packet, v nat.Verdict, now nat.Time) {
	switch v.Action {
	case nat.Forward:
		if v.Out == nat.Tunnel {
			in.hairpin(p, v)
			return
		}
		forward(in.sender, &in.cutter, p, v, &in.sight)
	case nat.Deliver:
		in.deliver(p, now)
	case nat.Drop:
		in.see(p, nat.Tunnel, v.Reason)
		in.refuse(p, v, now)
	}
}

// refuse sends an ICMP error to the sender of p if the verdict asks for one.
func (in *inbound) refuse(p *packet.Packet, v nat.Verdict, now nat.Time) {
	if answer := in.Engine.AppendError(in.scratch[:0], p, nat.Tunnel, v, now); answer != nil {
		in.reply(answer)
		in.scratch = answer // grown once, and kept
	}
}

// reply queues a packet for the tunnel. outbound counts it as sent when it takes it from the queue.
func (in *inbound) reply(packet []byte) {
	in.other.generated.Add(1)
	if !in.Engine.LetsOut(packet, nat.Tunnel) {
		in.dropMade(in.other, DropOutput, packet, nat.Tunnel)
		return
	}
	in.push(packet)
}

// push queues a packet in the share of the source of the packet that is being handled.
func (in *inbound) push(packet []byte) {
	of := netip.AddrFrom4([4]byte(in.source[ipv4SourceAt-sourceAt:]))
	if header.IPVersion(packet) == header.IPv6Version {
		of = netip.AddrFrom16(in.source)
	}
	if !in.answers.push(of, packet) {
		in.sight.lost(DropLocalQueueFull.String(), packet)
		in.other.drops[DropLocalQueueFull].Add(1)
	}
}

// Offsets of the source address in a header: the IPv6 address begins at sourceAt, the IPv4 address
// at ipv4SourceAt, within the same 16 bytes.
const (
	sourceAt     = 8
	ipv4SourceAt = 12
)

// deliver hands p to the gateway's own tunnel address.
func (in *inbound) deliver(p *packet.Packet, now nat.Time) {
	if in.WG.EchoAnswered(p.Bytes(), time.Duration(now)) || in.Local.Answered(nat.Tunnel, p.Bytes()) {
		return
	}
	bad := DropBadCheck
	answer, ok, mine := in.Local.Check(p.Bytes())
	if !mine {
		bad = DropBadExports
		ok, mine = in.Local.Exports(p.Bytes())
	}
	switch {
	case !mine:
	case !ok:
		in.sight.lost(bad.String(), nil)
		in.drops[bad].Add(1)
		return
	case answer != nil:
		in.reply(answer)
		return
	default:
		return
	}
	if !AnswerEcho(p, len(in.piece)) {
		in.sight.lost(DropNoService.String(), nil)
		in.drops[DropNoService].Add(1)
		in.refuse(p, NoService(p), now)
		return
	}
	in.cutter.Start(p, 0, len(in.piece))
	for n := in.cutter.Next(in.piece); n > 0; n = in.cutter.Next(in.piece) {
		in.reply(in.piece[:n])
	}
}

// hairpin queues a packet that came from the tunnel and goes back into it.
func (in *inbound) hairpin(p *packet.Packet, v nat.Verdict) {
	in.cutter.Start(p, v.SegmentSize, v.MTU)
	for n := in.cutter.Next(in.piece); n > 0; n = in.cutter.Next(in.piece) {
		in.push(in.piece[:n])
	}
}
