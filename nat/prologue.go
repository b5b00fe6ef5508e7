package nat

import (
	"fmt"
	"net/netip"

	"culvert/nat/packet"
	"culvert/nat/rules"
)

// A prologue is the PROXY protocol header that a server gets in front of what its client sends, over TCP. It is inserted in flight:
//
//	SYN                  loses what a server could take for the beginning of the stream: data of TCP Fast Open, and Multipath TCP
//	up to the server's   each segment that begins where the stream does carries the header: data, the acknowledgement that ends the
//	acknowledgement of   handshake (a server may speak first), FIN, a keepalive. What the client repeats brings it once more, so that
//	the header           no loss is the gateway's to mend.
//	other segments       count on by its length; acknowledgements, SACK blocks and quotations of ICMP errors count back
//
// What is remembered of the connection besides, tcpState, has the client's numbers.
type prologue struct {
	header packet.ProxyHeader // never changed, since Cutters read it without the Engine's lock
	seen   bool               // it tells the client's address as the server's cluster sees it, not as it came
	stage  prologueStage
	first  uint32 // the client's sequence number behind its SYN, of several that which the server has acknowledged
}

// A prologueStage says how far a server is.
type prologueStage uint8

const (
	prologueDue     prologueStage = iota // it waits for the header
	prologueOffered                      // the header was forwarded since the server last said so
	prologueTaken                        // it has acknowledged the header
	prologueFar                          // packet.StreamShift.Far
)

// prologueBehind is more than a segment and a header hold: what begins so far before the stream does not reach it.
const prologueBehind = 1 << 17

// prologueFarFrom is where nothing is under way of the beginning of a stream: behind the largest window.
const prologueFarFrom = maxWindow

func (pr *prologue) shift() packet.StreamShift {
	return packet.StreamShift{First: pr.first, Length: pr.length(), Far: pr.stage == prologueFar}
}

func (pr *prologue) length() uint32 { return uint32(len(pr.header.Bytes())) }

// A streamStep is what becomes of the numbers of a TCP segment of a connection with a prologue.
type streamStep uint8

const (
	streamAsIs  streamStep = iota
	streamOpens            // the client's SYN
	streamLeads            // the header goes in front of it
	streamMoves            // the client's numbers become the server's
	streamBack             // the server's numbers become the client's
)

// A streamPlan is what a plan says about the stream of a prologue. Only of step streamAsIs it may be old.
type streamPlan struct {
	step     streamStep
	stage    prologueStage // streamBack: that of the prologue from then on
	prologue *prologue     // nil for the first packet
	first    uint32        // streamBack: that of the prologue from then on
	window   uint16        // streamBack: less than the server has announced
}

// openStream decides about the first packet of a connection. It returns false if the packet is dropped.
func (d *decision) openStream(p *packet.Packet) bool {
	tr := &d.tr
	if !tr.ShiftsStream() || tr.NoTrack || p.Protocol() != packet.TCP || !p.HasPorts() {
		return true
	}
	// In mid-stream, nobody knows by how much the client's numbers differ from the server's.
	if !d.check("begin of a TCP connection", p.TCPFlags()&(packet.SYN|packet.ACK) == packet.SYN) {
		d.counted, d.verdict = tr.HitCount(), refuse(ReasonMidStream, packet.Reset)
		return false
	}
	if !tr.ProxyProtocol() {
		return true // the server is the client of this one
	}
	d.plan.stream = streamPlan{step: streamOpens}
	if p.IsFragment() {
		d.drop(ReasonFragment) // its checksum covers bytes that are elsewhere
		return false
	}
	if d.trace != nil {
		client, server := proxied(&d.from, tr.ClientSource())
		d.traceStream(fmt.Sprintf("a header of %d bytes will tell the server %s > %s", packet.ProxyHeaderLen(d.from.IPv6), client, server))
	}
	return true
}

// proxied returns what the header tells of a connection whose packets come with tuple from.
func proxied(from *packet.Tuple, source netip.Addr) (client, server netip.AddrPort) {
	return netip.AddrPortFrom(source, from.SourcePort()), netip.AddrPortFrom(from.Destination(), from.DestinationPort())
}

// newPrologue returns that of a connection of which first is the original tuple and answer the other.
func newPrologue(first, answer *packet.Tuple, seen bool, number uint32) *prologue {
	source := first.Source()
	if seen {
		source = answer.Destination()
	}
	return &prologue{header: packet.NewProxyHeader(proxied(first, source)), seen: seen, first: number}
}

// begin gives a connection its prologue.
func (tb *table) begin(c *conn, number uint32, pr *prologue) {
	if tb.prologues == nil {
		tb.prologues = map[uint32]*prologue{}
	}
	tb.prologues[number] = pr
	c.tcp.flags[original] |= tcpShifted
}

// prologueOf returns the prologue of a connection, nil if it has none.
func (tb *table) prologueOf(c *conn, number uint32) *prologue {
	if c.tcp.flags[original]&tcpShifted == 0 {
		return nil
	}
	return tb.prologues[number]
}

// stream decides about a segment of the connection of hit, which has a prologue. It returns false if the segment is dropped.
func (e *Engine) stream(d *decision, p *packet.Packet) bool {
	pl, c, pr := &d.plan.stream, d.hit.conn, e.table.prologues[d.hit.number]
	*pl = streamPlan{prologue: pr, stage: pr.stage, first: pr.first}
	if d.hit.direction == reply {
		pl.back(&c.tcp, p)
	} else {
		pl.step = pr.forth(p)
	}
	switch {
	case pl.step != streamLeads && pl.step != streamOpens:
	case p.IsFragment():
		d.drop(ReasonFragment) // its checksum covers bytes that are elsewhere
		return false
	case pl.step == streamLeads && !p.IsSumRight():
		d.drop(ReasonMalformed) // it would get a checksum that is right
		return false
	}
	if d.trace != nil {
		d.traceStream(pl.describe())
	}
	return true
}

// streamEnds reports whether a SYN ends the connection of hit, which is over, since its stream has or is to get a prologue: who uses the ports
// again is served as configured.
func (e *Engine) streamEnds(d *decision, p *packet.Packet, now Time) bool {
	c := d.hit.conn
	if c.keys[original].protocol != packet.TCP || p.TCPFlags()&(packet.SYN|packet.ACK) != packet.SYN {
		return false
	}
	if c.tcp.flags[original]&tcpShifted == 0 {
		e.stillBound(&d.tr, c, now)
		if !d.tr.ProxyProtocol() {
			return false
		}
	}
	d.renewal, d.predecessor = renewEvict, d.hit.number
	return true
}

// forth decides about a segment of the client.
func (pr *prologue) forth(p *packet.Packet) streamStep {
	flags := p.TCPFlags()
	switch at := p.SequenceNumber() - pr.first; {
	case flags&packet.SYN != 0:
		return streamOpens
	case pr.stage >= prologueTaken:
		return streamMoves
	case flags&packet.RST != 0:
		// RFC 5961, Section 3.2: it is to be exactly where the server waits. If the header was lost, the server says so in its challenge.
		if at == 0 && pr.stage == prologueDue || at == ^uint32(0) {
			return streamAsIs
		}
	case at == 0, at > ^uint32(prologueBehind):
		// A keepalive or a probe of a window (RFC 1122, Section 4.2.3.6) repeats the number before. What begins earlier, only a client sends
		// that would put a header of its own in the place of the true one.
		return streamLeads
	}
	return streamMoves
}

// back decides about a segment of the server.
func (pl *streamPlan) back(t *tcpState, p *packet.Packet) {
	pr := pl.prologue
	pl.step = streamBack
	number, acknowledges := p.Acknowledgement()
	if !acknowledges {
		return
	}
	syn := p.IsSYN()
	if syn && number != pr.first {
		// The server alone knows which of several SYNs it has taken; a client can send any, and have some of them lost behind the gateway.
		pl.first, pl.stage = number, prologueDue
	}
	length := pr.length()
	at := number - pl.first
	switch {
	case pl.stage == prologueFar:
		return
	case at < length:
		// RFC 9293, Section 3.8.6: what the client may send ends where it would without the header, so that nothing exceeds the window.
		pl.window = lessWindow(length-at, t.shift[reply], syn)
		if at == 0 && pl.stage == prologueOffered {
			pl.stage = prologueDue
		}
	case at >= prologueFarFrom && at <= 2*prologueFarFrom && pl.stage == prologueTaken:
		pl.stage = prologueFar
	case pl.stage < prologueTaken && t.flags[original]&tcpHeard != 0 && !before(t.end[original], number-length) && !before(number, pl.first):
		pl.stage = prologueTaken
	}
}

// lessWindow returns by how much a window is lowered for so many bytes: that of a SYN is not scaled (RFC 7323, Section 2.2).
func lessWindow(bytes uint32, scale uint8, syn bool) uint16 {
	if syn {
		scale = 0
	}
	return uint16((bytes + 1<<scale - 1) >> scale)
}

// dropsPayload reports whether rewrite leaves nothing of a segment but its header.
func (pl *streamPlan) dropsPayload(p *packet.Packet) bool {
	return pl.step == streamOpens || pl.step == streamLeads && p.SequenceNumber() != pl.prologue.first
}

// rewrite changes a packet by the plan.
func (pl *streamPlan) rewrite(p *packet.Packet) {
	pr := pl.prologue
	switch pl.step {
	case streamOpens:
		p.DropPayload() // RFC 7413, Section 4.2: the client sends again what is not acknowledged
		p.DropMultipath()
	case streamLeads:
		if at := p.SequenceNumber() - pr.first; at != 0 {
			p.DropPayload() // of a probe
			p.MoveSequence(-at)
		}
		p.Lead(&pr.header)
	case streamMoves:
		p.MoveSequence(pr.length())
	case streamBack:
		if !p.IsSYN() { // which acknowledges a SYN, in front of all
			p.MoveBack(packet.StreamShift{First: pl.first, Length: pr.length(), Far: pl.stage == prologueFar})
		}
		if pl.window > 0 {
			p.LowerWindow(pl.window)
		}
	}
}

// commit notes what a forwarded segment does to the prologue.
func (pl *streamPlan) commit() {
	pr := pl.prologue
	switch pl.step {
	case streamLeads:
		pr.stage = prologueOffered
	case streamBack:
		pr.stage, pr.first = pl.stage, pl.first
	}
}

// describe says what becomes of a segment.
func (pl *streamPlan) describe() string {
	n := pl.prologue.length()
	switch pl.step {
	case streamOpens:
		return "the handshake passes without data"
	case streamLeads:
		return fmt.Sprintf("a header of %d bytes goes in front", n)
	case streamMoves:
		return fmt.Sprintf("sequence number + %d", n)
	case streamBack:
		return fmt.Sprintf("acknowledgements - %d", n)
	}
	return "sequence number as it is"
}

func (d *decision) traceStream(detail string) {
	d.trace.Trace(rules.Step{Name: "PROXY protocol", Passed: true, Detail: detail})
}

// record returns what is recorded of a prologue.
func (pr *prologue) record() prologueRecord {
	return prologueRecord{stage: uint8(pr.stage) + 1, seen: pr.seen, first: pr.first}
}

// restored returns the prologue of a connection that was restored. Records are as old as half a minute, in which a stream can get far.
func (x *prologueRecord) restored(first, answer *packet.Tuple) *prologue {
	pr := newPrologue(first, answer, x.seen, x.first)
	if pr.stage = prologueStage(x.stage - 1); pr.stage == prologueTaken {
		pr.stage = prologueFar
	}
	return pr
}
