package packet

import (
	"encoding/binary"

	"gvisor.dev/gvisor/pkg/tcpip/header"
)

func (p *Packet) parseIPv4(b []byte) Fault {
	if len(b) < header.IPv4MinimumSize {
		return Malformed
	}
	length, total := int(b[0]&0xf)*4, int(binary.BigEndian.Uint16(b[2:]))
	if length < header.IPv4MinimumSize || length > total || total > len(b) {
		return Malformed
	}
	// RFC 1812, Section 5.2.2: a router MUST verify the header checksum.
	s := sum20(b)
	if length > header.IPv4MinimumSize {
		s = add(s, sum(b[header.IPv4MinimumSize:length]))
	}
	if s != 0xffff {
		return Malformed
	}
	p.data = b[:total]
	p.transport = length
	p.protocol = b[9]
	field := binary.BigEndian.Uint16(b[6:])
	p.more = field&0x2000 != 0
	p.fragmentOffset = int(field&0x1fff) * 8
	p.fragment = field&0x3fff != 0
	if length > header.IPv4MinimumSize {
		return checkOptions(b[header.IPv4MinimumSize:length])
	}
	return NoFault
}

// checkOptions walks IPv4 options (RFC 791, Section 3.1) and refuses source routes, which no prefix
// translation can follow.
func checkOptions(o []byte) Fault {
	for len(o) > 0 {
		switch o[0] {
		case 0: // End of Option List
			return NoFault
		case 1: // No Operation
			o = o[1:]
			continue
		case 131, 137: // Loose and Strict Source and Record Route
			return SourceRoute
		}
		if len(o) < 2 || o[1] < 2 || int(o[1]) > len(o) {
			return Malformed
		}
		o = o[o[1]:]
	}
	return NoFault
}
