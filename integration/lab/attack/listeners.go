package attack

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/device"

	"culvert/integration/lab"
	"culvert/integration/lab/netns"
	"culvert/integration/lab/plan"
	"culvert/integration/lab/probe"
	"culvert/integration/lab/step"
)

// listenerAttacks concern other users of a gateway: scrapers, senders of errors, peers, nodes.
func (l *attacks) listenerAttacks() []lab.Check {
	return []lab.Check{
		l.against("scrapers", "rome/gateway × rome/node2", setting("metrics", metricsEverywhere), l.attackMetrics),
		l.against("ICMP errors", "rome/pod1 × rome/pod2", nil, func(ctx context.Context) (string, error) {
			return l.attackErrors(ctx, "rome/pod1", 1)
		}),
		l.against("ICMP errors", "rome/node1 × rome/pod2", nil, func(ctx context.Context) (string, error) {
			return l.attackErrors(ctx, "rome/node1", 250)
		}),
		l.against("handshakes", "stranger × rome/pod2", nil, func(ctx context.Context) (string, error) {
			return l.attackHandshakes(ctx, l.stranger())
		}),
		l.against("handshakes", "peer × rome/pod2", nil, func(ctx context.Context) (string, error) {
			return l.attackHandshakes(ctx, l.Outer()[0].Peering.Addr())
		}),
		l.against("new session", "stranger × both gateways", nil, l.attackSession),
		l.against("neighbour queue", "milan/pod1 × rome/pod2", nil, l.attackNeighbourQueue),
	}
}

// metricsEverywhere also serves metrics on the underlay.
const (
	metricsPort       = 8082
	metricsEverywhere = ":8082"
)

// attackMetrics is a local user who requests pages without reading them, from many loopback
// addresses and from the machine's own.
func (l *attacks) attackMetrics(ctx context.Context) (string, error) {
	const (
		greedy, requests = 500, 40
		slow             = 1000
	)
	gateway, e := l.Host("rome/gateway"), l.Pair("rome/pod2", "milan/pod2")
	own := netip.AddrPortFrom(l.Plan()[0].Gateway, metricsPort)
	request := []byte("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
	half := request[:len(request)-4]
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	for i := range greedy + slow {
		from, to := netip.AddrFrom4([4]byte{127, 1, byte(i), 1}), netip.MustParseAddrPort(lab.MetricsAddress)
		if i%2 == 1 {
			from, to = own.Addr(), own
		}
		conn, err := gateway.DialFrom(ctx, "tcp", netip.AddrPortFrom(from, 0), to, nil)
		if err != nil {
			return "", fmt.Errorf("hostile scraper %d: %w", i, err)
		}
		conns = append(conns, conn)
		text := bytes.Repeat(request, requests)
		switch {
		case i >= greedy+slow/2:
			text = half
		case i >= greedy:
			text = request
		}
		if _, err := conn.Write(text); err != nil && !errors.Is(err, unix.ECONNRESET) && !errors.Is(err, unix.EPIPE) {
			return "", fmt.Errorf("hostile scraper %d: %w", i, err)
		}
	}
	figure, err := l.beside(ctx, nil, echoRequests("pings", 100, e.From, e.Target, 84),
		scrapes(5, l.Host("rome/node2"), own),
		healthChecks("health checks of the machine's own", 20, gateway, own), healthChecks("health checks of another",
			20, l.Host("rome/node2"), own))
	return fmt.Sprintf("%d × %d unread, %d slow; %s", greedy, requests, slow, figure), err
}

// attackErrors makes the gateway report expired packets to one sender or many behind a node;
// another pod's traceroute needs such an error too.
func (l *attacks) attackErrors(ctx context.Context, from string, senders int) (string, error) {
	const count = 50_000
	e := l.Pair("rome/pod2", "milan/pod2")
	p, ttl := l.Plan(), byte(1)
	if from == "rome/pod1" {
		ttl = 2 // its node uses up one
	}
	to := netip.AddrPortFrom(p[1].Seen(p[1].Nodes[0].Pod), attackPort)
	f := &probe.Flood{From: l.At(from), Count: count, Packet: func(i int) []byte {
		return probe.SilentHop(netip.AddrPortFrom(plan.Behind(p[0].Nodes[0].Pod, i%senders), attackPort), to, ttl)
	}}
	return l.beside(ctx, []*probe.Flood{f}, traces(15, e.From, e.Target, p[0].Internal))
}

// stranger is an unused address: on the link between the gateways or, for IPv6, where a /64 counts
// as one sender, elsewhere.
func (l *attacks) stranger() netip.Addr {
	if l.Outer().Is6() {
		return netip.MustParseAddr("2001:db8:d::66")
	}
	return lab.Spare(l.Outer()[0].Peering)
}

// attackHandshakes starts WireGuard handshakes while a session exists.
func (l *attacks) attackHandshakes(ctx context.Context, from netip.Addr) (_ string, err error) {
	defer step.Catch(&err)
	const count = 50_000
	e := l.Pair("rome/pod2", "milan/pod2")
	f := step.Must(l.handshakes(count, from))
	return l.beside(ctx, []*probe.Flood{f}, echoRequests("pings", 100, e.From, e.Target, 84))
}

// attackSession starts such handshakes while the gateways start and do not know each other's
// address yet.
func (l *attacks) attackSession(ctx context.Context) (_ string, err error) {
	defer step.Catch(&err)
	f := step.Must(l.handshakes(0, l.stranger()))
	flooding, stop := context.WithCancel(ctx)
	defer stop()
	underWay, ended := make(chan struct{}), make(chan error, 1)
	packet := f.Packet
	f.Packet = func(i int) []byte {
		if i == probe.FloodBurst {
			close(underWay)
		}
		return packet(i)
	}
	var s probe.Sent
	go func() {
		var err error
		s, err = f.Run(flooding)
		ended <- err
	}()
	select {
	case <-underWay:
	case err := <-ended:
		return "", err
	}
	began := time.Now()
	err = l.UseGateways(ctx, &lab.CulvertGateway)
	took := time.Since(began)
	stop()
	err = errors.Join(err, <-ended)
	return fmt.Sprintf("%s; session after %d ms", s, took.Milliseconds()), err
}

// handshakes makes a flood of initiations from a sender that knows the public key of milan's
// gateway.
func (l *attacks) handshakes(count int, from netip.Addr) (*probe.Flood, error) {
	const kinds, port = 64, 51840
	key, err := base64.StdEncoding.DecodeString(l.PublicKey[1])
	if err != nil {
		return nil, err
	}
	var macs device.CookieGenerator
	macs.Init(device.NoisePublicKey(key))
	random := rand.NewChaCha8([32]byte{1})
	var packets [][]byte
	for range kinds {
		message := make([]byte, device.MessageInitiationSize)
		random.Read(message)
		copy(message, []byte{device.MessageInitiationType, 0, 0, 0})
		macs.AddMacs(message)
		packets = append(packets, probe.DatagramOf(netip.AddrPortFrom(from, port),
			netip.AddrPortFrom(l.Outer()[1].Peering.Addr(), port), message...).Bytes())
	}
	return &probe.Flood{From: l.HostOf(l.Outer(), "rome/gateway"), Count: count,
		Packet: func(i int) []byte { return packets[i%kinds] }}, nil
}

// attackNeighbourQueue sends to nodes that do not answer, while a node comes back whose MAC address
// must be resolved: its first packet waits for that.
func (l *attacks) attackNeighbourQueue(ctx context.Context) (_ string, err error) {
	defer step.Catch(&err)
	const absent, each = 32, 128
	rome, outer := &l.Plan()[0], &l.Outer()[0]
	// The pod CIDR of an absent node.
	pods := func(i int) netip.Prefix {
		return netip.MustParsePrefix(l.Plan().Text(fmt.Sprintf("10.0.%d.0/24", 150+i)))
	}
	with := func(second bool) func(lab.Object) {
		return func(config lab.Object) {
			nodes := lab.NodesOf(config)
			if !second {
				nodes = nodes[:1]
			}
			for i := range absent {
				var address []netip.Addr
				for _, p := range l.Plans() {
					address = append(address, plan.Behind(p[0].Nodes[1].Internal, 100+i))
				}
				nodes = append(nodes, lab.Object{"name": fmt.Sprintf("rome-absent%d", i), "vni": 1000 + i,
					"underlay": plan.Behind(outer.Nodes[1].Underlay, 150+i),
					"address":  lab.OneOrBoth(address), "podCIDRs": []netip.Prefix{pods(i)}})
			}
			lab.Set(config, "geneve.nodes", nodes)
		}
	}
	step.Try(l.Reload(ctx, 0, with(false)))
	attacker, e := l.At("milan/pod1"), l.Pair("milan/pod2", "rome/pod2")
	f := &probe.Flood{From: attacker, Count: absent * each, Packet: func(i int) []byte {
		pod := rome.Seen(plan.Behind(pods(i%absent).Addr(), 5))
		return probe.SilentUDP(netip.AddrPortFrom(attacker.Address, uint16(1024+i)), netip.AddrPortFrom(pod,
			attackPort))
	}}
	filled := step.Must(l.beside(ctx, []*probe.Flood{f}))
	step.Try(l.Reload(ctx, 0, with(true)))
	more, err := l.beside(ctx, nil, echoRequests("pings", 20, e.From, e.Target, 84))
	return filled + "; " + more, err
}

// traces sends packets that expire at the gateway, which must report it. Their rate stays within a
// pod's share of errors.
func traces(n int, from *netns.Host, to, gateway netip.Addr) *innocent {
	in := withPinger("traces", n, from, func(p *probe.Pinger) error {
		a, err := p.Echo(to, 84, 2)
		if err == nil && (a.Message.Type != p.Types().TimeExceeded || a.From != gateway) {
			err = fmt.Errorf("%v from %s, want time exceeded from %s", a.Message.Type, a.From, gateway)
		}
		return err
	})
	in.every = time.Second / 15
	return in
}
