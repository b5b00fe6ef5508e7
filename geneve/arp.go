package geneve

import (
	"encoding/binary"
	"net/netip"
)

// ARP for IPv4 over Ethernet (RFC 826).
const (
	arpLen     = 28
	arpRequest = 1
	arpReply   = 2
)

// arpPrefix is the fixed start of such a message: hardware type 1, protocol type IPv4, address
// lengths 6 and 4.
var arpPrefix = [6]byte{0, 1, 0x08, 0x00, 6, 4}

// arp is an ARP message.
type arp struct {
	operation            uint16
	senderMAC, targetMAC mac
	sender, target       netip.Addr
}

// parseARP reads the message at the start of b. The rest is Ethernet padding.
func parseARP(b []byte) (m arp, ok bool) {
	if len(b) < arpLen || [6]byte(b) != arpPrefix {
		return arp{}, false
	}
	m = arp{
		operation: binary.BigEndian.Uint16(b[6:]),
		senderMAC: parseMAC(b[8:]), sender: netip.AddrFrom4([4]byte(b[14:])),
		targetMAC: parseMAC(b[18:]), target: netip.AddrFrom4([4]byte(b[24:])),
	}
	return m, m.operation == arpRequest || m.operation == arpReply
}

// put writes the message to the first arpLen bytes of b. Its addresses must be IPv4.
func (m *arp) put(b []byte) {
	copy(b, arpPrefix[:])
	binary.BigEndian.PutUint16(b[6:], m.operation)
	m.senderMAC.put(b[8:])
	sender, target := m.sender.As4(), m.target.As4()
	copy(b[14:], sender[:])
	m.targetMAC.put(b[18:])
	copy(b[24:], target[:])
}
