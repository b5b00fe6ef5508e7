package sim

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"culvert/gateway/config"
	"culvert/nat/nattest"
	"culvert/nat/packet"
)

// traffic is what pods and others say to each other. A packet tells which connection it is of, so
// that whoever gets it can judge whether it should be here: a datagram by its first bytes, a
// segment by its sequence number, a chunk by its tag.
type traffic struct {
	w       *world
	chance  *rand.Rand
	conns   []*conn // by ID
	guests  int     // how many of them are such
	ids     uint32  // of fragments
	seen    map[sight]*conn
	sent    map[flow]int  // by whom
	cutting bool          // some packets are cut into several on their way
	garbled bool          // something may have been corrupted
	pace    time.Duration // in which whoever has something to say says it again; 0: in any
	slow    time.Duration // how much longer than else who has something to say waits
	closing bool          // nobody begins anything new
}

// flow is from where to where packets go.
type flow struct {
	protocol uint8
	from, to netip.AddrPort
}

// nobody has sent what the network has corrupted.
const nobody = -1

// sight is what a server takes for one client.
type sight struct {
	protocol       uint8
	client, server netip.AddrPort
}

// kind is how a connection is translated.
type kind int

const (
	toPod     kind = iota // addresses by prefix, nothing else
	fromGuest             // the client gets the address for unknown sources, and another port if its own is taken
	toMapped              // the server has an external address
	toService             // one of several servers
	kinds
)

func (k kind) String() string {
	return []string{"pod", "guest", "mapped", "service"}[k]
}

// manner is who speaks, and how.
type manner int

const (
	asks    manner = iota // the client asks, the server answers
	listens               // the client asks until it is answered, then only the server speaks
	refused               // of UDP: nobody listens, and the server's host says so
	large                 // of UDP: it comes in fragments
	trains                // of TCP: several segments in one, whose checksum is partial
	manners
)

func (m manner) String() string {
	return []string{"asks", "listens", "refused", "large", "trains"}[m]
}

// speeches are what a connection of a protocol may be like.
var speeches = []struct {
	protocol uint8
	manner   manner
}{
	{packet.TCP, asks}, {packet.TCP, asks}, {packet.TCP, trains}, {packet.UDP, asks}, {packet.UDP, listens},
	{packet.UDP, refused},
	{packet.UDP, large}, {packet.SCTP, asks}, {packet.SCTP, listens},
}

// conn is one connection, or what UDP has of it.
type conn struct {
	t        *traffic
	id       int
	kind     kind
	protocol uint8
	manner   manner
	plan     *plan
	from     *node
	client   netip.AddrPort
	target   netip.AddrPort // whom the client addresses
	to       *side          // where the servers are
	servers  []netip.AddrPort

	seen, server netip.AddrPort // as whom the server knows the client, and itself; zero before the first packet
	since        time.Duration  // when that was so first
	lastHeard    time.Duration  // when it last heard of the client
	moved        time.Duration  // when it last knew the client as another before; 0: it never has
	size         int            // of payloads
	mtu          int
	answered     int
	stream       stream  // of TCP
	stage        int     // of SCTP
	sent         [2]flow // last, by the server and by the client
	numbers      [2]uint32
	over         string // why there is nothing more to come
}

func (c *conn) String() string {
	return fmt.Sprintf("%s connection %d (%v, %v, %v > %v, seen as %v by %v)", map[uint8]string{6: "tcp", 17: "udp",
		132: "sctp"}[c.protocol],
		c.id, c.kind, c.manner, c.client, c.target, c.seen, c.server)
}

// servedAt is the port of every server but those behind a service.
const servedAt = 80

// maxPayload leaves room for the headers of any packet with the MTU of the tunnel.
const maxPayload = 1240

// wideMTU is the MTU of pods that do not know the tunnel's, and have to be told.
const wideMTU = 1500

// begin begins a connection of a kind from a side.
func (t *traffic) begin(k kind, from *side) *conn {
	s := speeches[t.chance.IntN(len(speeches))]
	if (s.manner == trains || s.manner == large) && !t.cutting {
		s.manner = asks
	}
	family := t.chance.IntN(2)
	p := plans[family]
	c := &conn{t: t, id: len(t.conns), kind: k, protocol: s.protocol, manner: s.manner, plan: p, to: from.peer,
		mtu: int(config.DefaultMTU), size: 40 + t.chance.IntN(200)}
	if c.id%8 == 7 && c.manner != trains {
		c.mtu = wideMTU
	}
	switch {
	case c.manner == large:
		c.size = 1500 + t.chance.IntN(2000)
	case t.chance.IntN(4) == 0:
		c.size = 40 + t.chance.IntN(maxPayload+c.mtu-int(config.DefaultMTU)-40)
	}
	which, far, pod := t.chance.IntN(2), t.chance.IntN(2), t.chance.IntN(2)
	port := uint16(20000 + c.id)
	if k == fromGuest {
		// Two guests have the same port and the same server, so that one of them is given another
		// port.
		which, port = t.guests%2, uint16(40000+t.guests/2)
		far, pod = t.guests/2%2, t.guests/4%2
		t.guests++
	}
	c.from = from.nodes[which]
	client := p.pods[which][t.chance.IntN(2)]
	if k == fromGuest {
		client = p.guests[which]
	}
	c.client = netip.AddrPortFrom(client, port)
	real := netip.AddrPortFrom(p.pods[far][pod], servedAt)
	c.target, c.servers = netip.AddrPortFrom(p.remap(from.index, real.Addr()), servedAt), []netip.AddrPort{real}
	switch k {
	case toMapped:
		c.target, c.servers = netip.AddrPortFrom(p.remap(from.index, p.mapping), servedAt),
			[]netip.AddrPort{netip.AddrPortFrom(p.mappedHost, servedAt)}
	case toService:
		c.target, c.servers = netip.AddrPortFrom(p.remap(from.index, p.service.Addr()), p.service.Port()), p.backends
	}
	t.conns = append(t.conns, c)
	c.speak()
	return c
}

// beginAny begins one of any kind, in place of another that is over.
func (t *traffic) beginAny() {
	if !t.closing {
		t.begin(kind(t.chance.IntN(int(kinds))), t.w.sides[t.chance.IntN(2)])
	}
}

// speak has who is to speak say something, and then again. What is said often is said seldom, too.
func (c *conn) speak() {
	if c.over != "" || c.t.w.failure != "" {
		return
	}
	switch {
	case c.protocol == packet.TCP:
		c.advance()
	case c.manner == listens && c.answered > 0 && (c.t.slow == 0 || c.t.w.steady(c.since)):
		c.number(false)
	default:
		for range 1 + c.t.chance.IntN(2) {
			c.number(true)
		}
	}
	pause := 50*time.Millisecond<<c.t.chance.IntN(8) + time.Duration(c.t.chance.IntN(50))*time.Millisecond
	if c.t.pace > 0 {
		pause = c.t.pace
	}
	if c.t.slow > 0 {
		pause = c.t.slow + time.Duration(c.t.chance.IntN(1000))*time.Millisecond
	}
	c.t.w.after(pause, c.speak)
}

// number sends the next datagram of the client, or of the server.
func (c *conn) number(client bool) {
	n := &c.numbers[index(client)]
	*n++
	c.sendDatagram(client, *n)
}

func index(client bool) int {
	if client {
		return 1
	}
	return 0
}

// end notes that nothing more is to be expected of c.
func (c *conn) end(why string) {
	if c.over == "" {
		c.over = why
		c.t.w.logEvent("%v ends: %s", c, why)
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
	if f := (flow{c.protocol, from, to}); c.sent[index(client)] != f {
		c.sent[index(client)], c.t.sent[f] = f, c.id
	}
	c.t.w.sent++
	b := nattest.IP{Source: from.Addr().String(), Destination: to.Addr().String(), DF: c.manner != large,
		Body: body}.Bytes()
	if len(b) <= c.mtu || c.manner == trains {
		n.send(b)
		return
	}
	c.t.ids++
	for _, f := range cut(b, c.mtu, c.t.ids) {
		n.send(f)
	}
}

// nodeOf returns the node behind which an address is.
func (s *side) nodeOf(a netip.Addr) *node {
	for i, n := range s.nodes {
		if slices.ContainsFunc(n.config.PodCIDRs, func(p netip.Prefix) bool { return p.Contains(a) }) {
			return s.nodes[i]
		}
	}
	return s.nodes[0]
}

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

// flood has a guest send packets that nobody answers, each the first of a connection.
func (t *traffic) flood(from *side, n int) {
	p := plans[t.chance.IntN(2)]
	b := binary.BigEndian.AppendUint32(nil, magic)
	b = binary.BigEndian.AppendUint32(b, floodID)
	b = append(b, 0, 0, 0, 0, 1)
	target := netip.AddrPortFrom(p.remap(from.index, p.pods[0][0]), servedAt+1)
	for range n {
		source := netip.AddrPortFrom(p.flooder, uint16(1024+t.chance.IntN(60000)))
		t.sent[flow{packet.UDP, source, target}] = nobody
		from.nodes[0].send(nattest.IP{Source: source.Addr().String(), Destination: target.Addr().String(),
			Body: nattest.UDP{SourcePort: source.Port(), DestinationPort: target.Port(), Payload: b}}.Bytes())
	}
}
