package attack

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"time"

	"culvert/integration/lab"
	"culvert/integration/lab/probe"
	"culvert/integration/lab/step"
	"culvert/nat/nattest"
)

const (
	attackPort   = 9000 // at the remote pod
	smallTable   = 8192
	attackedRSS  = 64 << 20 // bytes of a gateway's memory without a file behind it
	hostileHosts = 300
)

// tableAttacks fill shared tables of the gateway.
func (l *attacks) tableAttacks() []lab.Check {
	table := func(max int) func(int, lab.Object) { return setting("nat.maxConnections", max) }
	return []lab.Check{
		l.against("ports of U", "rome/node1 × rome/node2", table(1<<20), l.attackPorts),
		l.against("fragments", "rome/pod1 × rome/node2", nil, l.attackFragments),
		l.against("affinity", "milan/node2 × milan/pod1", l.manyServices, l.attackAffinity),
		l.against("half-open", "rome/node1 × rome/node2", table(smallTable), l.attackHalfOpen),
		l.against("full table", "rome/pod1 × rome/node2", table(smallTable), l.attackTable),
	}
}

// nth returns an address in the n-th place after a: for IPv6 in the n-th /64, because gateways
// count senders by it.
func nth(a netip.Addr, n int) netip.Addr {
	b := a.AsSlice()
	place := b
	if a.Is6() {
		place = b[4:8]
	}
	binary.BigEndian.PutUint32(place, binary.BigEndian.Uint32(place)+uint32(n))
	a, _ = netip.AddrFromSlice(b)
	return a
}

// attackPorts takes every port of U towards one service for one client; a client of the other node
// must still get some.
func (l *attacks) attackPorts(ctx context.Context) (_ string, err error) {
	defer step.Catch(&err)
	e := l.Pair("rome/node2", "milan/pod1")
	server := step.Must(probe.NewEchoServer(e.To))
	defer server.Close()
	to := netip.AddrPortFrom(e.Target, uint16(server.Port()))
	f := &probe.Flood{From: l.At("rome/node1"), Count: 65_535, Packet: func(i int) []byte {
		return probe.SilentUDP(netip.AddrPortFrom(l.Plan()[0].BehindOther, uint16(i+1)), to)
	}}
	return l.beside(ctx, []*probe.Flood{f}, datagrams("first packets", 200, e, server.Port()))
}

// attackFragments sends later fragments without a first one, as many as nine incomplete datagrams a
// second accumulate in their lifetime of 30 s.
func (l *attacks) attackFragments(ctx context.Context) (string, error) {
	const lone, incomplete = 4000, 270
	p, e := l.Plan(), l.Pair("rome/node2", "milan/pod2")
	pod := p[0].Nodes[0].Pod
	from, to := netip.AddrPortFrom(pod, attackPort), netip.AddrPortFrom(p[1].Seen(p[1].Nodes[0].Pod), attackPort)
	f := &probe.Flood{From: l.At("rome/pod1"), Count: lone + incomplete, Packet: func(i int) []byte {
		if i < lone {
			return probe.LaterFragment(pod, to.Addr(), uint16(i+1))
		}
		return probe.FirstFragment(from, to, uint16(i+1))
	}}
	return l.beside(ctx, []*probe.Flood{f}, echoRequests("fragmented pings", 50, e.From, e.Target, 4001))
}

// manyServices gives rome as many additional services with affinity as the attack has clients.
func (l *attacks) manyServices(i int, config lab.Object) {
	if i != 0 {
		return
	}
	services := config["nat"].(lab.Object)["services"].([]lab.Object)
	backends := services[len(services)-2]["backends"] // of the last family
	for n := range hostileHosts {
		services = append(services, lab.Object{"name": fmt.Sprintf("sticky-%d", n), "address": l.hostileService(n),
			"port": lab.ServicePort, "protocol": "tcp",
			"affinity": "clientIP", "backends": backends})
	}
	lab.Set(config, "nat.services", services)
}

// hostileService is the address of one of manyServices.
func (l *attacks) hostileService(n int) netip.Addr { return nth(l.Plan()[0].Sticky, 256+n) }

// attackAffinity is a remote cluster that makes services remember every client it can invent. A
// client of another service must keep its backend, and the gateway's memory must stay bounded.
func (l *attacks) attackAffinity(ctx context.Context) (_ string, err error) {
	defer step.Catch(&err)
	p := l.Plan()
	rome, milan := &p[0], &p[1]
	from, to := l.At("milan/pod1"), netip.AddrPortFrom(rome.Seen(rome.Sticky), lab.ServicePort)
	defer step.Must(l.ServeBackends(p, 0))()
	c := step.Must(probe.NewCall(ctx, from, to))
	backend, _ := step.Must2(c.Ask())
	f := &probe.Flood{From: l.At("milan/node2"), Count: hostileHosts * hostileHosts, Packet: func(i int) []byte {
		from := nth(milan.Nodes[1].PodCIDR.Masked().Addr(), 1<<12+i/hostileHosts)
		to := netip.AddrPortFrom(rome.Seen(l.hostileService(i%hostileHosts)), lab.ServicePort)
		return probe.SilentTCP(netip.AddrPortFrom(from, uint16(1024+i%60_000)), to, nattest.SYN, uint32(i), 0)
	}}
	figure := step.Must(l.beside(ctx, []*probe.Flood{f}, questions(20, c, backend), newCalls(20, from, to, backend)))
	memory, err := l.Gateway(0).Memory()
	const mib = 1 << 20
	if err == nil && memory.Anonymous > attackedRSS {
		err = fmt.Errorf("the gateway has %.0f MiB that no file backs, want at most %d", memory.Anonymous/mib,
			attackedRSS/mib)
	}
	return fmt.Sprintf("%s; %.0f MiB", figure, memory.Anonymous/mib), err
}

// attackHalfOpen opens connections from many addresses behind one node. Meanwhile requests that the
// other node sent before wait for their answers.
func (l *attacks) attackHalfOpen(ctx context.Context) (_ string, err error) {
	defer step.Catch(&err)
	e := l.Pair("rome/node2", "milan/pod1")
	waiting := step.Must(newWaiting(ctx, e, 50))
	defer step.Must(probe.NewNameServer(e.To, lab.BackendPort)).Close()
	f := &probe.Flood{From: l.At("rome/node1"), Count: 4 * smallTable, Packet: func(i int) []byte {
		return probe.SilentTCP(netip.AddrPortFrom(nth(l.Plan()[0].BehindFirst, i%10_000), uint16(1024+i/10_000)),
			netip.AddrPortFrom(e.Target, attackPort), nattest.SYN, uint32(i), 0)
	}}
	figure := step.Must(l.beside(ctx, []*probe.Flood{f}, newCalls(50, e.From, netip.AddrPortFrom(e.Target,
		lab.BackendPort), "")))
	late, err := l.beside(ctx, nil, waiting.answers())
	return figure + "; " + late, err
}

// waiting is requests that have arrived and are answered late. Its sockets are open until ctx ends.
type waiting struct {
	server  *net.UDPConn
	clients []*net.UDPConn
	sources []netip.AddrPort
}

// newWaiting sends n requests and verifies that they arrive.
func newWaiting(ctx context.Context, e *probe.Ends, n int) (_ *waiting, err error) {
	defer step.Catch(&err)
	w := &waiting{server: step.Must(e.To.ListenUDP(e.To.Address, 0))}
	context.AfterFunc(ctx, func() { w.server.Close() })
	port := w.server.LocalAddr().(*net.UDPAddr).Port
	for i := range n {
		c := step.Must(e.DialUDP(ctx, port))
		context.AfterFunc(ctx, func() { c.Close() })
		step.Must(c.Write([]byte{byte(i)}))
		w.server.SetReadDeadline(time.Now().Add(probe.ReplyTimeout))
		request := make([]byte, 2)
		_, source, err := w.server.ReadFromUDPAddrPort(request)
		if err != nil {
			return nil, fmt.Errorf("%s, before the attack: %w", e.To.Name, err)
		}
		if request[0] != byte(i) {
			return nil, fmt.Errorf("%s: request %d instead of %d", e.To.Name, request[0], i)
		}
		w.clients, w.sources = append(w.clients, c), append(w.sources, source)
	}
	return w, nil
}

// answers answers the requests one after the other; each client must get its own answer.
func (w *waiting) answers() *innocent {
	next := 0
	return &innocent{what: "late answers", n: len(w.clients), ask: func(context.Context) error {
		answer := [2]byte{byte(next)}
		if _, err := w.server.WriteToUDPAddrPort(answer[:1], w.sources[next]); err != nil {
			return err
		}
		w.clients[next].SetReadDeadline(time.Now().Add(askTimeout))
		if _, err := w.clients[next].Read(answer[:]); err != nil {
			return err
		}
		if int(answer[0]) != next {
			return fmt.Errorf("answer %d to request %d", answer[0], next)
		}
		next++
		return nil
	}}
}

// attackTable fills the table with connections of one pod that the far end answers. An idle
// connection, over which the server speaks next, must survive, and new ones must find room.
func (l *attacks) attackTable(ctx context.Context) (_ string, err error) {
	defer step.Catch(&err)
	idle := step.Must(newIdle(l.Pair("rome/node2", "milan/pod1")))
	defer idle.close()
	defer step.Must(probe.NewNameServer(idle.To, lab.BackendPort)).Close()
	to := netip.AddrPortFrom(idle.Target, lab.BackendPort)
	figure := step.Must(l.fillTable(ctx, newCalls(20, idle.From, to, "")))
	after := step.Must(l.beside(ctx, nil, newCalls(50, idle.From, to, "")))
	return fmt.Sprintf("%s; then %s", figure, after), idle.serverSpeaks()
}

// fillTable runs the collusion, the first time beside the innocents, until it gains no more
// connections. It then makes sure that no evictable connections are left that would spare the
// innocents.
func (l *attacks) fillTable(ctx context.Context, innocents ...*innocent) (figure string, err error) {
	defer step.Catch(&err)
	e := l.Pair("rome/pod1", "milan/pod1")
	server := step.Must(probe.NewEchoServer(e.To))
	defer server.Close()
	had, most := 0, 0
	for {
		f := step.Must(l.beside(ctx, l.collusion(), innocents...))
		if figure == "" {
			figure, innocents = f, nil
		}
		before := had
		if had, most, err = l.connections(ctx, "rome/gateway"); err != nil {
			return "", err
		}
		if had <= before || had == most {
			break
		}
	}
	// Each exchange evicts a connection that nobody has answered.
	_, err = l.beside(ctx, nil, datagrams("exchanges", smallTable/6, e, server.Port()))
	return fmt.Sprintf("%s; %d of %d connections", figure, had, most), err
}

// connections returns how full a gateway's table is.
func (l *attacks) connections(ctx context.Context, gateway string) (n, most int, err error) {
	metrics, err := lab.GatewayMetrics(ctx, l.Host(gateway))
	return int(metrics["culvert_connections"]), int(metrics["culvert_connections_max"]), err
}

// collusion fills the table of rome's gateway: the first pod of milan answers what the first pod of
// rome sends. Each packet is sent more than once, because some are lost and some answers come too
// late.
func (l *attacks) collusion() []*probe.Flood {
	const flows, rounds = smallTable * 5 / 4, 2
	one := func(from, to string) *probe.Flood {
		e := l.Pair(from, to)
		return &probe.Flood{From: e.From, Count: rounds * flows, Packet: func(i int) []byte {
			port := uint16(10_000 + i%flows)
			return probe.SilentUDP(netip.AddrPortFrom(e.From.Address, port), netip.AddrPortFrom(e.Target, port))
		}}
	}
	return []*probe.Flood{one("rome/pod1", "milan/pod1"), one("milan/pod1", "rome/pod1")}
}
