package monitor

import (
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"culvert/gateway/path"
)

// ends are the two tunnel addresses, between which gateways exchange UDP datagrams. The gateway has
// no network stack, so it makes and reads these packets itself.
type ends struct{ own, peer netip.Addr }

// headersOfUDP is the size of the IPv4 and UDP headers.
const headersOfUDP = header.IPv4MinimumSize + header.UDPMinimumSize

// datagram returns the UDP datagram in a packet to the tunnel address; false unless it is
// unfragmented and comes from the peer's gateway itself.
func (e *ends) datagram(packet []byte) (header.UDP, bool) {
	ip := header.IPv4(packet)
	if header.IPVersion(packet) != header.IPv4Version || ip.TransportProtocol() != header.UDPProtocolNumber ||
		ip.More() || ip.FragmentOffset() != 0 ||
		ip.SourceAddress() != tcpip.AddrFrom4(e.peer.As4()) || ip.DestinationAddress() != tcpip.AddrFrom4(e.own.As4()) {
		return nil, false
	}
	udp := header.UDP(ip.Payload())
	return udp, len(udp) >= header.UDPMinimumSize
}

// payload returns the payload of a datagram; false if its length or checksum is wrong.
func (e *ends) payload(udp header.UDP) ([]byte, bool) {
	if int(udp.Length()) < header.UDPMinimumSize || int(udp.Length()) > len(udp) {
		return nil, false
	}
	udp = udp[:udp.Length()]
	// RFC 1122, Section 4.1.3.4: a datagram with a wrong checksum is discarded.
	if udp.Checksum() != 0 && !udp.IsChecksumValid(tcpip.AddrFrom4(e.peer.As4()), tcpip.AddrFrom4(e.own.As4()),
		checksum.Checksum(udp.Payload(), 0)) {
		return nil, false
	}
	return udp.Payload(), true
}

// packet makes a packet from one of our ports to one of the peer's gateway.
func (e *ends) packet(from, to uint16, payload []byte) []byte {
	b := make([]byte, headersOfUDP+len(payload))
	own, peer := tcpip.AddrFrom4(e.own.As4()), tcpip.AddrFrom4(e.peer.As4())
	ip := header.IPv4(b)
	ip.Encode(&header.IPv4Fields{
		TotalLength: uint16(len(b)), TTL: path.TTL, Protocol: uint8(header.UDPProtocolNumber), SrcAddr: own,
		DstAddr: peer,
		Flags:   header.IPv4FlagDontFragment, // RFC 6864, Section 4.1: the ID is then meaningless
	})
	ip.SetChecksum(^ip.CalculateChecksum())
	udp := header.UDP(ip.Payload())
	udp.Encode(&header.UDPFields{SrcPort: from, DstPort: to, Length: uint16(len(udp))})
	copy(udp.Payload(), payload)
	sum := header.PseudoHeaderChecksum(header.UDPProtocolNumber, own, peer, uint16(len(udp)))
	sum = ^udp.CalculateChecksum(checksum.Combine(sum, checksum.Checksum(payload, 0)))
	if sum == 0 {
		sum = 0xffff // RFC 768: 0 means no checksum
	}
	udp.SetChecksum(sum)
	return b
}
