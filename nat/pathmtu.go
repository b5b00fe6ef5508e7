package nat

import (
	"hash/maphash"
	"time"

	"culvert/nat/packet"
)

const (
	// pathLifetime is how long a lowered path MTU lasts (RFC 1191, Section 6.3: 10 minutes).
	pathLifetime = 10 * time.Minute
	// minPathMTU is the lowest IPv4 path MTU that a too-big message can set, like Linux's min_pmtu.
	minPathMTU         = 552
	pathSets, pathWays = 128, 8
)

// A pathTable remembers path MTUs by sender and destination: an error about a connection of one
// sender says nothing about others, who would pay for what two colluding ends claim. Each pair has
// one set that it may be in.
type pathTable struct {
	seed  maphash.Seed
	until Time // when the last entry expires
	sets  [pathSets][pathWays]path
}

// A path is the path MTU from a sender to a destination.
type path struct {
	pathEnds
	host    [16]byte // hostOf the sender, which has a share
	link    Link     // of the sender
	mtu     uint16
	expires Time
}

// pathEnds are the source of packets as they arrive here, their destination as they leave, and both
// ways.
type pathEnds struct {
	addresses [32]byte
	in, out   Link
}

func endsOf(from, to *packet.Tuple, out Link) (ends pathEnds) {
	source, destination := from.Source().As16(), to.Destination().As16()
	copy(ends.addresses[copy(ends.addresses[:], source[:]):], destination[:])
	ends.in, ends.out = wayOf(from.Link), wayOf(out)
	return ends
}

func (pt *pathTable) init() { pt.seed = maphash.MakeSeed() }

// live reports whether any path MTU is remembered.
func (pt *pathTable) live(now Time) bool { return now < pt.until }

// lookup returns the path MTU between ends, 0 if unknown.
func (pt *pathTable) lookup(ends *pathEnds, now Time) int {
	if _, known := pt.find(ends, now); known != nil {
		return int(known.mtu)
	}
	return 0
}

// find returns the set of some ends, and their entry or nil.
func (pt *pathTable) find(ends *pathEnds, now Time) (set *[pathWays]path, known *path) {
	set = &pt.sets[maphash.Bytes(pt.seed, ends.addresses[:])%pathSets]
	for i := range set {
		if p := &set[i]; p.pathEnds == *ends && p.expires > now {
			return set, p
		}
	}
	return set, nil
}

// learn lowers the path MTU between two ends for pathLifetime.
func (pt *pathTable) learn(p path, now Time) {
	p.expires = now.Add(pathLifetime)
	set, known := pt.find(&p.pathEnds, now)
	switch {
	case known == nil:
		known = p.displace(set, now)
	case known.mtu < p.mtu:
		return // RFC 1191, Section 6.3: an estimate grows only by expiring
	}
	*known = p
	pt.until = max(pt.until, p.expires)
}

// displace returns the entry of a set that p replaces: an expired one or, in a full set, the oldest
// entry of the sender with the most entries on the link with the most, p included. So a sender with
// many destinations displaces its own entries, and the senders of one link each other's, before
// anybody else loses one.
func (p *path) displace(set *[pathWays]path, now Time) *path {
	var victim *path
	most := 0
	for i := range set {
		q := &set[i]
		if q.expires <= now {
			return q
		}
		share := q.shares(p)
		for j := range set {
			share += q.shares(&set[j])
		}
		if share > most || share == most && q.expires < victim.expires {
			victim, most = q, share
		}
	}
	return victim
}

// shares returns what other adds to the share of p's sender: a whole for the same link, and a
// little for the same sender.
func (p *path) shares(other *path) int {
	switch {
	case p.link != other.link:
		return 0
	case p.host != other.host:
		return 2 * pathWays
	}
	return 2*pathWays + 1
}

// learnPath learns a path MTU from an ICMP error p about a packet of the connection of d, for the
// segments that the error's receiver sends.
//
// Only an error about a segment in flight counts: a forger who has not seen the segment does not
// know its number (RFC 5927, Section 7.2). The handshake must be complete, so that who forges a SYN
// of somebody else's does not lower that sender's path MTU. Other protocols teach nothing, because
// only TCP is cut to the path MTU, and every connection with oversized segments gets an error of
// its own.
func (e *Engine) learnPath(d *decision, p *packet.Packet) {
	c, q, to := d.hit.conn, &d.quote, 1-d.hit.direction
	mtu := p.AnnouncedMTU()
	if mtu == 0 || mtu >= e.snapshot.mtu || q.Protocol() != packet.TCP || !q.HasPorts() {
		return
	}
	number := q.SequenceNumber()
	if d.quotesStream {
		number = d.shift.Back(number)
	}
	if !c.has(flagReplied) || rankOf(c.state) == rankUnsettled || !c.tcp.inFlight(number, to) {
		return
	}
	sent := e.table.tuple(c, to)
	d.teaches = true
	d.path = path{
		pathEnds: endsOf(&sent, &d.quoted[0], d.in),
		host:     e.snapshot.hostOf(sent.Source(), d.plan.out),
		link:     d.plan.out,
		mtu:      uint16(max(mtu, minPathMTU)),
	}
}
