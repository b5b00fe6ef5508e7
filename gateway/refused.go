package gateway

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"culvert/gateway/control"
	"culvert/gateway/health"
	"culvert/gateway/wg"
	"culvert/geneve"
	"culvert/nat"
	"culvert/nat/packet"
)

// maxRefusals is how many kinds of refused packets are remembered.
const maxRefusals = 32

// refusals remembers which packets were refused last, of each kind one a second at most.
type refusals struct {
	mu sync.Mutex
	// newest first
	list []control.Refusal // +checklocks:mu
}

// note remembers x, and adds it to what was alike.
func (r *refusals) note(x control.Refusal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	alike := func(y control.Refusal) bool {
		y.Time, y.Packets = x.Time, x.Packets
		return x == y
	}
	at := slices.IndexFunc(r.list, alike)
	switch {
	case at >= 0:
		x.Packets += r.list[at].Packets
		r.list = slices.Delete(r.list, at, at+1)
	case len(r.list) == maxRefusals:
		r.list = r.list[:maxRefusals-1]
	}
	r.list = slices.Insert(r.list, 0, x)
}

func (r *refusals) all() []control.Refusal {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]control.Refusal{}, r.list...)
}

// refused remembers packets that were dropped for a reason of nat.
func (w *watch) refused(x *witness, r nat.Reason, inbound bool, packets uint64) {
	w.refusals.note(control.Refusal{
		Time: time.Now(), Direction: directionName(inbound), Reason: r.String(), From: w.g.linkName(x.in), Packets: packets,
		Protocol: x.protocol, Source: endText(x.source, x.ports[0]), Destination: endText(x.destination, x.ports[1]),
	})
}

// refusedSign remembers a datagram that is no node's, or none as that node is to send. What
// needs no remedy, such as how IPv6 looks for neighbours, is not remembered.
func (w *watch) refusedSign(s *geneve.Sign) {
	if _, remedy := health.Explain(s.Reason.String()); remedy == "" {
		return
	}
	x := control.Refusal{Time: time.Now(), Direction: directionName(false), Reason: s.Reason.String(), Packets: 1}
	if s.Reason == geneve.UnknownNode {
		x.Protocol, x.Source = "udp", s.Source.String()
	} else {
		x.From = w.g.linkName(nat.Link(s.Tunnel))
	}
	w.refusals.note(x)
}

// refusedStranger remembers a message to WireGuard's port that is not wanted there.
func (w *watch) refusedStranger(r wg.Reason, from netip.Addr) {
	w.refusals.note(control.Refusal{Time: time.Now(), Direction: directionName(true), Reason: r.String(), Protocol: "udp", Source: from.String(), Packets: 1})
}

func directionName(inbound bool) string {
	if inbound {
		return "inbound"
	}
	return "outbound"
}

// linkName is the name of a node, or tunnel.
func (g *Gateway) linkName(l nat.Link) string {
	if l == nat.Tunnel {
		return "tunnel"
	}
	return g.nodeName(l)
}

// endText is an address, with its port if it has one.
func endText(a netip.Addr, port uint16) string {
	if port == 0 {
		return a.String()
	}
	return netip.AddrPortFrom(a, port).String()
}

// describe notes the protocol and the ports of a packet, unless it is malformed.
func (x *witness) describe(p *packet.Packet) {
	if p.Fault() != packet.NoFault {
		return
	}
	var t packet.Tuple
	p.Tuple(&t, x.in)
	x.protocol = control.ProtocolName(t.Protocol)
	if !packet.IsICMP(t.Protocol) {
		x.ports = [2]uint16{t.SourcePort(), t.DestinationPort()}
	}
}
