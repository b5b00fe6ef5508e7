package geneve

import (
	"net/netip"
	"time"

	"culvert/geneve/udp"
)

// TrainChange tells that trains to a tunnel have been found lost (On is false), or arriving again.
type TrainChange struct {
	Tunnel uint16
	On     bool
}

// probeMAC returns what a probe of t has for its sender: our MAC address in another block of the locally administered ones, so that
// the answer tells which probe it is for.
func (t *tunnel) probeMAC(p udp.Probe) mac { return t.self + mac(p+1)<<42 }

// probeOf returns the probe that an answer to the given MAC address is for.
func (t *tunnel) probeOf(to mac) (udp.Probe, bool) {
	if (to^t.self)&(1<<42-1) != 0 {
		return 0, false
	}
	p := udp.Probe(to>>42 - t.self>>42 - 1)
	return p, p < firstLarge+NumLargeProbes
}

// ProbeTrains looks, for tunnels to which trains are sent, whether they arrive: see udp.TrainProbe. It is to be called once a second, by
// one goroutine, and returns what has changed. A tunnel whose trains are lost is sent single datagrams until trains arrive.
//
// The probes are ARP requests for the peer's address with the sender address 0.0.0.0 (RFC 5227, Section 2.1.1), which every station
// answers and none learns from; where there is no IPv4, neighbour solicitations of link-local addresses that nobody sends to. So tunnels that carry IP
// directly are not probed.
func (e *Endpoint) ProbeTrains() (changes []TrainChange) {
	now := e.now()
	for _, t := range e.table.Load().ids {
		if t == nil || t.Inner != Ethernet || !e.socket.GSO(t.Remote) { // without GSO, Senders send single datagrams as it is
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
	single, first, second := n.frames[udp.ProbeSingle][:size], n.frames[udp.ProbeFirst][:size], n.frames[udp.ProbeSecond][:size]
	n.trains = append(n.trains[:0], t.train(append(n.parts(0), single)), t.train(append(n.parts(1), first, second)))
	n.trains[1].SegmentSize = len(first)
	n.flush(int(udp.NumProbes))
	train := &n.trains[1]
	return !train.Single && train.Sent == 2
}

// Numbers of large probes are behind those of trains, as many as there are bits for them in a MAC address.
const (
	firstLarge = udp.NumProbes
	// NumLargeProbes is how many large probes can be told apart.
	NumLargeProbes = 60
)

// AskLarge sends the probe with a number, below NumLargeProbes, that fills the tunnel like an IP packet of size bytes. Who gets it answers in
// few bytes, so that an answer tells of the way there alone; LargeAnswers tells of those. What follows the message in its frame is padding to
// everybody.
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

// LargeAnswers returns a bit for each number of AskLarge that a tunnel has answered since it was last called.
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

// putProbe writes a probe to t at the begin of frame, and counts it.
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

// answered takes note of the answer to a probe.
func (t *tunnel) answered(p udp.Probe) {
	if p >= firstLarge {
		t.largeAnswers.Or(1 << (p - firstLarge))
	} else {
		t.probe.Answered(p)
	}
}
