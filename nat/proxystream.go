package nat

import (
	"fmt"
	"net/netip"

	"culvert/nat/packet"
	"culvert/nat/rules"
)

// A proxyStream is a TCP connection whose server gets a PROXY protocol header in front of the
// client's data. The header is inserted in flight:
//
//	SYN                  loses what a server could take for the beginning of the stream: data of
//	                     TCP Fast Open, and Multipath TCP
//	up to the server's   each segment that begins where the stream does carries the header: data,
//	                     the acknowledgement that ends the
//	acknowledgement of   handshake (a server may speak first), FIN, a keepalive. What the client
//	                     repeats brings it once more, so that
//	the header           no loss is the gateway's to mend.
//	other segments       count on by its length; acknowledgements, SACK blocks and quotations of
//	                     ICMP errors count back
//
// tcpState has the client's sequence numbers.
type proxyStream struct {
	header packet.ProxyHeader // never changed, since Cutters read it without the Engine's lock
	seen   bool               // it names the client's address as the server's cluster sees it, not as it came
	stage  headerStage
	// the client's sequence number after its SYN; after several SYNs, that of the one the server
	// acknowledged
	first uint32
}

// A headerStage says how far the header has got.
type headerStage uint8

const (
	headerDue     headerStage = iota // the server has not been sent it
	headerOffered                    // it was forwarded, and the server has not acknowledged it yet
	headerTaken                      // the server has acknowledged it
	headerFar                        // packet.StreamShift.Far
)

// beforeStream is more than a segment and a header hold: a segment that begins so far before the
// stream does not reach it.
const beforeStream = 1 << 17

// headerFarFrom is where nothing of the beginning of a stream is under way any more: beyond the
// largest window.
const headerFarFrom = maxWindow

func (pr *proxyStream) shift() packet.StreamShift {
	return packet.StreamShift{First: pr.first, Length: pr.length(), Far: pr.stage == headerFar}
}

func (pr *proxyStream) length() uint32 { return uint32(len(pr.header.Bytes())) }

// A streamStep is how the sequence numbers of a segment of a proxyStream are changed.
type streamStep uint8

const (
	streamAsIs  streamStep = iota
	streamOpens            // the client's SYN
	streamLeads            // the header goes in front of it
	streamMoves            // the client's numbers become the server's
	streamBack             // the server's numbers become the client's
)

// A streamPlan is what a plan says about a proxyStream. The other fields are stale when step is
// streamAsIs.
type streamPlan struct {
	step        streamStep
	stage       headerStage  // streamBack: the new stage
	proxyStream *proxyStream // nil for the first packet
	first       uint32       // streamBack: the new first
	window      uint16       // streamBack: how much less than the server's window is announced
}

// openStream decides about the first packet of a connection. It returns false if the packet is
// dropped.
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
		return true // for this connection the server is the client
	}
	d.plan.stream = streamPlan{step: streamOpens}
	if p.IsFragment() {
		d.drop(ReasonFragment) // its checksum covers bytes in other fragments
		return false
	}
	if d.trace != nil {
		client, server := proxied(&d.from, tr.ClientSource())
		d.traceStream(fmt.Sprintf("a header of %d bytes will tell the server %s > %s",
			packet.ProxyHeaderLen(d.from.IPv6), client, server))
	}
	return true
}

// proxied returns what the header says about a connection whose packets arrive with tuple from.
func proxied(from *packet.Tuple, source netip.Addr) (client, server netip.AddrPort) {
	return netip.AddrPortFrom(source, from.SourcePort()), netip.AddrPortFrom(from.Destination(), from.DestinationPort())
}

// newProxyStream returns the stream of a connection with original tuple first and reply tuple
// answer.
func newProxyStream(first, answer *packet.Tuple, seen bool, number uint32) *proxyStream {
	source := first.Source()
	if seen {
		source = answer.Destination()
	}
	return &proxyStream{header: packet.NewProxyHeader(proxied(first, source)), seen: seen, first: number}
}

// begin makes a connection a proxyStream.
func (tb *table) begin(c *conn, number uint32, pr *proxyStream) {
	if tb.proxies == nil {
		tb.proxies = map[uint32]*proxyStream{}
	}
	tb.proxies[number] = pr
	c.tcp.flags[original] |= tcpShifted
}

// proxyStreamOf returns the stream of a connection, nil if it has none.
func (tb *table) proxyStreamOf(c *conn, number uint32) *proxyStream {
	if c.tcp.flags[original]&tcpShifted == 0 {
		return nil
	}
	return tb.proxies[number]
}

// stream decides about a segment of the connection of hit, which is a proxyStream. It returns false
// if the segment is dropped.
func (e *Engine) stream(d *decision, p *packet.Packet) bool {
	pl, c, pr := &d.plan.stream, d.hit.conn, e.table.proxies[d.hit.number]
	*pl = streamPlan{proxyStream: pr, stage: pr.stage, first: pr.first}
	if d.hit.direction == reply {
		pl.back(&c.tcp, p)
	} else {
		pl.step = pr.forth(p)
	}
	switch {
	case pl.step != streamLeads && pl.step != streamOpens:
	case p.IsFragment():
		d.drop(ReasonFragment) // its checksum covers bytes in other fragments
		return false
	case pl.step == streamLeads && !p.IsSumRight():
		d.drop(ReasonMalformed) // rewriting would make its wrong checksum right
		return false
	}
	if d.trace != nil {
		d.traceStream(pl.describe())
	}
	return true
}

// forth decides about a segment from the client.
func (pr *proxyStream) forth(p *packet.Packet) streamStep {
	flags := p.TCPFlags()
	switch at := p.SequenceNumber() - pr.first; {
	case flags&packet.SYN != 0:
		return streamOpens
	case pr.stage >= headerTaken:
		return streamMoves
	case flags&packet.RST != 0:
		// RFC 5961, Section 3.2: a RST must have exactly the number that the server waits for. If
		// the header was lost, the server says so in its challenge.
		if at == 0 && pr.stage == headerDue || at == ^uint32(0) {
			return streamAsIs
		}
	case at == 0, at > ^uint32(beforeStream):
		// A keepalive or a window probe (RFC 1122, Section 4.2.3.6) repeats the number before. Only
		// a client that wants its own header in the place of the true one sends anything earlier.
		return streamLeads
	}
	return streamMoves
}

// back decides about a segment from the server.
func (pl *streamPlan) back(t *tcpState, p *packet.Packet) {
	pr := pl.proxyStream
	pl.step = streamBack
	number, acknowledges := p.Acknowledgement()
	if !acknowledges {
		return
	}
	syn := p.IsSYN()
	if syn && number != pr.first {
		// Only the server knows which of several SYNs it took: a client can send any number of them
		// and have some lost behind the gateway.
		pl.first, pl.stage = number, headerDue
	}
	length := pr.length()
	at := number - pl.first
	switch {
	case pl.stage == headerFar:
		return
	case at < length:
		// RFC 9293, Section 3.8.6: the client's window ends where it would without the header, so
		// nothing exceeds the server's.
		pl.window = lessWindow(length-at, t.shift[reply], syn)
		if at == 0 && pl.stage == headerOffered {
			pl.stage = headerDue
		}
	case at >= headerFarFrom && at <= 2*headerFarFrom && pl.stage == headerTaken:
		pl.stage = headerFar
	case pl.stage < headerTaken && t.flags[original]&tcpHeard != 0 && !before(t.end[original], number-length) &&
		!before(number, pl.first):
		pl.stage = headerTaken
	}
}

// lessWindow returns how much to subtract from the window field for so many bytes. The window of a
// SYN is not scaled (RFC 7323, Section 2.2).
func lessWindow(bytes uint32, scale uint8, syn bool) uint16 {
	if syn {
		scale = 0
	}
	return uint16((bytes + 1<<scale - 1) >> scale)
}

// dropsPayload reports whether rewrite leaves only the headers of a segment.
func (pl *streamPlan) dropsPayload(p *packet.Packet) bool {
	return pl.step == streamOpens || pl.step == streamLeads && p.SequenceNumber() != pl.proxyStream.first
}

// rewrite changes a packet by the plan.
func (pl *streamPlan) rewrite(p *packet.Packet) {
	pr := pl.proxyStream
	switch pl.step {
	case streamOpens:
		p.DropPayload() // RFC 7413, Section 4.2: the client retransmits what is not acknowledged
		p.DropMultipath()
	case streamLeads:
		if at := p.SequenceNumber() - pr.first; at != 0 {
			p.DropPayload() // of a window probe
			p.MoveSequence(-at)
		}
		p.Lead(&pr.header)
	case streamMoves:
		p.MoveSequence(pr.length())
	case streamBack:
		if !p.IsSYN() { // a SYN-ACK acknowledges a SYN, which comes before the header
			p.MoveBack(packet.StreamShift{First: pl.first, Length: pr.length(), Far: pl.stage == headerFar})
		}
		if pl.window > 0 {
			p.LowerWindow(pl.window)
		}
	}
}

// commit updates the stream after a segment was forwarded, and reports whether that has changed it.
func (pl *streamPlan) commit() (changed bool) {
	pr := pl.proxyStream
	switch pl.step {
	case streamLeads:
		changed = pr.stage != headerOffered
		pr.stage = headerOffered
	case streamBack:
		changed = pr.stage != pl.stage || pr.first != pl.first
		pr.stage, pr.first = pl.stage, pl.first
	}
	return changed
}

// describe returns a trace text for what happens to a segment.
func (pl *streamPlan) describe() string {
	n := pl.proxyStream.length()
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

// record returns the stream's saved form.
func (pr *proxyStream) record() proxyRecord {
	return proxyRecord{stage: uint8(pr.stage) + 1, seen: pr.seen, first: pr.first}
}

// restored returns the stream of a restored connection.
func (x *proxyRecord) restored(first, answer *packet.Tuple) *proxyStream {
	pr := newProxyStream(first, answer, x.seen, x.first)
	pr.stage = headerStage(x.stage - 1)
	return pr
}
