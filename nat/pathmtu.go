package nat

import (
	"hash/maphash"
	"net/netip"
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

// A pathTable remembers path MTUs by destination. Each destination has one set that it may be in.
type pathTable struct {
	seed  maphash.Seed
	until Time // when the last entry expires
	sets  [pathSets][pathWays]path
}

// A path is the path MTU to a destination, as addressed beyond the gateway.
type path struct {
	destination [16]byte
	sender      [16]byte // hostOf the sender of the segment that was too big
	link        Link     // of the sender
	way         Link     // by which the destination is reached
	mtu         uint16
	expires     Time
}

func (pt *pathTable) init() { pt.seed = maphash.MakeSeed() }

// live reports whether any path MTU is remembered.
func (pt *pathTable) live(now Time) bool { return now < pt.until }

// lookup returns the path MTU to a destination, 0 if unknown.
func (pt *pathTable) lookup(a netip.Addr, way Link, now Time) int {
	if _, known := pt.find(a.As16(), way, now); known != nil {
		return int(known.mtu)
	}
	return 0
}

// find returns a destination's set, and its entry or nil.
func (pt *pathTable) find(destination [16]byte, way Link, now Time) (set *[pathWays]path, known *path) {
	set = &pt.sets[maphash.Bytes(pt.seed, destination[:])%pathSets]
	for i := range set {
		if p := &set[i]; p.destination == destination && p.way == way && p.expires > now {
			return set, p
		}
	}
	return set, nil
}

// learn lowers the path MTU to a destination for pathLifetime.
func (pt *pathTable) learn(p path, now Time) {
	p.expires = now.Add(pathLifetime)
	set, known := pt.find(p.destination, p.way, now)
	switch {
	case known == nil:
		known = p.displace(set, now)
	case known.mtu < p.mtu:
		return // RFC 1191, Section 6.3: an estimate grows only by expiring
	}
	*known = p
	pt.until = max(pt.until, p.expires)
}

// displace returns the entry of a set that p replaces: an expired one or, in a full set, the oldest entry of the sender with the most entries on the
// link with the most, p included. So a sender with many destinations displaces its own entries, and the senders of one link each other's, before
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

// shares returns what other adds to the share of p's sender: a whole for the same link, and a little for the same sender.
func (p *path) shares(other *path) int {
	switch {
	case p.link != other.link:
		return 0
	case p.sender != other.sender:
		return 2 * pathWays
	}
	return 2*pathWays + 1
}

// learnPath learns a path MTU from an ICMP error p about a packet of the connection of d, for the segments that the error's receiver sends.
//
// Only an error about a segment in flight counts: a forger who has not seen the segment does not know its number (RFC 5927, Section 7.2). Other
// protocols teach nothing, because only TCP is cut to the path MTU, and every connection with oversized segments gets an error of its own.
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
	if !c.tcp.inFlight(number, to) {
		return
	}
	sent := e.table.tuple(c, to)
	destination, sender := d.quoted[0].Destination(), sent.Source()
	d.teaches = true
	d.path = path{
		destination: destination.As16(),
		sender:      e.snapshot.hostOf(sender, d.plan.out),
		link:        d.plan.out,
		way:         wayOf(d.in),
		mtu:         uint16(max(mtu, minPathMTU)),
	}
}
