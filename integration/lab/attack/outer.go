package attack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"

	"culvert/integration/lab"
	"culvert/integration/lab/netns"
	"culvert/integration/lab/probe"
	"culvert/integration/lab/step"
)

// attackOuterMTU forges too-big messages: an unknown sender about datagrams between the gateways,
// and a pod about those to a node. They quote unused ports. A stream must continue in whole trains,
// and no gateway may fragment.
func (l *attacks) attackOuterMTU(ctx context.Context) (_ string, err error) {
	defer step.Catch(&err)
	e, o := l.Pair("milan/pod1", "rome/pod1"), l.Outer()
	gateway := l.Host("milan/gateway")
	mtu := l.ofOuter(552, probe.SmallMTU) // the lowest that a kernel accepts, for IPv6 by RFC 8200, Section 5
	step.Try(e.Reach(ctx))
	lies := []struct {
		from      string
		stranger  netip.Addr
		near, far netip.Addr
		port      uint16
	}{
		{"rome/gateway", l.stranger(), o[1].Peering.Addr(), o[0].Peering.Addr(), 51840},
		// like a pod masqueraded by its node
		{"milan/node2", o[1].Nodes[1].Underlay, o[1].Gateway, o[1].Nodes[0].Underlay, 6091},
	}
	defer gateway.Do(forgetPaths)
	for _, lie := range lies {
		quoted := probe.SilentUDP(netip.AddrPortFrom(lie.near, lie.port), netip.AddrPortFrom(lie.far, 1))
		f := &probe.Flood{From: l.HostOf(o, lie.from), Count: 1,
			Packet: func(int) []byte { return probe.TooBigAbout(lie.stranger, quoted, uint16(mtu)) }}
		step.Must(l.beside(ctx, []*probe.Flood{f}))
		step.Try(gateway.Do(func() error { return awaitPathMTU(ctx, lie.far, mtu) }))
	}
	before := step.Must(outerCounts(ctx, gateway))
	figure := step.Must(e.Stream(ctx, probe.SmallStream, probe.SmallStream))
	told := step.Must(l.beside(ctx, nil, echoRequests("large pings of another pod", 20, l.At("milan/pod2"),
		l.Plan()[0].Seen(l.Plan()[0].Nodes[1].Pod), probe.LargeMTU)))
	after, err := outerCounts(ctx, gateway)
	if err == nil && after != before {
		err = fmt.Errorf("%s: %+v before a stream, %+v after it; want no more", gateway.Name, before, after)
	}
	return fmt.Sprintf("mtu %d believed by the kernel alone; segments %d; %s", mtu, figure.LastMSS, told), err
}

// outerCount counts trains that a gateway's kernel refused, and fragments that it made, among its
// tunnels' datagrams.
type outerCount struct{ refusedTrains, fragments int }

func outerCounts(ctx context.Context, gateway *netns.Host) (c outerCount, err error) {
	metrics, err := lab.GatewayMetrics(ctx, gateway)
	if err != nil {
		return c, err
	}
	for _, socket := range lab.GatewaySockets {
		c.refusedTrains += int(metrics[fmt.Sprintf("culvert_socket_refused_trains_total{socket=%q}", socket)])
	}
	return c, gateway.Do(func() (err error) {
		c.fragments, err = snmpCounter("Ip", "FragCreates")
		return err
	})
}

// awaitPathMTU waits until the kernel of this thread's namespace has learnt a path MTU.
func awaitPathMTU(ctx context.Context, to netip.Addr, mtu int) error {
	return step.Await(ctx, lab.ReachTimeout, probe.Pace, func() error {
		routes, err := netlink.RouteGet(to.AsSlice())
		if err == nil && (len(routes) == 0 || routes[0].MTU != mtu) {
			err = fmt.Errorf("the kernel knows of the path to %s: %+v; want MTU %d", to, routes, mtu)
		}
		return err
	})
}

// forgetPaths makes the kernel of this thread's namespace forget path MTUs.
func forgetPaths() error {
	return errors.Join(netns.Sysctl(map[string]string{"ipv4/route/flush": "1"}),
		netns.Sysctl(map[string]string{"ipv6/route/flush": "1"}))
}
