package gateway

import (
	"culvert/geneve"
	"culvert/nat"
)

// inbound carries packets of the remote cluster to the local one: from
// wireguard-go's buffers, decide and translate, encap, send to the node. It runs
// on wireguard-go's receiver goroutine of the one peer.
type inbound struct {
	counters
	sender  *geneve.Sender
	engine  *nat.Engine
	host    *nic      // the gateway's own tunnel address
	answers *queue    // ICMP errors and answers, back into the tunnel
	other   *counters // of outbound, whose way they go

	packet  nat.Packet
	cutter  nat.Cutter
	scratch []byte
}

// write implements tun.Device.Write.
func (in *inbound) write(bufs [][]byte, offset int) {
	now := clock()
	for _, b := range bufs {
		in.decide(b[offset:], now)
	}
	in.sender.Flush()
}

func (in *inbound) decide(data []byte, now nat.Time) {
	p := &in.packet
	if reason := p.Parse(data); reason != nat.ReasonNone {
		in.engine.Refuse(nat.Tunnel, reason)
		return
	}
	v := in.engine.Process(p, nat.Tunnel, now)
	switch v.Action {
	case nat.Forward:
		in.forward(p, v)
	case nat.Deliver:
		in.deliver(p, now)
	case nat.Drop:
		in.refuse(p, v, now)
	}
}

// refuse tells the sender of p why it was dropped, where that is due.
func (in *inbound) refuse(p *nat.Packet, v nat.Verdict, now nat.Time) {
	in.scratch = in.engine.AppendError(in.scratch[:0], p, nat.Tunnel, v, now)
	if len(in.scratch) > 0 {
		in.reply(in.scratch)
	}
}

// reply queues packet for the tunnel; outbound counts it as sent when it takes it.
func (in *inbound) reply(packet []byte) {
	in.other.generated.Add(1)
	if !in.answers.push(packet) {
		in.other.drops[DropLocalQueueFull].Add(1)
	}
}

// deliver hands p to the gateway's own tunnel address.
func (in *inbound) deliver(p *nat.Packet, now nat.Time) {
	if !answerable(p) {
		in.drops[DropNoService].Add(1)
		in.refuse(p, portUnreachable, now)
		return
	}
	for _, answer := range in.host.ask(p.Bytes()) {
		in.reply(answer)
	}
}

// forward writes what p becomes straight behind its new headers.
func (in *inbound) forward(p *nat.Packet, v nat.Verdict) {
	size := len(p.Bytes())
	if v.MTU > 0 {
		size = min(size, v.MTU)
	}
	in.cutter.Start(p, v)
	for range v.Packets {
		room, reason := in.sender.Reserve(uint16(v.Out), size)
		if reason != geneve.Accepted {
			continue // counted by the sender, packet by packet
		}
		in.sender.Commit(in.cutter.Next(room))
	}
}
