package lab

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"culvert/integration/lab/netns"
	"culvert/integration/lab/step"
)

// GatewayMetrics returns a gateway's metrics, each by its name and labels.
func GatewayMetrics(ctx context.Context, h *netns.Host) (map[string]float64, error) {
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

// GatewaySockets are the sockets of a gateway, by their names in its metrics.
var GatewaySockets = []string{"geneve", "wireguard", "wireguard6"}

// checkOffloads requires each socket of the gateways to use the kernel's offloads.
func (l *Lab) checkOffloads(ctx context.Context) (_ string, err error) {
	defer step.Catch(&err)
	var used []string
	for _, p := range l.Gateways() {
		want := step.Must(kernelOffloads(p.Host))
		metrics := step.Must(GatewayMetrics(ctx, p.Host))
		used = nil
		for offload, n := range want {
			for _, socket := range GatewaySockets {
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
