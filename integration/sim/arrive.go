package sim

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"time"

	"culvert/nat/nattest"
	"culvert/nat/packet"
)

// arrive judges a sound packet that has reached a node.
func (t *traffic) arrive(n *node, v nattest.View, b []byte) {
	from, to := netip.AddrPortFrom(v.Source, v.SourcePort), netip.AddrPortFrom(v.Destination, v.DestinationPort)
	if v.Protocol == icmp || v.Protocol == icmp6 {
		t.arriveError(n, v, b)
		return
	}
	id, client, ok := connectionOf(v)
	switch {
	case id == floodID, t.garbled && !sums(v.Protocol): // nothing tells that it is corrupted
		return
	case !ok || id >= len(t.conns):
		t.w.fail("%s gets what nobody has sent: %v > %v, protocol %d", n.config.Name, from, to, v.Protocol)
		return
	}
	t.w.packets++
	c := t.conns[id]
	if client {
		c.arriveAtServer(n, from, to)
	} else {
		c.arriveAtClient(n, from, to)
	}
	switch {
	case t.w.failure != "" || c.over != "" && c.protocol != packet.TCP:
	case c.protocol == packet.TCP:
		c.segment(client, v)
	case c.manner == refused:
		n.send(unreachable(v, b))
	default:
		c.heed(client, v)
	}
}

// sums reports whether packets of a protocol have a checksum that a node looks at.
func sums(protocol uint8) bool {
	return protocol == packet.TCP || protocol == packet.UDP || protocol == packet.SCTP
}

// unreachable returns the ICMP error of a host that has no such port (RFC 1122, Section 3.2.2.1;
// RFC 4443, Section 3.1).
func unreachable(v nattest.View, b []byte) []byte {
	m, most := nattest.ICMP{Type: 3, Code: 3}, 576-20-8
	if v.Source.Is6() {
		m, most = nattest.ICMP{Type: 1, Code: 4}, 1280-40-8
	}
	m.Payload = b[:min(len(b), most)]
	return nattest.IP{Source: v.Destination.String(), Destination: v.Source.String(), Body: m}.Bytes()
}

// arriveAtServer judges what a client has sent.
func (c *conn) arriveAtServer(n *node, from, to netip.AddrPort) {
	w := c.t.w
	if !slices.Contains(c.servers, to) || n != c.to.nodeOf(to.Addr()) {
		w.fail("%v: a packet reaches %v at %s", c, to, n.config.Name)
		return
	}
	shared := c.kind == fromGuest
	want := c.plan.remap(c.to.index, c.client.Addr())
	if shared {
		want = c.plan.remap(c.to.index, c.plan.unknown)
	}
	if from.Addr() != want || !shared && from.Port() != c.client.Port() && !c.forgotten() {
		w.fail("%v: its server sees %v, want %v", c, from, netip.AddrPortFrom(want, c.client.Port()))
		return
	}
	c.lastHeard = w.now()
	if c.seen == from && c.server == to {
		return
	}
	if c.seen.IsValid() {
		if w.steady(c.since) {
			w.fail("%v: its translation changes to %v at %v", c, from, to)
			return
		}
		if c.moved = w.now(); c.protocol != packet.UDP {
			c.end("translated otherwise after a restart")
		}
	}
	key := sight{c.protocol, from, to}
	if other := c.t.seen[key]; other != nil && other != c && other.over == "" && other.seen == from &&
		w.steady(other.since) {
		w.fail("%v and %v are one to their server", c, other)
	}
	c.t.seen[key] = c
	c.seen, c.server, c.since = from, to, w.now()
}

// loss is a time of which a gateway has forgotten what it knew.
type loss struct {
	from, to time.Duration
	side     *side
	copied   bool // another gateway has what was before
}

// underWay is how old a packet may be that arrives.
const underWay = 20 * time.Second

// steady reports whether what was so at a time is so until now: no gateway has forgotten it. What
// it had sent before may be under way, or wait for a session of WireGuard.
func (w *world) steady(since time.Duration) bool {
	return !slices.ContainsFunc(w.losses, func(l loss) bool { return since >= l.from && since <= l.to+underWay })
}

// forgotten reports whether the gateway that has chosen the server may know nothing of that: what
// the server says then is taken for the beginning of another connection, as in Linux.
func (c *conn) forgotten() bool {
	return c.kind == toService && slices.ContainsFunc(c.t.w.losses, func(l loss) bool {
		return l.side == c.to && (!l.copied || c.since >= l.from)
	})
}

// arriveAtClient judges what a server has sent.
func (c *conn) arriveAtClient(n *node, from, to netip.AddrPort) {
	switch {
	case n == c.from && to == c.client && from == c.target:
	case n == c.from && to == c.client && c.forgotten() && slices.ContainsFunc(c.servers, func(s netip.AddrPort) bool {
		return from == netip.AddrPortFrom(c.plan.remap(c.from.side.index, s.Addr()), s.Port())
	}):
		c.end("answered by a server that it does not know, after a restart")
	case c.kind == fromGuest && (!c.t.w.steady(c.since) && !c.t.w.steady(c.lastHeard) || c.moved > 0 &&
		c.t.w.now()-c.moved <= underWay):
		c.t.w.logEvent("%v: an answer reaches another guest, who has its port after a restart", c)
	default:
		c.t.w.fail("%v: an answer reaches %v at %s, from %v", c, to, n.config.Name, from)
	}
}

// arriveError judges an ICMP error: it must quote what its receiver has sent.
func (t *traffic) arriveError(n *node, v nattest.View, b []byte) {
	q, err := nattest.Quoted(b)
	if err != nil {
		t.w.fail("%s gets an ICMP message: %v", n.config.Name, err)
		return
	}
	f := flow{q.Protocol, netip.AddrPortFrom(q.Source, q.SourcePort), netip.AddrPortFrom(q.Destination,
		q.DestinationPort)}
	by, ok := t.sent[f]
	switch {
	case by == nobody, !ok && t.forgottenOf(q):
		return
	case !ok || q.Source != v.Destination:
		t.w.fail("%s gets an ICMP error of type %d, code %d, about what %v has not sent: %v > %v, protocol %d",
			n.config.Name, v.Body[0], v.Body[1],
			v.Destination, f.from, f.to, f.protocol)
		return
	}
	c := t.conns[by]
	if id, ok := quotedID(q); ok && id != by && id != floodID && !t.garbled && t.w.steady(c.since) {
		t.w.fail("%v: an ICMP error of type %d, code %d, quotes what connection %d has sent", c, v.Body[0],
			v.Body[1], id)
	}
	c.told(v)
}

// forgottenOf reports whether what an ICMP error quotes is of a connection that a gateway may know
// nothing of.
func (t *traffic) forgottenOf(q nattest.View) bool {
	id, ok := quotedID(q)
	return ok && id < len(t.conns) && t.conns[id].forgotten()
}

// told heeds an ICMP error (RFC 1191, Section 4; RFC 8201, Section 4). Who learns that a datagram
// was too large asks again.
func (c *conn) told(v nattest.View) {
	switch mtu := int(binary.BigEndian.Uint32(v.Body[4:])); {
	case v.Source.Is4() && v.Body[0] == 3 && v.Body[1] == 4 && mtu >= 576, v.Source.Is6() &&
		v.Body[0] == 2 && mtu >= 1280:
		again := mtu < c.mtu && c.manner == large && c.over == ""
		if c.mtu = min(c.mtu, mtu); again {
			c.number(true)
		}
	case c.manner == refused && (v.Source.Is4() && v.Body[0] == 3 && v.Body[1] == 3 || v.Source.Is6() &&
		v.Body[0] == 1 && v.Body[1] == 4):
		c.answered++
	}
}

// recordGarbled notes what the network has made of a packet: a gateway may take it for sound, and
// tell its sender of it.
func (t *traffic) recordGarbled(b []byte) {
	if v, _ := nattest.Check(packetOf(b)); v.Source.IsValid() {
		f := flow{v.Protocol, netip.AddrPortFrom(v.Source, v.SourcePort), netip.AddrPortFrom(v.Destination,
			v.DestinationPort)}
		if _, ok := t.sent[f]; !ok {
			t.sent[f] = nobody
		}
	}
}
