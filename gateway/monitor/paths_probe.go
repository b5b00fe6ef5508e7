package monitor

import (
	"encoding/binary"
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"culvert/gateway/path"
	"culvert/gateway/pathmtu"
	"culvert/nat"
)

// Probes are ICMP echo requests: behind the headers come path.ShortMark, or zeros, then the nonce
// of their round, and zeros.
const (
	pathIdent = 0x636d                   // "cm"
	echoLen   = header.ICMPv4MinimumSize // RFC 4443, Section 4.1: ICMPv6 has it alike
	nonceAt   = echoLen + len(path.ShortMark)
	probeLen  = path.ShortEcho // without what makes it large
)

// Where the source address is in a header.
const (
	ipv6SourceAt = 8
	ipv4SourceAt = 12
)

// request makes the probe with a number.
func (leg *pathLeg) request(room []byte, number int) []byte {
	probe := leg.sending[number]
	b := room[:min(probe.Size, len(room))]
	clear(b)
	payload := func(body []byte) {
		if probe.Kind == pathmtu.ShortEcho {
			copy(body[echoLen:], path.ShortMark)
		}
		binary.BigEndian.PutUint64(body[nonceAt:], leg.nonce)
	}
	if leg.own.Is6() {
		own, peer := tcpip.AddrFrom16(leg.own.As16()), tcpip.AddrFrom16(leg.peer.As16())
		ip := header.IPv6(b)
		ip.Encode(&header.IPv6Fields{
			PayloadLength: uint16(len(b) - header.IPv6MinimumSize), TransportProtocol: header.ICMPv6ProtocolNumber, HopLimit: path.TTL,
			SrcAddr: own, DstAddr: peer,
		})
		icmp := header.ICMPv6(b[header.IPv6MinimumSize:])
		payload(icmp)
		icmp.SetType(header.ICMPv6EchoRequest)
		icmp.SetIdent(pathIdent)
		icmp.SetSequence(uint16(number))
		icmp.SetChecksum(header.ICMPv6Checksum(header.ICMPv6ChecksumParams{Header: icmp, Src: own, Dst: peer}))
		return b
	}
	ip := header.IPv4(b)
	ip.Encode(&header.IPv4Fields{
		TotalLength: uint16(len(b)), TTL: path.TTL, Protocol: uint8(header.ICMPv4ProtocolNumber), Flags: header.IPv4FlagDontFragment,
		SrcAddr: tcpip.AddrFrom4(leg.own.As4()), DstAddr: tcpip.AddrFrom4(leg.peer.As4()),
	})
	ip.SetChecksum(^ip.CalculateChecksum())
	icmp := header.ICMPv4(ip.Payload())
	payload(icmp)
	icmp.SetType(header.ICMPv4Echo)
	icmp.SetIdent(pathIdent)
	icmp.SetSequence(uint16(number))
	icmp.SetChecksum(^checksum.Checksum(icmp, 0))
	return b
}

// pathAnswer is what an answer to a probe says.
type pathAnswer struct {
	from   netip.Addr
	number int
	nonce  uint64
	first  bool // it is the first part of more
}

// answerIn reads an answer to a probe; false if b, a packet to the gateway itself, is none.
func answerIn(b []byte) (a pathAnswer, ok bool) {
	var body []byte
	reply := byte(header.ICMPv4EchoReply)
	switch header.IPVersion(b) {
	case header.IPv4Version:
		ip := header.IPv4(b)
		if ip.TransportProtocol() != header.ICMPv4ProtocolNumber || ip.FragmentOffset() != 0 || ip.HeaderLength() != header.IPv4MinimumSize {
			return a, false
		}
		a.from, a.first, body = netip.AddrFrom4([4]byte(b[ipv4SourceAt:])), ip.More(), ip.Payload()
	case header.IPv6Version:
		ip := header.IPv6(b)
		next := ip.NextHeader()
		body, reply = ip.Payload(), byte(header.ICMPv6EchoReply)
		if next == uint8(header.IPv6FragmentHeader) && len(body) >= header.IPv6FragmentHeaderSize {
			fragment := header.IPv6Fragment(body)
			if fragment.FragmentOffset() != 0 {
				return a, false
			}
			next, a.first, body = uint8(fragment.TransportProtocol()), fragment.More(), body[header.IPv6FragmentHeaderSize:]
		}
		if next != uint8(header.ICMPv6ProtocolNumber) {
			return a, false
		}
		a.from = netip.AddrFrom16([16]byte(b[ipv6SourceAt:]))
	}
	if len(body) < probeLen || body[0] != reply || header.ICMPv4(body).Ident() != pathIdent {
		return a, false
	}
	a.number, a.nonce = int(header.ICMPv4(body).Sequence()), binary.BigEndian.Uint64(body[nonceAt:])
	return a, true
}

// answered takes note of an answer to a probe; false if b, a packet to the gateway itself,
// is none. Its checksum is not looked at: the nonce is what nobody else has.
func (p *paths) answered(link nat.Link, b []byte) bool {
	a, ok := answerIn(b)
	if !ok {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	leg := p.legs[link]
	if leg == nil || a.from != leg.peer {
		return false
	}
	leg.probes++
	leg.answers++
	return leg.search.Answered(a.nonce, a.number, len(b), a.first)
}
