package gateway

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"culvert/geneve"
	"culvert/geneve/genevetest"
	"culvert/geneve/udp"
	"culvert/integration/need"
	"culvert/nat/nattest"
)

// marked sends a packet from a node of rome and waits for it at milan. Everything that the node has
// sent before is then processed.
func (p *pair) marked(t *testing.T, from *genevetest.Node, source, seen string, mark int) {
	t.Helper()
	from.Send(udpPacket(source, "10.61.1.7", fmt.Appendf(nil, "mark %d", mark)))
	if v := expect(t, p.milan.nodes[0], seen, "10.0.1.7"); string(v.Payload) != fmt.Sprintf("mark %d", mark) {
		t.Fatalf("%q came through, want mark %d", v.Payload, mark)
	}
}

// dropped checks what a gateway's endpoint has dropped since then.
func (c *cluster) dropped(t *testing.T, before [geneve.NumReasons]uint64, want map[geneve.Reason]uint64) {
	t.Helper()
	for r, n := range c.endpoint.Drops() {
		if got := n - before[r]; got != want[geneve.Reason(r)] {
			t.Errorf("%v: %d dropped, want %d", geneve.Reason(r), got, want[geneve.Reason(r)])
		}
	}
}

// TestHostileGeneve sends Geneve headers that RFC 8926 forbids, or that a gateway cannot
// understand: each such packet is dropped under its reason; what is merely unknown is skipped.
// Other packets of the node and of the other node pass.
func TestHostileGeneve(t *testing.T) {
	p := newPair(t, nil)
	node, other := p.rome.nodes[0], p.rome.nodes[1]
	mark := 0
	p.marked(t, node, "10.0.1.5", "10.62.1.5", mark)
	p.marked(t, other, "10.0.2.5", "10.62.2.5", mark)
	// datagram has the given first two bytes and options; without them it would be forwarded.
	datagram := func(first, flags byte, options ...byte) []byte {
		d := node.Encap(udpPacket("10.0.1.5", "10.61.1.7", []byte("hostile")))
		d[0], d[1] = first, flags
		return slices.Concat(d[:8], options, d[8:])
	}
	many := bytes.Repeat([]byte{1, 2, 3, 0}, 63)
	for _, tt := range []struct {
		name     string
		datagram []byte
		want     geneve.Reason // Accepted = skipped, the packet passes
	}{
		{"unknown option", datagram(1, 0, 1, 2, 3, 0), geneve.Accepted},
		{"63 unknown options", datagram(63, 0, many...), geneve.Accepted},
		{"option of the largest size", datagram(32, 0, append([]byte{1, 2, 3, 31}, make([]byte, 124)...)...),
			geneve.Accepted},
		{"reserved bits", datagram(1, 0x3f, 1, 2, 3, 0xe0), geneve.Accepted},
		{"critical option", datagram(1, 0x40, 1, 2, 0x83, 0), geneve.CriticalOption},
		{"critical option that the header hides", datagram(1, 0, 1, 2, 0x83, 0), geneve.CriticalOption},
		{"critical option behind others", datagram(3, 0x40, 1, 2, 3, 1, 0, 0, 0, 0, 1, 2, 0x83, 0),
			geneve.CriticalOption},
		{"critical option, last of 63", datagram(63, 0x40, append(slices.Clone(many[:62*4]), 1, 2, 0xff, 0)...),
			geneve.CriticalOption},
		{"control message", datagram(0, 0x80), geneve.ControlPacket},
		{"control message with a critical option", datagram(1, 0xc0, 1, 2, 0x83, 0), geneve.ControlPacket},
		{"version 1", datagram(0x40, 0), geneve.BadVersion},
		{"version 3 and control", datagram(0xc0, 0x80), geneve.BadVersion},
		{"option longer than all", datagram(1, 0, 1, 2, 3, 1), geneve.BadOptions},
		{"last option longer than what is left", datagram(3, 0, 1, 2, 3, 0, 1, 2, 3, 2, 0, 0, 0, 0), geneve.BadOptions},
		{"critical option longer than all", datagram(1, 0x40, 1, 2, 0x83, 31), geneve.BadOptions},
		{"options longer than the datagram", datagram(63, 0)[:50], geneve.Truncated},
		{"MPLS", slices.Concat([]byte{0, 0, 0x88, 0x47}, datagram(0, 0)[4:]), geneve.UnknownProtocol},
		{"IP where there are frames", slices.Concat([]byte{0, 0, 8, 0}, datagram(0, 0)[4:]), geneve.WrongInner},
		{"VXLAN", slices.Concat([]byte{8, 0, 0, 0}, datagram(0, 0)[4:]), geneve.WrongEncap},
		{"VNI of the other node", slices.Concat(datagram(0, 0)[:4], []byte{0, 0, 7, 0}, datagram(0, 0)[8:]),
			geneve.UnknownNode},
	} {
		t.Run(tt.name, func(t *testing.T) {
			const times = 20
			before := p.rome.endpoint.Drops()
			for range times {
				node.SendRaw(tt.datagram)
			}
			if tt.want == geneve.Accepted {
				for range times {
					if v := expect(t, p.milan.nodes[0], "10.62.1.5", "10.0.1.7"); string(v.Payload) != "hostile" {
						t.Fatalf("%q came through", v.Payload)
					}
				}
			}
			mark++
			p.marked(t, node, "10.0.1.5", "10.62.1.5", mark)
			p.marked(t, other, "10.0.2.5", "10.62.2.5", mark)
			want := map[geneve.Reason]uint64{}
			if tt.want != geneve.Accepted {
				want[tt.want] = times
			}
			p.rome.dropped(t, before, want)
		})
	}
}

// TestHostileTrains sends trains that the kernel delivers merged: with frames in wrong places, of
// several tunnels, of wrong lengths, cut short. None passes in part, each datagram is counted, and
// the next packet passes.
func TestHostileTrains(t *testing.T) {
	p := newPair(t, nil)
	node := p.rome.nodes[0]
	p.marked(t, node, "10.0.1.5", "10.62.1.5", 0)
	s := p.rome.endpoint.Stats().Socket
	need.Offloads(t, s.GRO && s.GSO)
	// The node's socket belongs to somebody else: the source port of a node does not matter.
	socket, err := udp.Listen("udp4", netip.AddrPortFrom(node.Underlay().Addr(), 0), udp.Options{})
	need.NoError(t, err)
	t.Cleanup(func() { socket.Close() })
	sender := socket.NewSender()

	const size = 1000 // of each datagram
	frame := func(source string, payload int) []byte {
		return node.Encap(udpPacket(source, "10.61.1.7", nattest.Payload(payload, 1)))
	}
	good := frame("10.0.1.5", size-22-28)
	forged := frame("10.0.1.66", size-22-28)
	change := func(b []byte, at int, value ...byte) []byte {
		b = bytes.Clone(b)
		copy(b[at:], value)
		return b
	}
	// An inner UDP train with forged frames at each cut.
	inner := frame("10.0.1.5", 8*size-22-28)
	for cut := size; cut < len(inner); cut += size {
		copy(inner[cut:], forged)
	}
	for _, tt := range []struct {
		name  string
		train []byte
		want  geneve.Reason // of all its datagrams; Accepted = a valid train
		count int           // of packets that pass
	}{
		{"honest", slices.Concat(good, good, good), geneve.Accepted, 3},
		{"inner train with forged frames at its cuts", inner, geneve.Accepted, 8},
		{"forged frame behind a longer one", slices.Concat(change(good, 24, 0x20, 0), forged, forged),
			geneve.BadTrain, 0},
		{"several VNIs", slices.Concat(good, change(good, 6, 7), good), geneve.BadTrain, 0},
		{"VNI of nobody first", slices.Concat(change(good, 6, 99), good), geneve.UnknownNode, 0},
		{"last one cut short", slices.Concat(good, good, good[:500]), geneve.BadTrain, 0},
		{"last one of 7 bytes", slices.Concat(good, good, good[:7]), geneve.BadTrain, 0},
		{"last one of 1 byte", slices.Concat(good, good[:1]), geneve.BadTrain, 0},
		{"one shorter inside", slices.Concat(good, change(good, 24, 3, 0), good), geneve.BadTrain, 0},
		{"first one shorter inside", slices.Concat(change(good, 24, 3, 0), good, good), geneve.BadTrain, 0},
		{"control message inside", slices.Concat(good, change(good, 1, 0x80), good), geneve.BadTrain, 0},
		{"control message first", slices.Concat(change(good, 1, 0x80), good, good), geneve.ControlPacket, 0},
		{"nothing but zeros", make([]byte, 5*size), geneve.UnknownNode, 0},
		{"zeros behind a good one", append(bytes.Clone(good), make([]byte, 5*size)...), geneve.BadTrain, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := p.rome.endpoint.Drops()
			train := []udp.Train{{Destination: p.rome.endpoint.LocalAddr(), SegmentSize: size,
				Parts: [][]byte{tt.train}}}
			if _, err := sender.Send(train); err != nil {
				t.Fatal(err)
			}
			if train[0].Single {
				t.Fatal("it did not leave as a train")
			}
			for range tt.count {
				expect(t, p.milan.nodes[0], "10.62.1.5", "10.0.1.7")
			}
			p.marked(t, node, "10.0.1.5", "10.62.1.5", len(tt.train))
			want := map[geneve.Reason]uint64{}
			if tt.want != geneve.Accepted {
				want[tt.want] = uint64((len(tt.train) + size - 1) / size)
			}
			p.rome.dropped(t, before, want)
		})
	}
}
