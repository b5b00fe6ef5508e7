package lab

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"culvert/geneve/udp"
	"culvert/integration/lab/probe"
)

// floods are more than gateways under gVisor can carry, of large datagrams and small ones.
var floods = []struct {
	bits float64 // per second
	size int     // bytes of each datagram
}{{300e6, 1200}, {40e6, 64}}

const (
	floodTime = 6 * time.Second // of each
	// pause of each gateway during it: packets fill its socket, as when the sandbox waits for a
	// processor
	holdTime = time.Second
)

// floodFaults are the findings that a gateway may report in floods, which also lose its own
// requests to nodes and the peer. A path MTU that is too small is not among them.
var floodFaults = []string{"node-deaf", "node-silent", "node-loss", "node-one-way", "node-restored", "peer-loss",
	"peer-mute", "data-lost", "tunnel-restored"}

// sandboxChecks concern what gVisor tells a gateway about the machine.
func (l *Lab) sandboxChecks() []Check {
	there, back := l.Pair("rome/pod1", "milan/pod1"), l.Pair("milan/pod1", "rome/pod1")
	checks := []Check{{"sandbox sockets", "both gateways", l.checkSandboxSockets}}
	if l.Options.Sandbox.Groups != "" {
		checks = append(checks, Check{"sandbox memory", "both gateways", l.checkSandboxMemory})
	}
	for _, f := range floods {
		for _, e := range []*probe.Ends{there, back} {
			checks = append(checks, Check{fmt.Sprintf("sandbox flood %d", f.size), e.Path(),
				func(ctx context.Context) (string, error) { return l.checkSandboxFlood(ctx, e, f.bits, f.size) }})
		}
	}
	return append(checks, l.logCheck(floodFaults...))
}

// checkSandboxSockets requires the requested send buffer, although gVisor accepts SO_SNDBUFFORCE
// without effect; a receive buffer for few datagrams, which gVisor keeps in the control group's
// memory; and no count of overflows, which gVisor does not provide.
func (l *Lab) checkSandboxSockets(ctx context.Context) (string, error) {
	buffers := map[string]float64{"send": udp.DefaultSocketBuffer, "receive": 1 << 19}
	for _, p := range l.Gateways() {
		metrics, err := GatewayMetrics(ctx, p.Host)
		if err != nil {
			return "", err
		}
		for way, want := range buffers {
			for _, socket := range GatewaySockets {
				name := fmt.Sprintf("culvert_socket_%s_buffer_bytes{socket=%q}", way, socket)
				if metrics[name] != want {
					return "", fmt.Errorf("%s: %s is %v, want %v", p.Host.Name, name, metrics[name], want)
				}
			}
		}
		for name, value := range metrics {
			if strings.HasPrefix(name, "culvert_socket_overflows_total") {
				return "", fmt.Errorf("%s: %s is %v, want no such metric", p.Host.Name, name, value)
			}
		}
	}
	return "send 4 MiB, receive 512 KiB, overflows unknown", nil
}

// checkSandboxMemory requires a connection table of a quarter of the control group's memory, with
// 256 bytes a connection.
func (l *Lab) checkSandboxMemory(ctx context.Context) (string, error) {
	const want = SandboxMemory / 4 / 256
	for _, p := range l.Gateways() {
		metrics, err := GatewayMetrics(ctx, p.Host)
		if err != nil {
			return "", err
		}
		if n := metrics["culvert_connections_max"]; n != want {
			return "", fmt.Errorf("%s: room for %v connections, want %d", p.Host.Name, n, want)
		}
	}
	return fmt.Sprintf("%d connections in %d MiB", want, SandboxMemory>>20), nil
}

// checkSandboxFlood sends more than the gateways can carry, and pauses them in turn, so that as
// much as possible is queued for them. Both must survive and carry pings.
func (l *Lab) checkSandboxFlood(ctx context.Context, e *probe.Ends, bits float64, size int) (string, error) {
	held := make(chan error, 1)
	go func() {
		var err error
		for _, p := range l.Gateways() {
			err = errors.Join(err, p.sandbox.hold(ctx, holdTime))
		}
		held <- err
	}()
	sent, received, err := e.SendPaced(bits/8/float64(size), size, floodTime)
	if err = errors.Join(err, <-held); err != nil {
		return "", err
	}
	for _, p := range l.Gateways() {
		if _, err := gatewayGet(ctx, p.Host, "/healthz"); err != nil {
			return "", fmt.Errorf("after the flood: %s: %w", p.Host.Name, err)
		}
	}
	if _, err := e.CheckPing(ctx); err != nil {
		return "", fmt.Errorf("after the flood: %w", err)
	}
	rate := func(n float64) float64 { return n * 8 * float64(size) / floodTime.Seconds() / 1e6 }
	return fmt.Sprintf("%.0f of %.0f Mbit/s arrived, gateways alive", rate(received), rate(sent)), nil
}
