package nat

import (
	"hash/maphash"
	"net/netip"
	"time"

	"culvert/nat/packet"
)

const (
	// pathLifetime is how long a path MTU that was lowered stays so (RFC 1191, Section 6.3: 10 minutes).
	pathLifetime = 10 * time.Minute
	// minPathMTU is the lowest path MTU that a too-big message can bring about for IPv4, as Linux's min_pmtu.
	minPathMTU         = 552
	pathSets, pathWays = 128, 8
)

// A pathTable remembers the path MTU towards destinations. A destination has its place in one of the sets.
type pathTable struct {
	seed  maphash.Seed
	until Time // when the last entry expires
	sets  [pathSets][pathWays]path
}

// A path is the path MTU towards a destination, as addressed beyond the gateway.
type path struct {
	destination [16]byte
	sender      [16]byte // of the segment that was too big, as hostOf has it
	link        Link     // where the sender is
	way         Link     // through which the destination is reached
	mtu         uint16
	expires     Time
}

func (pt *pathTable) init() { pt.seed = maphash.MakeSeed() }

// live reports whether any path MTU is remembered.
func (pt *pathTable) live(now Time) bool { return now < pt.until }

// lookup returns the path MTU towards a destination, 0 if none was learnt.
func (pt *pathTable) lookup(a netip.Addr, way Link, now Time) int {
	if _, known := pt.find(a.As16(), way, now); known != nil {
		return int(known.mtu)
	}
	return 0
}

// find returns the set of a destination, and its entry or nil.
func (pt *pathTable) find(destination [16]byte, way Link, now Time) (set *[pathWays]path, known *path) {
	set = &pt.sets[maphash.Bytes(pt.seed, destination[:])%pathSets]
	for i := range set {
		if p := &set[i]; p.destination == destination && p.way == way && p.expires > now {
			return set, p
		}
	}
	return set, nil
}

// learn lowers the path MTU towards a destination for pathLifetime.
func (pt *pathTable) learn(p path, now Time) {
	p.expires = now.Add(pathLifetime)
	set, known := pt.find(p.destination, p.way, now)
	switch {
	case known == nil:
		known = p.displace(set, now)
	case known.mtu < p.mtu:
		return // RFC 1191, Section 6.3: only an expired estimate grows
	}
	*known = p
	pt.until = max(pt.until, p.expires)
}

// displace returns the entry of a set that p takes the place of: an expired one or, in a full set, the oldest of the sender that has
// most on the link that has most, p included. So a sender with many destinations takes them from itself, and the senders behind one
// link take them from one another, before anybody else loses one.
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

// shares returns what other adds to the share of p's sender: a whole for its link, and a little if it is the sender's own.
func (p *path) shares(other *path) int {
	switch {
	case p.link != other.link:
		return 0
	case p.sender != other.sender:
		return 2 * pathWays
	}
	return 2*pathWays + 1
}

// learnPath takes from an ICMP error p, which is about a packet of the connection of d, the path MTU of the segments that its receiver
// sends.
//
// Only a segment in flight tells: who has not seen it does not know its number (RFC 5927, Section 7.2). Other protocols teach nothing,
// because only TCP is cut to the path MTU, and every connection whose segments are too big hears of it.
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
