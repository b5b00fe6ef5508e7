package path

import (
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"culvert/nat"
	"culvert/nat/packet"
)

// TTL is the time to live of the gateway's own packets.
const TTL = 64

// AnswerEcho turns p, an ICMP echo request to the gateway itself, into its reply, in place. It
// returns false for any other packet.
//
// Fragments are answered one by one, and the sender of the request reassembles them. So the gateway
// needs no table of fragments, which somebody could fill. The caller must cut an IPv4 answer of
// more than mtu bytes.
func AnswerEcho(p *packet.Packet, mtu int) bool {
	if p.IsIPv6() {
		return answerEcho6(p, mtu)
	}
	ip := header.IPv4(p.Bytes())
	if ip.TransportProtocol() != header.ICMPv4ProtocolNumber {
		return false
	}
	ttl := uint8(TTL)
	if ip.FragmentOffset() == 0 {
		icmp := header.ICMPv4(ip.Payload())
		if icmp.Type() != header.ICMPv4Echo {
			return false
		}
		icmp.SetType(header.ICMPv4EchoReply)
		// RFC 1624, Section 3, equation 3: HC' = ~(~HC + ~m + m')
		const fromRequest, toReply = uint16(header.ICMPv4Echo) << 8, uint16(header.ICMPv4EchoReply) << 8
		icmp.SetChecksum(^checksum.Combine(checksum.Combine(^icmp.Checksum(), ^fromRequest), toReply))
		packet.KeepZeroSum(icmp, icmp[2:])
	} else {
		// A later fragment does not say whether it is of a request or a reply. The falling TTL ends
		// a loop between two gateways that answer each other.
		if ip.TTL() <= 1 {
			return false
		}
		ttl = min(ttl, ip.TTL()-1)
	}
	turnAround(ip)
	ip.SetTTL(ttl)
	n := shortAnswer(ip)
	if n < len(ip) {
		ip.SetTotalLength(uint16(n))
		icmp := header.ICMPv4(ip.Payload())
		icmp.SetChecksum(0)
		icmp.SetChecksum(^checksum.Checksum(icmp, 0))
	}
	ip.SetChecksum(0)
	ip.SetChecksum(^ip.CalculateChecksum())
	p.Parse(ip[:n])
	return true
}

// turnAround exchanges the addresses of a packet, and clears its ECN field and its flow label.
func turnAround[IP header.Network](ip IP) {
	source, destination := ip.SourceAddress(), ip.DestinationAddress()
	ip.SetSourceAddress(destination)
	ip.SetDestinationAddress(source)
	class, _ := ip.TOS()
	ip.SetTOS(class&^ecnMask, 0)
}

// ecnMask is the ECN field of the type of service (RFC 3168, Section 5). ICMP does not use ECN.
const ecnMask = 3

// NoService returns the verdict on any other packet to the gateway itself. Its refusal ends a UDP
// traceroute. The sender of an echo reply is told nothing, as by a kernel (Linux, ping_rcv): the
// gateway that asked may have handed over to this one.
func NoService(p *packet.Packet) nat.Verdict {
	v := nat.Verdict{Action: nat.Drop, Refusal: packet.PortUnreachable}
	if packet.IsICMP(p.Protocol()) && p.FragmentOffset() == 0 {
		reply := byte(header.ICMPv4EchoReply)
		if p.IsIPv6() {
			reply = byte(header.ICMPv6EchoReply)
		}
		if p.Bytes()[p.HeaderLen()] == reply {
			v.Refusal = packet.NoRefusal
		}
	}
	return v
}

// ShortMark, behind the header of an echo request, asks for an answer of only ShortEcho bytes of
// ICMP, so that the answer tests only the path of the request. A host that does not run culvert
// answers with the whole request. A gateway understands the mark in IPv4, which both ends of the
// WireGuard tunnel always have.
const ShortMark = "culvert>"

// ShortEcho is the size in bytes of the ICMP header, ShortMark, and 8 bytes that identify the
// request.
const ShortEcho = header.ICMPv4MinimumSize + len(ShortMark) + 8

// shortAnswer returns how many bytes of an answer the sender of the request asks for.
func shortAnswer(ip header.IPv4) int {
	const short = header.IPv4MinimumSize + ShortEcho
	if len(ip) > short && !ip.More() && ip.HeaderLength() == header.IPv4MinimumSize &&
		string(ip.Payload()[header.ICMPv4MinimumSize:][:len(ShortMark)]) == ShortMark {
		return short
	}
	return len(ip)
}
