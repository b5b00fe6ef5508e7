package node

import (
	"crypto/rand"
	"sync/atomic"

	"culvert/gateway/echo"
)

// cookieLen is the size in bytes of the cookie that begins the payload. It distinguishes answers to
// this process from others.
const cookieLen = 8

// echoes are the echo requests to the gateway's internal address of one family, and their answers.
type echoes struct {
	ends
	cookie   [cookieLen]byte
	sequence uint16 // of the last request; 0 = none
	back     [2]atomic.Uint32
}

// The kinds of request in echoes.back: of least bytes, and of mtu bytes.
const (
	smallEcho = iota
	wholeEcho
)

// newEchoes uses the first family of c: both families lead to the same host and process.
func newEchoes(c *Config) *echoes {
	e := &echoes{ends: c.ends()[0]}
	rand.Read(e.cookie[:])
	return e
}

// least is the size in bytes of the smallest request.
func (e *echoes) least() int { return echo.HeaderLen(e.own) + cookieLen }

// request makes an echo request, as an IP packet of the given size.
func (e *echoes) request(size int) []byte {
	b := make([]byte, size)
	copy(b[echo.HeaderLen(e.own):], e.cookie[:])
	(&echo.Request{From: e.own, To: e.gateway, ID: echo.OfNode, Sequence: e.sequence}).Put(b)
	return b
}

// answered handles an answer from the gateway; it returns false if a answers none of e's requests.
func (e *echoes) answered(a echo.Answer) bool {
	if len(a.Payload) < cookieLen || [cookieLen]byte(a.Payload) != e.cookie {
		return false
	}
	kind := smallEcho
	if len(a.Payload) > cookieLen {
		kind = wholeEcho
	}
	e.back[kind].Store(uint32(a.Sequence))
	return true
}

// answeredIn is answered for an IP packet.
func (e *echoes) answeredIn(b []byte) bool {
	a, ok := echo.Parse(b)
	return ok && a.From == e.gateway && e.answered(a)
}

// last reports whether the last request of a kind was answered.
func (e *echoes) last(kind int) answer {
	switch {
	case e.sequence == 0:
		return untold
	case e.back[kind].Load() == uint32(e.sequence):
		return yes
	}
	return no
}

// next starts another round.
func (e *echoes) next() { e.sequence = max(e.sequence+1, 1) }
