package path

import (
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"culvert/nat"
	"culvert/nat/packet"
)

// TTL is that of what the gateway itself sends.
const TTL = 64

// AnswerEcho makes of p, addressed to the gateway itself, the answer: of an ICMP echo
// request the reply, in place. It answers nothing else and then returns false.
//
// Fragments are answered one by one, and the sender of the request puts together what
// it has cut. So the gateway keeps nothing, and nobody can fill what it does not have. An
// IPv4 answer above mtu bytes is the caller's to cut.
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
		// Nothing in it tells a request from a reply: two gateways that answer each
		// other must come to an end.
		if ip.TTL() <= 1 {
			return false
		}
		ttl = min(ttl, ip.TTL()-1)
	}
	source, destination := ip.SourceAddress(), ip.DestinationAddress()
	ip.SetSourceAddress(destination)
	ip.SetDestinationAddress(source)
	tos, _ := ip.TOS()
	ip.SetTOS(tos&^ecnMask, 0)
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

// ecnMask is the ECN field of the type of service (RFC 3168, Section 5). ICMP is not
// capable of it.
const ecnMask = 3

// PortUnreachable is what the sender of anything else is told: the last step of a
// traceroute by UDP.
var PortUnreachable = nat.Verdict{Action: nat.Drop, Refusal: packet.PortUnreachable}

// ShortMark, behind the header of an echo request, asks for an answer of ShortEcho bytes of ICMP, which tells of the way there alone. Who is no
// culvert answers as to any other request, with all of it. A gateway knows it in IPv4, which the two ends of the WireGuard tunnel have in any
// case.
const ShortMark = "culvert>"

// ShortEcho is the size in bytes of the ICMP header, ShortMark, and 8 bytes by which the request is known.
const ShortEcho = header.ICMPv4MinimumSize + len(ShortMark) + 8

// shortAnswer returns how much of an answer the sender of the request wants back: all, or
// less.
func shortAnswer(ip header.IPv4) int {
	const short = header.IPv4MinimumSize + ShortEcho
	if len(ip) > short && !ip.More() && ip.HeaderLength() == header.IPv4MinimumSize &&
		string(ip.Payload()[header.ICMPv4MinimumSize:][:len(ShortMark)]) == ShortMark {
		return short
	}
	return len(ip)
}
