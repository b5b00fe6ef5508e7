package nat

import (
	"slices"

	"culvert/nat/packet"
)

// narrowLinks are links whose path carries less than the configuration says: the MTU, by Link; 0 is that of the configuration. It is nil
// while there are none.
type narrowLinks []uint16

// of returns what a packet of a family may be large on a link where mtu is configured.
func (n narrowLinks) of(link Link, v6 bool, mtu int) int {
	if int(link) >= len(n) || n[link] == 0 {
		return mtu
	}
	narrow := int(n[link])
	if v6 {
		narrow = max(narrow, minMTU6) // RFC 8200, Section 5: nobody may be told less
	}
	return min(narrow, mtu)
}

// SetPathMTU makes mtu the largest packet that goes out on a link, until it is called again, and the one by which SYNs are clamped that come
// from there; 0 is that of the configuration.
func (e *Engine) SetPathMTU(link Link, mtu int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := slices.Clone(e.narrow) // Explain may hold the old one
	if need := int(link) + 1 - len(n); mtu > 0 && need > 0 {
		n = append(n, make(narrowLinks, need)...)
	}
	if int(link) < len(n) {
		n[link] = uint16(min(mtu, maxMTU))
	}
	if !slices.ContainsFunc(n, func(m uint16) bool { return m > 0 }) {
		n = nil
	}
	e.narrow = n
}

// keepNarrow bounds a plan by what the paths carry that the packet comes and goes by.
func (e *Engine) keepNarrow(pl *plan, p *packet.Packet, in Link) {
	configured := e.snapshot.mtu
	pl.mtu = e.narrow.of(pl.out, p.IsIPv6(), configured)
	if !p.IsSYN() {
		return
	}
	least := min(pl.mtu, e.narrow.of(in, p.IsIPv6(), configured))
	if least == configured {
		return
	}
	bound := least - 40
	if p.IsIPv6() {
		bound = least - 60
	}
	if pl.clamp == 0 || bound < int(pl.clamp) {
		pl.clamp = uint16(bound)
	}
}

// TellNarrow appends to list, for those of the next listBudget connections whose packets come in at a link with a narrow path, the too-big
// message by which their sender learns of it, to go to that link; and returns the place to go on. more is false at the end. What is too big
// for the way to the gateway never gets here to be refused, so nothing else would tell.
//
// TCP senders believe it, as it quotes the byte that the other end is waiting for (RFC 5927, Section 4.1).
func (e *Engine) TellNarrow(at Cursor, link Link, list [][]byte) (all [][]byte, next Cursor, more bool) {
	next, more = e.some(at, func(c *conn, _ uint32) {
		for d := range c.tuples {
			if message := e.tooBigAhead(c, d, link); message != nil {
				list = append(list, message)
			}
		}
	})
	return list, next, more
}

// tooBigAhead returns the message for the sender of one direction of a connection, nil if none is due.
func (e *Engine) tooBigAhead(c *conn, d int, link Link) []byte {
	s, t, in := e.snapshot, &c.tuples[d], c.tuples[d].Link
	if in == anyNode {
		in = c.out[original]
	}
	mtu, from := e.narrow.of(link, t.IPv6, s.mtu), s.refusalSource(link, t.IPv6)
	if in != link || d == reply && !c.has(flagReplied) || mtu >= s.mtu || !from.IsValid() {
		return nil
	}
	q := packet.Quote{Tuple: *t, Length: s.mtu}
	switch {
	case t.Protocol == packet.TCP && c.tcp.flags[1-d]&tcpAcked != 0:
		q.SequenceNumber = c.tcp.ack[1-d]
	case t.Protocol != packet.UDP:
		return nil
	}
	e.stats.of(link).Answered++
	return q.AppendTooBig(nil, from, mtu)
}
