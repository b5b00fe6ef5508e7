// Package echo makes ICMP echo requests and reads the answers (RFC 792, RFC 4443 Section 4), as
// whole IP packets: culvert asks the other end of a tunnel itself, without the kernel. Callers
// decide what to ask and what an answer means; they recognise their answers by ID, sequence number
// and payload.
package echo

import (
	"encoding/binary"
	"net/netip"
)

const (
	ipv4Len = 20
	ipv6Len = 40
	icmpLen = 8
	// fragmentLen is the size in bytes of the fragment header of IPv6 (RFC 8200, Section 4.5).
	fragmentLen = 8

	protoICMP     = 1
	protoFragment = 44
	protoICMPv6   = 58

	request4, reply4 = 8, 0
	request6, reply6 = 128, 129

	ttl = 64
)

// IDs of the echo requests that culvert sends, so that each sender ignores the answers to others.
const (
	OfNode = 0
	OfPath = 0x636d // path MTU
	OfPeer = 0x6376 // trains and pings to the peer
)

// A Request is an echo request between two addresses of one family.
type Request struct {
	From, To     netip.Addr
	ID, Sequence uint16
}

// HeaderLen returns the number of bytes before the payload of a request from a.
func HeaderLen(a netip.Addr) int {
	if a.Is4() {
		return ipv4Len + icmpLen
	}
	return ipv6Len + icmpLen
}

// Put writes the headers of a request to b, which has the payload after HeaderLen bytes. The
// request may not be fragmented.
func (r *Request) Put(b []byte) {
	clear(b[:HeaderLen(r.From)])
	if r.From.Is4() {
		icmp := b[ipv4Len:]
		b[0], b[8], b[9] = 4<<4|ipv4Len/4, ttl, protoICMP
		b[6] = 0x40 // don't fragment; so the identification means nothing (RFC 6864, Section 4.1)
		binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
		from, to := r.From.As4(), r.To.As4()
		copy(b[12:], from[:])
		copy(b[16:], to[:])
		binary.BigEndian.PutUint16(b[10:], ^sum(0, b[:ipv4Len]))
		r.put(icmp, request4, 0)
		return
	}
	icmp := b[ipv6Len:]
	b[0], b[6], b[7] = 6<<4, protoICMPv6, ttl
	binary.BigEndian.PutUint16(b[4:], uint16(len(icmp)))
	from, to := r.From.As16(), r.To.As16()
	copy(b[8:], from[:])
	copy(b[24:], to[:])
	// RFC 4443, Section 2.3: the pseudo-header counts.
	r.put(icmp, request6, uint32(sum(uint32(len(icmp))+protoICMPv6, b[8:ipv6Len])))
}

// put writes the ICMP header. s is the sum over everything else that its checksum covers.
func (r *Request) put(icmp []byte, kind byte, s uint32) {
	icmp[0] = kind
	binary.BigEndian.PutUint16(icmp[4:], r.ID)
	binary.BigEndian.PutUint16(icmp[6:], r.Sequence)
	binary.BigEndian.PutUint16(icmp[2:], ^sum(s, icmp))
}

// An Answer is an echo reply, or the first fragment of one.
type Answer struct {
	From         netip.Addr
	ID, Sequence uint16
	Payload      []byte // borrowed from the packet
	More         bool   // fragments follow
}

// Parse reads an answer; ok is false if b is none. It does not verify checksums: a caller to whom
// forgeries matter puts a secret into the payload. A packet with options or other extension headers
// is not an answer to a Request.
func Parse(b []byte) (a Answer, ok bool) {
	switch {
	case len(b) >= ipv4Len+icmpLen && b[0] == 4<<4|ipv4Len/4:
		fragment := binary.BigEndian.Uint16(b[6:])
		if b[9] != protoICMP || fragment&0x1fff != 0 {
			return a, false
		}
		a.From, a.More = netip.AddrFrom4([4]byte(b[12:])), fragment&0x2000 != 0
		ok = a.read(b[ipv4Len:], reply4)
	case len(b) >= ipv6Len && b[0]>>4 == 6:
		next, icmp := b[6], b[ipv6Len:]
		if next == protoFragment && len(icmp) >= fragmentLen {
			fragment := binary.BigEndian.Uint16(icmp[2:])
			if fragment&^7 != 0 {
				return a, false
			}
			next, a.More, icmp = icmp[0], fragment&1 != 0, icmp[fragmentLen:]
		}
		if next != protoICMPv6 {
			return a, false
		}
		a.From = netip.AddrFrom16([16]byte(b[8:]))
		ok = a.read(icmp, reply6)
	}
	return a, ok
}

// Message returns the ICMP message of a request, as a ping socket sends it.
func Message(request []byte) []byte {
	if request[0]>>4 == 4 {
		return request[ipv4Len:]
	}
	return request[ipv6Len:]
}

// ParseMessage is Parse for an ICMP message without an IP header, as a ping socket receives it.
// From stays empty.
func ParseMessage(icmp []byte, is6 bool) (a Answer, ok bool) {
	kind := byte(reply4)
	if is6 {
		kind = reply6
	}
	ok = a.read(icmp, kind)
	return a, ok
}

func (a *Answer) read(icmp []byte, reply byte) bool {
	if len(icmp) < icmpLen || icmp[0] != reply {
		return false
	}
	a.ID, a.Sequence, a.Payload = binary.BigEndian.Uint16(icmp[4:]), binary.BigEndian.Uint16(icmp[6:]), icmp[icmpLen:]
	return true
}

// sum returns the Internet checksum (RFC 1071) of b and an earlier sum s, not inverted.
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
