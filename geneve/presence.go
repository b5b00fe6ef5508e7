package geneve

import (
	"net/netip"
	"time"
)

// A Presence is what a tunnel's other end shows of itself.
type Presence struct {
	ID                           uint16
	ARP                          bool          // the tunnel carries frames, so that the peer is asked for: what follows about that means something
	Answered                     bool          // ARP or neighbour discovery has told the MAC address
	Asked                        int           // requests since it last did
	Known                        bool          // a frame has come
	Silence                      time.Duration // since the last one; meaningless unless Known
	ReceivedPackets, SentPackets uint64
	RTT                          time.Duration // of the last request; 0 where none of the last ones was answered
	Requests, Lost               int           // the last requests, and how many of them had no answer
	TrainsLost                   bool          // trains do not arrive there: ProbeTrains has found that
	AllRequests, AllMissed       uint64        // since there is the tunnel, and how many of them had no answer when the next one was sent
}

// Presences calls yield for each tunnel. The packet path waits for it where it needs ARP, so yield is to be quick.
func (e *Endpoint) Presences(yield func(Presence)) {
	n, now := &e.neighbours, e.now()
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, t := range e.table.Load().ids {
		if t == nil {
			continue
		}
		nb := &t.neighbour
		heard := time.Duration(nb.lastHeard.Load())
		p := Presence{
			ID: t.ID, ARP: t.Inner == Ethernet, Answered: nb.confirmed, Asked: nb.unanswered,
			Known: heard != never, Silence: now - heard,
			ReceivedPackets: t.receivedPackets.Load(), SentPackets: t.sentPackets.Load(), TrainsLost: t.probe.Lost(),
		}
		p.AllRequests, p.AllMissed = nb.requests.recent.Totals()
		if p.Lost, p.Requests = nb.requests.recent.Lost(); nb.unanswered <= maxUnanswered {
			p.RTT = nb.requests.rtt
		}
		yield(p)
	}
}

// A Sign is a datagram that does not fit how its tunnel is configured, or fits none. There is one for each Reason since Signs
// was last called: the first.
type Sign struct {
	Reason Reason // Accepted: another sender than the tunnel's Peer asked for our address, and was answered
	// Tunnel is the ID of the tunnel that it belongs to, meaningless for UnknownNode.
	Tunnel         uint16
	Source         netip.AddrPort // outer
	VNI            VNI
	Sender, Target netip.Addr // of ARP or neighbour discovery
}

// Signs calls yield for the signs since the last call, and forgets them.
func (e *Endpoint) Signs(yield func(*Sign)) {
	for i := range e.signs {
		if s := e.signs[i].Swap(nil); s != nil {
			yield(s)
		}
	}
}

// unsigned reports whether there is no sign for a reason yet: all but the first cost this one load.
func (e *Endpoint) unsigned(r Reason) bool { return e.signs[r].Load() == nil }

func (e *Endpoint) sign(s *Sign) { e.signs[s.Reason].Store(s) }

func (e *Endpoint) signTunnel(r Reason, t *tunnel) {
	if e.unsigned(r) {
		e.sign(&Sign{Reason: r, Tunnel: t.ID, VNI: t.VNI})
	}
}

// signARP keeps an ARP message, unless it comes from somebody who has no address yet.
func (e *Endpoint) signARP(r Reason, t *tunnel, m *arp) {
	if e.unsigned(r) && !m.sender.IsUnspecified() {
		e.sign(&Sign{Reason: r, Tunnel: t.ID, VNI: t.VNI, Sender: m.sender, Target: m.target})
	}
}

// signND keeps a message of neighbour discovery, unless it comes from somebody who has no address yet.
func (e *Endpoint) signND(r Reason, t *tunnel, m *nd) {
	if e.unsigned(r) && !m.source.IsUnspecified() {
		e.sign(&Sign{Reason: r, Tunnel: t.ID, VNI: t.VNI, Sender: m.source, Target: m.target})
	}
}
