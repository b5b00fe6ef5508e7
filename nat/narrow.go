package nat

import (
	"slices"

	"culvert/nat/packet"
)

// narrowLinks holds the MTU of links whose path carries less than configured, by Link; 0 means as
// configured. It is nil while there are none.
type narrowLinks []uint16

// of returns how large a packet of a family may be on a link with the configured mtu.
func (n narrowLinks) of(link Link, v6 bool, mtu int) int {
	if int(link) >= len(n) || n[link] == 0 {
		return mtu
	}
	narrow := int(n[link])
	if v6 {
		narrow = max(narrow, minMTU6) // RFC 8200, Section 5: never report less
	}
	return min(narrow, mtu)
}

// SetPathMTU sets the largest packet for a link until the next call; it also clamps the MSS of SYNs
// from there. 0 restores the configured MTU.
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

// keepNarrow bounds a plan by the path MTUs of the packet's incoming and outgoing links.
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

// TellNarrow appends to list the too-big messages for senders behind a link whose path became
// narrow: one for each of the next listBudget connections whose packets come in there. The messages
// go to that link. It returns where to continue; more is false at the end. Packets that are too big
// for the path to the gateway never arrive here to be refused, so nothing else would tell their
// senders.
//
// TCP senders accept the message, because it quotes the byte that the other end is waiting for (RFC
// 5927, Section 4.1).
func (e *Engine) TellNarrow(at Cursor, link Link, list [][]byte) (all [][]byte, next Cursor, more bool) {
	next, more = e.some(at, func(c *conn, _ uint32) {
		for d := range c.keys {
			if message := e.tooBigAhead(c, d, link); message != nil {
				list = append(list, message)
			}
		}
	})
	return list, next, more
}

// tooBigAhead returns the message for the sender of one direction of a connection, or nil if none
// is due.
func (e *Engine) tooBigAhead(c *conn, d int, link Link) []byte {
	s, t := e.snapshot, e.table.tuple(c, d)
	in := t.Link
	if in == anyNode {
		in = c.out[original]
	}
	mtu, from := e.narrow.of(link, t.IPv6, s.mtu), s.refusalSource(link, t.IPv6)
	if in != link || d == reply && !c.has(flagReplied) || mtu >= s.mtu || !from.IsValid() {
		return nil
	}
	q := packet.Quote{Tuple: t, Length: s.mtu}
	switch {
	case t.Protocol == packet.TCP && c.tcp.flags[1-d]&tcpAcked != 0:
		q.SequenceNumber = c.tcp.ack[1-d]
	case t.Protocol != packet.UDP:
		return nil
	}
	e.stats.of(link).Answered++
	return q.AppendTooBig(nil, from, mtu)
}
