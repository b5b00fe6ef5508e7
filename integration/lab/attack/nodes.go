package attack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"culvert/integration/lab"
	"culvert/integration/lab/plan"
	"culvert/integration/lab/probe"
	"culvert/integration/lab/step"
	"culvert/nat/nattest"
)

// hostilePeer makes milan's gateway route to the addresses of rome's nodes too, because the owner
// of a peer's key can send anything. In rome, an external address stands for the second node.
func (l *attacks) hostilePeer(i int, config lab.Object) {
	rome := &l.Plan()[0]
	if i == 0 {
		nat := config["nat"].(lab.Object)
		nat["addresses"] = append(nat["addresses"].([]lab.Object), lab.Object{"external": mappedNode(rome),
			"internal": rome.Nodes[1].Internal})
		return
	}
	config["state"] = l.Path(plan.V4[1].Name, "hostile") // without stored remaps
	lab.Set(config, "network.remote.externalCIDRs", []lab.Object{
		{"cidr": firstHalf(rome.External), "remap": firstHalf(rome.SeenExt)},
		{"cidr": firstHalf(netip.PrefixFrom(rome.Nodes[0].Internal, rome.External.Bits())),
			"remap": otherHalf(rome.SeenExt)},
	})
}

// mappedNode is the external address that stands for a cluster's second node.
func mappedNode(c *plan.Cluster) netip.Addr { return plan.Behind(c.MappedAs, 1) }

func firstHalf(p netip.Prefix) netip.Prefix {
	return netip.PrefixFrom(p.Masked().Addr(), p.Bits()+1)
}

func otherHalf(p netip.Prefix) netip.Prefix {
	b := p.Masked().Addr().AsSlice()
	b[p.Bits()/8] |= 0x80 >> (p.Bits() % 8)
	a, _ := netip.AddrFromSlice(b)
	return netip.PrefixFrom(a, p.Bits()+1)
}

// broadcast is an address of the pods' network that Linux takes for the node's own: the last one
// or, over IPv6, the first (anycast).
func broadcast(n *plan.ClusterNode) netip.Addr {
	a := n.PodCIDR.Masked().Addr()
	for next := a.Next(); a.Is4() && n.PodCIDR.Contains(next); next = a.Next() {
		a = next
	}
	return a
}

// attackNodes sends packets that would open connections to a node's own address, whole and in
// fragments, and to those of its pods' network that Linux takes for its own, from a pod of the
// peer. Meanwhile the node asks that cluster, and pods ask each other; none of their answers may be
// lost.
func (l *attacks) attackNodes(ctx context.Context) (_ string, err error) {
	defer step.Catch(&err)
	p := l.Plan()
	attacker, node := l.At("milan/pod1"), l.At("rome/node1").At(p[0].Nodes[0].Internal)
	seen, all := plan.Remap(node.Address, otherHalf(p[0].SeenExt)), p[0].Seen(broadcast(&p[0].Nodes[0]))
	heard := step.Must(newSourceServer(node.At(p[0].Anywhere().Addr())))
	defer heard.Close()
	defer step.Must(probe.NewNameServer(node, lab.BackendPort)).Close()
	asked := l.Pair("rome/node1", "milan/pod2")
	defer step.Must(probe.NewNameServer(asked.To, lab.BackendPort)).Close()
	const count = 20_000
	f := &probe.Flood{From: attacker, Count: count, Packet: func(i int) []byte {
		from, to := netip.AddrPortFrom(attacker.Address, uint16(1024+i)), netip.AddrPortFrom(seen, attackPort)
		switch i % 5 {
		case 0:
			return probe.SilentTCP(from, netip.AddrPortFrom(seen, lab.BackendPort), nattest.SYN, uint32(i), 0)
		case 1:
			return probe.FirstFragment(from, to, uint16(i))
		case 2:
			return probe.LaterFragment(from.Addr(), to.Addr(), uint16(i-1))
		case 3:
			return probe.DatagramOf(from, netip.AddrPortFrom(all, attackPort), []byte("to all")...).Bytes()
		}
		return probe.DatagramOf(from, to, []byte("forged")...).Bytes()
	}}
	defer step.Must(probe.NewNameServer(l.At("rome/node2").At(p[0].Nodes[1].Internal), lab.BackendPort)).Close()
	figure, err := l.beside(ctx, []*probe.Flood{f}, newCalls(20, asked.From, netip.AddrPortFrom(asked.Target,
		lab.BackendPort), asked.To.Name),
		newCalls(20, attacker, netip.AddrPortFrom(p[0].Seen(mappedNode(&p[0])), lab.BackendPort), "rome/node2"),
		echoRequests("pings of a pod", 20, l.At("milan/pod2"), p[0].Seen(p[0].Nodes[1].Pod), 84))
	if err != nil {
		return "", err
	}
	if c, err := probe.NewCall(ctx, attacker, netip.AddrPortFrom(seen, lab.BackendPort)); err == nil {
		c.Conn.Close()
		return "", fmt.Errorf("%s has connected to TCP port %d of %s", attacker.Name, lab.BackendPort, node.Name)
	} else if timeout := net.Error(nil); !errors.As(err, &timeout) || !timeout.Timeout() {
		return "", fmt.Errorf("%s, to %s: %w, want no answer", attacker.Name, node.Name, err)
	}
	knock := step.Must(probe.NewPinger(attacker))
	defer knock.Close()
	for _, to := range []netip.Addr{seen, all} {
		if a, err := knock.Echo(to, 84, probe.MaxTTL); !errors.Is(err, probe.ErrUnanswered) {
			return "", fmt.Errorf("%s, pinging %s of %s: %+v, %w; want no answer", attacker.Name, to, node.Name, a, err)
		}
	}
	// The node's own datagram arrives last, and nothing before it.
	step.Must(heard.WriteToUDPAddrPort([]byte("own"), netip.AddrPortFrom(node.Address, attackPort)))
	step.Try(heard.expect("own", netip.AddrPortFrom(node.Address, attackPort)))
	metrics := step.Must(lab.GatewayMetrics(ctx, l.Host("rome/gateway")))
	for reason, sent := range map[string]float64{"to-node": count * 4 / 5, "bad-destination": count / 5} {
		drops := metrics[`culvert_dropped_packets_total{direction="inbound",reason="`+reason+`"}`]
		if drops < sent/2 {
			return "", fmt.Errorf("%.0f packets dropped as %s, %.0f were sent", drops, reason, sent)
		}
		figure += fmt.Sprintf("; %.0f %s", drops, reason)
	}
	return figure, nil
}
