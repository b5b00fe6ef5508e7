package monitor

import (
	"encoding/binary"

	"culvert/gateway/echo"
	"culvert/gateway/path"
	"culvert/gateway/pathmtu"
	"culvert/nat"
)

// Probes are ICMP echo requests. Their payload is path.ShortMark or zeros, then the nonce of their
// round, then zeros.
const (
	nonceAt  = len(path.ShortMark)
	probeLen = nonceAt + 8 // without padding
)

// request builds the number-th probe.
func (leg *pathLeg) request(room []byte, number int) []byte {
	probe := leg.sending[number]
	b := room[:min(probe.Size, len(room))]
	clear(b)
	payload := b[echo.HeaderLen(leg.own):]
	if probe.Kind == pathmtu.ShortEcho {
		copy(payload, path.ShortMark)
	}
	binary.BigEndian.PutUint64(payload[nonceAt:], leg.nonce)
	(&echo.Request{From: leg.own, To: leg.peer, ID: echo.OfPath, Sequence: uint16(number)}).Put(b)
	return b
}

// answered records b, a packet to the gateway itself, if it is an answer to a probe, and returns
// false otherwise. It does not check the checksum, because the nonce proves the answer.
func (p *paths) answered(link nat.Link, b []byte) bool {
	a, ok := echo.Parse(b)
	if !ok || a.ID != echo.OfPath || len(a.Payload) < probeLen {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	leg := p.legs[link]
	if leg == nil || a.From != leg.peer {
		return false
	}
	leg.probes++
	leg.answers++
	return leg.search.Answered(binary.BigEndian.Uint64(a.Payload[nonceAt:]), int(a.Sequence), len(b), a.More)
}
