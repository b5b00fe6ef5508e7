package health

import (
	"fmt"
	"net/netip"
	"sort"
	"time"
)

// A notice is an observed loss, or an observed unknown sender.
type notice struct {
	finding     Finding
	first, last time.Duration // of the current spell
	times       int           // observations in this spell
	packets     uint64
	said        time.Duration // when it was last logged; negative = never
}

// noticeKey identifies a notice. It has no packet addresses: the reason persists, not the sender.
type noticeKey struct {
	cause *Cause
	of    string
}

type notices struct {
	liqo      bool // from the last observation
	all       map[noticeKey]*notice
	totals    map[dropKey]uint64
	bucket    int // how many unknown senders may still be logged
	filled    time.Duration
	initiator netip.Addr // of unanswered handshakes
	handshake int64      // the peer's last one
	received  uint64
	answered  uint64
}

type dropKey struct {
	reason  string
	inbound bool
}

const (
	// spell is the maximum distance between two observations of one thing: more than the 5 s
	// between two handshakes of WireGuard.
	spell = 12 * time.Second
	// often is how many observations a thing needs: one may be chance, and a ping shows twice.
	often = 2
	// repeat is how often an ongoing thing is logged.
	repeat = 10 * time.Minute
	// liveTime is how long a thing counts as current after its last observation.
	liveTime = time.Minute
	// smallMSS is what every host accepts (RFC 9293, Section 3.7.1). Less is hardly intended.
	smallMSS = 536
	// maxNotices bounds what is remembered, even in a flood of unknown senders. Beyond it, only the
	// metrics count.
	maxNotices = 256
	// At most strangerBurst unknown senders are logged at once, then one per strangerInterval.
	strangerBurst    = 5
	strangerInterval = 10 * time.Second
)

func newNotices() notices {
	return notices{all: make(map[noticeKey]*notice), totals: make(map[dropKey]uint64), bucket: strangerBurst}
}

func (n *notices) judge(now time.Duration, o *Observation, sign *Sign) (said []Finding) {
	n.liqo = o.Peer.Liqo
	for k, x := range n.all {
		if now-x.last > repeat {
			delete(n.all, k)
		}
	}
	for ; n.bucket < strangerBurst && now-n.filled >= strangerInterval; n.filled += strangerInterval {
		n.bucket++
	}
	if n.bucket == strangerBurst {
		n.filled = now
	}
	say := func(f Finding, ok bool) {
		if ok {
			said = append(said, f)
		}
	}
	for i := range o.Drops {
		say(n.drop(now, &o.Drops[i], &o.Peer))
	}
	for i := range o.Strangers {
		say(n.stranger(now, &o.Strangers[i], &o.Peer))
	}
	if sign != nil && sign.Kind == SignUnknownNode {
		address := sign.Source.Addr().String()
		say(n.see(now, StrangerGeneve, OfAddress, address, address, 1, "{address}", address, "{seen}",
			fmt.Sprint(sign.VNI)))
	}
	if o.MSS > 0 && o.MSS < smallMSS {
		say(n.see(now, SmallMSS, OfPeer, o.Peer.Name, "", 1, "{mss}", fmt.Sprint(o.MSS), "{fits}", fmt.Sprint(o.Fits)))
	}
	say(n.unanswered(now, &o.Peer))
	n.disproved(&o.Peer)
	return said
}

// disproved forgets what a handshake with an address proves wrong: that it has wrong keys, or is
// not the peer.
func (n *notices) disproved(p *Peer) {
	if p.Handshake == n.handshake {
		return
	}
	if n.handshake = p.Handshake; p.Handshake == 0 {
		return
	}
	address := p.Endpoint.Addr().Unmap().String()
	for _, c := range []*Cause{StrangerMAC1, StrangerInitiator, StrangerData} {
		delete(n.all, noticeKey{c, address})
	}
}

// drop records packets dropped for a reason since the last observation.
func (n *notices) drop(now time.Duration, d *Drop, p *Peer) (Finding, bool) {
	key := dropKey{d.Reason, d.Inbound}
	packets := d.Total - n.totals[key]
	n.totals[key] = d.Total
	c := d.cause()
	if c == nil || packets == 0 {
		return Finding{}, false
	}
	kind, of := OfNode, d.Node
	if d.Inbound {
		kind, of = OfPeer, p.Name
	}
	return n.see(now, c, kind, of, of+"/"+d.Rule, packets, "{of}", of, "{node}", d.Node, "{source}", d.Source.String(),
		"{destination}", d.Destination.String(),
		"{owner}", d.Owner, "{role}", p.Role, "{rule}", d.Rule, "{reason}", d.Reason)
}

// cause returns the cause behind a drop, nil if it is normal for occasional packets: a TTL that
// expires, a packet too big, an error about nothing.
func (d *Drop) cause() *Cause {
	if !d.Source.IsValid() {
		return nil // there is no example
	}
	pick := func(inbound, outbound *Cause) *Cause {
		if d.Inbound {
			return inbound
		}
		return outbound
	}
	switch d.Reason {
	case "bad-source":
		switch {
		case d.Inbound && d.Tunnel:
			return SameRole
		case d.Inbound:
			return PeerSource
		case d.Owner != "":
			return ForeignSource
		case d.Remote:
			return RemoteSource
		}
		return OddSource
	case "unknown-source":
		return NoSourceWanted
	case "no-route":
		if d.Local {
			return NowhereNode
		}
		return pick(NowhereLocal, NowhereRemote)
	case "no-mapping":
		return StandsForNothing
	case "to-node":
		return ToNode
	case "not-admitted":
		return pick(NotAdmitted, nil) // a server here cannot know that its client is shut out
	case "filtered", "rejected":
		if d.Rule != "" {
			return RuleDrops
		}
	case "no-backend":
		return NoBackend
	case "table-full", "connection-share":
		return TableFull
	case "port-exhausted", "port-share":
		return PortsFull
	case "malformed":
		return pick(nil, Malformed)
	}
	return nil
}

// stranger records an unwanted sender to WireGuard's port.
func (n *notices) stranger(now time.Duration, s *Stranger, p *Peer) (Finding, bool) {
	c := map[StrangerKind]*Cause{StrangerWithoutKey: StrangerMAC1, StrangerWithData: StrangerData,
		StrangerTooFast: StrangerRate, StrangerWithNoise: StrangerNoise}[s.Kind]
	address := s.Address.String()
	return n.see(now, c, OfAddress, address, address, 1, "{address}", address, "{key}", p.PublicKey, "{listen}",
		fmt.Sprint(p.ListenPort))
}

// unanswered records a sender of handshakes that WireGuard ignores, because it knows no peer with
// that key.
func (n *notices) unanswered(now time.Duration, p *Peer) (Finding, bool) {
	received, answered := p.ReceivedHandshakes, p.SentAnswers
	before := n.received
	n.received = received
	if answered != n.answered {
		n.answered = answered
		n.acquit()
		return Finding{}, false
	}
	if !p.Outdated.IsZero() { // it is the peer; the initiation may be of the last observation
		n.acquit()
		return Finding{}, false
	}
	if received == before || !p.Initiator.IsValid() || p.NameError != "" && !p.Endpoint.IsValid() {
		return Finding{}, false // also where WireGuard does not know the peer yet, because its name has no address
	}
	n.initiator = p.Initiator
	address := p.Initiator.String()
	return n.see(now, StrangerInitiator, OfAddress, address, address, 1, "{address}", address)
}

// acquit forgets that the last initiator seemed to have another key.
func (n *notices) acquit() { delete(n.all, noticeKey{StrangerInitiator, n.initiator.String()}) }

// see records one observation of a thing, and returns whether it must be logged.
func (n *notices) see(now time.Duration, c *Cause, kind Kind, of, key string, packets uint64,
	blanks ...string) (Finding, bool) {
	k := noticeKey{c, key}
	x := n.all[k]
	if x == nil {
		if len(n.all) == maxNotices {
			return Finding{}, false
		}
		x = &notice{first: now, said: -repeat}
		n.all[k] = x
	}
	if now-x.last > spell {
		x.first, x.times, x.packets = now, 0, 0
	}
	x.last = now
	x.times++
	x.packets += packets
	x.finding = findingOf(c, kind, of, append(blanks, "{count}", fmt.Sprint(x.packets))...)
	if n.liqo && now-x.first < settles && c != SameRole {
		return Finding{}, false
	}
	if x.times < often && c != SameRole || now-x.said < repeat { // one packet proves SameRole
		return Finding{}, false
	}
	if kind == OfAddress {
		if n.bucket == 0 {
			return Finding{}, false
		}
		n.bucket--
	}
	x.said = now
	return x.finding, true
}

// live returns what was observed often enough in the last minute.
func (n *notices) live(now time.Duration) (all []Finding) {
	for _, x := range n.all {
		if x.said >= 0 && now-x.last <= liveTime {
			all = append(all, x.finding)
		}
	}
	sort.Slice(all, func(i, j int) bool {
		a, b := &all[i], &all[j]
		return a.Cause.Name < b.Cause.Name || a.Cause.Name == b.Cause.Name && a.Text < b.Text
	})
	return all
}
