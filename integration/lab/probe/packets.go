package probe

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	"culvert/integration/lab/netns"
	"culvert/nat/nattest"
)

// RawSocket sends packets with any source: IPPROTO_RAW implies that their headers are given, see
// raw(7).
type RawSocket struct{ *netns.Socket }

// NewRaw opens a raw socket in a host.
func NewRaw(h *netns.Host) (RawSocket, error) {
	s, err := netns.NewSocket(h, unix.SOCK_RAW, unix.IPPROTO_RAW)
	return RawSocket{s}, err
}

// Send sends a packet. Packets for which the kernel has no room are lost, as on any link.
func (s RawSocket) Send(packet []byte) error {
	_, to := endsOf(packet)
	err := unix.Sendto(s.FD, packet, 0, netns.SockaddrOf(netip.AddrPortFrom(to, 0)))
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

// PacketOf is a packet with correct checksums.
func PacketOf(from, to netip.Addr, body nattest.Body) nattest.IP {
	return nattest.IP{Source: from.String(), Destination: to.String(), Body: body}
}

// DatagramOf is a packet with a UDP datagram.
func DatagramOf(from, to netip.AddrPort, payload ...byte) nattest.IP {
	return PacketOf(from.Addr(), to.Addr(), nattest.UDP{SourcePort: from.Port(), DestinationPort: to.Port(),
		Payload: payload})
}

// badChecksum makes the receiver's kernel drop a packet silently, so that an attack affects
// gateways and nobody else.
const badChecksum = 0xbad

// SilentUDP makes a datagram that nobody answers.
func SilentUDP(from, to netip.AddrPort) []byte { return SilentHop(from, to, MaxTTL) }

// SilentHop is SilentUDP with a TTL or hop limit.
func SilentHop(from, to netip.AddrPort, ttl byte) []byte {
	p := DatagramOf(from, to, 0)
	p.TTL = ttl
	b := p.Bytes()
	binary.BigEndian.PutUint16(b[IPHeader(from.Addr())+6:], badChecksum)
	return b
}

// SilentTCP makes a segment that nobody answers.
func SilentTCP(from, to netip.AddrPort, flags byte, seq, ack uint32) []byte {
	b := PacketOf(from.Addr(), to.Addr(), nattest.TCP{SourcePort: from.Port(), DestinationPort: to.Port(), Seq: seq,
		Ack: ack, Flags: flags, Window: 1024}).Bytes()
	binary.BigEndian.PutUint16(b[IPHeader(from.Addr())+16:], badChecksum)
	return b
}

// TooBigAbout makes an ICMP error from a sender that claims a packet needs an MTU.
func TooBigAbout(from netip.Addr, quoted []byte, mtu uint16) []byte {
	to, _ := endsOf(quoted)
	message := nattest.ICMP{Type: 3, Code: 4, Rest: uint32(mtu), Payload: quoted[:min(IPHeader(to)+8, len(quoted))]}
	if to.Is6() {
		message.Type, message.Code = 2, 0
	}
	return PacketOf(from, to, message).Bytes()
}

// RawEcho makes an echo request.
func RawEcho(from, to netip.Addr, id uint16) []byte {
	message := nattest.ICMP{Type: 8, Rest: uint32(id) << 16}
	if to.Is6() {
		message.Type = 128
	}
	return PacketOf(from, to, message).Bytes()
}

// LaterFragment makes a later fragment of a datagram without a first fragment.
func LaterFragment(from, to netip.Addr, id uint16) []byte {
	return fragment(from, to, id, fragmentBytes, make([]byte, 64))
}

// FirstFragment makes a first fragment of a datagram that never becomes complete.
func FirstFragment(from, to netip.AddrPort, id uint16) []byte {
	udp := DatagramOf(from, to, make([]byte, 64)...).Bytes()[IPHeader(from.Addr()):]
	binary.BigEndian.PutUint16(udp[4:], fragmentBytes)
	return fragment(from.Addr(), to.Addr(), id, 0, udp)
}

// fragment makes a fragment of a UDP datagram, but not the last one.
func fragment(from, to netip.Addr, id uint16, at int, part []byte) []byte {
	return nattest.Piece(PacketOf(from, to, nil), nattest.Raw{Protocol: unix.IPPROTO_UDP, Payload: part}, at,
		true, uint32(id))
}
