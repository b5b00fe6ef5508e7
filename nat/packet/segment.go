package packet

import (
	"encoding/binary"

	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// Flag bits of a TCP segment (RFC 9293, Section 3.1; CWR: RFC 3168, Section 6.1.2).
const (
	FIN = uint8(header.TCPFlagFin)
	SYN = uint8(header.TCPFlagSyn)
	RST = uint8(header.TCPFlagRst)
	PSH = uint8(header.TCPFlagPsh)
	ACK = uint8(header.TCPFlagAck)
	CWR = uint8(0x80)
)

// MaxWindowShift is the largest window scale (RFC 7323, Section 2.3).
const MaxWindowShift = 14

// A Segment is the content of a TCP header.
type Segment struct {
	Seq, Ack uint32
	Length   uint32 // of payload, SYN and FIN in sequence space
	Window   uint16 // as in the header, unscaled
	Flags    uint8
	MSS      uint16 // the MSS option of a SYN; 0 if it has none
	Shift    uint8  // the Window Scale option of a SYN, at most MaxWindowShift
	Scaled   bool   // the SYN has that option
}

// Segment fills the zero Segment s. Preconditions: p is TCP and no later fragment.
func (p *Packet) Segment(s *Segment) {
	b := p.data[p.transport:]
	s.Seq = binary.BigEndian.Uint32(b[4:])
	s.Ack = binary.BigEndian.Uint32(b[8:])
	s.Length = p.sequenceLength()
	s.Flags = b[13]
	s.Window = binary.BigEndian.Uint16(b[14:])
	if s.Flags&SYN != 0 {
		s.MSS = p.mss()
		s.Shift, s.Scaled = p.windowScale()
	}
}

// sequenceLength is what a segment occupies in sequence space: its payload, and one each for SYN
// and FIN.
func (p *Packet) sequenceLength() uint32 {
	b := p.data[p.transport:]
	n := uint32(len(b) - int(b[12]>>4)*4)
	if b[13]&SYN != 0 {
		n++
	}
	if b[13]&FIN != 0 {
		n++
	}
	return n
}

// SequenceNumber returns the sequence number of a TCP segment, whole or quoted. Preconditions: p is
// TCP and p.HasPorts().
func (p *Packet) SequenceNumber() uint32 { return binary.BigEndian.Uint32(p.data[p.transport+4:]) }

// TCPHeaderLen returns the length of the TCP header with its options, in bytes. Preconditions: p is
// TCP, whole or a first fragment.
func (p *Packet) TCPHeaderLen() int { return int(p.data[p.transport+12]>>4) * 4 }

// IsAnswer reports whether p can only be the answer to another packet: an ICMP reply, a SYN-ACK or
// RST of TCP, an INIT ACK, ABORT or SHUTDOWN COMPLETE of SCTP.
func (p *Packet) IsAnswer() bool {
	switch {
	case p.hasIdent && p.v6:
		return header.ICMPv6Type(p.data[p.transport]) == header.ICMPv6EchoReply
	case p.hasIdent:
		kind := header.ICMPv4Type(p.data[p.transport])
		return kind == header.ICMPv4EchoReply || kind == header.ICMPv4TimestampReply
	case p.protocol == TCP && p.hasPorts:
		flags := p.data[p.transport+13]
		return flags&RST != 0 || flags&(SYN|ACK) == SYN|ACK
	case p.protocol == SCTP && p.hasPorts:
		kind := p.Chunk().Type
		return kind == ChunkInitAck || kind == ChunkAbort || kind == ChunkShutdownComplete
	}
	return false
}

// IsSYN reports whether p opens a TCP connection in its direction, by SYN or SYN-ACK.
func (p *Packet) IsSYN() bool {
	return p.protocol == TCP && p.hasPorts && p.data[p.transport+13]&SYN != 0
}
