package monitor

import (
	"time"

	"culvert/gateway/control"
	"culvert/gateway/wg"
	"culvert/geneve"
	"culvert/nat"
)

// grown is a packet counter, and the last time at which it was seen to grow. The packet path counts
// anyway; the time is taken here, once a second.
type grown struct {
	count uint64
	at    time.Duration
}

func (g *grown) look(count uint64, now time.Duration) {
	if count != g.count {
		g.count, g.at = count, now
	}
}

// since returns how long ago the counter last grew; nil if it never has.
func (g *grown) since(now time.Duration) *float64 {
	if g.count == 0 {
		return nil
	}
	s := max(now-g.at, 0).Round(time.Second).Seconds()
	return &s
}

// Traffic describes the packets on the path to a node or the peer.
type Traffic struct {
	received, sent grown
	RTT            time.Duration // 0 = unknown
	requests, lost int           // the last requests that measure RTT
	All, AllMissed uint64        // all of them since the start; see udp.Recent.Totals
}

// Traffic returns the traffic of a link; zeros if the link is newer than the last look.
func (m *Monitor) Traffic(link nat.Link) Traffic {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case link == nat.Tunnel:
		return m.peer
	case int(link) < len(m.links):
		return m.links[link]
	}
	return Traffic{}
}

// Leg converts Traffic for a status.
func (m *Monitor) Leg(link nat.Link, now time.Duration) control.Leg {
	t := m.Traffic(link)
	l := control.Leg{LastReceivedSeconds: t.received.since(now), LastSentSeconds: t.sent.since(now),
		Requests: t.requests, RequestsLost: t.lost}
	if t.RTT > 0 {
		rtt := t.RTT.Seconds()
		l.RTTSeconds = &rtt
	}
	return l
}

// pingTime is how long after the last packet the peer is still pinged. Later the tunnel is as
// silent as WireGuard leaves it.
const pingTime = 10 * time.Second

// pings returns the counts of requests to the peer: those of the connection check, or else
// WireGuard pings.
func (m *Monitor) pings() wg.Pings {
	if c := m.check.found(); c.State != CheckOff {
		return c.Pings
	}
	return m.path.WG.Pings()
}

// passes updates the traffic since the last look, and the answers to the requests that measure it.
func (m *Monitor) passes(stats *nat.Stats, presence []geneve.Presence, pings wg.Pings, now time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(m.links) < len(presence) {
		m.links = append(m.links, Traffic{})
	}
	for i := range presence {
		p, t := &presence[i], &m.links[i]
		t.received.look(p.ReceivedPackets, now)
		t.sent.look(p.SentPackets, now)
		t.RTT, t.requests, t.lost, t.All, t.AllMissed = p.RTT, p.Requests, p.Lost, p.AllRequests, p.AllMissed
	}
	t := &m.peer
	t.received.look(stats.Inbound.Forwarded, now)
	t.sent.look(stats.Outbound.Forwarded, now)
	t.RTT, t.requests, t.lost, t.All, t.AllMissed = pings.RTT, pings.Requests, pings.Lost, pings.Sent, pings.AllMissed
}

// pingDue reports whether to ping the peer: it has made a handshake lately, packets pass, and the
// connection check does not ping it already.
func (m *Monitor) pingDue(now time.Duration, handshake int64) bool {
	if m.check.found().State != CheckOff || time.Since(time.Unix(0, handshake)) >= wg.SessionLifetime {
		return false
	}
	m.mu.Lock()
	last := max(m.peer.received.at, m.peer.sent.at)
	m.mu.Unlock()
	return last > 0 && now-last < pingTime || m.path.WG.Pings().Missed > 0
}
