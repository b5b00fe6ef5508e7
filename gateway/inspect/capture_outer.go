package inspect

import (
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"culvert/nat/packet"
)

// maxOuter is the length of the headers that outerHeaders makes, at most.
const maxOuter = header.IPv6MinimumSize + header.UDPMinimumSize

// outerHeaders writes the headers of a UDP datagram, made from its addresses, to the beginning of
// room. The gateway's own address is unspecified if it listens on all addresses.
func outerHeaders(room []byte, t *packet.Tuple, payload []byte) []byte {
	length := header.UDPMinimumSize + len(payload)
	ipLength := header.IPv4MinimumSize
	if t.IPv6 {
		ipLength = header.IPv6MinimumSize
	}
	b := room[:ipLength+header.UDPMinimumSize]
	udp := header.UDP(b[ipLength:])
	udp.Encode(&header.UDPFields{SrcPort: t.SourcePort(), DstPort: t.DestinationPort(), Length: uint16(length)})
	from, to := tcpip.AddrFromSlice(t.Source().AsSlice()), tcpip.AddrFromSlice(t.Destination().AsSlice())
	if !t.IPv6 {
		ip := header.IPv4(b)
		ip.Encode(&header.IPv4Fields{
			TotalLength: uint16(len(b) + len(payload)), TTL: 64, Protocol: t.Protocol,
			Flags:   header.IPv4FlagDontFragment,
			SrcAddr: from, DstAddr: to,
		})
		ip.SetChecksum(^ip.CalculateChecksum())
		return b
	}
	header.IPv6(b).Encode(&header.IPv6Fields{
		PayloadLength: uint16(length), TransportProtocol: header.UDPProtocolNumber, HopLimit: 64,
		SrcAddr: from, DstAddr: to,
	})
	// RFC 8200, Section 8.1: IPv6 has no datagrams without a checksum.
	sum := header.PseudoHeaderChecksum(header.UDPProtocolNumber, from, to, uint16(length))
	if udp.SetChecksum(^udp.CalculateChecksum(checksum.Checksum(payload, sum))); udp.Checksum() == 0 {
		udp.SetChecksum(0xffff)
	}
	return b
}
