package nat_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"testing"
	"time"

	"culvert/nat"
	"culvert/nat/nattest"
)

// A model is a slow connection table: a slice, searched from its start. It knows UDP and ICMP echo
// over IPv4 and IPv6.
type model struct {
	most        int
	life        time.Duration // of all connections; 0: by protocol
	connections []*modelConn  // the oldest first
}

type modelEnd struct {
	addr netip.Addr
	port uint16
}

type modelConn struct {
	icmp     bool
	inbound  bool
	node     nat.Link // of origin, or the one that leads to the destination
	local    modelEnd // as nodes see it
	seen     modelEnd // the remote end as nodes see it
	mapped   modelEnd // the local end as the tunnel sees it
	real     modelEnd // the remote end as the tunnel sees it
	lastSeen nat.Time
	replied  bool
	packets  int // of both directions
}

// pass counts a packet of the connection.
func (c *modelConn) pass(now nat.Time, reply bool) {
	c.lastSeen, c.replied, c.packets = now, c.replied || reply, c.packets+1
}

// settled reports whether the connection is never evicted.
func (c *modelConn) settled() bool { return c.replied && !c.icmp && c.packets >= 4 }

func (m *model) lifetime(c *modelConn) time.Duration {
	d := 120 * time.Second
	if c.icmp {
		d = 60 * time.Second
	}
	if m.life > 0 {
		d = m.life
	}
	if !c.settled() && m.pressed() {
		d = min(d, 30*time.Second)
	}
	return d
}

func (m *model) pressed() bool { return len(m.connections)*4 > m.most*3 }

func (m *model) remove(c *modelConn) {
	for i := range m.connections {
		if m.connections[i] == c {
			m.connections = append(m.connections[:i], m.connections[i+1:]...)
			return
		}
	}
}

// expire removes expired connections.
func (m *model) expire(now nat.Time) {
	var left []*modelConn
	for _, c := range m.connections {
		if c.lastSeen.Add(m.lifetime(c)) > now {
			left = append(left, c)
		}
	}
	m.connections = left
}

// outbound finds the connection of a packet from a node.
func (m *model) outbound(in nat.Link, icmp bool, local, seen modelEnd) *modelConn {
	for _, c := range m.connections {
		if c.icmp == icmp && c.local == local && c.seen == seen && (c.inbound || c.node == in) {
			return c
		}
	}
	return nil
}

// fromTunnel finds the connection of a packet from the tunnel.
func (m *model) fromTunnel(icmp bool, real, mapped modelEnd) *modelConn {
	for _, c := range m.connections {
		if c.icmp == icmp && c.mapped == mapped && c.real == real {
			return c
		}
	}
	return nil
}

// source returns the link and the address that a connection came from.
func (c *modelConn) source() (nat.Link, netip.Addr) {
	if c.inbound {
		return nat.Tunnel, c.real.addr
	}
	return c.node, c.local.addr
}

// modelHeld counts the entries of a link, of a network of the link, and of an address of the
// network.
type modelHeld struct{ link, network, address int }

func (m *model) held(link nat.Link, addr netip.Addr) (h modelHeld) {
	for _, c := range m.connections {
		if l, a := c.source(); l == link {
			h.link++
			if networkOf(a) == networkOf(addr) {
				h.network++
			}
			if a == addr {
				h.address++
			}
		}
	}
	return h
}

func networkOf(a netip.Addr) netip.Prefix {
	if a.Is4() {
		return netip.PrefixFrom(a, 24).Masked()
	}
	return netip.PrefixFrom(a, 64).Masked()
}

// full reports whether a source is at its share.
func (m *model) full(link nat.Link, addr netip.Addr) bool {
	h := m.held(link, addr)
	left := m.most - len(m.connections) - h.link
	return left <= 0 || h.address >= left || h.network >= 2*left
}

// yields reports whether a connection makes room for one of another source.
func (m *model) yields(c *modelConn, link nat.Link, addr netip.Addr) bool {
	l, a := c.source()
	his, mine := m.held(l, a), m.held(link, addr)
	switch {
	case l != link:
		return his.link > mine.link
	case networkOf(a) != networkOf(addr):
		return his.network >= mine.network || mine.network <= mine.link/16 || mine.address <= mine.link/16 &&
			his.network > mine.link/16
	}
	return his.address >= mine.address || mine.address <= mine.network/16
}

// room makes room for a connection of a source, or returns false.
func (m *model) room(link nat.Link, addr netip.Addr, now nat.Time) bool {
	if m.pressed() {
		for range 2 {
			for _, c := range m.connections {
				if c.settled() {
					continue
				}
				if c.lastSeen.Add(30*time.Second) <= now {
					m.remove(c)
				} else {
					break
				}
				break
			}
		}
	}
	if !m.full(link, addr) {
		return true
	}
	var unsettled []*modelConn
	for _, c := range m.connections {
		if !c.settled() {
			unsettled = append(unsettled, c)
		}
	}
	for _, c := range unsettled[:min(4, len(unsettled))] {
		if m.yields(c, link, addr) {
			m.remove(c)
			return true
		}
		m.remove(c)
		m.connections = append(m.connections, c)
	}
	return false
}

// full reports whether r means that there was no room for a connection.
func full(r nat.Reason) bool { return r == nat.ReasonTableFull || r == nat.ReasonConnectionShare }

// An ether gives one engine and its model the same packets.
type ether struct {
	t     *testing.T
	r     *rand.Rand
	e     *nat.Engine
	m     model
	check nat.SourceCheck
	now   nat.Time
	log   []string
}

func (x *ether) fail(format string, args ...any) {
	x.t.Helper()
	for _, l := range x.log[max(0, len(x.log)-40):] {
		x.t.Log(l)
	}
	x.t.Fatalf(format, args...)
}

func (x *ether) send(in nat.Link, icmp, request bool, from, to modelEnd) (nat.Verdict, *nattest.View) {
	p := nattest.IP{Source: from.addr.String(), Destination: to.addr.String()}
	switch {
	case !icmp:
		p.Body = nattest.UDP{SourcePort: from.port, DestinationPort: to.port, Payload: nattest.Payload(x.r.IntN(20), 1)}
	case from.addr.Is6():
		p.Body = nattest.ICMP{Type: 128, Rest: uint32(from.port) << 16}
	default:
		p.Body = nattest.ICMP{Type: 8, Rest: uint32(from.port) << 16}
	}
	if m, ok := p.Body.(nattest.ICMP); ok && !request {
		m.Type = map[uint8]uint8{8: 0, 128: 129}[m.Type]
		p.Body = m
	}
	v, out := process(x.t, x.e, in, p.Bytes(), x.now)
	if out == nil {
		x.log = append(x.log, fmt.Sprintf("%d: %d %v > %v: %v %v", x.now, in, from, to, v.Action, v.Reason))
		return v, nil
	}
	view, err := nattest.Check(out[0])
	if err != nil {
		x.fail("%v", err)
	}
	x.log = append(x.log, fmt.Sprintf("%d: %d %v > %v: %d %s:%d > %s:%d", x.now, in, from, to, v.Out, view.Source,
		view.SourcePort, view.Destination, view.DestinationPort))
	return v, &view
}

func (x *ether) expect(v nat.Verdict, got *nattest.View, out nat.Link, from, to modelEnd) {
	x.t.Helper()
	if v.Action != nat.Forward || v.Out != out {
		x.fail("%v %v to link %d, want link %d", v.Action, v.Reason, v.Out, out)
	}
	if got.Source != from.addr || got.Destination != to.addr || got.SourcePort != from.port ||
		got.DestinationPort != to.port {
		x.fail("%s:%d > %s:%d, want %v > %v", got.Source, got.SourcePort, got.Destination,
			got.DestinationPort, from, to)
	}
}

var (
	modelLocals = []string{"10.200.1.5", "10.200.1.6", "203.0.113.9", "10.70.0.0", "10.80.0.2", "fd00:200:0:1::5"}
	modelSeen   = map[string]string{"10.71.3.9": "10.200.3.9", "10.72.49.9": "10.64.1.9", "10.74.0.0": "10.70.0.0",
		"fd00:71:0:4000::9": "fd00:200::9"}
)

func (x *ether) pick() (icmp bool, local, seen, real modelEnd) {
	icmp = x.r.IntN(3) == 0
	local.addr = address(modelLocals[x.r.IntN(len(modelLocals))])
	keys := []string{"10.71.3.9", "10.72.49.9", "10.74.0.0", "fd00:71:0:4000::9"}
	k := keys[x.r.IntN(3)]
	if local.addr.Is6() {
		k = keys[3]
	}
	seen.addr, real.addr = address(k), address(modelSeen[k])
	local.port, seen.port = uint16(2000+x.r.IntN(4)), uint16(53+x.r.IntN(2))
	if icmp {
		seen.port = local.port
	}
	real.port = seen.port
	return
}

func pod(a netip.Addr) bool {
	return prefix("10.200.0.0/16").Contains(a) || prefix("fd00:200::/50").Contains(a)
}

// routed reports whether a has a route, which then leads to node 1.
func routed(a netip.Addr) bool { return pod(a) || a == address("10.80.0.2") }

// step does one random thing to both.
func (x *ether) step() {
	icmp, local, seen, real := x.pick()
	x.m.expire(x.now)
	switch k := x.r.IntN(20); {
	case k == 0 && x.m.most < 1000:
		x.now = x.now.Add(time.Millisecond)
	case k == 0:
		x.now = x.now.Add(time.Duration(x.r.IntN(50)) * time.Second)
		x.log = append(x.log, fmt.Sprintf("%d: later", x.now))
	case k == 1:
		if x.m.most < 1000 {
			return
		}
		// The wheel has a resolution of seconds: an expired connection is gone two seconds later.
		alive := len(x.m.connections)
		x.now = x.now.Add(2 * time.Second)
		for !x.e.Sweep(x.now) {
		}
		x.m.expire(x.now)
		if got := x.e.Stats().Connections; got > alive || got < len(x.m.connections) {
			x.fail("%d connections, the model has had %d and has %d", got, alive, len(x.m.connections))
		}
	case k < 11:
		x.fromNode([]nat.Link{node1, node2}[x.r.IntN(2)], icmp, local, seen, real)
	case k < 15 && len(x.m.connections) > 0:
		c := x.m.connections[x.r.IntN(len(x.m.connections))]
		if x.r.IntN(2) == 0 {
			x.fromNode([]nat.Link{node1, node2}[x.r.IntN(2)], c.icmp, c.local, c.seen, c.real)
			return
		}
		x.fromTunnel(c.icmp, c.real, c.mapped)
	default:
		x.fromTunnel(icmp, real, local)
	}
}

func (x *ether) fromNode(in nat.Link, icmp bool, local, seen, real modelEnd) {
	real.port = seen.port // a translated identifier's port belongs to its own connection only
	c := x.m.outbound(in, icmp, local, seen)
	request := c == nil || !c.inbound
	v, got := x.send(in, icmp, request, local, seen)
	if x.check == nat.SourceCheckNode && in != node1 && routed(local.addr) {
		if v.Reason != nat.ReasonBadSource {
			x.fail("%v %v, want bad-source", v.Action, v.Reason)
		}
		return
	}
	if c != nil {
		x.expect(v, got, nat.Tunnel, c.mapped, c.real)
		if want := c.inbound && in != c.node; v.Asymmetric != want {
			x.fail("asymmetric %t, want %t", v.Asymmetric, want)
		}
		c.pass(x.now, c.inbound)
		return
	}
	c = &modelConn{icmp: icmp, node: in, local: local, seen: seen, mapped: local, real: real,
		lastSeen: x.now, packets: 1}
	stateful := !pod(local.addr)
	if !stateful && x.m.full(nat.Tunnel, real.addr) {
		if x.expect(v, got, nat.Tunnel, local, real); !v.Untracked {
			x.fail("tracked, but the model's destination is at its share")
		}
		return
	}
	if stateful && local.addr != address("10.70.0.0") {
		c.mapped.addr = address("10.70.0.0")
	}
	if x.m.fromTunnel(icmp, c.real, c.mapped) != nil {
		// The port is taken: any free one will do.
		if got == nil {
			if !full(v.Reason) || !stateful || x.m.room(in, local.addr, x.now) {
				x.fail("%v %v, want another port", v.Action, v.Reason)
			}
			return
		}
		if v.Untracked {
			x.expect(v, got, nat.Tunnel, c.mapped, real)
			if x.m.room(in, local.addr, x.now) {
				x.fail("untracked, but there is room")
			}
			return
		}
		c.mapped.port = got.SourcePort
		if icmp {
			c.real.port = got.SourcePort
		}
		if x.m.fromTunnel(icmp, c.real, c.mapped) != nil {
			x.fail("port %d is taken too", c.mapped.port)
		}
	}
	if !x.m.room(in, local.addr, x.now) {
		if stateful {
			if !full(v.Reason) {
				x.fail("%v %v, want table-full", v.Action, v.Reason)
			}
			return
		}
		if x.expect(v, got, nat.Tunnel, local, real); !v.Untracked {
			x.fail("tracked, but the model has no room")
		}
		return
	}
	x.expect(v, got, nat.Tunnel, c.mapped, c.real)
	x.m.connections = append(x.m.connections, c)
}

func (x *ether) fromTunnel(icmp bool, real, mapped modelEnd) {
	c := x.m.fromTunnel(icmp, real, mapped)
	v, got := x.send(nat.Tunnel, icmp, c == nil || c.inbound, real, mapped)
	if c != nil {
		out := c.node
		if routed(c.local.addr) {
			out = node1
		}
		x.expect(v, got, out, c.seen, c.local)
		c.pass(x.now, !c.inbound)
		return
	}
	switch {
	case mapped.addr == address("10.70.0.0"):
		if v.Reason != nat.ReasonNoMapping {
			x.fail("%v %v, want no-mapping", v.Action, v.Reason)
		}
	case mapped.addr == address("10.80.0.2"):
		if v.Reason != nat.ReasonToNode {
			x.fail("%v %v, want to-node", v.Action, v.Reason)
		}
	case mapped.addr == address("203.0.113.9"):
		if v.Reason != nat.ReasonNoRoute {
			x.fail("%v %v, want no-route", v.Action, v.Reason)
		}
	case !routed(mapped.addr):
		x.fail("%v is not routed", mapped)
	default:
		seen := real
		for s, r := range modelSeen {
			if real.addr == address(r) {
				seen.addr = address(s)
			}
		}
		c = &modelConn{icmp: icmp, inbound: true, node: node1, local: mapped, seen: seen, mapped: mapped, real: real,
			lastSeen: x.now, packets: 1}
		if x.m.full(node1, mapped.addr) {
			if x.expect(v, got, node1, c.seen, c.local); !v.Untracked {
				x.fail("tracked, but the model's destination is at its share")
			}
			return
		}
		if taken := x.m.answering(icmp, c.local, c.seen); taken {
			if got == nil {
				x.fail("%v %v, want another port", v.Action, v.Reason)
			}
			if v.Untracked {
				if x.expect(v, got, node1, c.seen, c.local); x.m.room(nat.Tunnel, real.addr, x.now) {
					x.fail("untracked, but there is room")
				}
				return
			}
			c.seen.port = got.SourcePort
			if icmp {
				c.local.port = got.SourcePort
			}
			if x.m.answering(icmp, c.local, c.seen) {
				x.fail("port %d is taken too", c.seen.port)
			}
		}
		if !x.m.room(nat.Tunnel, real.addr, x.now) {
			if x.expect(v, got, node1, c.seen, c.local); !v.Untracked {
				x.fail("tracked, but the model has no room")
			}
			return
		}
		x.expect(v, got, node1, c.seen, c.local)
		x.m.connections = append(x.m.connections, c)
	}
}

// answering reports whether packets from any node with these ends belong to a connection.
func (m *model) answering(icmp bool, local, seen modelEnd) bool {
	return m.outbound(node1, icmp, local, seen) != nil || m.outbound(node2, icmp, local, seen) != nil
}

// TestModel compares the table with the model over random packets: in virtual time with room for
// all connections, and at one moment with room for a few. NAT_SEED replays a run.
func TestModel(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if s, err := strconv.ParseUint(os.Getenv("NAT_SEED"), 10, 64); err == nil {
		seed = s
	}
	rounds := uint64(30)
	if testing.Short() {
		rounds = 5
	}
	for _, most := range []int{1 << 16, 24} {
		t.Run(fmt.Sprint(most), func(t *testing.T) {
			for round := range rounds {
				t.Logf("NAT_SEED=%d round %d", seed, round)
				x := ether{t: t, r: rand.New(rand.NewPCG(seed, round)), now: start, m: model{most: most},
					check: nat.SourceCheck(round % 2)}
				x.e = engine(t, func(c *nat.Config) { c.MaxConnections, c.SourceCheck = most, x.check })
				for range 2000 {
					x.step()
				}
				ledger(t, x.e)
			}
		})
	}
}
