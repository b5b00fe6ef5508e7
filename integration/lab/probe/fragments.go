package probe

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"culvert/integration/lab/netns"
	"culvert/nat/nattest"
)

const (
	fragmentedBytes = 4400 // payload of a datagram in fragments
	fragmentBytes   = 1200 // of a fragment but the last, a multiple of 8
	fragments       = 4    // of it and the UDP header
)

// CheckFragmentOrders sends a datagram in both directions for every order in which its fragments
// can arrive, with e.local, which becomes U, at the near end.
func (e *Ends) CheckFragmentOrders(ctx context.Context) (string, error) {
	near, err := newFragmentEnd(e.From, e.Local)
	if err != nil {
		return "", err
	}
	defer near.close()
	far, err := newFragmentEnd(e.To, e.To.Address)
	if err != nil {
		return "", err
	}
	defer far.close()
	u := netip.AddrPortFrom(e.WantSource, near.local.Port()) // no other connection: the port is kept
	orders := permutations(fragments)
	for i, order := range orders {
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		if err := near.send(netip.AddrPortFrom(e.Target, far.local.Port()), uint16(2*i+1), order); err != nil {
			return "", err
		}
		if err := far.expect(uint16(2*i+1), u); err != nil {
			return "", fmt.Errorf("fragments in order %v: %w", order, err)
		}
		if err := far.send(u, uint16(2*i+2), order); err != nil {
			return "", err
		}
		if err := near.expect(uint16(2*i+2), netip.AddrPortFrom(e.Target, far.local.Port())); err != nil {
			return "", fmt.Errorf("fragments back in order %v: %w", order, err)
		}
	}
	return fmt.Sprintf("%d orders of %d each way, from %s", len(orders), fragments, e.WantSource), nil
}

// fragmentEnd sends handmade fragments and receives whole datagrams.
type fragmentEnd struct {
	host  *netns.Host
	raw   RawSocket
	conn  *net.UDPConn
	local netip.AddrPort
}

func newFragmentEnd(h *netns.Host, local netip.Addr) (*fragmentEnd, error) {
	raw, err := NewRaw(h)
	if err != nil {
		return nil, err
	}
	conn, err := h.ListenUDP(local, 0)
	if err != nil {
		raw.Close()
		return nil, err
	}
	return &fragmentEnd{h, raw, conn, conn.LocalAddr().(*net.UDPAddr).AddrPort()}, nil
}

func (f *fragmentEnd) close() {
	f.raw.Close()
	f.conn.Close()
}

// send sends the datagram with the given IP ID in fragments.
func (f *fragmentEnd) send(to netip.AddrPort, id uint16, order []int) error {
	packets := nattest.Pieces(DatagramOf(f.local, to, fragmentedPayload(id)...), fragmentBytes, uint32(id))
	if len(packets) != len(order) {
		return fmt.Errorf("%d fragments, want %d", len(packets), len(order))
	}
	for _, n := range order {
		if err := f.raw.Send(packets[n]); err != nil {
			return fmt.Errorf("%s: send fragment %d: %w", f.host.Name, n, err)
		}
	}
	return nil
}

func (f *fragmentEnd) expect(id uint16, from netip.AddrPort) error {
	source, err := receiveDatagram(f.conn, fragmentedPayload(id))
	if err != nil {
		return fmt.Errorf("%s: %w", f.host.Name, err)
	}
	if source != from {
		return fmt.Errorf("%s saw source %s, want %s", f.host.Name, source, from)
	}
	return nil
}

// fragmentedPayload is different for each ID.
func fragmentedPayload(id uint16) []byte { return noise(fragmentedBytes, uint64(id)) }

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
