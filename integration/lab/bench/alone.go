package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"culvert/gateway/node"
	"culvert/geneve"
	"culvert/integration/lab"
	"culvert/integration/lab/fault"
	"culvert/integration/lab/netns"
	"culvert/integration/lab/plan"
	"culvert/integration/lab/probe"
	"culvert/integration/lab/step"
)

// aloneSize and aloneSmall are the payloads in bytes of the packets in the bench of one gateway
// alone. The larger one fills the lab's MTU of 1340 bytes.
const (
	aloneSize  = 1312
	aloneSmall = 64
)

const (
	tunnelPort    = 6091   // geneve.listenPort
	etherBridging = 0x6558 // RFC 8926, Section 3.4

	metricForwarded = "culvert_forwarded_packets_total"

	// datagrams that every kernel with UDP_SEGMENT takes at once (UDP_MAX_SEGMENTS before Linux
	// 6.9)
	trainMost      = 64
	trainMostBytes = 65000 // with headers it is a packet of less than 64 KiB
)

// alone stops milan's gateway and floods rome's with trains from a node. It returns the number of
// datagrams that rome's gateway encrypted and sent, the duration in seconds, and the CPU seconds of
// its threads.
func (b *bench) alone(ctx context.Context, v *lab.Variant, size int) (packets, seconds, used float64, err error) {
	rome, milan := b.lab.Gateway(0), b.lab.Gateway(1)
	if err := milan.Signal(unix.SIGSTOP); err != nil {
		return 0, 0, 0, err
	}
	defer func() { err = errors.Join(err, milan.Signal(unix.SIGCONT)) }()
	stop, err := floodFromNode(b.lab, size)
	if err != nil {
		return 0, 0, 0, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	type moment struct {
		packets, used float64
		machine       resources
		at            time.Time
	}
	measure := func() (m moment, err error) {
		sums, err := lab.Counters(ctx, []*lab.Process{rome}, metricForwarded)
		if err != nil {
			return m, err
		}
		m.packets, m.at = sums[metricForwarded], time.Now()
		if m.used, err = rome.RunTime(); err == nil {
			m.machine, err = sample(ctx, b.lab, &lab.ReferenceGateway) // without milan's counters
		}
		return m, err
	}
	if err := step.Sleep(ctx, b.times.warmUp); err != nil {
		return 0, 0, 0, err
	}
	before, err := measure()
	if err == nil {
		err = step.Sleep(ctx, b.times.bulk)
	}
	if err != nil {
		return 0, 0, 0, err
	}
	after, err := measure()
	t := &b.totals[v.Name].streams
	t.used = t.used.plus(after.machine.minus(before.machine))
	return after.packets - before.packets, after.at.Sub(before.at).Seconds(), after.used - before.used, err
}

// floodFromNode sends datagrams from rome/pod1 to milan/pod1 through rome's gateway, in trains, as
// rome/node1 or its network card would. It sends as fast as it can until stop is called. The
// datagrams have size bytes of payload.
func floodFromNode(l *lab.Lab, size int) (stop func() error, err error) {
	train, datagram, err := trainOfNode(l, size)
	if err != nil {
		return nil, err
	}
	c := &plan.V4[0]
	s, err := netns.NewSocket(l.Host(c.Name+"/"+c.Nodes[0].Name), unix.SOCK_DGRAM, 0)
	if err != nil {
		return nil, err
	}
	if err = unix.SetsockoptInt(s.FD, unix.SOL_UDP, unix.UDP_SEGMENT, datagram); err == nil {
		err = s.Connect(netip.AddrPortFrom(c.Gateway, tunnelPort))
	}
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("UDP: %w", err)
	}
	var stopping atomic.Bool
	ended := make(chan error, 1)
	go func() {
		var err error
		for err == nil && !stopping.Load() {
			_, err = s.Write(train)
		}
		ended <- err
	}()
	return func() error {
		stopping.Store(true)
		defer s.Close()
		return <-ended
	}, nil
}

// trainOfNode returns equal tunnel datagrams, concatenated, and the size of one.
func trainOfNode(l *lab.Lab, size int) (train []byte, datagram int, err error) {
	c, n := &plan.V4[0], &plan.V4[0].Nodes[0]
	vni := geneve.VNI(n.VNI)
	own := geneve.MAC(vni, geneve.Node)
	err = l.Host(c.Name + "/" + n.Name).Do(func() error {
		link, err := netlink.LinkByName(lab.TunnelLink)
		if err == nil && len(link.Attrs().HardwareAddr) == len(own) { // a TUN device has none
			own = [6]byte(link.Attrs().HardwareAddr)
		}
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	var one []byte
	if l.Options.Mode == node.VXLAN {
		one, err = geneve.AppendVXLAN(one, vni)
	} else {
		one, err = (&geneve.Header{VNI: vni, Protocol: etherBridging}).AppendTo(one)
	}
	if err != nil {
		return nil, 0, err
	}
	to := geneve.MAC(vni, geneve.Gateway)
	one = append(append(append(one, to[:]...), own[:]...), unix.ETH_P_IP>>8, unix.ETH_P_IP&0xff)
	target := plan.V4[1].Seen(plan.V4[1].Nodes[0].Pod)
	one = append(one, probe.DatagramOf(netip.AddrPortFrom(n.Pod, fault.DiscardPort), netip.AddrPortFrom(target,
		fault.DiscardPort), make([]byte, size)...).Bytes()...)
	for range min(trainMost, trainMostBytes/len(one)) {
		train = append(train, one...)
	}
	return train, len(one), nil
}
