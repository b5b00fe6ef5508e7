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
	"culvert/nat/packet"
)

// maxRefusals is how many kinds of refused packets are remembered.
const maxRefusals = 32

// refusals remembers the most recently refused packets: at most one of each kind a second.
type refusals struct {
	mu sync.Mutex
	// newest first
	list []control.Refusal // +checklocks:mu
}

// note adds x, and counts it with an earlier one of its kind.
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

// Refused returns the last refused packets, newest first.
func (m *Monitor) Refused() []control.Refusal { return m.refusals.all() }

func (r *refusals) all() []control.Refusal {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]control.Refusal{}, r.list...)
}

// refused adds packets of which x is one.
func (m *Monitor) refused(x *path.Observation, packets uint64) {
	t := &x.Tuple
	protocol, from, to := "", t.SourcePort(), t.DestinationPort()
	if x.Parsed {
		protocol = control.ProtocolName(t.Protocol)
	}
	if packet.IsICMP(t.Protocol) { // the identifier stands in both ports
		from, to = 0, 0
	}
	m.refusals.note(control.Refusal{
		Time: time.Now(), Direction: directionName(x.In == nat.Tunnel), Reason: x.Reason,
		From:    m.current.LinkName(x.In),
		Packets: packets, Protocol: protocol, Source: EndText(t.Source(), from),
		Destination: EndText(t.Destination(), to),
	})
}

// refusedSign adds a datagram from no known node, or of a kind that the node must not send.
// Datagrams that need no remedy, such as IPv6's neighbour discovery, are not added.
func (m *Monitor) refusedSign(s *geneve.Sign) {
	if _, remedy := health.Explain(s.Reason.String(), health.ByFile); remedy == "" { // the same in all words
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

// refusedStranger adds an unwanted message to WireGuard's port.
func (m *Monitor) refusedStranger(r wg.Reason, from netip.Addr) {
	m.refusals.note(control.Refusal{Time: time.Now(), Direction: directionName(true), Reason: r.String(),
		Protocol: "udp", Source: from.String(), Packets: 1})
}

func directionName(inbound bool) string {
	if inbound {
		return "inbound"
	}
	return "outbound"
}

// EndText formats an address, with its port if it has one.
func EndText(a netip.Addr, port uint16) string {
	if port == 0 {
		return a.String()
	}
	return netip.AddrPortFrom(a, port).String()
}
