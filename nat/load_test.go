package nat_test

import (
	"testing"

	"culvert/nat"
	"culvert/nat/packet"
)

// Load finds the connections of a batch in both directions and families, and those alone.
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
					t.Errorf("IPv6 %v, link %d, %s: %d of %d are known, want %d", v6, in, test.name, got, test.count, test.want)
				}
			}
			packets := make([]packet.Packet, 3) // not parsed
			if got := e.Load(packets, in); got != 0 {
				t.Errorf("%d packets without bytes are known", got)
			}
		}
	}
}
