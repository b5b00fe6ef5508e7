package geneve

import (
	"encoding/binary"
	"errors"
)

// VNI is a 24-bit Virtual Network Identifier (RFC 8926, Section 3.4).
type VNI uint32

// MaxVNI is the largest VNI.
const MaxVNI VNI = 1<<24 - 1

// EtherTypes, as in the protocol type of a Geneve header and the type field of an inner frame.
const (
	etherTypeIPv4     = 0x0800
	etherTypeARP      = 0x0806
	etherTypeEthernet = 0x6558 // RFC 8926, Section 3.4: Trans Ether Bridging
	etherTypeIPv6     = 0x86dd
)

// headerLen is the size in bytes of a Geneve header without options and of a VXLAN header.
const headerLen = 8

// Header is a Geneve header.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|Ver|  Opt Len  |O|C|    Rsvd.  |          Protocol Type        |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|        Virtual Network Identifier (VNI)       |    Reserved   |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                    Variable-Length Options                    |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
type Header struct {
	VNI      VNI
	Protocol uint16     // EtherType of what follows: 0x6558 for Ethernet
	Control  bool       // O flag: the payload is a message between tunnel endpoints
	Critical bool       // C flag: an option has its critical bit set
	Options  OptionList // well-formed; nil when there are none
}

// Bits of the first two bytes.
const (
	versionMask = 0xc0
	optLenMask  = 0x3f
	controlFlag = 0x80
	critFlag    = 0x40
)

// errOptions and errVNI are what AppendTo refuses.
var (
	errOptions = errors.New("geneve: options malformed or longer than 252 bytes")
	errVNI     = errors.New("geneve: VNI above 24 bits")
)

// ParseHeader reads the header at the start of b. The Reason is Accepted, Truncated, BadVersion or
// BadOptions; the caller handles flags, options and protocol. borrowed: h.Options and payload are
// parts of b.
func ParseHeader(b []byte) (h Header, payload []byte, r Reason) {
	if len(b) < headerLen {
		return Header{}, nil, Truncated
	}
	// RFC 8926, Section 3.4: "Packets received by a tunnel endpoint with an unknown version MUST be
	// dropped."
	if b[0]&versionMask != 0 {
		return Header{}, nil, BadVersion
	}
	end := headerLen + 4*int(b[0]&optLenMask)
	if len(b) < end {
		return Header{}, nil, Truncated
	}
	// RFC 8926, Section 3.4: both reserved fields are ignored on receipt.
	h = Header{
		VNI:      parseVNI(b),
		Protocol: binary.BigEndian.Uint16(b[2:]),
		Control:  b[1]&controlFlag != 0,
		Critical: b[1]&critFlag != 0,
	}
	if end > headerLen {
		h.Options = OptionList(b[headerLen:end:end])
		// RFC 8926, Section 3.5: a total length other than Opt Len makes the packet invalid; it
		// "MUST be silently dropped".
		if !h.Options.valid() {
			return Header{}, nil, BadOptions
		}
	}
	return h, b[end:], Accepted
}

// parseVNI reads the VNI of a Geneve or VXLAN header of at least headerLen bytes: both have it at
// the same place.
func parseVNI(b []byte) VNI { return VNI(binary.BigEndian.Uint32(b[4:]) >> 8) }

// AppendTo appends the header to b. It fails if the VNI or the options do not fit.
func (h *Header) AppendTo(b []byte) ([]byte, error) {
	if h.VNI > MaxVNI {
		return b, errVNI
	}
	if len(h.Options) > 4*optLenMask || !h.Options.valid() {
		return b, errOptions
	}
	var flags byte
	if h.Control {
		flags |= controlFlag
	}
	// RFC 8926, Section 3.5: if any option has its critical bit set, the C flag of the header MUST
	// be set.
	if h.Critical || h.Options.critical() {
		flags |= critFlag
	}
	b = append(b, byte(len(h.Options)/4), flags)
	b = binary.BigEndian.AppendUint16(b, h.Protocol)
	b = binary.BigEndian.AppendUint32(b, uint32(h.VNI)<<8)
	return append(b, h.Options...), nil
}
