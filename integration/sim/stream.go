package sim

import (
	"time"

	"culvert/gateway/config"
	"culvert/nat/nattest"
)

// A sequence number has the connection's ID, a bit that says who speaks, and where in what is said
// the segment begins: 1 is where it all begins, 0 is the SYN.
const (
	serverBit  = 1 << 15
	streamRoom = 6 * maxPayload // then it is closed
)

// stream is both ends of a TCP connection. The client says something, the server says as much, and
// so on.
type stream struct {
	open, closing bool
	tries         int // since something was new
	client        half
	server        half
}

// half is what one end has sent and received, as offsets.
type half struct{ sent, acked, got int }

// sendTCP sends a segment of the client, or of the server.
func (c *conn) sendTCP(client bool, flags uint8, at, size int) {
	h, far := &c.stream.server, uint32(0)
	seq := uint32(c.id)<<16 | serverBit
	if client {
		h, far, seq = &c.stream.client, serverBit, seq&^serverBit
	}
	from, to := c.ends(client)
	s := nattest.TCP{SourcePort: from.Port(), DestinationPort: to.Port(), Seq: seq + uint32(at), Flags: flags,
		Window: 65535}
	if flags&nattest.ACK != 0 {
		s.Ack = uint32(c.id)<<16 | far + uint32(h.got)
	}
	if size > 0 {
		s.Payload = c.contents(client, at, size)
		s.Partial = c.manner == trains
	}
	c.transmit(client, s)
}

// advance has the client go on: with what it has not been answered yet, with something new, or with
// the end.
func (c *conn) advance() {
	s := &c.stream
	h := &s.client
	s.tries++
	switch {
	case !s.open:
		h.sent = 1
		c.sendTCP(true, nattest.SYN, 0, 0)
	case s.closing:
		c.sendTCP(true, nattest.FIN|nattest.ACK, h.sent, 0)
	case h.acked < h.sent:
		c.say(true, h.acked, h.sent)
	case h.got < h.sent: // the server says as much as it has heard: ask for it
		c.say(true, max(1, h.sent-1), h.sent)
	case h.sent >= streamRoom && c.t.chance.IntN(3) == 0:
		c.sendTCP(true, nattest.RST|nattest.ACK, h.sent, 0)
		c.end("reset by its client")
	case h.sent >= streamRoom:
		s.closing = true
		c.sendTCP(true, nattest.FIN|nattest.ACK, h.sent, 0)
	default:
		from := h.sent
		h.sent += c.size * (1 + c.t.chance.IntN(3))
		c.say(true, from, h.sent)
	}
	if s.tries%4 != 0 && (!s.open || s.closing || h.acked < h.sent || h.got < h.sent) {
		tries := s.tries
		c.t.w.after(200*time.Millisecond<<(s.tries%4), func() {
			if c.over == "" && s.tries == tries && (!s.open || h.acked < h.sent || h.got < h.sent) {
				c.advance()
			}
		})
	}
}

// say sends what the client, or the server, says from one place to another.
func (c *conn) say(client bool, from, to int) {
	size := min(c.size, c.mtu-c.headers())
	if c.manner == trains && c.mtu == int(config.DefaultMTU) { // on a narrow path a kernel's segments are smaller
		size = to - from
	}
	for at := from; at < to; at += size {
		c.sendTCP(client, nattest.ACK|nattest.PSH, at, min(size, to-at))
	}
}

// segment heeds a segment of the client, or of the server.
func (c *conn) segment(client bool, v nattest.View) {
	s := &c.stream
	to, from := &s.client, &s.server
	if client {
		to, from = &s.server, &s.client
	}
	at := int(v.Seq & (serverBit - 1))
	for i, b := range v.Payload {
		if b != content(c.id, client, at+i) {
			c.t.w.fail("%v: other bytes at %d", c, at+i)
			return
		}
	}
	if v.Flags&nattest.RST != 0 {
		if c.over == "" && c.t.w.steady(c.since) {
			c.t.w.fail("%v: reset, and not by its ends", c)
		}
		c.end("reset")
		return
	}
	if v.Flags&nattest.ACK != 0 {
		acked := int(v.Ack & (serverBit - 1))
		if acked > to.sent+1 || int(v.Ack>>16) != c.id {
			c.t.w.fail("%v: %d acknowledged of %d", c, v.Ack, to.sent)
			return
		}
		to.acked = max(to.acked, min(acked, to.sent))
	}
	switch {
	case client && v.Flags&nattest.SYN != 0:
		s.server.sent, s.server.got = max(1, s.server.sent), max(1, s.server.got)
		c.sendTCP(false, nattest.SYN|nattest.ACK, 0, 0)
	case v.Flags&nattest.SYN != 0:
		if !s.open {
			s.open, s.tries, s.client.got = true, 0, 1
			c.answered++
			c.advance()
		}
	case client && v.Flags&nattest.FIN != 0:
		s.server.got = max(s.server.got, at+1)
		c.sendTCP(false, nattest.FIN|nattest.ACK, s.server.sent, 0)
	case v.Flags&nattest.FIN != 0:
		s.client.got = at + 1
		c.sendTCP(true, nattest.ACK, s.client.sent+1, 0)
		c.end("closed")
	case client:
		c.heard(v, at)
	case len(v.Payload) > 0 && at <= to.got && at+len(v.Payload) > to.got:
		to.got, s.tries = at+len(v.Payload), 0
		if to.got == to.sent && from.sent == to.got {
			c.answered++
			c.sendTCP(true, nattest.ACK, to.sent, 0)
		}
	}
}

// heard has the server answer what the client has said with as much.
func (c *conn) heard(v nattest.View, at int) {
	h, end := &c.stream.server, at+len(v.Payload)
	switch {
	case len(v.Payload) == 0:
	case at <= h.got && end > h.got:
		h.got = end
		from := h.sent
		h.sent = end
		c.say(false, from, end)
	case end <= h.got && h.acked < h.sent:
		c.say(false, max(1, h.acked), h.sent)
	default:
		c.sendTCP(false, nattest.ACK, h.sent, 0)
	}
}
