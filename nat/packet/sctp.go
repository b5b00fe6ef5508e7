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

// SumSCTP computes the checksum of a new SCTP packet (RFC 9260, Section 6.8 and Appendix A).
// Preconditions: p is SCTP and no fragment.
func (p *Packet) SumSCTP() {
	b := p.data[p.transport:]
	binary.LittleEndian.PutUint32(b[8:], 0)
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, castagnoli))
}

// AdjustSCTP changes the checksum of an SCTP packet to that with the ports of to, which Rewrite
// then sets. A CRC is linear: two packets of one length differ in their CRCs by the CRC of their
// difference, which here is four bytes followed by zeros. So a packet that arrives broken leaves
// broken. Preconditions: p is SCTP and no fragment.
func (p *Packet) AdjustSCTP(to *Tuple) {
	b := p.data[p.transport:]
	var difference [4]byte
	binary.BigEndian.PutUint32(difference[:], binary.BigEndian.Uint32(b)^to.Ports)
	if difference == [4]byte{} {
		return
	}
	// crc32 complements its input and its output
	crc := crc32.Update(^uint32(0), castagnoli, difference[:])
	for n := len(b) - len(difference); n > 0; n -= len(zeros) {
		crc = crc32.Update(crc, castagnoli, zeros[:min(n, len(zeros))])
	}
	binary.LittleEndian.PutUint32(b[8:], binary.LittleEndian.Uint32(b[8:])^^crc)
}

var zeros [1500]byte

// A Chunk is the content of an SCTP packet's common header and of its first chunk header.
type Chunk struct {
	Tag         uint32 // the packet's verification tag
	Type, Flags uint8  // 0 if there is no whole chunk
	Initiates   bool   // an INIT or INIT ACK long enough to have its tag
	InitiateTag uint32 // that tag, which packets of the other direction carry
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
