package nat

import (
	"encoding/binary"

	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// findMSS returns the offset of the MSS value in p, or 0 if the segment has no such option or its options are broken.
// Preconditions: p.isSYN().
func (p *Packet) findMSS() int {
	i := p.transport + header.TCPMinimumSize
	end := p.transport + int(p.data[p.transport+12]>>4)*4
	for i < end {
		switch p.data[i] {
		case header.TCPOptionEOL:
			return 0
		case header.TCPOptionNOP:
			i++
			continue
		}
		if i+1 >= end || p.data[i+1] < 2 || i+int(p.data[i+1]) > end {
			return 0
		}
		if p.data[i] == header.TCPOptionMSS && p.data[i+1] == header.TCPOptionMSSLength {
			return i + 2
		}
		i += int(p.data[i+1])
	}
	return 0
}

// mss returns the value of the MSS option of a SYN, 0 if there is none.
func (p *Packet) mss() uint16 {
	if at := p.findMSS(); at != 0 {
		return binary.BigEndian.Uint16(p.data[at:])
	}
	return 0
}

// clampMSS lowers the MSS option of a SYN to bound. A SYN without the option is left alone.
func (p *Packet) clampMSS(bound uint16) {
	at := p.findMSS()
	if at == 0 {
		return
	}
	old := binary.BigEndian.Uint16(p.data[at:])
	if old <= bound {
		return
	}
	binary.BigEndian.PutUint16(p.data[at:], bound)
	if p.partial {
		return // the field does not cover the options yet
	}
	d := delta(old, bound)
	if (at-p.transport)%2 != 0 {
		d = d<<8 | d>>8 // RFC 1071, Section 2 (B): the sum of bytes swapped in pairs is the swapped sum
	}
	adjustAt(p.data, p.checksumAt, d)
}
