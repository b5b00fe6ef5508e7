package packet

import (
	"encoding/binary"

	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// maxExtensions caps the bytes of IPv6 extension headers (RFC 8883, Section 2.5 allows a limit).
const maxExtensions = 256

// IPv6 next header values of the chain (RFC 8200, Section 4; RFC 7045, Section 3).
const (
	nextHopByHop    = 0
	nextRouting     = 43
	nextFragment    = 44
	nextNone        = 59
	nextDestination = 60
	nextMobility    = 135
	nextHIP         = 139
	nextShim6       = 140
)

func (p *Packet) parseIPv6(b []byte) Fault {
	if len(b) < header.IPv6MinimumSize {
		return Malformed
	}
	// A length of 0 before a hop-by-hop header would mean a jumbogram (RFC 2675, Section 2), which
	// no tunnel here carries.
	total := header.IPv6MinimumSize + int(binary.BigEndian.Uint16(b[4:]))
	if total == header.IPv6MinimumSize && b[6] == nextHopByHop || total > len(b) {
		return Malformed
	}
	p.data = b[:total]
	p.v6 = true
	return p.parseChain()
}

// parseChain walks the extension headers up to the transport header or to the first header of a
// later fragment, whose rest is payload. It stops at AH and ESP: what follows them is not
// translated.
func (p *Packet) parseChain() Fault {
	next, at := p.data[6], header.IPv6MinimumSize
	for first := true; ; first = false {
		if at > header.IPv6MinimumSize+maxExtensions {
			return Malformed
		}
		rest := p.data[at:]
		var n int
		switch next {
		case nextHopByHop:
			// RFC 8200, Section 4.1: only directly after the IPv6 header.
			if !first {
				return Malformed
			}
			fallthrough
		case nextDestination, nextRouting, nextMobility, nextHIP, nextShim6:
			if len(rest) < 8 {
				return Malformed
			}
			n = (int(rest[1]) + 1) * 8
			// RFC 5095, Section 3, and any other type: the destination in the header is not the
			// last one.
			if next == nextRouting && rest[3] != 0 {
				return SourceRoute
			}
		case nextFragment:
			if len(rest) < 8 || p.fragmentAt != 0 {
				return Malformed
			}
			n = 8
			field := binary.BigEndian.Uint16(rest[2:])
			p.fragmentAt = at
			p.fragmentOffset = int(field &^ 7)
			p.more = field&1 != 0
			// RFC 6946: an atomic fragment is no fragment.
			p.fragment = p.fragmentOffset != 0 || p.more
		default:
			p.protocol, p.transport = next, at
			return NoFault
		}
		if n > len(rest) {
			return Malformed
		}
		next, at = rest[0], at+n
		if p.fragmentOffset > 0 {
			p.protocol, p.transport = next, at
			return NoFault
		}
	}
}
