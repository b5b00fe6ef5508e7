package sim

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"culvert/nat/nattest"
)

// traffic is what pods and others say to each other. A packet tells which connection it is of, so that whoever gets it can judge whether
// it should be here: a datagram by its first bytes, a segment by its sequence number.
type traffic struct {
	w       *world
	chance  *rand.Rand
	conns   []*conn // by ID
	guests  int     // how many of them are such
	seen    map[sight]*conn
	garbled bool // something may have been corrupted
	slow    bool // who has something to say takes his time
	closing bool // nobody begins anything new
}

// sight is what a server takes for one client.
type sight struct {
	tcp            bool
	client, server netip.AddrPort
}

// kind is how a connection is translated.
type kind int

const (
	toPod     kind = iota // addresses by prefix, nothing else
	fromGuest             // the client's address becomes the one for unknown sources, and its port another if that is taken
	toMapped              // the server has an external address
	toService             // one of several servers
	kinds
)

func (k kind) String() string {
	return []string{"pod", "guest", "mapped", "service"}[k]
}

// conn is one connection, or what UDP has of it.
type conn struct {
	t       *traffic
	id      int
	kind    kind
	tcp     bool
	from    *node
	client  netip.AddrPort
	target  netip.AddrPort // whom the client addresses
	to      *side          // where the servers are
	servers []netip.AddrPort

	seen, server netip.AddrPort // as whom the server knows the client, and itself; zero before the first packet
	since        time.Duration  // when that was so first
	size         int            // of payloads
	answered     int
	stream       stream // of TCP
	sent, got    uint32 // numbers of datagrams
	over         string // why there is nothing more to come
}

func (c *conn) String() string {
	protocol := "udp"
	if c.tcp {
		protocol = "tcp"
	}
	return fmt.Sprintf("%s connection %d (%v, %v > %v, seen as %v by %v)", protocol, c.id, c.kind, c.client, c.target, c.seen, c.server)
}

// servedAt is the port of every server but those behind a service.
const servedAt = 80

// maxPayload leaves room for the headers of TCP with the MTU of the tunnel.
const maxPayload = 1280

// begin begins a connection of a kind from a side.
func (t *traffic) begin(k kind, tcp bool, from *side) *conn {
	c := &conn{t: t, id: len(t.conns), kind: k, tcp: tcp, to: from.peer, size: 40 + t.chance.IntN(maxPayload-40)}
	which, far, pod := t.chance.IntN(2), t.chance.IntN(2), t.chance.IntN(2)
	port := uint16(20000 + c.id)
	if k == fromGuest {
		// Two guests have the same port and the same server, so that one of them is given another port.
		which, port = t.guests%2, uint16(40000+t.guests/2)
		far, pod = t.guests/2%2, t.guests/4%2
		t.guests++
	}
	c.from = from.nodes[which]
	client := podsOfNode[which][t.chance.IntN(2)]
	if k == fromGuest {
		client = guestsOfNode[which]
	}
	c.client = netip.AddrPortFrom(client, port)
	real := netip.AddrPortFrom(podsOfNode[far][pod], servedAt)
	c.target, c.servers = netip.AddrPortFrom(remap(from.index, real.Addr()), servedAt), []netip.AddrPort{real}
	switch k {
	case toMapped:
		c.target, c.servers = netip.AddrPortFrom(remap(from.index, mapping), servedAt), []netip.AddrPort{netip.AddrPortFrom(mappedHost, servedAt)}
	case toService:
		c.target, c.servers = netip.AddrPortFrom(remap(from.index, service.Addr()), service.Port()), backends
	}
	t.conns = append(t.conns, c)
	c.speak()
	return c
}

// beginAny begins one of any kind, in place of another that is over.
func (t *traffic) beginAny() {
	if !t.closing {
		t.begin(kind(t.chance.IntN(int(kinds))), t.chance.IntN(2) == 0, t.w.sides[t.chance.IntN(2)])
	}
}

// speak has the client say what it has to say, and then again.
func (c *conn) speak() {
	if c.over != "" || c.t.w.failure != "" {
		return
	}
	pause := time.Duration(50+c.t.chance.IntN(700)) * time.Millisecond
	if c.t.slow {
		pause = time.Second + 2*pause
	}
	if c.tcp {
		c.advance()
	} else {
		for range 1 + c.t.chance.IntN(4) {
			c.sent++
			c.sendUDP(true, c.sent)
		}
	}
	c.t.w.after(pause, c.speak)
}

// end notes that nothing more is to be expected of c.
func (c *conn) end(why string) {
	if c.over == "" {
		c.over = why
		c.t.w.note("%v ends: %s", c, why)
		c.t.w.after(time.Second, c.t.beginAny)
	}
}

// ends returns from where to where the client, or the server, sends.
func (c *conn) ends(client bool) (from, to netip.AddrPort) {
	if client {
		return c.client, c.target
	}
	return c.server, c.seen
}

// transmit sends a packet of the client, or of the server.
func (c *conn) transmit(client bool, body nattest.Body) {
	from, to := c.ends(client)
	n := c.from
	if !client {
		n = c.to.nodeOf(c.server.Addr())
	}
	n.send(nattest.IP{Source: from.Addr().String(), Destination: to.Addr().String(), ID: uint16(c.id), DF: true, Body: body}.Bytes())
}

// nodeOf returns the node behind which an address is.
func (s *side) nodeOf(a netip.Addr) *node {
	if b := a.As4(); b[0] == 10 && b[1] == 0 && b[2] > 1 {
		return s.nodes[1]
	}
	return s.nodes[0]
}

// arrive judges a sound packet that has reached a node.
func (t *traffic) arrive(n *node, v nattest.View, b []byte) {
	t.w.packets++
	from, to := netip.AddrPortFrom(v.Source, v.SourcePort), netip.AddrPortFrom(v.Destination, v.DestinationPort)
	switch {
	case v.Protocol == icmp:
		t.arriveError(n, v, b)
		return
	case t.w.wasGarbled(v.Protocol, v.Body):
		return
	case v.Offset > 0 || v.MF:
		t.w.fail("%s gets a fragment, and nobody sends packets that may be fragmented: %v > %v", n.config.Name, from, to)
		return
	}
	id, client, ok := connectionOf(v)
	if !ok || id >= len(t.conns) {
		t.w.fail("%s gets what nobody has sent: %v > %v, protocol %d", n.config.Name, from, to, v.Protocol)
		return
	}
	c := t.conns[id]
	if client {
		c.arriveAtServer(n, from, to)
	} else {
		c.arriveAtClient(n, from, to)
	}
	switch {
	case t.w.failure != "" || c.over != "" && !c.tcp:
	case c.tcp:
		c.segment(client, v)
	case client:
		c.sendUDP(false, numberOf(v))
	default:
		c.got = max(c.got, numberOf(v))
		c.answered++
	}
}

// arriveAtServer judges what a client has sent.
func (c *conn) arriveAtServer(n *node, from, to netip.AddrPort) {
	w := c.t.w
	known := false
	for _, s := range c.servers {
		known = known || s == to
	}
	if !known || n != c.to.nodeOf(to.Addr()) {
		w.fail("%v: a packet reaches %v at %s", c, to, n.config.Name)
		return
	}
	shared := c.kind == fromGuest
	want := remap(c.to.index, c.client.Addr())
	if shared {
		want = remap(c.to.index, unknown)
	}
	if from.Addr() != want || !shared && from.Port() != c.client.Port() && !c.forgotten() {
		w.fail("%v: its server sees %v, want %v", c, from, netip.AddrPortFrom(want, c.client.Port()))
		return
	}
	if c.seen == from && c.server == to {
		return
	}
	if c.seen.IsValid() {
		if w.steady(c.since) {
			w.fail("%v: its translation changes to %v at %v", c, from, to)
			return
		}
		if c.tcp {
			c.end("translated otherwise after a restart")
		}
	}
	key := sight{c.tcp, from, to}
	if other := c.t.seen[key]; other != nil && other != c && other.over == "" && other.seen == from && w.steady(other.since) {
		w.fail("%v and %v are one to their server", c, other)
	}
	c.t.seen[key] = c
	c.seen, c.server, c.since = from, to, w.now()
}

// steady reports whether what was so at a time is so until now: no gateway has started since, or shortly before, when what the one before
// it had sent was still under way.
func (w *world) steady(since time.Duration) bool {
	const underWay = 2 * time.Second
	return since > w.restarted+underWay || w.restarted == 0
}

// forgotten reports whether the gateway that has chosen the server may know nothing of that: what the server says then is taken for the
// beginning of another connection, as in Linux.
func (c *conn) forgotten() bool { return c.kind == toService && c.to.starts > 1 }

// arriveAtClient judges what a server has sent.
func (c *conn) arriveAtClient(n *node, from, to netip.AddrPort) {
	switch {
	case n == c.from && to == c.client && from == c.target:
	case n == c.from && to == c.client && c.forgotten() && from == netip.AddrPortFrom(remap(c.from.side.index, c.server.Addr()), c.server.Port()):
		c.end("answered by a server that it does not know, after a restart")
	case c.kind == fromGuest && !c.t.w.steady(c.t.w.now()):
		c.t.w.note("%v: an answer reaches another guest, who has its port after a restart", c)
	default:
		c.t.w.fail("%v: an answer reaches %v at %s, from %v", c, to, n.config.Name, from)
	}
}

// arriveError judges an ICMP error: it must quote what its receiver has sent.
func (t *traffic) arriveError(n *node, v nattest.View, b []byte) {
	q, err := nattest.Quoted(b)
	if err != nil {
		if !t.garbled {
			t.w.fail("%s gets an ICMP message: %v", n.config.Name, err)
		}
		return
	}
	from, to := netip.AddrPortFrom(q.Source, q.SourcePort), netip.AddrPortFrom(q.Destination, q.DestinationPort)
	for _, c := range t.conns {
		if c.tcp != (q.Protocol == 6) {
			continue
		}
		for _, client := range []bool{true, false} {
			if f, o := c.ends(client); f == from && o == to && q.Source == v.Destination {
				c.told(v)
				return
			}
		}
	}
	// Who has been translated otherwise after a restart may still be told of what was before.
	if !t.garbled && t.w.restarted == 0 {
		t.w.fail("%s gets an ICMP error of type %d, code %d, about what %v has not sent: %v > %v", n.config.Name, v.Body[0], v.Body[1], v.Destination, from, to)
	}
}

// told heeds an ICMP error (RFC 1191, Section 4).
func (c *conn) told(v nattest.View) {
	if mtu := int(v.Body[6])<<8 | int(v.Body[7]); v.Body[0] == 3 && v.Body[1] == 4 && mtu >= 100 {
		c.size = min(c.size, mtu-20-8-helloBytes) // TCP has 20 there
	}
}
