package nat

import (
	"testing"

	"culvert/nat/packet"
)

// A conversation is two honest ends, which send in order, within the other's window, and get all
// that the gateway sees, and what the gateway makes of it.
type conversation struct {
	t            *testing.T
	tcp          tcpState
	now          state
	next         [2]uint32 // what each end sends next, and the other has got
	acknowledged [2]uint32 // of what each end has sent
	finished     [2]bool
}

// conversationWindow is that of both ends.
const conversationWindow = 65535

func (c *conversation) see(d int, s packet.Segment) {
	s.Window = conversationWindow
	c.now = c.tcp.next(c.now, &s, d)
	c.acknowledged[1-d] = s.Ack
}

// room lets the other end acknowledge what direction d has sent, if n more would not fit its
// window.
func (c *conversation) room(d int, n uint32) {
	if c.next[d]+n-c.acknowledged[d] > conversationWindow {
		c.data(1-d, 0)
	}
}

func (c *conversation) data(d int, n uint32) {
	c.room(d, n)
	c.see(d, packet.Segment{Seq: c.next[d], Ack: c.next[1-d], Length: n, Flags: packet.ACK})
	c.next[d] += n
}

// again repeats the last bytes of direction d. Its receiver takes nothing from it and says that it
// has them (RFC 9293, Section 3.10.7.4).
func (c *conversation) again(d int, n uint32) {
	c.unheard(d, packet.Segment{Seq: c.next[d] - n, Ack: c.next[1-d], Length: n, Flags: packet.ACK})
	c.data(1-d, 0)
}

// unheard shows the gateway a segment that acknowledges nothing to the end that it is for.
func (c *conversation) unheard(d int, s packet.Segment) {
	acknowledged := c.acknowledged
	c.see(d, s)
	c.acknowledged = acknowledged
}

func (c *conversation) finish(d int) {
	if !c.finished[d] {
		c.finished[d] = true
		c.room(d, 1)
		c.see(d, packet.Segment{Seq: c.next[d], Ack: c.next[1-d], Length: 1, Flags: packet.FIN | packet.ACK})
		c.next[d]++
	}
}

// elsewhere lets both ends exchange n bytes that the gateway does not see. After a few more
// segments it knows where they are.
func (c *conversation) elsewhere(n uint32) {
	if c.finished[0] || c.finished[1] {
		return
	}
	c.next[0] += n
	c.next[1] += 2 * n
	c.now = talk(&c.tcp, c.now, &c.next, strays+1)
	c.acknowledged = c.next
	c.data(0, 0) // each end says its window
	c.data(1, 0)
	if c.now != stateEstablished || c.tcp.end != c.next {
		c.t.Fatalf("after a gap of %d bytes: %v, knows %v of %v", n, c.now, c.tcp.end, c.next)
	}
}

// begin does a handshake whose SYN holds data, of which the server takes some.
func (c *conversation) begin(first [2]uint32, data, taken uint32) {
	c.next = first
	s := packet.Segment{Seq: first[0], Length: 1 + data, Flags: packet.SYN, Window: conversationWindow}
	c.now = c.tcp.open(&s, 0)
	c.next[0] += 1 + taken
	c.see(1, packet.Segment{Seq: first[1], Ack: c.next[0], Length: 1, Flags: packet.SYN | packet.ACK})
	c.next[1]++
	c.data(0, data-taken)
	if c.now != stateEstablished {
		c.t.Fatalf("%d of %d bytes of a SYN taken: %v", taken, data, c.now)
	}
}

// forge sends in the name of direction d what is wrong by far, in its sequence number or its
// acknowledgement.
func (c *conversation) forge(d int, op byte, far uint32) {
	s := packet.Segment{Seq: c.next[d], Ack: c.next[1-d] + far, Length: 1 + uint32(op),
		Flags: packet.ACK | op>>4&packet.FIN}
	if op&1 != 0 {
		s.Seq, s.Ack = s.Seq+far, c.next[1-d]
		s.Flags |= op >> 4 & packet.RST
	}
	c.unheard(d, s)
}

// FuzzTCP reads its input as a conversation and, where forge says so, as what a third host sends in
// the name of direction forger without knowing its numbers. That must make no difference. A
// conversation that both ends finish ends in TIME-WAIT.
func FuzzTCP(f *testing.F) {
	f.Add(uint32(1), uint32(2), uint16(0), true, []byte{0, 1, 10, 13, 12, 13, 12, 13, 12, 0x86, 7, 5, 4})
	f.Add(uint32(1<<32-10), uint32(1<<31), uint16(1000), true, []byte("0123456789abcdefghijklmnopqrstuvwxyz"))
	f.Add(uint32(5), uint32(1<<32-1), uint16(77), false, []byte{0, 1, 16, 17, 6, 14, 8, 9, 6, 10, 11})
	f.Fuzz(func(t *testing.T, first, second uint32, data uint16, forge bool, ops []byte) {
		if len(ops) > 100 {
			return
		}
		clean := &conversation{t: t}
		clean.begin([2]uint32{first, second}, uint32(data%1400), uint32(data/1400)%(uint32(data%1400)+1))
		forger := int(first>>7) & 1
		dirty := *clean
		for i, op := range ops {
			d, n := int(op&1), uint32(op>>4)*90
			for _, c := range []*conversation{clean, &dirty} {
				switch kind := op >> 1 & 7; {
				case kind < 3 && !c.finished[d]:
					c.data(d, n)
				case kind == 4:
					c.again(d, min(n, c.next[d]-[2]uint32{first, second}[d]))
				case kind == 5 && op>>4 == 0:
					c.finish(d)
				case kind == 6 && forge:
					if c == &dirty {
						// Farther from the truth than all that a conversation sends and all
						// windows.
						far := (1 + uint32(op>>4)*63 + uint32(i)%63) << 22
						c.forge(forger, op, far)
					}
				case kind == 6 && !forge:
					c.elsewhere(uint32(1+op>>4) << 24)
				default:
					c.data(d, 0)
				}
			}
			if dirty.now != clean.now || dirty.tcp.end != clean.tcp.end || dirty.tcp.ack != clean.tcp.ack ||
				dirty.tcp.window != clean.tcp.window {
				t.Fatalf("after %d: %v %+v beside a forger, else %v %+v", i, dirty.now, dirty.tcp, clean.now, clean.tcp)
			}
		}
		dirty.finish(0)
		dirty.finish(1)
		dirty.data(0, 0)
		dirty.data(1, 0)
		if dirty.now != stateTimeWait {
			t.Fatalf("finished: %v", dirty.now)
		}
	})
}
