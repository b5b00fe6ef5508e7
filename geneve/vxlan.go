package geneve

import "encoding/binary"

// vxlanVNIFlag is the I flag: "The I flag MUST be set to 1 for a valid VXLAN Network ID" (RFC 7348,
// Section 5).
const vxlanVNIFlag = 0x08

// ParseVXLAN reads the VXLAN header (RFC 7348, Section 5) at the start of b. The Reason is
// Accepted, Truncated or BadFlags. borrowed: payload, an Ethernet frame, is a part of b.
//
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|R|R|R|R|I|R|R|R|            Reserved                           |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                VXLAN Network Identifier (VNI) |   Reserved    |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
func ParseVXLAN(b []byte) (vni VNI, payload []byte, r Reason) {
	if len(b) < headerLen {
		return 0, nil, Truncated
	}
	// RFC 7348, Section 5: the other flags and both reserved fields are ignored on receipt.
	if b[0]&vxlanVNIFlag == 0 {
		return 0, nil, BadFlags
	}
	return parseVNI(b), b[headerLen:], Accepted
}

// AppendVXLAN appends a VXLAN header to b. It fails if the VNI does not fit.
func AppendVXLAN(b []byte, vni VNI) ([]byte, error) {
	if vni > MaxVNI {
		return b, errVNI
	}
	b = append(b, vxlanVNIFlag, 0, 0, 0)
	return binary.BigEndian.AppendUint32(b, uint32(vni)<<8), nil
}
