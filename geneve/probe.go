package geneve

import (
	"net/netip"
	"time"

	"culvert/geneve/udp"
)

// TrainChange reports that trains to a tunnel were found to be lost (On is false), or to arrive
// again.
type TrainChange struct {
	Tunnel uint16
	On     bool
}

// probeMAC returns the source MAC address of a probe of t: our address in another block of the
// locally administered ones, so that the answer identifies the probe.
func (t *tunnel) probeMAC(p udp.Probe) mac { return t.self + mac(p+1)<<42 }

// probeOf returns the probe that an answer to this MAC address belongs to.
func (t *tunnel) probeOf(to mac) (udp.Probe, bool) {
	if (to^t.self)&(1<<42-1) != 0 {
		return 0, false
	}
	p := udp.Probe(to>>42 - t.self>>42 - 1)
	return p, p < firstLarge+NumLargeProbes
}

// ProbeTrains finds out whether the trains sent to tunnels arrive: see udp.TrainProbe. One
// goroutine must call it once a second; it returns the changes. A tunnel that loses trains gets
// single datagrams until trains arrive.
//
// The probes are ARP requests for the peer's address with the sender address 0.0.0.0 (RFC 5227,
// Section 2.1.1), which every host answers and none learns from. Without IPv4 they are neighbour
// solicitations from link-local addresses that nobody sends to. Tunnels that carry IP directly are
// not probed.
func (e *Endpoint) ProbeTrains() (changes []TrainChange) {
	now := e.now()
	for _, t := range e.table.Load().ids {
		// without GSO, Senders send single datagrams anyway
		if t == nil || t.Inner != Ethernet || !e.socket.GSO(t.Remote) {
			continue
		}
		due, changed := t.probe.Look(now, t.sentTrains.Load())
		if changed {
			lost := t.probe.Lost()
			if lost {
				t.lostTrains.Add(1)
			}
			changes = append(changes, TrainChange{Tunnel: t.ID, On: !lost})
		}
		if due && !e.neighbours.sendProbes(t, now) {
			t.probe.Void()
		}
	}
	return changes
}

// sendProbes sends the probes of one round and reports whether those of the train left as one.
func (n *neighbours) sendProbes(t *tunnel, now time.Duration) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	to := t.neighbour.load()
	if to.mac() == 0 || n.closed || now < time.Duration(t.singleUntil.Load()) {
		return false
	}
	size := maxHeader + t.probeLen()
	for p := range udp.NumProbes {
		n.putProbe(n.frames[p][:size], t, to, p)
	}
	single, first, second := n.frames[udp.ProbeSingle][:size], n.frames[udp.ProbeFirst][:size],
		n.frames[udp.ProbeSecond][:size]
	n.trains = append(n.trains[:0], t.train(append(n.parts(0), single)), t.train(append(n.parts(1), first, second)))
	n.trains[1].SegmentSize = len(first)
	n.flush(int(udp.NumProbes))
	train := &n.trains[1]
	return !train.Single && train.Sent == 2
}

// Numbers of large probes follow those of trains; there are as many as bits for them in a MAC
// address.
const (
	firstLarge = udp.NumProbes
	// NumLargeProbes is the number of distinguishable large probes.
	NumLargeProbes = 60
)

// AskLarge sends the probe with this number, below NumLargeProbes, padded so that the tunnel
// carries as much as for an IP packet of size bytes. The answer is short, so it says something
// about the way there alone; LargeAnswers reports it. The padding follows the message in its frame,
// where every receiver ignores it.
func (e *Endpoint) AskLarge(id uint16, number uint8, size int) {
	t := e.table.Load().byID(id)
	if t == nil || t.Inner != Ethernet || number >= NumLargeProbes || size > t.maxPacket() {
		return
	}
	n := &e.neighbours
	n.mu.Lock()
	defer n.mu.Unlock()
	to := t.neighbour.load()
	if to.mac() == 0 || n.closed {
		return
	}
	frame := make([]byte, maxHeader+max(size, t.probeLen()))
	n.putProbe(frame, t, to, firstLarge+udp.Probe(number))
	n.trains = append(n.trains[:0], t.train(append(n.parts(0), frame)))
	n.flush(1)
}

// LargeAnswers returns a bitmap of the AskLarge numbers that a tunnel has answered since the last
// call.
func (e *Endpoint) LargeAnswers(id uint16) uint64 {
	if t := e.table.Load().byID(id); t != nil {
		return t.largeAnswers.Swap(0)
	}
	return 0
}

// probeLen is the size in bytes of a probe without its headers and padding.
func (t *tunnel) probeLen() int {
	if t.Local.V4.IsValid() {
		return arpLen
	}
	return ndPacketLen
}

// putProbe writes a probe to t at the start of frame, and counts it.
func (n *neighbours) putProbe(frame []byte, t *tunnel, to speaker, p udp.Probe) {
	from := t.probeMAC(p)
	if t.Local.V4.IsValid() {
		t.encap(frame, to, etherTypeARP)
		m := arp{operation: arpRequest, senderMAC: from, sender: netip.IPv4Unspecified(), target: t.Peer.V4}
		m.put(frame[maxHeader:])
		n.e.arpSent.Add(1)
	} else {
		t.encap(frame, to, etherTypeIPv6)
		m := nd{kind: ndSolicitation, source: from.linkLocal(), destination: t.Peer.V6, target: t.Peer.V6, link: from}
		m.put(frame[maxHeader:])
		n.e.ndSent.Add(1)
	}
	from.put(frame[headerLen+6:])
}

// answered records the answer to a probe.
func (t *tunnel) answered(p udp.Probe) {
	if p >= firstLarge {
		t.largeAnswers.Or(1 << (p - firstLarge))
	} else {
		t.probe.Answered(p)
	}
}
