package monitor

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"maps"
	"math/bits"
	"net/netip"
	"slices"
	"sync"
	"time"

	"culvert/gateway/config"
	"culvert/gateway/path"
	"culvert/gateway/pathmtu"
	"culvert/geneve"
	"culvert/nat"
)

// paths finds the path MTU of the legs in use with package pathmtu, and tells the engine. A leg is
// the path to a node or the peer, and back.
type paths struct {
	path    *path.Path
	current *config.Current
	sender  *geneve.Sender

	mu   sync.Mutex
	legs map[nat.Link]*pathLeg // +checklocks:mu
	// results of the previous gateway
	expected map[nat.Link]pathmtu.Result // +checklocks:mu

	// Only the goroutine that calls look uses the rest.
	presence []geneve.Presence // by nat.Link, as in Monitor
	next     nat.Link          // where to continue if the last look could not visit all legs
	packet   []byte
}

// pathLeg is one leg.
type pathLeg struct {
	search    *pathmtu.Search
	own, peer netip.Addr // addresses of the probes
	reachable bool
	away      bool   // it did not answer ARP requests
	packets   uint64 // in both directions, without probes
	probes    uint64 // packets of probes, in both directions
	answers   uint64 // answers among them
	arp       bool   // the other end answers ARP
	rounds    uint
	busy      time.Duration
	seen      bool // set by follow
	nonce     uint64
	sending   []pathmtu.Probe
}

const (
	// awayAsked is the number of unanswered ARP requests above which an end may be away. Package
	// health doubts a node from the same number on.
	awayAsked = 2
	// PathInterval is the time between two looks at the legs: slightly longer than an answer may
	// take.
	PathInterval = 1050 * time.Millisecond
	// busyTime is how long a leg counts as in use after a packet. It is longer than the time
	// between two probes, because a sender whose large packets all vanish in a black hole is silent
	// meanwhile.
	busyTime = 5 * time.Second
	// maxPathLegs limits the legs that are probed in one look. The next look continues with the
	// others.
	maxPathLegs = 256
	// probePace is the time between two probes to one leg, so that they do not leave as a train.
	probePace = 2 * time.Millisecond
	// tellPace is the pause between two slices of the table of connections.
	tellPace = time.Millisecond
)

func newPaths(p *path.Path, current *config.Current, mtu config.TunnelMTU) *paths {
	return &paths{path: p, current: current, sender: p.Endpoint.NewSender(), legs: make(map[nat.Link]*pathLeg),
		packet: make([]byte, mtu)}
}

// ProbePaths probes path MTUs until ctx ends.
func (m *Monitor) ProbePaths(ctx context.Context) {
	tick := time.NewTicker(PathInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, link := range m.LookAtPaths(path.Uptime()) {
			m.paths.tell(ctx, link)
		}
	}
}

// LookAtPaths sends the probes that are due. It returns the links whose paths have become narrower.
// One goroutine may call it.
func (m *Monitor) LookAtPaths(now time.Duration) (narrower []nat.Link) {
	nodes, peer := m.reaches()
	if !nodes {
		return nil
	}
	return m.paths.look(now, peer)
}

// KnownPaths returns the results of all legs that were probed.
func (m *Monitor) KnownPaths() map[nat.Link]pathmtu.Result { return m.paths.known() }

// NarrowPaths returns the legs that carry less than is configured.
func (m *Monitor) NarrowPaths() map[nat.Link]pathmtu.Result { return m.paths.narrow() }

// ExpectPath sets the previous gateway's result for the leg of a link, until this gateway has
// probed it.
func (m *Monitor) ExpectPath(link nat.Link, r pathmtu.Result) { m.paths.expect(link, r) }

// Probes returns how many path MTU probes were sent to a link, and how many answers came.
func (m *Monitor) Probes(link nat.Link) (sent, answered uint64) { return m.paths.counts(link) }

// look sends the probes that are due, but none to the peer if peer is false. It returns the links
// whose path MTUs have fallen.
func (p *paths) look(now time.Duration, peer bool) (narrower []nat.Link) {
	p.mu.Lock()
	p.follow(now)
	due, longest := p.due(), 0
	if !peer {
		due = slices.DeleteFunc(due, func(l nat.Link) bool { return l == nat.Tunnel })
	}
	for _, link := range due {
		leg := p.legs[link]
		size := leg.search.Size
		var changed bool
		leg.nonce = newNonce()
		leg.sending, changed = leg.search.Look(now, leg.nonce, leg.reachable && leg.busy != 0 &&
			now-leg.busy < busyTime)
		if len(leg.sending) > 0 {
			leg.rounds++
			longest = max(longest, len(leg.sending))
		}
		if changed {
			p.path.Engine.SetPathMTU(link, leg.search.Size)
			if leg.search.Size < size {
				narrower = append(narrower, link)
			}
		}
	}
	p.mu.Unlock()
	for number := range longest {
		for _, link := range due {
			p.probe(link, number)
		}
		p.sender.Flush()
		time.Sleep(probePace)
	}
	return narrower
}

// newNonce returns a random number, so that only a host that has seen a probe can answer it.
func newNonce() uint64 {
	var b [8]byte
	rand.Read(b[:])
	return max(binary.BigEndian.Uint64(b[:]), 1)
}

// follow updates the legs to the configuration, and records which are in use.
//
// +checklocks:p.mu
func (p *paths) follow(now time.Duration) {
	c, links := p.current.Get()
	clear(p.presence)
	p.path.Endpoint.Presences(func(x geneve.Presence) {
		for len(p.presence) <= int(x.ID) {
			p.presence = append(p.presence, geneve.Presence{})
		}
		p.presence[x.ID] = x
	})
	own, peer := c.WireGuard.Role.TunnelAddresses()
	stats := p.path.Engine.Stats()
	p.keep(nat.Tunnel, own.V4, peer.V4, false, c.MTU).use(peerKnown(p.path.WG),
		stats.Outbound.Forwarded+stats.Inbound.Forwarded, now)
	for i := range c.Geneve.Nodes {
		n := &c.Geneve.Nodes[i]
		link := links.ByName[n.Name]
		own := c.Geneve.GatewayAddress.First() // both families take the same path
		peer := n.Address.Of(own.Is6())
		if int(link) >= len(p.presence) || !own.IsValid() || !peer.IsValid() {
			continue
		}
		x := &p.presence[link]
		leg := p.keep(link, own, peer, x.ARP, c.MTU)
		leg.use(!x.ARP || x.Known, x.ReceivedPackets+x.SentPackets-leg.probes, now)
		if away := x.ARP && x.Asked > awayAsked; away != leg.away {
			if leg.away = away; !away {
				leg.search.Returned()
			}
		}
		for answers := p.path.Endpoint.LargeAnswers(uint16(link)) >> leg.firstLarge(); answers !=
			0; answers &= answers - 1 {
			leg.search.AnsweredARP(bits.TrailingZeros64(answers))
		}
	}
	for link, leg := range p.legs {
		if !leg.seen {
			delete(p.legs, link)
			p.path.Engine.SetPathMTU(link, 0)
		}
		leg.seen = false
	}
}

// keep returns the leg of a link, a new one if there was none between these addresses.
//
// +checklocks:p.mu
func (p *paths) keep(link nat.Link, own, peer netip.Addr, arp bool, mtu config.TunnelMTU) *pathLeg {
	leg := p.legs[link]
	if leg == nil || leg.own != own || leg.peer != peer || leg.arp != arp {
		leg = &pathLeg{search: pathmtu.New(int(mtu), arp), own: own, peer: peer, arp: arp}
		p.legs[link] = leg
		p.path.Engine.SetPathMTU(link, 0)
		if r, ok := p.expected[link]; ok && r.Size < int(mtu) {
			leg.search.Result = r
			p.path.Engine.SetPathMTU(link, r.Size)
		}
		delete(p.expected, link)
	}
	leg.seen = true
	return leg
}

// expect implements ExpectPath.
func (p *paths) expect(link nat.Link, r pathmtu.Result) {
	if r.Size < pathmtu.Floor || r.Size >= len(p.packet) || r.Way > pathmtu.Back {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.expected == nil {
		p.expected = make(map[nat.Link]pathmtu.Result)
	}
	p.expected[link] = r
	p.path.Engine.SetPathMTU(link, r.Size)
}

// use records how many packets have used the leg so far.
func (leg *pathLeg) use(reachable bool, packets uint64, now time.Duration) {
	leg.reachable = reachable
	if packets != leg.packets {
		leg.packets, leg.busy = packets, now
	}
}

// firstLarge is the number of the first large ARP probe of a round. Rounds alternate between two
// ranges of numbers, so that late answers do not count.
func (leg *pathLeg) firstLarge() int { return int(leg.rounds%2) * pathmtu.MaxProbes }

// due returns the legs to probe in this look.
//
// +checklocks:p.mu
func (p *paths) due() []nat.Link {
	all := slices.Sorted(maps.Keys(p.legs))
	if len(all) <= maxPathLegs {
		return all
	}
	at, _ := slices.BinarySearch(all, p.next)
	turn := slices.Concat(all[at:], all[:at])
	p.next = turn[maxPathLegs]
	return turn[:maxPathLegs]
}

// probe sends the number-th probe of a leg, if there is one.
func (p *paths) probe(link nat.Link, number int) {
	p.mu.Lock()
	leg := p.legs[link]
	if leg == nil || number >= len(leg.sending) {
		p.mu.Unlock()
		return
	}
	if probe := leg.sending[number]; probe.Kind == pathmtu.ARP {
		first := leg.firstLarge()
		p.mu.Unlock()
		p.path.Endpoint.AskLarge(uint16(link), uint8(first+number), probe.Size)
		return
	}
	leg.probes++
	b := leg.request(p.packet, number)
	p.mu.Unlock()
	p.path.SendTo(p.sender, link, b)
}

// tell sends the lower MTU of a path to the senders of its connections. It takes a millisecond for
// 64 connections.
func (p *paths) tell(ctx context.Context, link nat.Link) {
	pace := time.NewTicker(tellPace)
	defer pace.Stop()
	var list [][]byte
	for at, more := nat.Cursor(0), true; more; {
		list, at, more = p.path.Engine.TellNarrow(at, link, list[:0])
		for _, message := range list {
			p.path.SendTo(p.sender, link, message)
		}
		p.sender.Flush()
		select {
		case <-ctx.Done():
			return
		case <-pace.C:
		}
	}
}

// known returns the results of all legs that were probed.
func (p *paths) known() map[nat.Link]pathmtu.Result {
	return p.results(func(r *pathmtu.Result) bool { return r.Known })
}

// counts implements Probes.
func (p *paths) counts(link nat.Link) (sent, answered uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if leg := p.legs[link]; leg != nil {
		return leg.probes - leg.answers, leg.answers
	}
	return 0, 0
}

// narrow returns the legs that carry less than is configured.
func (p *paths) narrow() map[nat.Link]pathmtu.Result {
	return p.results(func(r *pathmtu.Result) bool { return r.Size < len(p.packet) })
}

func (p *paths) results(wanted func(*pathmtu.Result) bool) map[nat.Link]pathmtu.Result {
	p.mu.Lock()
	defer p.mu.Unlock()
	results := make(map[nat.Link]pathmtu.Result)
	for link, leg := range p.legs {
		if r := &leg.search.Result; wanted(r) {
			results[link] = *r
		}
	}
	return results
}
