package capture

import (
	"bufio"
	"encoding/binary"
	"io"
	"time"
)

// Blocks, options and values of pcapng, all little-endian (draft-ietf-opsawg-pcapng, Section 4).
const (
	blockSection    = 0x0a0d0d0a
	blockInterface  = 1
	blockStatistics = 5
	blockPacket     = 6

	byteOrder     = 0x1a2b3c4d
	unknownLength = ^uint64(0) // of a section
	linkRaw       = 101        // LINKTYPE_RAW: an IPv4 or IPv6 header comes first
	nanoseconds   = 9          // timestamps count 10^-9 s

	optionEnd             = 0
	optionComment         = 1
	optionApplication     = 4 // of a section
	optionName            = 2 // of an interface, until optionResolution
	optionDescription     = 3
	optionResolution      = 9
	optionFlags           = 2 // of a packet
	optionPacketsReceived = 4 // of statistics
	optionPacketsDropped  = 5

	flagInbound, flagOutbound = 1, 2
)

// pcapngWriter writes a file with one section. The library for such files also knows a hundred
// protocols, which would add a tenth to the binary.
type pcapngWriter struct {
	w     *bufio.Writer
	block []byte // being built
}

func newPcapngWriter(w io.Writer, application string) *pcapngWriter {
	p := &pcapngWriter{w: bufio.NewWriter(w)}
	p.begin(blockSection)
	p.uint32(byteOrder)
	p.uint32(1) // version 1.0
	p.uint64(unknownLength)
	p.text(optionApplication, application)
	p.end() // the first error stays in w, for flush
	return p
}

// addInterface describes the next interface; they are numbered from 0.
func (p *pcapngWriter) addInterface(name, description string, snaplen int) {
	p.begin(blockInterface)
	p.uint32(linkRaw)
	p.uint32(uint32(snaplen))
	p.text(optionName, name)
	p.text(optionDescription, description)
	p.option(optionResolution, 1)
	p.bytes([]byte{nanoseconds})
	p.end()
}

// packet writes the beginning of a packet with its full length.
func (p *pcapngWriter) packet(number int, at time.Time, data []byte, length int, outbound bool, comment string) error {
	p.begin(blockPacket)
	p.uint32(uint32(number))
	p.time(at)
	p.uint32(uint32(len(data)))
	p.uint32(uint32(length))
	p.bytes(data)
	if comment != "" {
		p.text(optionComment, comment)
	}
	p.option(optionFlags, 4)
	if outbound {
		p.uint32(flagOutbound)
	} else {
		p.uint32(flagInbound)
	}
	return p.end()
}

// statistics writes how many packets an interface has had so far, and how many are not in the file.
func (p *pcapngWriter) statistics(number int, at time.Time, received, dropped uint64) {
	p.begin(blockStatistics)
	p.uint32(uint32(number))
	p.time(at)
	p.option(optionPacketsReceived, 8)
	p.uint64(received)
	p.option(optionPacketsDropped, 8)
	p.uint64(dropped)
	p.end()
}

func (p *pcapngWriter) flush() error { return p.w.Flush() }

func (p *pcapngWriter) begin(kind uint32) {
	p.block = binary.LittleEndian.AppendUint32(p.block[:0], kind)
	p.uint32(0) // length, filled in by end
}

// end writes the block with its length before and after it.
func (p *pcapngWriter) end() error {
	p.option(optionEnd, 0)
	n := uint32(len(p.block) + 4)
	binary.LittleEndian.PutUint32(p.block[4:], n)
	p.uint32(n)
	_, err := p.w.Write(p.block)
	return err
}

func (p *pcapngWriter) uint32(v uint32) { p.block = binary.LittleEndian.AppendUint32(p.block, v) }
func (p *pcapngWriter) uint64(v uint64) { p.block = binary.LittleEndian.AppendUint64(p.block, v) }

// time writes a timestamp: its high half, then its low half.
func (p *pcapngWriter) time(t time.Time) {
	n := uint64(t.UnixNano())
	p.uint32(uint32(n >> 32))
	p.uint32(uint32(n))
}

// option starts an option with a value of n bytes.
func (p *pcapngWriter) option(code, n uint16) {
	p.block = binary.LittleEndian.AppendUint16(p.block, code)
	p.block = binary.LittleEndian.AppendUint16(p.block, n)
}

// text writes an option, cut off if it is too long.
func (p *pcapngWriter) text(code uint16, text string) {
	text = text[:min(len(text), 0xffff)]
	p.option(code, uint16(len(text)))
	p.bytes([]byte(text))
}

// bytes writes b, padded to 32 bits.
func (p *pcapngWriter) bytes(b []byte) {
	p.block = append(p.block, b...)
	p.block = append(p.block, make([]byte, -len(b)&3)...)
}
