package nat_test

import (
	"fmt"
	"testing"
	"time"

	"culvert/nat"
	"culvert/nat/nattest"
)

// A too-big message limits the size of its receiver's segments of super-frames to the destination
// for 10 minutes.
func TestPathMTU(t *testing.T) {
	e := engine(t)
	c := call{e, node1, "10.200.1.5", "10.71.3.9", "10.200.3.9", 4000}.begin(t, start)
	if got := c.segment(t, start); got != 1300 {
		t.Fatalf("segments of %d bytes, want 1300", got)
	}
	_, _, out := forwarded(t, e, nat.Tunnel, tooBig(1280, c.sent(1001)), start)
	if got := out[27]; got != 1280&0xff {
		t.Fatalf("the MTU in the message changed: %x", out[20:28])
	}
	steps := []struct {
		after time.Duration
		learn uint32
		want  int
	}{
		{time.Second, 0, 1240},
		{time.Minute, 1300, 1240}, // does not grow
		{2 * time.Minute, 1000, 960},
		{11*time.Minute + 59*time.Second, 0, 960},
		{12 * time.Minute, 0, 1300}, // expired
		{13 * time.Minute, 68, 512}, // not below minPathMTU
	}
	for _, s := range steps {
		now := start.Add(s.after)
		if s.learn > 0 {
			forwarded(t, e, nat.Tunnel, tooBig(s.learn, c.sent(20_000)), now)
		}
		if got := c.segment(t, now); got != s.want {
			t.Fatalf("after %v segments of %d bytes, want %d", s.after, got, s.want)
		}
	}
	now := start.Add(13 * time.Minute)
	if got := (call{e, node1, "10.200.1.5", "10.71.3.9", "10.200.3.9", 4001}).begin(t, now).segment(t,
		now); got != 512 {
		t.Fatalf("another connection to the destination gets segments of %d bytes", got)
	}
	if got := (call{e, node1, "10.200.1.5", "10.71.3.10", "10.200.3.10", 4000}).begin(t, now).segment(t,
		now); got != 1300 {
		t.Fatalf("another destination gets segments of %d bytes", got)
	}
}

// Two ends that claim a narrow path between them slow nobody else down: not another pod of their
// node, nor one of another node, in neither direction, nor others behind U. Their own connections
// all go by it.
func TestPathMTUOfOthers(t *testing.T) {
	for name, test := range map[string]struct {
		colluding, neighbour, elsewhere, seen, real string
		mtu                                         uint32
		want                                        int
	}{
		"IPv4": {"10.200.1.5", "10.200.1.6", "10.200.2.7", "10.71.3.9", "10.200.3.9", 552, 512},
		"IPv6": {"fd00:200:0:1::5", "fd00:200:0:1::6", "fd00:200:0:2::7", "fd00:71:0:4000::9",
			"fd00:200::9", 1280, 1220},
		"behind U": {"203.0.113.9", "203.0.113.10", "198.51.100.7", "10.71.3.9", "10.200.3.9", 552, 512},
	} {
		t.Run(name, func(t *testing.T) {
			e := engine(t, speakForAll)
			from := func(source string, node nat.Link, port uint16) call {
				return call{e, node, source, test.seen, test.real, port}
			}
			begin := func(c call) call {
				_, out, _ := forwarded(t, e, c.node, c.outbound(nattest.SYN, 1000, 0, nil), start)
				answer := c
				answer.local, answer.port = out.Source.String(), out.SourcePort
				forwarded(t, e, nat.Tunnel, answer.inbound(nattest.SYN|nattest.ACK, 1000, 1001), start)
				forwarded(t, e, c.node, c.outbound(nattest.ACK, 1001, 1001, nil), start)
				return answer
			}
			bad := from(test.colluding, node1, 4000)
			outside := begin(bad)
			full := bad.segment(t, start)
			forwarded(t, e, nat.Tunnel, tooBig(test.mtu, outside.sent(1001)), start)
			for _, c := range []call{from(test.neighbour, node1, 4001), from(test.elsewhere, node2, 4002)} {
				begin(c)
				if got := c.segment(t, start); got != full {
					t.Errorf("%s sends segments of %d bytes, want %d", c.local, got, full)
				}
			}
			again := from(test.colluding, node1, 4003)
			begin(again)
			if got := again.segment(t, start); got != test.want {
				t.Errorf("who has learnt it sends segments of %d bytes, want %d", got, test.want)
			}
			ledger(t, e)
		})
	}
}

// Whoever sends a SYN from another's address has not heard the answer. The other end's answer and
// the owner's refusal do not make a connection about which an error teaches anything.
func TestPathMTUOfForgedSource(t *testing.T) {
	e := engine(t)
	victim := call{e, node1, "10.200.1.5", "10.71.3.9", "10.200.3.9", 4000}.begin(t, start)
	full := victim.segment(t, start)
	forged := victim
	forged.port = 4666
	forwarded(t, e, node1, forged.outbound(nattest.SYN, 1000, 0,
		[]byte("data of a SYN, which its receiver does not take")), start)
	forwarded(t, e, nat.Tunnel, forged.inbound(nattest.SYN|nattest.ACK, 1000, 1001), start)
	for _, refused := range []bool{false, true} {
		if refused {
			forwarded(t, e, node1, forged.outbound(nattest.RST, 1001, 0, nil), start)
		}
		forwarded(t, e, nat.Tunnel, tooBig(552, forged.sent(1001)), start)
		if got := victim.segment(t, start); got != full {
			t.Fatalf("segments of %d bytes, want %d", got, full)
		}
	}
}

// RFC 8201, Section 4: a message that claims less than the IPv6 minimum link MTU is discarded, and
// reaches no sender.
func TestPathMTU6(t *testing.T) {
	c := call{engine(t), node1, "fd00:200:0:1::5", "fd00:71:0:4000::9", "fd00:200::9", 4000}.begin(t, start)
	for _, step := range []struct {
		mtu     uint32
		want    int
		discard bool
	}{{1339, 1279, false}, {1279, 1279, true}, {68, 1279, true}, {0, 1279, true}, {1280, 1220, false}} {
		c.segment(t, start)
		if b := tooBig(step.mtu, c.sent(2000)); step.discard {
			dropped(t, c.e, nat.Tunnel, b, start, nat.ReasonMalformed)
		} else {
			forwarded(t, c.e, nat.Tunnel, b, start)
		}
		if got := c.segment(t, start); got != step.want {
			t.Fatalf("%d: segments of %d bytes, want %d", step.mtu, got, step.want)
		}
	}
}

// A pod with connections to many narrow destinations, or a node with many such pods, does not make
// the gateway forget what it has learned for others.
func TestPathMTUShares(t *testing.T) {
	tests := []struct {
		name     string
		pods     int // that flood, behind node 1
		innocent string
		node     nat.Link
	}{
		{"one pod, beside others of its node", 1, "10.200.1.%d", node1},
		{"many pods of a node, beside another node", 100, "10.200.2.%d", node2},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			e := engine(t)
			learn := func(c call) {
				c.begin(t, start).segment(t, start)
				forwarded(t, e, nat.Tunnel, tooBig(1000, c.sent(1001)), start)
			}
			innocent := make([]call, 12)
			for i := range innocent {
				innocent[i] = call{e, test.node, fmt.Sprintf(test.innocent, i+1), fmt.Sprintf("10.71.1.%d", i),
					fmt.Sprintf("10.200.1.%d", i), 4000}
				learn(innocent[i])
			}
			for i := range 5000 {
				host := fmt.Sprintf("%d.%d", 2+i/250, i%250)
				learn(call{e, node1, fmt.Sprintf("10.200.1.%d", 100+i%test.pods), "10.71." + host,
					"10.200." + host, 4000})
			}
			for _, c := range innocent {
				if got := c.segment(t, start); got != 960 {
					t.Fatalf("towards %s: segments of %d bytes, want 960", c.seen, got)
				}
			}
		})
	}
}

// FuzzTooBig compares what the engine learns from a too-big message with what it may learn:
// whatever is quoted, only an unacknowledged segment of the connection counts.
func FuzzTooBig(f *testing.F) {
	for _, v6 := range []bool{false, true} {
		f.Add(v6, uint32(1001), uint16(1000), uint16(4000), uint16(80), uint16(0))
		f.Add(v6, uint32(21_000), uint16(68), uint16(4000), uint16(80), uint16(19_999))
		f.Add(v6, uint32(1000), uint16(1339), uint16(4000), uint16(80), uint16(0))
		f.Add(v6, uint32(1001), uint16(1280), uint16(4000), uint16(80), uint16(0))
		f.Add(v6, uint32(5000), uint16(600), uint16(4001), uint16(80), uint16(3))
	}
	f.Fuzz(func(t *testing.T, v6 bool, seq uint32, mtu, source, destination, taken uint16) {
		taken %= 20_001
		least, header, refused := 552, 40, false
		c := call{engine(t), node1, "10.200.1.5", "10.71.3.9", "10.200.3.9", 4000}
		if v6 {
			least, header, refused = 1280, 60, mtu < 1280
			c.local, c.seen, c.real = pod6, remote6, remoteReal6
		}
		c.begin(t, start)
		c.segment(t, start)
		forwarded(t, c.e, nat.Tunnel, c.inbound(nattest.ACK, 1001, 1001+uint32(taken)), start)
		quoted := nattest.IP{Source: c.local, Destination: c.real, Body: nattest.TCP{SourcePort: source,
			DestinationPort: destination, Seq: seq}}
		want := 1340 - header
		if b := tooBig(uint32(mtu), quoted); refused {
			dropped(t, c.e, nat.Tunnel, b, start, nat.ReasonMalformed)
		} else if forwarded(t, c.e, nat.Tunnel, b, start); source == 4000 && destination == 80 &&
			seq >= 1001+uint32(taken) && seq < 21_001 && mtu > 0 {
			want = min(want, max(int(mtu), least)-header)
		}
		if got := c.segment(t, start); got != want {
			t.Fatalf("segments of %d bytes, want %d", got, want)
		}
	})
}
