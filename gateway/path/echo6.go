package path

import (
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"culvert/nat/packet"
)

// answerEcho6 is AnswerEcho for IPv6. It does not answer packets with extension headers other than
// a fragment header, because the answer would contain them too. It does not answer packets larger
// than mtu either: no router cuts them, so their sender ignores the MTU.
func answerEcho6(p *packet.Packet, mtu int) bool {
	ip, extensions := header.IPv6(p.Bytes()), p.HeaderLen()-header.IPv6MinimumSize
	fragment := p.IsFragment() && extensions == header.IPv6FragmentHeaderSize
	if p.Protocol() != packet.ICMPv6 || p.Len() > mtu || extensions != 0 && !fragment {
		return false
	}
	hops := uint8(TTL)
	if p.FragmentOffset() == 0 {
		icmp := header.ICMPv6(ip[p.HeaderLen():])
		if icmp.Type() != header.ICMPv6EchoRequest {
			return false
		}
		icmp.SetType(header.ICMPv6EchoReply)
		// As in AnswerEcho. The pseudo-header has the same sum with its addresses exchanged.
		const fromRequest, toReply = uint16(header.ICMPv6EchoRequest) << 8, uint16(header.ICMPv6EchoReply) << 8
		icmp.SetChecksum(^checksum.Combine(checksum.Combine(^icmp.Checksum(), ^fromRequest), toReply))
	} else {
		if p.Hops() <= 1 {
			return false
		}
		hops = min(hops, p.Hops()-1)
	}
	turnAround(ip)
	ip.SetHopLimit(hops)
	p.Parse(ip)
	return true
}
