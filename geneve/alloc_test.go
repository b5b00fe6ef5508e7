package geneve

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"

	"culvert/geneve/genevetest"
	"culvert/geneve/udp"
	"culvert/integration/need"
)

// receivable is one message of a kind for allocation tests and benchmarks, with the packets that it
// holds.
type receivable struct {
	name    string
	m       udp.Message
	packets int
}

func receivables() []receivable {
	geneve, vxlan, ip := encapsulations[0].encap, encapsulations[2].encap, encapsulations[3].encap
	packet := ipPacket(1, 1340)
	train := func(encap func(uint16, []byte) []byte) udp.Message {
		m := message(bytes.Repeat(encap(genevetest.IPv4, packet), 47))
		m.SegmentSize = len(m.Data) / 47
		return m
	}
	inner := message(geneve(genevetest.IPv4, genevetest.UDP(pod, remotePod, payload(1, 40*1200))))
	inner.SegmentSize = 1200
	marked := message(geneve(genevetest.IPv4, genevetest.IP(pod.Addr(), remotePod.Addr(), 6, ect0, payload(1, 1320))))
	marked.TOS = ce
	return []receivable{
		{"single", message(geneve(genevetest.IPv4, packet)), 1},
		{"train", train(geneve), 47},
		{"train/VXLAN", train(vxlan), 47},
		{"train/IP", train(ip), 47},
		{"super-frame", message(geneve(genevetest.IPv4, ipPacket(1, 65300))), 1},
		{"inner-train", inner, 1},
		{"congestion", marked, 1},
	}
}

// feed hands one message to the Receiver, as Fill does, and takes all packets.
func (r *Receiver) feed(m udp.Message) (packets int) {
	r.messages[0], r.received, r.next = m, 1, 0
	for {
		if _, ok := r.Next(); !ok {
			return packets
		}
		packets++
	}
}

func TestReceiveAllocs(t *testing.T) {
	f := newFixture(t)
	f.know()
	for _, rx := range receivables() {
		if n := testing.AllocsPerRun(100, func() {
			if got := f.r.feed(rx.m); got != rx.packets {
				t.Fatalf("%s: %d packets, want %d", rx.name, got, rx.packets)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations, want 0", rx.name, n)
		}
	}
	// Drops and ARP cost none either, whatever a node sends.
	good := encapsulations[0].encap(genevetest.IPv4, ipPacket(1, 100))
	bad := message(append(bytes.Clone(good), good[:30]...))
	bad.SegmentSize = len(good)
	unknown := message(genevetest.Geneve(99, 0x6558, good[8:]))
	frame := func(from [6]byte, etherType uint16, b []byte) udp.Message {
		return message(genevetest.Geneve(nodeVNI, 0x6558, genevetest.Frame(us, from, etherType, b)))
	}
	for name, messages := range map[string][]udp.Message{
		"bad train":    {bad},
		"unknown node": {unknown},
		"bad length":   {frame(nodeMAC, genevetest.IPv4, good[22:50])},
		"ARP requests": {frame(nodeMAC, genevetest.ARP, arpMessage(1, nodeMAC, nodeInner, us, gatewayInner))},
		"ARP that changes": {frame(nodeMAC, genevetest.ARP, arpMessage(2, nodeMAC, nodeInner, us, gatewayInner)),
			frame(station, genevetest.ARP, arpMessage(2, station, nodeInner, us, gatewayInner))},
		"frames of two stations": {frame(nodeMAC, genevetest.IPv4, ipPacket(1, 100)), frame(station, genevetest.IPv4,
			ipPacket(1, 100))},
	} {
		if n := testing.AllocsPerRun(100, func() {
			for _, m := range messages {
				f.r.feed(m)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations, want 0", name, n)
		}
	}
}

func TestSendAllocs(t *testing.T) {
	f := newFixture(t)
	f.know()
	packets := [][]byte{ipPacket(1, 1340), ipPacket(2, 60), genevetest.UDP(pod6, remotePod6, payload(3, 900))}
	for _, on := range []bool{true, false} {
		if !on {
			f.refuseTrains(toNode)
		}
		if n := testing.AllocsPerRun(100, func() {
			for i := range 100 {
				f.s.Send(toNode, packets[i%3])
				f.s.Send(toIP, packets[0])
			}
			f.s.Send(999, packets[0])
			f.s.Flush()
		}); n != 0 {
			t.Errorf("trains %v: %v allocations, want 0", on, n)
		}
	}
}

// BenchmarkDecap measures what a packet costs between the socket and the caller.
func BenchmarkDecap(b *testing.B) {
	e, err := Listen(Options{Listen: netip.AddrPortFrom(gatewayOuter, 0), RemotePort: 9})
	need.NoError(b, err)
	defer e.Close()
	need.NoError(b, e.Apply(fixtureTunnels()))
	r := e.NewReceiver()
	for _, rx := range receivables() {
		b.Run(rx.name, func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; i < b.N; i += rx.packets {
				if got := r.feed(rx.m); got != rx.packets {
					b.Fatal(got)
				}
			}
		})
	}
}

// BenchmarkEncap measures what a packet costs up to, and without, the system call: with one tunnel,
// and with packets to many tunnels by turns.
func BenchmarkEncap(b *testing.B) {
	for _, tunnels := range []int{1, 2, 16, 500} {
		for _, size := range []int{60, 1340} {
			b.Run(fmt.Sprintf("tunnels=%d/size=%d", tunnels, size), func(b *testing.B) {
				e, err := Listen(Options{Listen: netip.AddrPortFrom(gatewayOuter, 0), RemotePort: 9})
				need.NoError(b, err)
				defer e.Close()
				var set []Tunnel
				for i := range tunnels {
					set = append(set, Tunnel{ID: uint16(i), VNI: VNI(i), Remote: nodeOuter,
						Local: Pair{V4: gatewayInner}, Peer: Pair{V4: nodeInner}})
				}
				need.NoError(b, e.Apply(set))
				for _, t := range e.table.Load().ids {
					t.neighbour.store(newSpeaker(Geneve, 1))
					t.neighbour.lastHeard.Store(int64(e.now()))
				}
				s, packet := e.NewSender(), ipPacket(1, size)
				b.ReportAllocs()
				b.SetBytes(int64(size))
				for i := range b.N {
					if i%48 == 0 { // what Flush does, save the system call
						s.used, s.trains, s.open, s.fresh = 0, s.trains[:0], s.open[:0], false
					}
					if r := s.Send(uint16(i%tunnels), packet); r != Accepted {
						b.Fatal(r)
					}
				}
			})
		}
	}
}

// BenchmarkLoopback sends packets of 1340 bytes from a gateway to a node over loopback, both ends
// in one goroutine, system calls included.
func BenchmarkLoopback(b *testing.B) {
	for _, o := range []udp.Options{{}, {NoGSO: true, NoGRO: true}} {
		b.Run(fmt.Sprintf("offloads=%v", !o.NoGSO), func(b *testing.B) {
			node, err := Listen(Options{Listen: netip.AddrPortFrom(nodeOuter, 0), UDP: o})
			need.NoError(b, err)
			defer node.Close()
			gateway, err := Listen(Options{Listen: netip.AddrPortFrom(gatewayOuter, 0),
				RemotePort: node.LocalAddr().Port(), UDP: o})
			need.NoError(b, err)
			defer gateway.Close()
			need.NoError(b, gateway.Apply([]Tunnel{{Remote: nodeOuter, Inner: IP}}))
			need.NoError(b, node.Apply([]Tunnel{{Remote: gatewayOuter, Inner: IP, Role: Node}}))
			s, r, packet := gateway.NewSender(), node.NewReceiver(), ipPacket(1, 1340)
			b.ReportAllocs()
			b.SetBytes(1340)
			b.ResetTimer()
			const batch = 48
			for i := 0; i < b.N; i += batch {
				for range batch {
					s.Send(0, packet)
				}
				s.Flush()
				for got := 0; got < batch; {
					if _, ok := r.Next(); ok {
						got++
					} else if err := r.Fill(); err != nil {
						b.Fatal(err)
					}
				}
			}
			calls := gateway.Stats().Socket.SendCalls + node.Stats().Socket.ReceiveCalls
			b.ReportMetric(float64(calls)/float64(b.N), "calls/packet")
		})
	}
}
