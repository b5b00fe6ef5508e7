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
