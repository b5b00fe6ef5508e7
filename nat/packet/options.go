package packet

import (
	"encoding/binary"

	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// option returns the offset in p of the value of a TCP option of this kind and length, or 0 if
// there is none. Preconditions: p.IsSYN().
func (p *Packet) option(kind, length byte) int {
	if at, _ := p.findOption(kind, length, length); at != 0 {
		return at + 2
	}
	return 0
}

// findOption returns the offset in p and the length of the first TCP option of kind that has least
// to most bytes (RFC 9293, Section 3.1), or zeros if there is none, or broken options before it.
// Preconditions: p is TCP and p.HasPorts().
func (p *Packet) findOption(kind, least, most byte) (at, length int) {
	i := p.transport + header.TCPMinimumSize
	end := p.transport + p.TCPHeaderLen()
	for i < end {
		switch p.data[i] {
		case header.TCPOptionEOL:
			return 0, 0
		case header.TCPOptionNOP:
			i++
			continue
		}
		if i+1 >= end || p.data[i+1] < 2 || i+int(p.data[i+1]) > end {
			return 0, 0
		}
		if n := p.data[i+1]; p.data[i] == kind && least <= n && n <= most {
			return i, int(n)
		}
		i += int(p.data[i+1])
	}
	return 0, 0
}

// mss returns the value of the MSS option of a SYN, 0 if there is none.
func (p *Packet) mss() uint16 {
	if at := p.option(header.TCPOptionMSS, header.TCPOptionMSSLength); at != 0 {
		return binary.BigEndian.Uint16(p.data[at:])
	}
	return 0
}

// windowScale returns the Window Scale option of a SYN.
func (p *Packet) windowScale() (shift uint8, ok bool) {
	if at := p.option(header.TCPOptionWS, header.TCPOptionWSLength); at != 0 {
		return min(p.data[at], MaxWindowShift), true
	}
	return 0, false
}

// ClampMSS lowers the MSS option of a SYN to bound. A SYN without the option is unchanged.
// Preconditions: p.IsSYN().
func (p *Packet) ClampMSS(bound uint16) {
	at := p.option(header.TCPOptionMSS, header.TCPOptionMSSLength)
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
