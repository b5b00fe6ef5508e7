package node

import (
	"crypto/rand"
	"encoding/binary"
	"net/netip"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// An ICMP echo packet: IPv4 header, ICMP header, a cookie by which its answer is told from
// those to others, and whatever makes it long.
const (
	ipv4Len   = 20
	icmpLen   = 8
	cookieLen = 8
	echoLen   = ipv4Len + icmpLen + cookieLen

	echoRequest = 8
	echoReply   = 0
)

// echoes are ICMP echo requests to the gateway's internal address, and what has come
// back.
type echoes struct {
	source, gateway netip.Addr
	cookie          [cookieLen]byte
	sequence        uint16 // of the last request; 0 = none
	back            [2]atomic.Uint32
}

// What echoes.back counts by: requests of echoLen bytes, and of mtu bytes.
const (
	smallEcho = iota
	wholeEcho
)

func newEchoes(c *Config) *echoes {
	e := &echoes{source: c.Address, gateway: c.GatewayAddress}
	rand.Read(e.cookie[:])
	return e
}

// request makes an echo request, as an IPv4 packet of the given size.
func (e *echoes) request(size int) []byte {
	b := make([]byte, size)
	b[0], b[8], b[9] = 0x45, 64, unix.IPPROTO_ICMP
	b[6] = 0x40 // don't fragment
	binary.BigEndian.PutUint16(b[2:], uint16(size))
	source, gateway := e.source.As4(), e.gateway.As4()
	copy(b[12:], source[:])
	copy(b[16:], gateway[:])
	binary.BigEndian.PutUint16(b[10:], sum(b[:ipv4Len]))
	icmp := b[ipv4Len:]
	icmp[0] = echoRequest
	binary.BigEndian.PutUint16(icmp[6:], e.sequence)
	copy(icmp[icmpLen:], e.cookie[:])
	binary.BigEndian.PutUint16(icmp[2:], sum(icmp))
	return b
}

// answered takes note of an ICMP message from the gateway; false if it is no answer to e.
func (e *echoes) answered(icmp []byte) bool {
	if len(icmp) < icmpLen+cookieLen || icmp[0] != echoReply || [cookieLen]byte(icmp[icmpLen:]) != e.cookie {
		return false
	}
	kind := smallEcho
	if len(icmp) > icmpLen+cookieLen {
		kind = wholeEcho
	}
	e.back[kind].Store(uint32(binary.BigEndian.Uint16(icmp[6:])))
	return true
}

// answeredIn is answered for an IPv4 packet.
func (e *echoes) answeredIn(b []byte) bool {
	return len(b) >= echoLen && b[0] == 0x45 && b[9] == unix.IPPROTO_ICMP && netip.AddrFrom4([4]byte(b[12:])) == e.gateway && e.answered(b[ipv4Len:])
}

// last tells whether the last request of a kind has come back.
func (e *echoes) last(kind int) answer {
	switch {
	case e.sequence == 0:
		return untold
	case e.back[kind].Load() == uint32(e.sequence):
		return yes
	}
	return no
}

// next begins another round.
func (e *echoes) next() { e.sequence = max(e.sequence+1, 1) }

// sum is the internet checksum (RFC 1071) of b, whose checksum field is 0.
func sum(b []byte) uint16 {
	var s uint32
	for ; len(b) > 1; b = b[2:] {
		s += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) > 0 {
		s += uint32(b[0]) << 8
	}
	s = s>>16 + s&0xffff
	return ^uint16(s>>16 + s)
}
