package geneve

import (
	"net/netip"
	"time"
)

// A Presence describes the signs of life from a tunnel's other end.
type Presence struct {
	ID uint16
	// the tunnel carries frames, so the peer is asked for its address; without, the related fields
	// are meaningless
	ARP                          bool
	Answered                     bool          // ARP or neighbour discovery has confirmed the MAC address
	Asked                        int           // requests since the last answer, without repetitions
	Known                        bool          // a frame has arrived
	Silence                      time.Duration // since the last frame, also of ARP; meaningless unless Known
	ReceivedPackets, SentPackets uint64
	RTT                          time.Duration // of the last request; 0 if none of the recent ones was answered
	Requests, Lost               int           // recent requests, and how many of them had no answer
	TrainsLost                   bool          // ProbeTrains found that trains do not arrive
	// since the tunnel was made, and how many had no answer when the next one was sent
	AllRequests, AllMissed uint64
}

// Presences calls yield for each tunnel. The packet path may wait for it, so yield must be quick.
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

// A Sign is a datagram that fits no tunnel, or not its tunnel's configuration. For each Reason, the
// first one since the last call of Signs is kept.
type Sign struct {
	Reason Reason // Accepted: a sender other than the tunnel's Peer asked for our address, and got an answer
	// Tunnel is the tunnel's ID, meaningless for UnknownNode.
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

// unsigned reports whether there is no sign for a reason yet; if there is one, this load is the
// only cost.
func (e *Endpoint) unsigned(r Reason) bool { return e.signs[r].Load() == nil }

func (e *Endpoint) sign(s *Sign) { e.signs[s.Reason].Store(s) }

func (e *Endpoint) signTunnel(r Reason, t *tunnel) {
	if e.unsigned(r) {
		e.sign(&Sign{Reason: r, Tunnel: t.ID, VNI: t.VNI})
	}
}

// signARP keeps an ARP message, unless its sender has no address yet.
func (e *Endpoint) signARP(r Reason, t *tunnel, m *arp) {
	if e.unsigned(r) && !m.sender.IsUnspecified() {
		e.sign(&Sign{Reason: r, Tunnel: t.ID, VNI: t.VNI, Sender: m.sender, Target: m.target})
	}
}

// signND keeps a message of neighbour discovery, unless its sender has no address yet.
func (e *Endpoint) signND(r Reason, t *tunnel, m *nd) {
	if e.unsigned(r) && !m.source.IsUnspecified() {
		e.sign(&Sign{Reason: r, Tunnel: t.ID, VNI: t.VNI, Sender: m.source, Target: m.target})
	}
}
