package nat_test

import (
	"testing"
	"time"

	"culvert/nat"
	"culvert/nat/packet"
)

// Load finds exactly the connections of a batch, in both directions and families.
func TestLoad(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		const n = 5000
		e := engine(t)
		load(t, e, n, v6)
		for _, in := range []nat.Link{node1, nat.Tunnel} {
			s := newStream(v6, in)
			batch := func(first, count int) int {
				packets := make([]packet.Packet, count)
				for i := range packets {
					packets[i].Parse(s.packet(make([]byte, 128), first+i, in))
				}
				return e.Load(packets, in)
			}
			for _, test := range []struct {
				name               string
				first, count, want int
			}{
				{"a batch", n / 2, 20, 20},
				{"a batch that is too long", 0, 2 * nat.MaxLoad, nat.MaxLoad},
				{"half of it unknown", n - 10, 20, 10},
				{"nobody's", 2 * n, 20, 0},
				{"one packet", 0, 1, 0},
				{"none", 0, 0, 0},
			} {
				if got := batch(test.first, test.count); got != test.want {
					t.Errorf("IPv6 %v, link %d, %s: %d of %d are known, want %d", v6, in, test.name, got,
						test.count, test.want)
				}
			}
			packets := make([]packet.Packet, 3) // not parsed
			if got := e.Load(packets, in); got != 0 {
				t.Errorf("%d packets without bytes are known", got)
			}
		}
	}
}

// A connection that Load has found may have ended, or its place may be another's, when the packet
// is processed. Then the packet is the first of a connection, as without Load.
func TestLoadedThenGone(t *testing.T) {
	const n = 5000 // enough for Load to search
	all := &nat.ConnFilter{}
	endAll := func(e *nat.Engine) {
		for at, more := nat.Cursor(0), true; more; {
			_, at, more = e.DeleteConnections(at, all, start)
		}
	}
	tests := []struct {
		name    string
		between func(e *nat.Engine)
		after   time.Duration
		created uint64 // by the packet
	}{
		{"it is still there", func(*nat.Engine) {}, 0, 0},
		{"it is deleted", endAll, 0, 1},
		{"others have the entries", func(e *nat.Engine) {
			endAll(e)
			var p packet.Packet
			others := newStream(false, node1)
			for i := range n {
				p.Parse(others.packet(make([]byte, 128), n+i, node1))
				e.Process(&p, node1, start)
			}
		}, 0, 1},
		{"its time is over", func(*nat.Engine) {}, 121 * time.Hour, 1},
	}
	for _, v6 := range []bool{false, true} {
		for _, test := range tests {
			e := engine(t)
			load(t, e, n, v6)
			packets := make([]packet.Packet, 2)
			s := newStream(v6, node1)
			for i := range packets {
				packets[i].Parse(s.packet(make([]byte, 128), n/2+i, node1))
			}
			if known := e.Load(packets, node1); known != len(packets) {
				t.Fatalf("%d packets are known", known)
			}
			var tuple packet.Tuple
			packets[0].Tuple(&tuple, node1)
			test.between(e)
			before := e.Stats().Created
			if v := e.Process(&packets[0], node1, start.Add(test.after)); v.Action != nat.Forward || v.Untracked {
				t.Fatalf("IPv6 %v, %s: %v %v", v6, test.name, v.Action, v.Reason)
			}
			if got := e.Stats().Created - before; got != test.created {
				t.Errorf("IPv6 %v, %s: the packet made %d connections, want %d", v6, test.name, got, test.created)
			}
			c, ok := e.FindConnection(&tuple, start.Add(test.after))
			if !ok || c.Original != tuple {
				t.Errorf("IPv6 %v, %s: the packet's connection is %+v", v6, test.name, c.Original)
			}
		}
	}

	// A packet loaded by one engine and processed by another, which lacks the entry.
	e, other := engine(t), engine(t)
	load(t, e, n, false)
	packets := make([]packet.Packet, 2)
	s := newStream(false, node1)
	for i := range packets {
		packets[i].Parse(s.packet(make([]byte, 128), n-1-i, node1))
	}
	e.Load(packets, node1)
	if v := other.Process(&packets[0], node1, start); v.Action != nat.Forward || other.Stats().Created != 1 {
		t.Errorf("at another engine: %v %v", v.Action, v.Reason)
	}
}
