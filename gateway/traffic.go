package gateway

import (
	"sync"
	"time"

	"culvert/gateway/control"
	"culvert/gateway/wg"
	"culvert/geneve"
	"culvert/nat"
)

// grown is a counter of packets, and when it was last seen to have grown. The packet path
// counts anyway; so what was last when costs it nothing.
type grown struct {
	count uint64
	at    time.Duration
}

func (g *grown) look(count uint64, now time.Duration) {
	if count != g.count {
		g.count, g.at = count, now
	}
}

// since returns for how long the counter has not grown; nil if it never has.
func (g *grown) since(now time.Duration) *float64 {
	if g.count == 0 {
		return nil
	}
	s := max(now-g.at, 0).Round(time.Second).Seconds()
	return &s
}

// traffic is what passes on the way to a node or the peer.
type traffic struct {
	received, sent grown
	rtt            time.Duration // 0 = nothing tells
	requests, lost int           // the last of those by which rtt is measured
	all, allMissed uint64        // of those since the start; see udp.Recent.Totals
}

// of returns what has passed at a link; nothing if there has been no look since it was made.
func (w *watch) of(link nat.Link) traffic {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case link == nat.Tunnel:
		return w.peer
	case int(link) < len(w.links):
		return w.links[link]
	}
	return traffic{}
}

// leg is of for a status.
func (w *watch) leg(link nat.Link, now time.Duration) control.Leg {
	t := w.of(link)
	l := control.Leg{LastReceivedSeconds: t.received.since(now), LastSentSeconds: t.sent.since(now), Requests: t.requests, RequestsLost: t.lost}
	if t.rtt > 0 {
		rtt := t.rtt.Seconds()
		l.RTTSeconds = &rtt
	}
	return l
}

// pingTime is for how long after the last packet the peer is pinged. A tunnel without
// traffic stays as silent as WireGuard leaves it.
const pingTime = 10 * time.Second

// pings is what is known of requests to the peer: those of the connection check, or else
// those of WireGuard's end.
func (g *Gateway) pings() wg.Pings {
	if c := g.check.found(); c.State != CheckOff {
		return c.Pings
	}
	return g.wg.Pings()
}

// passes takes note of what has passed since the last look, and of the answers to what is
// sent to find that out.
func (w *watch) passes(stats *nat.Stats, shown []geneve.Presence, pings wg.Pings, now time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.links) < len(shown) {
		w.links = append(w.links, traffic{})
	}
	for i := range shown {
		p, t := &shown[i], &w.links[i]
		t.received.look(p.ReceivedPackets, now)
		t.sent.look(p.SentPackets, now)
		t.rtt, t.requests, t.lost, t.all, t.allMissed = p.RTT, p.Requests, p.Lost, p.AllRequests, p.AllMissed
	}
	t := &w.peer
	t.received.look(stats.Inbound.Forwarded, now)
	t.sent.look(stats.Outbound.Forwarded, now)
	t.rtt, t.requests, t.lost, t.all, t.allMissed = pings.RTT, pings.Requests, pings.Lost, pings.Sent, pings.AllMissed
}

// pingDue reports whether the peer is to be pinged: it has made a handshake lately, packets
// pass, and the connection check does not ping it.
func (w *watch) pingDue(now time.Duration, handshake int64) bool {
	if w.g.check.found().State != CheckOff || time.Since(time.Unix(0, handshake)) >= sessionLifetime {
		return false
	}
	w.mu.Lock()
	last := max(w.peer.received.at, w.peer.sent.at)
	w.mu.Unlock()
	return last > 0 && now-last < pingTime || w.g.wg.Pings().Missed > 0
}

// linkCounts are packets of each link, few enough for a lock.
type linkCounts struct {
	mu      sync.Mutex
	packets map[nat.Link]uint64 // +checklocks:mu
}

func (c *linkCounts) add(link nat.Link) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.packets == nil {
		c.packets = make(map[nat.Link]uint64)
	}
	c.packets[link]++
}

func (c *linkCounts) of(link nat.Link) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.packets[link]
}
