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

// SumSCTP computes the checksum of an SCTP packet anew (RFC 9260, Section 6.8 and Appendix A): CRC32c knows no useful increments.
// Preconditions: p is SCTP and no fragment.
func (p *Packet) SumSCTP() {
	b := p.data[p.transport:]
	binary.LittleEndian.PutUint32(b[8:], 0)
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, castagnoli))
}

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
