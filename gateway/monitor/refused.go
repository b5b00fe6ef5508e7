package monitor

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"culvert/gateway/control"
	"culvert/gateway/health"
	"culvert/gateway/path"
	"culvert/gateway/wg"
	"culvert/geneve"
	"culvert/nat"
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

// Refused returns the packets that were refused last, newest first.
func (m *Monitor) Refused() []control.Refusal { return m.refusals.all() }

func (r *refusals) all() []control.Refusal {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]control.Refusal{}, r.list...)
}

// refused remembers packets that were dropped for a reason of nat.
func (m *Monitor) refused(x *path.Witness, r nat.Reason, inbound bool, packets uint64) {
	m.refusals.note(control.Refusal{
		Time: time.Now(), Direction: directionName(inbound), Reason: r.String(), From: m.current.LinkName(x.In), Packets: packets,
		Protocol: protocolOf(x), Source: EndText(x.Source, x.Ports[0]), Destination: EndText(x.Destination, x.Ports[1]),
	})
}

func protocolOf(x *path.Witness) string {
	if x.Malformed {
		return ""
	}
	return control.ProtocolName(x.Protocol)
}

// refusedSign remembers a datagram that is no node's, or none as that node is to send. What
// needs no remedy, such as how IPv6 looks for neighbours, is not remembered.
func (m *Monitor) refusedSign(s *geneve.Sign) {
	if _, remedy := health.Explain(s.Reason.String(), false); remedy == "" { // under Liqo alike
		return
	}
	x := control.Refusal{Time: time.Now(), Direction: directionName(false), Reason: s.Reason.String(), Packets: 1}
	if s.Reason == geneve.UnknownNode {
		x.Protocol, x.Source = "udp", s.Source.String()
	} else {
		x.From = m.current.LinkName(nat.Link(s.Tunnel))
	}
	m.refusals.note(x)
}

// refusedStranger remembers a message to WireGuard's port that is not wanted there.
func (m *Monitor) refusedStranger(r wg.Reason, from netip.Addr) {
	m.refusals.note(control.Refusal{Time: time.Now(), Direction: directionName(true), Reason: r.String(), Protocol: "udp", Source: from.String(), Packets: 1})
}

func directionName(inbound bool) string {
	if inbound {
		return "inbound"
	}
	return "outbound"
}

// EndText is an address, with its port if it has one.
func EndText(a netip.Addr, port uint16) string {
	if port == 0 {
		return a.String()
	}
	return netip.AddrPortFrom(a, port).String()
}
