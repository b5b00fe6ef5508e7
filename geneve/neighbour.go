package geneve

import (
	"encoding/binary"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"culvert/geneve/share"
	"culvert/geneve/udp"
)

const (
	maxHeldPerTunnel = 64      // packets waiting for one neighbour
	maxHeldBytes     = 2 << 20 // room for packets waiting for all neighbours
	minHeldBytes     = 2 << 10 // minimum room of a packet, which bounds the number of small ones
	holdTime         = 3 * time.Second
	holdTick         = 100 * time.Millisecond // how often requests are repeated while packets wait
	// between two requests to one neighbour: a little less than between two calls of AskAll
	askInterval = 900 * time.Millisecond
	// between repetitions of a request to a neighbour never heard: a little less than holdTick
	repeatInterval = 90 * time.Millisecond
	// requests after which the peer's word no longer outweighs frames from elsewhere, and after
	// which it is asked more rarely
	maxUnanswered = 3
	// between two requests to a neighbour that has left maxUnanswered unanswered
	silentInterval = 5 * time.Second
	// silence after which a neighbour in use is asked again (RFC 4861, Section 10)
	reachableTime    = 30 * time.Second
	heardGranularity = time.Second // precision of the last frame's time
	maxAnswers       = 20          // requests answered per tunnel and second
	never            = -time.Hour
)

// neighbour is what is known about the other end: its MAC address and its encapsulation.
type neighbour struct {
	speaker   atomic.Uint64 // speaker; stored under neighbours.mu
	lastHeard atomic.Int64  // time.Duration of the last accepted frame from it

	// The rest is guarded by neighbours.mu.
	confirmed   bool // by ARP or neighbour discovery
	requests    requests
	removed     bool // the tunnel is no longer configured: nothing may be held
	unanswered  int  // requests since the last reply
	held        []held
	heldSince   time.Duration
	answered    int // requests answered since answersFrom
	answersFrom time.Duration
}

func (n *neighbour) init(e Encap) {
	n.requests.at, n.requests.sent, n.answersFrom = never, never, never
	n.lastHeard.Store(int64(never))
	n.store(newSpeaker(e, 0))
}

func (n *neighbour) load() speaker   { return speaker(n.speaker.Load()) }
func (n *neighbour) store(s speaker) { n.speaker.Store(uint64(s)) }

// neighbours is the slow path of all tunnels: ARP, neighbour discovery, and packets waiting for
// them.
type neighbours struct {
	e *Endpoint

	mu      sync.Mutex
	sender  udp.Sender
	trains  []udp.Train
	frames  [udp.NumProbes][maxHeader + max(arpLen, ndPacketLen)]byte // of one flush
	waiting []*tunnel                                                 // those with held packets
	held    int
	shares  *share.Pool[*tunnel]     // maxHeldBytes of room
	timer   *time.Timer              // runs while anything waits; nil before the first
	open    func() (udp.Conn, error) // opens another port, for aside; nil: there is none
	closed  bool

	nextAsked int // the last tunnel visited by AskAll
}

// heard records an accepted IP frame of tunnel t from the given speaker.
func (n *neighbours) heard(t *tunnel, from speaker, now time.Duration) {
	nb := &t.neighbour
	if nb.load() == from {
		if now-time.Duration(nb.lastHeard.Load()) >= heardGranularity {
			nb.lastHeard.Store(int64(now))
		}
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	// This is another host, or the peer with a new link. The answer to a request decides which; if
	// none comes, the one that still sends is the peer. A frame in another encapsulation comes from
	// a new link whose predecessor is silent, or the frame would have been dropped.
	silence := now - time.Duration(nb.lastHeard.Load())
	if nb.confirmed && nb.load().encap() == from.encap() && (nb.unanswered < maxUnanswered ||
		silence < maxUnanswered*askInterval) {
		n.ask(t, now)
		return
	}
	nb.confirmed = false
	n.learn(t, from, now)
}

// arp handles an ARP message received in a frame of tunnel t.
func (n *neighbours) arp(t *tunnel, to mac, from speaker, b []byte, now time.Duration) Reason {
	m, ok := parseARP(b)
	if !ok || m.senderMAC != from.mac() || m.sender == t.Local.V4 || to&macGroup != 0 && to != macBroadcast {
		return BadARP
	}
	probe, probed := t.probeOf(to)
	if to != macBroadcast && to != t.self && !probed {
		return OtherMAC
	}
	if m.sender != t.Peer.V4 && (m.operation == arpReply || m.target != t.Local.V4) {
		n.e.signARP(OtherARP, t, &m)
		return OtherARP
	}
	if probed {
		if m.operation != arpReply {
			return OtherMAC
		}
		t.answered(probe)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if m.sender == t.Peer.V4 {
		n.told(t, from, m.operation == arpReply, probed, now)
	}
	switch {
	case m.target == t.Local.V4 && m.operation == arpRequest:
		if !t.neighbour.mayAnswer(now) {
			return ARPRate
		}
		if m.sender != t.Peer.V4 {
			n.e.signARP(Accepted, t, &m)
		}
		n.sendARP(t, from, &arp{operation: arpReply, senderMAC: t.self, sender: t.Local.V4, targetMAC: from.mac(),
			target: m.sender})
	case m.operation == arpRequest && m.target != m.sender: // equal: the peer announces itself (RFC 5227, Section 3)
		n.e.signARP(OtherARP, t, &m)
		return OtherARP
	}
	n.e.arpReceived.Add(1)
	return Accepted
}

// told handles a message in which the peer itself states its address. reply: the message is an
// answer or has the form of one. probed: it answers a probe.
//
// Preconditions: n.mu is held.
func (n *neighbours) told(t *tunnel, from speaker, reply, probed bool, now time.Duration) {
	nb := &t.neighbour
	if reply && !probed {
		nb.requests.answer(now, !nb.confirmed || nb.unanswered > maxUnanswered)
	}
	if nb.confirmed = true; reply { // a peer that asks may not hear us
		nb.unanswered = 0
	}
	n.learn(t, from, now)
}

// mayAnswer counts a request to be answered, and reports whether the rate allows it.
func (n *neighbour) mayAnswer(now time.Duration) bool {
	if now-n.answersFrom >= time.Second {
		n.answersFrom, n.answered = now, 0
	}
	if n.answered == maxAnswers {
		return false
	}
	n.answered++
	return true
}

// learn makes from the neighbour and sends the packets that waited for it.
//
// Preconditions: n.mu is held.
func (n *neighbours) learn(t *tunnel, from speaker, now time.Duration) {
	nb := &t.neighbour
	nb.lastHeard.Store(int64(now))
	was := nb.load()
	if nb.removed || was == from {
		return
	}
	if was.encap() != Auto && was.encap() != from.encap() {
		t.encapChanges.Add(1)
	}
	// Waiting packets go first: Senders see the address only afterwards.
	n.release(t, from)
	nb.store(from)
}

// ask requests the peer's address, in both encapsulations if either may be in use, unless it did so
// just now.
//
// Preconditions: n.mu is held.
func (n *neighbours) ask(t *tunnel, now time.Duration) {
	nb := &t.neighbour
	if n.closed || nb.removed {
		return
	}
	switch {
	case now-nb.requests.at >= askInterval:
		nb.requests.ask(n.e.now()) // a batch of packets may have begun long before
		nb.unanswered++
	case nb.lastHeard.Load() == int64(never) && nb.unanswered <= maxUnanswered &&
		now-nb.requests.sent >= repeatInterval:
		// The other end may learn of this one a moment later than this one of it. A repetition does
		// not count as a request.
		nb.requests.sent = n.e.now()
	default:
		return
	}
	if n.open != nil && nb.load().mac() == 0 {
		defer n.aside()()
	}
	if !t.either(now) {
		n.request(t, t.spoken())
		return
	}
	for e := Geneve; e <= VXLAN; e++ {
		n.request(t, e)
	}
}

// asideBuffer is the size of both buffers of a socket that sends one request.
const asideBuffer = 4 << 10

// aside makes requests come from a port that nothing else is sent from, until done is called. Where
// the network masquerades what a pod sends to a node, the kernel does so with all packets between
// two ports, for as long as some follow. So the first packet between the tunnels' own ports should
// be the node's: answers to it are not masqueraded, and a request that was masqueraded before the
// network got an exception for this pod does no harm.
//
// Preconditions: n.mu is held, also when done is called.
func (n *neighbours) aside() (done func()) {
	conn, err := n.open()
	if err != nil {
		return func() {}
	}
	own := n.sender
	n.sender = conn.NewSender()
	return func() {
		n.sender = own
		conn.Close()
	}
}

// request broadcasts a request for the peer. The peer has one MAC address for both families, so one
// request is enough.
//
// Preconditions: n.mu is held.
func (n *neighbours) request(t *tunnel, e Encap) {
	if t.Local.V4.IsValid() {
		n.sendARP(t, newSpeaker(e, macBroadcast), &arp{operation: arpRequest, senderMAC: t.self, sender: t.Local.V4,
			target: t.Peer.V4})
		return
	}
	// To the group even if the address is known, unlike RFC 4861, Section 7.3.3, because a
	// re-created link has another address.
	group := solicitedNode(t.Peer.V6)
	n.sendND(t, newSpeaker(e, groupMAC(group)), &nd{kind: ndSolicitation, source: t.Local.V6, destination: group,
		target: t.Peer.V6, link: t.self})
}

// confirm asks for a neighbour that packets are sent to and that has been silent.
func (n *neighbours) confirm(t *tunnel, now time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ask(t, now)
}

// doubt forgets silent neighbours. It is called after the send buffer, which all tunnels share, was
// full for long. The kernel keeps up to 208 KiB for each underlay address that does not answer ARP
// (net.ipv4.neigh.*.unres_qlen_bytes), so a few nodes that have gone keep filling the buffer. A
// neighbour that is still there answers our request at once.
func (n *neighbours) doubt(now time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, t := range n.e.table.Load().ids {
		if t == nil {
			continue
		}
		nb := &t.neighbour
		if is := nb.load(); is.mac() != 0 && now-time.Duration(nb.lastHeard.Load()) > askInterval+heardGranularity {
			nb.store(newSpeaker(is.encap(), 0))
			nb.confirmed = false
			n.e.doubted.Add(1)
		}
	}
}

// sendARP sends one ARP message.
//
// Preconditions: n.mu is held.
func (n *neighbours) sendARP(t *tunnel, to speaker, m *arp) {
	frame := n.frames[0][:maxHeader+arpLen]
	t.encap(frame, to, etherTypeARP)
	m.put(frame[maxHeader:])
	n.sendFrame(t, frame)
	n.e.arpSent.Add(1)
}

// sendND sends one message of neighbour discovery.
//
// Preconditions: n.mu is held.
func (n *neighbours) sendND(t *tunnel, to speaker, m *nd) {
	frame := n.frames[0][:maxHeader+ndPacketLen]
	t.encap(frame, to, etherTypeIPv6)
	m.put(frame[maxHeader:])
	n.sendFrame(t, frame)
	n.e.ndSent.Add(1)
}

func (n *neighbours) sendFrame(t *tunnel, frame []byte) {
	n.trains = append(n.trains[:0], t.train(append(n.parts(0), frame)))
	n.flush(1)
}

// parts returns the emptied Parts of the i-th train of the previous flush, to avoid allocations.
func (n *neighbours) parts(i int) [][]byte {
	if i < cap(n.trains) {
		return n.trains[:i+1][i].Parts[:0]
	}
	return nil
}

// flush sends n.trains, which hold this many datagrams.
func (n *neighbours) flush(datagrams int) {
	if tap := n.e.tap.Load(); tap != nil {
		for i := range n.trains {
			for _, part := range n.trains[i].Parts {
				(*tap)(&Datagram{Outbound: true, Peer: n.trains[i].Destination, Data: part})
			}
		}
	}
	sent, _ := n.sender.Send(n.trains)
	n.e.drop(SendFailed, uint64(datagrams-sent))
	for i := range n.trains {
		n.e.showUnsent(&n.trains[i])
	}
}

// etherTypeOf returns the EtherType of an IP packet.
func etherTypeOf(ip []byte) uint16 {
	if ip[0]>>4 == 6 {
		return etherTypeIPv6
	}
	return etherTypeIPv4
}

// address returns m as a net.HardwareAddr.
func (m mac) address() net.HardwareAddr {
	if m == 0 {
		return nil
	}
	b := make([]byte, 8)
	binary.BigEndian.PutUint64(b, uint64(m)<<16)
	return b[:6]
}
