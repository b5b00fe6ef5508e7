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

// fragmentedUDP makes the fragments of a datagram.
func fragmentedUDP(from, to netip.AddrPort, id uint16, payload []byte) (packets [][]byte) {
	udp := rawUDP(from, to, payload...)[ipHeader(from.Addr()):]
	for at := 0; at < len(udp); at += fragmentBytes {
		end := min(at+fragmentBytes, len(udp))
		packets = append(packets, fragment(from.Addr(), to.Addr(), id, at, end < len(udp), udp[at:end]))
	}
	return packets
}

// fragment makes a fragment of a UDP datagram that starts at byte at of it, for IPv4 (RFC 791, Section 3.1) or IPv6 (RFC 8200, Section 4.5).
func fragment(from, to netip.Addr, id uint16, at int, more bool, part []byte) []byte {
	if !from.Is6() {
		b, body := rawPacket(unix.IPPROTO_UDP, from, to, len(part))
		copy(body, part)
		offset := uint16(at / 8)
		if more {
			offset |= moreFragments
		}
		binary.BigEndian.PutUint16(b[4:], id)
		binary.BigEndian.PutUint16(b[6:], offset)
		return b
	}
	b, body := rawPacket(unix.IPPROTO_FRAGMENT, from, to, 8+len(part))
	copy(body[8:], part)
	offset := uint16(at) // in units of 8 bytes, above 3 other bits
	if more {
		offset |= 1
	}
	body[0] = unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(body[2:], offset)
	binary.BigEndian.PutUint32(body[4:], uint32(id))
	return b
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
	raw   rawSocket
	conn  *net.UDPConn
	local netip.AddrPort
}

func newFragmentEnd(h *Host, local netip.Addr) (*fragmentEnd, error) {
	raw, err := newRaw(h)
	if err != nil {
		return nil, err
	}
	conn, err := h.listenUDP(local, 0)
	if err != nil {
		raw.close()
		return nil, err
	}
	return &fragmentEnd{h, raw, conn, conn.LocalAddr().(*net.UDPAddr).AddrPort()}, nil
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
		if err := f.raw.send(packets[n]); err != nil {
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
