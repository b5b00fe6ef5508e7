package inspect

import (
	"fmt"
	"net/netip"
	"slices"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"culvert/gateway/control"
	"culvert/nat/packet"
)

// A description is what a packet to be explained is made of.
type description struct {
	protocol            uint8
	source, destination netip.AddrPort // of one family
	flags               header.TCPFlags
	reply               bool // of ICMP: an echo reply
	size                int  // of the whole packet, 0 = no payload
	ttl                 uint8
	df                  bool
}

// described makes the packet that o describes.
func described(o *control.TraceOptions) ([]byte, error) {
	number, err := control.ProtocolNumber(o.Protocol)
	if err != nil {
		return nil, err
	}
	d := description{protocol: number, source: o.Source, destination: o.Destination, size: o.Size, ttl: o.TTL, df: o.DF}
	for _, flag := range o.Flags {
		d.flags |= 1 << slices.Index(control.TCPFlags, flag)
	}
	if d.flags == 0 {
		d.flags = header.TCPFlagSyn
	}
	if packet.IsICMP(number) { // the identifier stands in both ports
		d.source = netip.AddrPortFrom(d.source.Addr(), 1)
	}
	return d.packet()
}

// ofConnection makes a packet that has a connection's tuple.
func ofConnection(t *packet.Tuple, reply bool) ([]byte, error) {
	d := description{
		protocol: t.Protocol, flags: header.TCPFlagAck, reply: reply,
		source: netip.AddrPortFrom(t.Source(), t.SourcePort()), destination: netip.AddrPortFrom(t.Destination(),
			t.DestinationPort()),
	}
	return d.packet()
}

// packet makes the packet, which the gateway takes for a sound one.
func (d *description) packet() ([]byte, error) {
	ipLen, bodyLen := header.IPv4MinimumSize, 8
	if d.source.Addr().Is6() {
		ipLen = header.IPv6MinimumSize
	}
	switch d.protocol {
	case packet.TCP:
		bodyLen = header.TCPMinimumSize
	case packet.SCTP:
		bodyLen = sctpHeader
	}
	if d.size != 0 && d.size < ipLen+bodyLen {
		return nil, fmt.Errorf("size: %d bytes; %s takes at least %d with its headers", d.size,
			control.ProtocolName(d.protocol), ipLen+bodyLen)
	}
	b := make([]byte, max(d.size, ipLen+bodyLen))
	if d.ttl == 0 {
		d.ttl = 64
	}
	if ipLen == header.IPv4MinimumSize {
		ip := header.IPv4(b)
		var flags uint8
		if d.df {
			flags = header.IPv4FlagDontFragment
		}
		ip.Encode(&header.IPv4Fields{TotalLength: uint16(len(b)), TTL: d.ttl, Protocol: d.protocol, Flags: flags,
			SrcAddr: tcpip.AddrFrom4(d.source.Addr().As4()), DstAddr: tcpip.AddrFrom4(d.destination.Addr().As4())})
		ip.SetChecksum(^ip.CalculateChecksum())
	} else {
		header.IPv6(b).Encode(&header.IPv6Fields{PayloadLength: uint16(len(b) - ipLen),
			TransportProtocol: tcpip.TransportProtocolNumber(d.protocol),
			HopLimit:          d.ttl, SrcAddr: tcpip.AddrFrom16(d.source.Addr().As16()),
			DstAddr: tcpip.AddrFrom16(d.destination.Addr().As16())})
	}
	d.fill(b[ipLen:])
	if d.protocol == packet.SCTP {
		var p packet.Packet
		p.Parse(b)
		p.SumSCTP()
	}
	return b, nil
}

// sctpHeader is the length in bytes of SCTP's common header (RFC 9260, Section 3.1).
const sctpHeader = 12

// fill writes the transport header to the body of the packet, with its checksum unless it is SCTP.
func (d *description) fill(body []byte) {
	source, destination := tcpip.AddrFromSlice(d.source.Addr().AsSlice()),
		tcpip.AddrFromSlice(d.destination.Addr().AsSlice())
	pseudo := header.PseudoHeaderChecksum(tcpip.TransportProtocolNumber(d.protocol), source, destination,
		uint16(len(body)))
	switch d.protocol {
	case packet.TCP:
		tcp := header.TCP(body)
		tcp.Encode(&header.TCPFields{SrcPort: d.source.Port(), DstPort: d.destination.Port(),
			DataOffset: header.TCPMinimumSize, Flags: d.flags, WindowSize: 0xffff})
		tcp.SetChecksum(^checksum.Checksum(body, pseudo))
	case packet.UDP:
		udp := header.UDP(body)
		udp.Encode(&header.UDPFields{SrcPort: d.source.Port(), DstPort: d.destination.Port(),
			Length: uint16(len(body))})
		udp.SetChecksum(^checksum.Checksum(body, pseudo))
		if udp.Checksum() == 0 {
			udp.SetChecksum(0xffff) // RFC 768: 0 says that there is none
		}
	case packet.SCTP:
		udp := header.UDP(body[:header.UDPMinimumSize]) // the ports stand where UDP has them
		udp.SetSourcePort(d.source.Port())
		udp.SetDestinationPort(d.destination.Port())
	case uint8(header.ICMPv4ProtocolNumber):
		icmp := header.ICMPv4(body)
		icmp.SetType(header.ICMPv4Echo)
		if d.reply {
			icmp.SetType(header.ICMPv4EchoReply)
		}
		icmp.SetIdent(d.source.Port())
		icmp.SetChecksum(^checksum.Checksum(body, 0))
	case uint8(header.ICMPv6ProtocolNumber):
		icmp := header.ICMPv6(body)
		icmp.SetType(header.ICMPv6EchoRequest)
		if d.reply {
			icmp.SetType(header.ICMPv6EchoReply)
		}
		icmp.SetIdent(d.source.Port())
		icmp.SetChecksum(^checksum.Checksum(body, pseudo))
	}
}
