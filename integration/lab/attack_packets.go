package lab

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"
)

// rawSocket sends packets with any source: IPPROTO_RAW implies that their headers are given, see raw(7).
type rawSocket struct{ *socket }

func newRaw(h *Host) (rawSocket, error) {
	s, err := newSocket(h, unix.SOCK_RAW, unix.IPPROTO_RAW)
	return rawSocket{s}, err
}

// send sends a packet; the kernel fills in the checksum of an IPv4 header. Packets for which the kernel has no room are lost, as on any link.
func (s rawSocket) send(packet []byte) error {
	_, to := endsOf(packet)
	err := unix.Sendto(s.fd, packet, 0, sockaddrOf(netip.AddrPortFrom(to, 0)))
	if errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.EINTR) {
		return nil
	}
	return err
}

// endsOf returns the addresses of an IP packet.
func endsOf(packet []byte) (from, to netip.Addr) {
	if packet[0]>>4 == 6 {
		return netip.AddrFrom16([16]byte(packet[8:])), netip.AddrFrom16([16]byte(packet[24:]))
	}
	return netip.AddrFrom4([4]byte(packet[12:])), netip.AddrFrom4([4]byte(packet[16:]))
}

// badChecksum makes the receiver's kernel drop a packet silently, so that an attack affects gateways and nobody else.
const badChecksum = 0xbad

// rawPacket makes an IP packet with n bytes after the header.
func rawPacket(protocol byte, from, to netip.Addr, n int) (packet, body []byte) {
	b := make([]byte, ipHeader(from)+n)
	if from.Is6() {
		b[0], b[6], b[7] = 6<<4, protocol, maxTTL
		binary.BigEndian.PutUint16(b[4:], uint16(n))
		copy(b[8:], from.AsSlice())
		copy(b[24:], to.AsSlice())
		return b, b[40:]
	}
	b[0], b[8], b[9] = 0x45, maxTTL, protocol
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	copy(b[12:], from.AsSlice())
	copy(b[16:], to.AsSlice())
	return b, b[20:]
}

// setTTL sets the TTL or hop limit of an IP packet.
func setTTL(packet []byte, ttl byte) {
	if packet[0]>>4 == 6 {
		packet[7] = ttl
	} else {
		packet[8] = ttl
	}
}

// checksum returns the checksum of a UDP datagram of either family, or of an ICMPv6 message.
func checksum(protocol byte, from, to netip.Addr, body []byte) uint16 {
	pseudo := append(append(from.AsSlice(), to.AsSlice()...), 0, protocol, byte(len(body)>>8), byte(len(body))) // the pseudo-header of IPv6 has the same sum
	return ^onesSum(onesSum(0, pseudo), body)
}

// rawUDP makes a datagram.
func rawUDP(from, to netip.AddrPort, payload ...byte) []byte {
	b, udp := rawPacket(unix.IPPROTO_UDP, from.Addr(), to.Addr(), 8+len(payload))
	binary.BigEndian.PutUint16(udp, from.Port())
	binary.BigEndian.PutUint16(udp[2:], to.Port())
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	copy(udp[8:], payload)
	sum := checksum(unix.IPPROTO_UDP, from.Addr(), to.Addr(), udp)
	if sum == 0 {
		sum = 0xffff // RFC 768; RFC 8200, Section 8.1
	}
	binary.BigEndian.PutUint16(udp[6:], sum)
	return b
}

// silentUDP makes a datagram that nobody answers.
func silentUDP(from, to netip.AddrPort) []byte {
	b := rawUDP(from, to, 0)
	binary.BigEndian.PutUint16(b[ipHeader(from.Addr())+6:], badChecksum)
	return b
}

// Flags of TCP.
const (
	tcpFIN = 1 << 0
	tcpSYN = 1 << 1
	tcpACK = 1 << 4
)

// silentTCP makes a segment that nobody answers.
func silentTCP(from, to netip.AddrPort, flags byte, seq, ack uint32) []byte {
	b, tcp := rawPacket(unix.IPPROTO_TCP, from.Addr(), to.Addr(), 20)
	binary.BigEndian.PutUint16(tcp, from.Port())
	binary.BigEndian.PutUint16(tcp[2:], to.Port())
	binary.BigEndian.PutUint32(tcp[4:], seq)
	binary.BigEndian.PutUint32(tcp[8:], ack)
	tcp[12], tcp[13] = 5<<4, flags
	binary.BigEndian.PutUint16(tcp[14:], 1024)
	binary.BigEndian.PutUint16(tcp[16:], badChecksum)
	return b
}

// tooBigAbout makes an ICMP error from a sender that claims a packet needs an MTU.
func tooBigAbout(from netip.Addr, quoted []byte, mtu uint16) []byte {
	to, _ := endsOf(quoted)
	quoted = quoted[:min(ipHeader(to)+8, len(quoted))]
	if to.Is6() {
		b, icmp := rawPacket(unix.IPPROTO_ICMPV6, from, to, 8+len(quoted))
		icmp[0] = 2
		binary.BigEndian.PutUint32(icmp[4:], uint32(mtu))
		copy(icmp[8:], quoted)
		binary.BigEndian.PutUint16(icmp[2:], checksum(unix.IPPROTO_ICMPV6, from, to, icmp))
		return b
	}
	b, icmp := rawPacket(unix.IPPROTO_ICMP, from, to, 8+len(quoted))
	icmp[0], icmp[1] = 3, 4
	binary.BigEndian.PutUint16(icmp[6:], mtu)
	copy(icmp[8:], quoted)
	binary.BigEndian.PutUint16(icmp[2:], ^onesSum(0, icmp))
	return b
}

// laterFragment makes a later fragment of a datagram without a first fragment.
func laterFragment(from, to netip.Addr, id uint16) []byte {
	return fragment(from, to, id, fragmentBytes, true, make([]byte, 64))
}

// firstFragment makes a first fragment of a datagram that never becomes complete.
func firstFragment(from, to netip.AddrPort, id uint16) []byte {
	udp := rawUDP(from, to, make([]byte, 64)...)[ipHeader(from.Addr()):]
	binary.BigEndian.PutUint16(udp[4:], fragmentBytes)
	return fragment(from.Addr(), to.Addr(), id, 0, true, udp)
}
