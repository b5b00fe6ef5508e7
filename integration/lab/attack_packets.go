package lab

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"
)

// rawSocket sends IPv4 packets whatever their source.
type rawSocket struct{ *socket }

func newRaw(h *Host) (rawSocket, error) {
	s, err := newSocket(h, unix.SOCK_RAW, unix.IPPROTO_RAW) // implies IP_HDRINCL
	return rawSocket{s}, err
}

// send sends a packet; the kernel fills in the header's checksum. What the kernel has
// no room for is lost, as on any link.
func (s rawSocket) send(packet []byte) error {
	err := unix.Sendto(s.fd, packet, 0, &unix.SockaddrInet4{Addr: [4]byte(packet[16:20])})
	if errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.EINTR) {
		return nil
	}
	return err
}

// badChecksum in a packet makes its receiver's kernel drop it without a word, so that
// an attack shows what it does to gateways and nobody else.
const badChecksum = 0xbad

// rawPacket makes an IPv4 packet with n bytes behind the header.
func rawPacket(protocol byte, from, to netip.Addr, n int) []byte {
	b := make([]byte, 20+n)
	b[0], b[8], b[9] = 0x45, maxTTL, protocol
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	copy(b[12:], from.AsSlice())
	copy(b[16:], to.AsSlice())
	return b
}

// rawUDP makes a datagram without a checksum.
func rawUDP(from, to netip.AddrPort, payload ...byte) []byte {
	b := rawPacket(unix.IPPROTO_UDP, from.Addr(), to.Addr(), 8+len(payload))
	udp := b[20:]
	binary.BigEndian.PutUint16(udp, from.Port())
	binary.BigEndian.PutUint16(udp[2:], to.Port())
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	copy(udp[8:], payload)
	return b
}

// silentUDP makes a datagram that nobody answers.
func silentUDP(from, to netip.AddrPort) []byte {
	b := rawUDP(from, to, 0)
	binary.BigEndian.PutUint16(b[26:], badChecksum)
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
	b := rawPacket(unix.IPPROTO_TCP, from.Addr(), to.Addr(), 20)
	tcp := b[20:]
	binary.BigEndian.PutUint16(tcp, from.Port())
	binary.BigEndian.PutUint16(tcp[2:], to.Port())
	binary.BigEndian.PutUint32(tcp[4:], seq)
	binary.BigEndian.PutUint32(tcp[8:], ack)
	tcp[12], tcp[13] = 5<<4, flags
	binary.BigEndian.PutUint16(tcp[14:], 1024)
	binary.BigEndian.PutUint16(tcp[16:], badChecksum)
	return b
}

// tooBigAbout makes an ICMP error from somebody who says that a packet needs an MTU.
func tooBigAbout(from netip.Addr, quoted []byte, mtu uint16) []byte {
	b := rawPacket(unix.IPPROTO_ICMP, from, netip.AddrFrom4([4]byte(quoted[12:16])), 8+28)
	icmp := b[20:]
	icmp[0], icmp[1] = 3, 4
	binary.BigEndian.PutUint16(icmp[6:], mtu)
	copy(icmp[8:], quoted)
	binary.BigEndian.PutUint16(icmp[2:], ^onesSum(0, icmp))
	return b
}

// laterFragment makes one whose datagram is nobody's, without its first fragment.
func laterFragment(from, to netip.Addr, id uint16) []byte {
	b := rawPacket(unix.IPPROTO_UDP, from, to, 64)
	binary.BigEndian.PutUint16(b[4:], id)
	binary.BigEndian.PutUint16(b[6:], moreFragments|fragmentBytes/8)
	return b
}

// firstFragment makes one whose datagram never becomes complete.
func firstFragment(from, to netip.AddrPort, id uint16) []byte {
	b := rawUDP(from, to, make([]byte, 64)...)
	binary.BigEndian.PutUint16(b[4:], id)
	binary.BigEndian.PutUint16(b[6:], moreFragments)
	binary.BigEndian.PutUint16(b[24:], fragmentBytes)
	return b
}
