package lab

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"culvert/integration/lab/netns"
	"culvert/integration/lab/step"
)

// gatewayMetrics returns a gateway's metrics, each by its name and labels.
func gatewayMetrics(ctx context.Context, h *netns.Host) (map[string]float64, error) {
	text, err := gatewayGet(ctx, h, "/metrics")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", h.Name, err)
	}
	values := make(map[string]float64)
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		at := strings.LastIndexByte(line, ' ')
		if values[line[:max(at, 0)]], err = strconv.ParseFloat(strings.TrimSpace(line[at+1:]), 64); err != nil {
			return nil, fmt.Errorf("%s: metrics: %w", h.Name, err)
		}
	}
	return values, nil
}

// gatewaySockets are the sockets of a gateway, by their names in its metrics.
var gatewaySockets = []string{"geneve", "wireguard", "wireguard6"}

// checkOffloads requires each socket of the gateways to use the kernel's offloads.
func (l *Lab) checkOffloads(ctx context.Context) (_ string, err error) {
	defer step.Catch(&err)
	var used []string
	for _, p := range l.gateways() {
		want := step.Must(kernelOffloads(p.Host))
		metrics := step.Must(gatewayMetrics(ctx, p.Host))
		used = nil
		for offload, n := range want {
			for _, socket := range gatewaySockets {
				name := fmt.Sprintf("culvert_socket_offload{offload=%q,socket=%q}", offload, socket)
				if got, found := metrics[name]; !found {
					return "", fmt.Errorf("%s: no metric %s", p.Host.Name, name)
				} else if got != n {
					return "", fmt.Errorf("%s: %s is %v, the kernel has %v", p.Host.Name, name, got, n)
				}
			}
			used = append(used, fmt.Sprintf("%s %v", offload, n))
		}
	}
	slices.Sort(used)
	return strings.Join(used, ", ") + " on all sockets", nil
}

// kernelOffloads returns with 1 and 0 what a UDP socket in a host supports. A kernel that cannot
// report UDP_GRO has none usable for a tunnel.
func kernelOffloads(h *netns.Host) (map[string]float64, error) {
	s, err := netns.NewSocket(h, unix.SOCK_DGRAM, 0)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	offloads := map[string]float64{"gro": 0, "gso": 0}
	unix.SetsockoptInt(s.FD, unix.SOL_UDP, unix.UDP_GRO, 1)
	if n, err := unix.GetsockoptInt(s.FD, unix.SOL_UDP, unix.UDP_GRO); err == nil {
		offloads["gro"] = float64(n)
	}
	if _, err := unix.GetsockoptInt(s.FD, unix.SOL_UDP, unix.UDP_SEGMENT); err == nil {
		offloads["gso"] = 1
	}
	return offloads, nil
}

// checkECN sends datagrams with a DSCP and every ECN code point, and checks the outer headers from
// the far gateway to the far pod's node: they must have the code point, but not the DSCP (RFC 6040,
// Section 4.1).
func (e *ends) checkECN(ctx context.Context, node *netns.Host, gateway netip.Addr) (_ string, err error) {
	defer step.Catch(&err)
	server, conn := step.Must2(e.dialEcho(ctx))
	defer server.close()
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
		payload := fmt.Appendf(nil, "ECN %d of %s at %d", ecn, e.path(), time.Now().UnixNano())
		step.Must(conn.Write(payload))
		step.Try(outer.SetReadDeadline(time.Now().Add(replyTimeout)))
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
