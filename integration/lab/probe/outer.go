package probe

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"culvert/integration/lab/netns"
	"culvert/integration/lab/step"
)

// CheckECN sends datagrams with a DSCP and every ECN code point, and checks the outer headers from
// the far gateway to the far pod's node: they must have the code point, but not the DSCP (RFC 6040,
// Section 4.1).
func (e *Ends) CheckECN(ctx context.Context, node *netns.Host, gateway netip.Addr) (_ string, err error) {
	defer step.Catch(&err)
	server, conn := step.Must2(e.dialEcho(ctx))
	defer server.Close()
	defer conn.Close()
	outer, err := newOuterSocket(node)
	if err != nil {
		return "", fmt.Errorf("%s: raw UDP socket: %w", node.Name, err)
	}
	defer outer.Close()
	const dscp = 46 << 2 // expedited forwarding (RFC 3246)
	buffer := make([]byte, 65536)
	for ecn := range 4 {
		step.Try(setOption(conn, unix.IP_TOS, unix.IPV6_TCLASS, dscp|ecn))
		payload := fmt.Appendf(nil, "ECN %d of %s at %d", ecn, e.Path(), time.Now().UnixNano())
		step.Must(conn.Write(payload))
		step.Try(outer.SetReadDeadline(time.Now().Add(ReplyTimeout)))
		for {
			n, tos, from, err := outer.read(buffer)
			if err != nil {
				return "", fmt.Errorf("%s: no datagram of the gateway with what the pod sent: %w", node.Name, err)
			}
			if from != gateway || !bytes.HasSuffix(buffer[:n], payload) {
				continue
			}
			if tos != ecn {
				return "", fmt.Errorf("outer TOS %#x around %#x, want %#x", tos, dscp|ecn, ecn)
			}
			break
		}
	}
	return "4 code points copied, DSCP not", nil
}

// An outerSocket receives the UDP datagrams of a host, including tunnels', with their type of
// service or traffic class.
type outerSocket struct {
	net.PacketConn
	read func(buffer []byte) (n, tos int, from netip.Addr, err error)
}

func newOuterSocket(h *netns.Host) (*outerSocket, error) {
	c, err := h.ListenPacket(netns.Over("ip", h.Address)+":udp", h.Address.String())
	if err != nil {
		return nil, err
	}
	if h.Address.Is6() {
		six := ipv6.NewPacketConn(c)
		return &outerSocket{c, func(buffer []byte) (int, int, netip.Addr, error) {
			n, m, from, err := six.ReadFrom(buffer)
			if err != nil {
				return 0, 0, netip.Addr{}, err
			}
			a, _ := netip.AddrFromSlice(from.(*net.IPAddr).IP)
			return n, m.TrafficClass, a, nil
		}}, six.SetControlMessage(ipv6.FlagTrafficClass, true)
	}
	four, err := ipv4.NewRawConn(c)
	return &outerSocket{c, func(buffer []byte) (int, int, netip.Addr, error) {
		h, payload, _, err := four.ReadFrom(buffer)
		if err != nil {
			return 0, 0, netip.Addr{}, err
		}
		a, _ := netip.AddrFromSlice(h.Src.To4())
		return copy(buffer, payload), h.TOS, a, nil
	}}, err
}
