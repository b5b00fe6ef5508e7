package fault

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"time"

	gatewaycontrol "culvert/gateway/control"
	"culvert/integration/lab"
	"culvert/integration/lab/plan"
	"culvert/integration/lab/probe"
	"culvert/integration/lab/step"
)

// load is the traffic of a fault, from its start until ctx ends.
type load func(ctx context.Context, l *Lab) error

// loading is the running load of a fault.
type loading struct {
	stop  context.CancelFunc
	ended chan error
}

// beginLoads starts the loads of current faults that do not run yet.
func (l *Lab) beginLoads() {
	for _, f := range l.broken {
		if f.load == nil || l.loads[f] != nil {
			continue
		}
		ctx, stop := context.WithCancel(context.Background())
		under := &loading{stop, make(chan error, 1)}
		if l.loads == nil {
			l.loads = make(map[*Fault]*loading)
		}
		l.loads[f] = under
		go func() { under.ended <- f.load(ctx, l) }()
	}
}

// endLoads ends the loads of faults that are not in broken.
func (l *Lab) endLoads(broken []*Fault) (err error) {
	for f, under := range l.loads {
		if !slices.Contains(broken, f) {
			under.stop()
			if e := <-under.ended; e != nil {
				err = errors.Join(err, fmt.Errorf("%s: %w", f.Name, e))
			}
			delete(l.loads, f)
		}
	}
	return err
}

// loadPace is the pause between two steps of a load.
const loadPace = 50 * time.Millisecond

// repeat calls step until ctx ends.
func repeat(ctx context.Context, step func() error) error {
	pace := time.NewTicker(loadPace)
	defer pace.Stop()
	for {
		if err := step(); err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-pace.C:
		}
	}
}

// openStreams makes the first node open UDP streams, each from a new socket: connections of rome's
// unknown source. A stream is settled after four packets, and is not evicted.
func openStreams(ctx context.Context, l *Lab) error {
	e := l.Pair("rome/node1", "milan/pod1")
	server, err := probe.NewEchoServer(e.To)
	if err != nil {
		return err
	}
	defer server.Close()
	return repeat(ctx, func() error {
		conn, err := e.DialUDP(ctx, server.Port())
		if err != nil {
			return nil
		}
		defer conn.Close()
		for range 2 { // an answer is not required
			conn.Write([]byte("x"))
			conn.SetReadDeadline(time.Now().Add(faultPatience))
			conn.Read(make([]byte, 1))
		}
		return nil
	})
}

// streams sends in bulk from rome to milan. While trains are lost, a stream may stall.
func streams(ctx context.Context, l *Lab) error {
	e := l.Pair("rome/pod1", "milan/pod1")
	return repeat(ctx, func() error {
		e.Stream(ctx, 1<<20, 1)
		return nil
	})
}

// DiscardPort is the port of the discard protocol (RFC 863), which nobody serves.
const DiscardPort = 9

// takePorts uses all source ports that rome's unknown source gives one client towards milan/pod1,
// and then asks for more.
func takePorts(ctx context.Context, l *Lab) (err error) {
	defer step.Catch(&err)
	to := netip.AddrPortFrom(l.Pair("rome/node1", "milan/pod1").Target, DiscardPort)
	datagram := func(i int) []byte {
		return probe.SilentUDP(netip.AddrPortFrom(l.Plan()[0].Nodes[0].Underlay, uint16(i)), to)
	}
	const ports = 1 << 16
	f := &probe.Flood{From: l.At("rome/node1"), Count: ports, Packet: datagram}
	step.Must(f.Run(ctx))
	raw := step.Must(probe.NewRaw(l.At("rome/node1")))
	defer raw.Close()
	i := 0
	err = repeat(ctx, func() error {
		i += ports/2 + 1 // eventually every one
		return raw.Send(datagram(i))
	})
	// The opened connections last for minutes.
	ctx, cancel := context.WithTimeout(context.Background(), lab.StartTimeout)
	defer cancel()
	for i := range plan.V4 {
		c := gatewaycontrol.NewClient(l.Socket(i))
		filter := gatewaycontrol.Filter{Protocol: "udp", Ports: []uint16{DiscardPort}}
		err = errors.Join(err, c.Get(ctx, http.MethodDelete, "/v1/connections", filter.Values(),
			new(gatewaycontrol.Deleted)))
	}
	return err
}
