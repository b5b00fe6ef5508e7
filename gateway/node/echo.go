package node

import (
	"crypto/rand"
	"encoding/binary"
	"net/netip"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// An echo packet: IP header, ICMP header, a cookie that distinguishes its answer from answers to others, and padding.
const (
	ipv4Len   = 20
	ipv6Len   = 40
	icmpLen   = 8
	cookieLen = 8

	echoRequest  = 8 // RFC 792
	echoReply    = 0
	echoRequest6 = 128 // RFC 4443, Section 4
	echoReply6   = 129
)

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

// header is the size in bytes of the IP header of a request.
func (e *echoes) header() int {
	if e.own.Is4() {
		return ipv4Len
	}
	return ipv6Len
}

// least is the size in bytes of the smallest request.
func (e *echoes) least() int { return e.header() + icmpLen + cookieLen }

// request makes an echo request, as an IP packet of the given size.
func (e *echoes) request(size int) []byte {
	b := make([]byte, size)
	icmp := b[e.header():]
	binary.BigEndian.PutUint16(icmp[6:], e.sequence)
	copy(icmp[icmpLen:], e.cookie[:])
	if e.own.Is4() {
		b[0], b[8], b[9] = 0x45, 64, unix.IPPROTO_ICMP
		b[6] = 0x40 // don't fragment
		binary.BigEndian.PutUint16(b[2:], uint16(size))
		copy(b[12:], e.own.AsSlice())
		copy(b[16:], e.gateway.AsSlice())
		binary.BigEndian.PutUint16(b[10:], ^sum(0, b[:ipv4Len]))
		icmp[0] = echoRequest
		binary.BigEndian.PutUint16(icmp[2:], ^sum(0, icmp))
		return b
	}
	b[0], b[6], b[7] = 6<<4, unix.IPPROTO_ICMPV6, 64
	binary.BigEndian.PutUint16(b[4:], uint16(len(icmp)))
	copy(b[8:], e.own.AsSlice())
	copy(b[24:], e.gateway.AsSlice())
	icmp[0] = echoRequest6
	// RFC 4443, Section 2.3: the pseudo-header counts.
	binary.BigEndian.PutUint16(icmp[2:], ^sum(uint32(len(icmp))+unix.IPPROTO_ICMPV6, b[8:]))
	return b
}

// answered handles an ICMP message from the gateway; it returns false if the message is no answer to e.
func (e *echoes) answered(icmp []byte) bool {
	reply := byte(echoReply)
	if e.own.Is6() {
		reply = echoReply6
	}
	if len(icmp) < icmpLen+cookieLen || icmp[0] != reply || [cookieLen]byte(icmp[icmpLen:]) != e.cookie {
		return false
	}
	kind := smallEcho
	if len(icmp) > icmpLen+cookieLen {
		kind = wholeEcho
	}
	e.back[kind].Store(uint32(binary.BigEndian.Uint16(icmp[6:])))
	return true
}

// answeredIn is answered for an IP packet.
func (e *echoes) answeredIn(b []byte) bool {
	switch {
	case len(b) < e.least():
		return false
	case e.own.Is4():
		return b[0] == 0x45 && b[9] == unix.IPPROTO_ICMP && netip.AddrFrom4([4]byte(b[12:])) == e.gateway && e.answered(b[ipv4Len:])
	}
	return b[0]>>4 == 6 && b[6] == unix.IPPROTO_ICMPV6 && netip.AddrFrom16([16]byte(b[8:])) == e.gateway && e.answered(b[ipv6Len:])
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

// sum returns the Internet checksum (RFC 1071) of b and an earlier partial sum s.
func sum(s uint32, b []byte) uint16 {
	for ; len(b) > 1; b = b[2:] {
		s += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) > 0 {
		s += uint32(b[0]) << 8
	}
	s = s>>16 + s&0xffff
	return uint16(s>>16 + s)
}
