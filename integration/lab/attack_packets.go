package lab

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	"culvert/integration/lab/netns"
	"culvert/nat/nattest"
)

// rawSocket sends packets with any source: IPPROTO_RAW implies that their headers are given, see
// raw(7).
type rawSocket struct{ *netns.Socket }

func newRaw(h *netns.Host) (rawSocket, error) {
	s, err := netns.NewSocket(h, unix.SOCK_RAW, unix.IPPROTO_RAW)
	return rawSocket{s}, err
}

// send sends a packet. Packets for which the kernel has no room are lost, as on any link.
func (s rawSocket) send(packet []byte) error {
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

// packetOf is a packet with correct checksums.
func packetOf(from, to netip.Addr, body nattest.Body) nattest.IP {
	return nattest.IP{Source: from.String(), Destination: to.String(), Body: body}
}

// datagramOf is a packet with a UDP datagram.
func datagramOf(from, to netip.AddrPort, payload ...byte) nattest.IP {
	return packetOf(from.Addr(), to.Addr(), nattest.UDP{SourcePort: from.Port(), DestinationPort: to.Port(),
		Payload: payload})
}

// badChecksum makes the receiver's kernel drop a packet silently, so that an attack affects
// gateways and nobody else.
const badChecksum = 0xbad

// silentUDP makes a datagram that nobody answers.
func silentUDP(from, to netip.AddrPort) []byte { return silentHop(from, to, maxTTL) }

// silentHop is silentUDP with a TTL or hop limit.
func silentHop(from, to netip.AddrPort, ttl byte) []byte {
	p := datagramOf(from, to, 0)
	p.TTL = ttl
	b := p.Bytes()
	binary.BigEndian.PutUint16(b[ipHeader(from.Addr())+6:], badChecksum)
	return b
}

// silentTCP makes a segment that nobody answers.
func silentTCP(from, to netip.AddrPort, flags byte, seq, ack uint32) []byte {
	b := packetOf(from.Addr(), to.Addr(), nattest.TCP{SourcePort: from.Port(), DestinationPort: to.Port(), Seq: seq,
		Ack: ack, Flags: flags, Window: 1024}).Bytes()
	binary.BigEndian.PutUint16(b[ipHeader(from.Addr())+16:], badChecksum)
	return b
}

// tooBigAbout makes an ICMP error from a sender that claims a packet needs an MTU.
func tooBigAbout(from netip.Addr, quoted []byte, mtu uint16) []byte {
	to, _ := endsOf(quoted)
	message := nattest.ICMP{Type: 3, Code: 4, Rest: uint32(mtu), Payload: quoted[:min(ipHeader(to)+8, len(quoted))]}
	if to.Is6() {
		message.Type, message.Code = 2, 0
	}
	return packetOf(from, to, message).Bytes()
}

// rawEcho makes an echo request.
func rawEcho(from, to netip.Addr, id uint16) []byte {
	message := nattest.ICMP{Type: 8, Rest: uint32(id) << 16}
	if to.Is6() {
		message.Type = 128
	}
	return packetOf(from, to, message).Bytes()
}

// laterFragment makes a later fragment of a datagram without a first fragment.
func laterFragment(from, to netip.Addr, id uint16) []byte {
	return fragment(from, to, id, fragmentBytes, make([]byte, 64))
}

// firstFragment makes a first fragment of a datagram that never becomes complete.
func firstFragment(from, to netip.AddrPort, id uint16) []byte {
	udp := datagramOf(from, to, make([]byte, 64)...).Bytes()[ipHeader(from.Addr()):]
	binary.BigEndian.PutUint16(udp[4:], fragmentBytes)
	return fragment(from.Addr(), to.Addr(), id, 0, udp)
}

// fragment makes a fragment of a UDP datagram, but not the last one.
func fragment(from, to netip.Addr, id uint16, at int, part []byte) []byte {
	return nattest.Piece(packetOf(from, to, nil), nattest.Raw{Protocol: unix.IPPROTO_UDP, Payload: part}, at,
		true, uint32(id))
}
