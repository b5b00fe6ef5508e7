package packet

import (
	"encoding/binary"
	"hash/crc32"
)

const sctpHeaderSize = 12 // RFC 9260, Section 3.1

// SCTP chunk types (RFC 9260, Section 3.2).
const (
	ChunkInit             = 1
	ChunkInitAck          = 2
	ChunkAbort            = 6
	ChunkShutdownComplete = 14
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// SumSCTP computes the checksum of an SCTP packet anew (RFC 9260, Section 6.8 and Appendix A), for who makes one.
// Preconditions: p is SCTP and no fragment.
func (p *Packet) SumSCTP() {
	b := p.data[p.transport:]
	binary.LittleEndian.PutUint32(b[8:], 0)
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, castagnoli))
}

// AdjustSCTP makes the checksum of an SCTP packet that of the same packet with the ports of to, which Rewrite then gives it. A CRC is linear: two
// packets of one length differ in it by what their difference has, which here is four bytes and zeros. So a packet that arrives broken
// leaves broken. Preconditions: p is SCTP and no fragment.
func (p *Packet) AdjustSCTP(to *Tuple) {
	b := p.data[p.transport:]
	var difference [4]byte
	binary.BigEndian.PutUint32(difference[:], binary.BigEndian.Uint32(b)^to.Ports)
	if difference == [4]byte{} {
		return
	}
	// crc32 complements what goes in and what comes out.
	crc := crc32.Update(^uint32(0), castagnoli, difference[:])
	for n := len(b) - len(difference); n > 0; n -= len(zeros) {
		crc = crc32.Update(crc, castagnoli, zeros[:min(n, len(zeros))])
	}
	binary.LittleEndian.PutUint32(b[8:], binary.LittleEndian.Uint32(b[8:])^^crc)
}

var zeros [1500]byte

// A Chunk is what the common header of an SCTP packet and the header of its first chunk say.
type Chunk struct {
	Tag         uint32 // the packet's verification tag
	Type, Flags uint8  // 0 if there is no whole chunk
	Initiates   bool   // an INIT or INIT ACK, which reaches as far as its tag
	InitiateTag uint32 // that tag: what the packets of the other direction carry
}

// Chunk reads an SCTP packet. Preconditions: p is SCTP and no later fragment.
func (p *Packet) Chunk() Chunk {
	b := p.data[p.transport:]
	c := Chunk{Tag: binary.BigEndian.Uint32(b[4:])}
	if len(b) >= sctpHeaderSize+4 {
		c.Type, c.Flags = b[12], b[13]
	}
	if (c.Type == ChunkInit || c.Type == ChunkInitAck) && len(b) >= sctpHeaderSize+8 {
		c.Initiates, c.InitiateTag = true, binary.BigEndian.Uint32(b[16:])
	}
	return c
}
