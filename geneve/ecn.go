package geneve

import "encoding/binary"

// ECN code points (RFC 3168, Section 5).
const (
	notECT = 0
	ect1   = 1
	ect0   = 2
	ce     = 3
)

// ecnOf returns the ECN field of an IP packet of at least 20 bytes.
func ecnOf(ip []byte) uint8 {
	if ip[0]>>4 == 6 {
		return ip[1] >> 4 & 3
	}
	return ip[1] & 3
}

// decapECN sets the inner packet's ECN field as in RFC 6040, Section 4.2, Figure 4. It returns
// false if the packet must be dropped: it has a congestion mark that its ends do not understand.
//
//	inner \ outer   Not-ECT   ECT(0)   ECT(1)   CE
//	Not-ECT         Not-ECT   Not-ECT  Not-ECT  drop
//	ECT(0)          ECT(0)    ECT(0)   ECT(1)   CE
//	ECT(1)          ECT(1)    ECT(1)   ECT(1)   CE
//	CE              CE        CE       CE       CE
//
// Preconditions: ip holds a whole IPv4 or IPv6 header.
func decapECN(ip []byte, outer uint8) bool {
	outer &= 3
	if outer == notECT {
		return true
	}
	inner := ecnOf(ip)
	switch {
	case inner == notECT:
		return outer != ce
	case outer == ce && inner != ce, outer == ect1 && inner == ect0:
		setECN(ip, outer)
	}
	return true
}

// setECN writes the ECN field and updates the IPv4 header checksum.
func setECN(ip []byte, ecn uint8) {
	if ip[0]>>4 == 6 {
		ip[1] = ip[1]&^0x30 | ecn<<4
		return
	}
	before := binary.BigEndian.Uint16(ip)
	ip[1] = ip[1]&^3 | ecn
	after := binary.BigEndian.Uint16(ip)
	// RFC 1624, Section 3, equation 3: HC' = ~(~HC + ~m + m')
	sum := uint32(^binary.BigEndian.Uint16(ip[10:])) + uint32(^before) + uint32(after)
	sum = sum>>16 + sum&0xffff
	sum = sum>>16 + sum&0xffff
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum))
}
