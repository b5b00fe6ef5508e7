package nat_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/packet"
)

// A smallTable is an engine with room for three connections, which two clients open from two ports
// each through U, and its model. After a restart, other takes its place.
type smallTable struct {
	t        *testing.T
	e, other *nat.Engine
	m        model
	now      nat.Time
	sent     [4][]byte
	answer   []byte
	known    [4]uint16 // the port that the last connection of each client and port had
	chosen   [4]uint16 // the port that U gives each of them if theirs is taken
	events   []int
}

const (
	smallLife = 25 * time.Second // of connections
	smallStep = 10 * time.Second // no multiple of it is near smallLife, after which the wheel has two seconds
)

var (
	smallNodes   = [2]nat.Link{node1, node2}
	smallClients = [2]string{"203.0.113.9", "203.0.113.10"}
	smallSeen    = modelEnd{address("10.71.3.9"), 53}
	smallReal    = modelEnd{address("10.200.3.9"), 53}
)

// smallEvents are a packet from each client and port, an answer to the port of U that each had
// last, the passing of time, and a restart.
const smallEvents = 10

func newSmallTable(t *testing.T) *smallTable {
	small := func(c *nat.Config) {
		c.MaxConnections, c.Timeouts.UDP, c.Timeouts.UDPStream = 3, smallLife, smallLife
	}
	s := &smallTable{t: t, e: engine(t, small), other: engine(t, small), now: start, m: model{most: 3, life: smallLife}}
	for i := range s.sent {
		s.sent[i] = nattest.IP{Source: smallClients[i/2], Destination: smallSeen.addr.String(),
			Body: nattest.UDP{SourcePort: uint16(2000 + i%2), DestinationPort: 53}}.Bytes()
	}
	s.answer = nattest.IP{Source: smallReal.addr.String(), Destination: "10.70.0.0",
		Body: nattest.UDP{SourcePort: 53}}.Bytes()
	binary.BigEndian.PutUint16(s.answer[26:], 0) // no checksum: ports change
	return s
}

func (s *smallTable) fail(format string, args ...any) {
	s.t.Helper()
	s.t.Fatalf("after %v: %s", s.events, fmt.Sprintf(format, args...))
}

// process returns the verdict on a packet, and its source and destination afterwards.
func (s *smallTable) process(in nat.Link, b []byte) (v nat.Verdict, from, to modelEnd) {
	var work [64]byte
	var p packet.Packet
	p.Parse(work[:copy(work[:], b)])
	v = s.e.Process(&p, in, s.now)
	var t packet.Tuple
	p.Tuple(&t, in)
	return v, modelEnd{t.Source(), t.SourcePort()}, modelEnd{t.Destination(), t.DestinationPort()}
}

// run executes a sequence of events, and compares the results of each.
func (s *smallTable) run() {
	s.m.connections, s.known = s.m.connections[:0], [4]uint16{2000, 2001, 2000, 2001}
	for _, event := range s.events {
		s.now = s.now.Add(time.Millisecond)
		switch {
		case event < 4:
			s.send(event)
		case event < 8:
			s.reply(event - 4)
		case event == 8:
			s.now = s.now.Add(smallStep)
			s.e.Sweep(s.now)
			s.m.expire(s.now)
		default:
			s.restart()
		}
		if n := s.e.Stats().Connections; n != len(s.m.connections) {
			s.fail("%d connections, want %d", n, len(s.m.connections))
		}
	}
	s.e.DeleteConnections(0, &nat.ConnFilter{}, s.now)
	ledger(s.t, s.e)
	s.now = s.now.Add(time.Second)
}

func (s *smallTable) send(i int) {
	in, local := smallNodes[i/2], modelEnd{address(smallClients[i/2]), uint16(2000 + i%2)}
	v, from, to := s.process(in, s.sent[i])
	c := s.m.outbound(in, false, local, smallSeen)
	if c == nil {
		c = &modelConn{node: in, local: local, seen: smallSeen, mapped: modelEnd{address("10.70.0.0"), local.port},
			real: smallReal}
		if s.m.fromTunnel(false, smallReal, c.mapped) != nil && v.Action == nat.Forward {
			c.mapped.port = from.port
			if s.chosen[i] == 0 {
				s.chosen[i] = from.port
			}
			if from.port != s.chosen[i] || s.m.fromTunnel(false, smallReal, c.mapped) != nil {
				s.fail("port %d, before %d", from.port, s.chosen[i])
			}
		}
		if !s.m.room(in, local.addr, s.now) {
			if !full(v.Reason) {
				s.fail("%v %v, but the table is full", v.Action, v.Reason)
			}
			return
		}
		s.m.connections = append(s.m.connections, c)
		s.known[i] = c.mapped.port
	}
	c.pass(s.now, false)
	if v.Action != nat.Forward || v.Out != nat.Tunnel || from != c.mapped || to != c.real {
		s.fail("%v %v to link %d, %v > %v, want %v > %v", v.Action, v.Reason, v.Out, from, to, c.mapped, c.real)
	}
}

func (s *smallTable) reply(i int) {
	binary.BigEndian.PutUint16(s.answer[22:], s.known[i])
	v, from, to := s.process(nat.Tunnel, s.answer)
	c := s.m.fromTunnel(false, smallReal, modelEnd{address("10.70.0.0"), s.known[i]})
	switch {
	case c == nil:
		if v.Reason != nat.ReasonNoMapping {
			s.fail("%v %v, but nobody has port %d", v.Action, v.Reason, s.known[i])
		}
	case v.Action != nat.Forward || v.Out != c.node || from != c.seen || to != c.local:
		s.fail("%v %v to link %d, %v > %v, want %v > %v", v.Action, v.Reason, v.Out, from, to, c.seen, c.local)
	default:
		c.pass(s.now, true)
	}
}

// restart continues with another engine that gets the first one's records. Connections are evicted
// in the order of their last packets.
func (s *smallTable) restart() {
	saved := records(s.e, 0, s.now)
	s.e.DeleteConnections(0, &nat.ConnFilter{}, s.now)
	s.e, s.other = s.other, s.e
	if got := restore(s.e, s.now, saved); got != (nat.Restored{Connections: len(s.m.connections), Whole: true}) {
		s.fail("restored %+v of %d", got, len(s.m.connections))
	}
	slices.SortStableFunc(s.m.connections, func(a, b *modelConn) int { return int(a.lastSeen - b.lastSeen) })
}

// TestRestoreModel compares a small table with its model over all sequences of events up to a
// length, including restarts.
func TestRestoreModel(t *testing.T) {
	length := 4
	if os.Getenv(nat.LongEnv) != "" {
		length = 7
	}
	s, all := newSmallTable(t), 0
	s.events = make([]int, length)
	for more := true; more; all++ {
		s.run()
		more = false
		for i := length - 1; i >= 0 && !more; i-- {
			if s.events[i] = (s.events[i] + 1) % smallEvents; s.events[i] > 0 {
				more = true
			}
		}
	}
	t.Logf("%d sequences of %d events, and their beginnings", all, length)
}
