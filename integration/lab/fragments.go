package lab

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

const (
	fragmentedBytes = 4400 // payload of a datagram in fragments
	fragmentBytes   = 1200 // of a fragment but the last, a multiple of 8
	fragments       = 4    // of it and the UDP header
	moreFragments   = 0x2000
)

// fragmentedUDP makes the fragments of a datagram with a full checksum.
func fragmentedUDP(from, to netip.AddrPort, id uint16, payload []byte) (packets [][]byte) {
	length := 8 + len(payload)
	udp := make([]byte, 8, length)
	binary.BigEndian.PutUint16(udp, from.Port())
	binary.BigEndian.PutUint16(udp[2:], to.Port())
	binary.BigEndian.PutUint16(udp[4:], uint16(length))
	udp = append(udp, payload...)
	pseudo := append(append(from.Addr().AsSlice(), to.Addr().AsSlice()...), 0, unix.IPPROTO_UDP, byte(length>>8), byte(length)) // that of IPv6 adds up to the same
	sum := ^onesSum(onesSum(0, pseudo), udp)
	if sum == 0 {
		sum = 0xffff // RFC 768
	}
	binary.BigEndian.PutUint16(udp[6:], sum)
	for at := 0; at < length; at += fragmentBytes {
		part := udp[at:min(at+fragmentBytes, length)]
		if from.Addr().Is6() {
			packets = append(packets, fragment6(from.Addr(), to.Addr(), id, at, at+len(part) < length, part))
			continue
		}
		b := make([]byte, 20, 20+len(part))
		b[0], b[8], b[9] = 0x45, maxTTL, unix.IPPROTO_UDP
		binary.BigEndian.PutUint16(b[2:], uint16(20+len(part)))
		binary.BigEndian.PutUint16(b[4:], id)
		offset := uint16(at / 8)
		if at+len(part) < length {
			offset |= moreFragments
		}
		binary.BigEndian.PutUint16(b[6:], offset)
		copy(b[12:], from.Addr().AsSlice())
		copy(b[16:], to.Addr().AsSlice())
		packets = append(packets, append(b, part...)) // the kernel fills in the header's checksum
	}
	return packets
}

// fragment6 makes an IPv6 fragment (RFC 8200, Section 4.5) of a UDP datagram.
func fragment6(from, to netip.Addr, id uint16, at int, more bool, part []byte) []byte {
	b := make([]byte, 48, 48+len(part))
	b[0], b[6], b[7] = 6<<4, unix.IPPROTO_FRAGMENT, maxTTL
	binary.BigEndian.PutUint16(b[4:], uint16(8+len(part)))
	copy(b[8:], from.AsSlice())
	copy(b[24:], to.AsSlice())
	b[40] = unix.IPPROTO_UDP
	offset := uint16(at) // in units of 8 bytes, above 3 other bits
	if more {
		offset |= 1
	}
	binary.BigEndian.PutUint16(b[42:], offset)
	binary.BigEndian.PutUint32(b[44:], uint32(id))
	return append(b, part...)
}

// onesSum adds b, which starts at an even offset, to a one's complement sum.
func onesSum(sum uint16, b []byte) uint16 {
	total := uint32(sum)
	for i, v := range b {
		if i%2 == 0 {
			total += uint32(v) << 8
		} else {
			total += uint32(v)
		}
	}
	for total > 0xffff {
		total = total>>16 + total&0xffff
	}
	return uint16(total)
}

func (l *Lab) fragmentChecks(p *plan) []Check {
	e := l.pairOf(p, "rome/pod1", "milan/pod2")
	e.local, e.wantSource = p[0].BehindFirst, p[0].Seen(p[0].UnknownSource())
	return []Check{{"fragment orders", e.path(), e.checkFragmentOrders}}
}

// checkFragmentOrders sends a datagram in both directions for every order in which its fragments can arrive, with e.local, which becomes U, at the
// near end.
func (e *ends) checkFragmentOrders(ctx context.Context) (string, error) {
	near, err := newFragmentEnd(e.from, e.local)
	if err != nil {
		return "", err
	}
	defer near.close()
	far, err := newFragmentEnd(e.to, e.to.Address)
	if err != nil {
		return "", err
	}
	defer far.close()
	u := netip.AddrPortFrom(e.wantSource, near.local.Port()) // no other connection: the port is kept
	orders := permutations(fragments)
	for i, order := range orders {
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		if err := near.send(netip.AddrPortFrom(e.target, far.local.Port()), uint16(2*i+1), order); err != nil {
			return "", err
		}
		if err := far.expect(uint16(2*i+1), u); err != nil {
			return "", fmt.Errorf("fragments in order %v: %w", order, err)
		}
		if err := far.send(u, uint16(2*i+2), order); err != nil {
			return "", err
		}
		if err := near.expect(uint16(2*i+2), netip.AddrPortFrom(e.target, far.local.Port())); err != nil {
			return "", fmt.Errorf("fragments back in order %v: %w", order, err)
		}
	}
	return fmt.Sprintf("%d orders of %d each way, from %s", len(orders), fragments, e.wantSource), nil
}

// fragmentEnd sends handmade fragments and receives whole datagrams.
type fragmentEnd struct {
	host  *Host
	raw   *socket
	conn  *net.UDPConn
	local netip.AddrPort
}

func newFragmentEnd(h *Host, local netip.Addr) (*fragmentEnd, error) {
	raw, err := newRawSocket(h, local.Is6())
	if err != nil {
		return nil, err
	}
	conn, err := h.ListenPacket(over("udp", local), net.JoinHostPort(local.String(), "0"))
	if err != nil {
		raw.close()
		return nil, fmt.Errorf("%s: %w", h.Name, err)
	}
	return &fragmentEnd{h, raw, conn.(*net.UDPConn), conn.LocalAddr().(*net.UDPAddr).AddrPort()}, nil
}

// newRawSocket opens a socket that sends handmade packets.
func newRawSocket(h *Host, six bool) (*socket, error) {
	if !six {
		return newSocket(h, unix.SOCK_RAW, unix.IPPROTO_RAW) // implies IP_HDRINCL
	}
	s := &socket{fd: -1}
	err := h.Do(func() (err error) {
		s.fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: raw IPv6 socket: %w", h.Name, err)
	}
	return s, nil
}

func (f *fragmentEnd) close() {
	f.raw.close()
	f.conn.Close()
}

// send sends the datagram with the given IP ID in fragments.
func (f *fragmentEnd) send(to netip.AddrPort, id uint16, order []int) error {
	packets := fragmentedUDP(f.local, to, id, fragmentedPayload(id))
	if len(packets) != len(order) {
		return fmt.Errorf("%d fragments, want %d", len(packets), len(order))
	}
	for _, n := range order {
		if err := unix.Sendto(f.raw.fd, packets[n], 0, sockaddrOf(netip.AddrPortFrom(to.Addr(), 0))); err != nil {
			return fmt.Errorf("%s: send fragment %d: %w", f.host.Name, n, err)
		}
	}
	return nil
}

func (f *fragmentEnd) expect(id uint16, from netip.AddrPort) error {
	if err := f.conn.SetReadDeadline(time.Now().Add(replyTimeout)); err != nil {
		return err
	}
	buffer := make([]byte, 65536)
	n, source, err := f.conn.ReadFromUDPAddrPort(buffer)
	if err != nil {
		return fmt.Errorf("%s: %w", f.host.Name, err)
	}
	if string(buffer[:n]) != string(fragmentedPayload(id)) {
		return fmt.Errorf("%s received %d bytes unlike the %d sent", f.host.Name, n, fragmentedBytes)
	}
	if source != from {
		return fmt.Errorf("%s saw source %s, want %s", f.host.Name, source, from)
	}
	return nil
}

// fragmentedPayload is different for each ID.
func fragmentedPayload(id uint16) []byte {
	b := make([]byte, fragmentedBytes)
	rand.NewChaCha8([32]byte{byte(id), byte(id >> 8)}).Read(b)
	return b
}

// permutations returns all orders of 0 to n-1.
func permutations(n int) (all [][]int) {
	if n == 0 {
		return [][]int{nil}
	}
	for _, shorter := range permutations(n - 1) {
		for at := range n {
			order := append([]int(nil), shorter[:at]...)
			all = append(all, append(append(order, n-1), shorter[at:]...))
		}
	}
	return all
}
