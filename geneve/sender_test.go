package geneve

import (
	"bytes"
	"math"
	"net"
	"net/netip"
	"slices"
	"testing"

	"culvert/geneve/genevetest"
	"culvert/geneve/udp"
	"culvert/integration/need"
)

// ipPacket returns an IPv4 packet of the given size.
func ipPacket(seed, size int) []byte {
	return genevetest.IP(pod.Addr(), remotePod.Addr(), 17, 0, payload(seed, size-20))
}

// onWire returns what a packet to a tunnel of the fixture looks like.
func onWire(tunnel uint16, packet []byte) []byte {
	switch tunnel {
	case toVXLAN:
		return genevetest.VXLAN(vxlanVNI, genevetest.Frame(nodeMAC, toGateway(vxlanVNI), genevetest.IPv4, packet))
	case toIP:
		return genevetest.Geneve(ipVNI, genevetest.IPv4, packet)
	case toNode2:
		return genevetest.Geneve(node2VNI, 0x6558, genevetest.Frame(nodeMAC, toGateway(node2VNI),
			genevetest.IPv4, packet))
	}
	return genevetest.Geneve(nodeVNI, 0x6558, genevetest.Frame(nodeMAC, us, genevetest.IPv4, packet))
}

// know makes all neighbours known, with one MAC address.
func (f *fixture) know() {
	for _, t := range f.e.table.Load().ids {
		if t != nil && t.Inner == Ethernet {
			t.neighbour.store(newSpeaker(t.Encap, parseMAC(nodeMAC[:])))
			t.neighbour.lastHeard.Store(f.clock.Load())
		}
	}
}

// refuseTrains has the kernel refuse trains to a tunnel for good.
func (f *fixture) refuseTrains(id uint16) {
	f.e.table.Load().byID(id).singleUntil.Store(math.MaxInt64)
}

// TestTrains sends batches and checks how they leave: which datagrams, in which order, and in how
// many trains.
func TestTrains(t *testing.T) {
	type p struct {
		tunnel uint16
		size   int
	}
	repeat := func(n int, ps ...p) []p { return slices.Repeat(ps, n) }
	tests := []struct {
		name    string
		packets []p
		trains  int // 0: not checked
	}{
		{"one", []p{{toNode, 1340}}, 1},
		{"equal", repeat(40, p{toNode, 1340}), 1},
		{"shorter last", append(repeat(3, p{toNode, 1340}), p{toNode, 40}), 1},
		{"after a shorter one a new train", []p{{toNode, 1340}, {toNode, 40}, {toNode, 1340}, {toNode, 1340}}, 2},
		{"a longer one starts a new train", []p{{toNode, 40}, {toNode, 1340}, {toNode, 1340}}, 2},
		{"a longer tail of short ones", []p{{toNode, 1340}, {toNode, 40}, {toNode, 40}, {toNode, 40}}, 2},
		{"128 by bytes", repeat(128, p{toNode, 1340}), 3}, // 48 × 1362 ≤ 65507
		{"130 by number", repeat(130, p{toNode, 100}), 3}, // 64 + 64 + 2
		{"two tunnels by turns", repeat(20, p{toNode, 1340}, p{toIP, 900}), 2},
		{"all tunnels by turns", repeat(30, p{toNode, 1340}, p{toNode2, 1340}, p{toVXLAN, 1200}, p{toIP, 60}), 4},
		{"more than the arena", repeat(400, p{toNode, 1340}), 0}, // two flushes
		{"largest", []p{{toNode, udp.MaxPayload - 22}, {toIP, udp.MaxPayload - 8}, {toNode, 1340}}, 3},
	}
	for _, tt := range tests {
		for _, on := range []bool{true, false} {
			t.Run(tt.name, func(t *testing.T) {
				f := newFixture(t)
				f.know()
				want := map[uint16][][]byte{} // by tunnel
				for _, id := range []uint16{toNode, toNode2, toVXLAN, toIP} {
					if !on {
						f.refuseTrains(id)
					}
				}
				before, calls := f.e.Drops(), f.e.Stats().Socket.SendCalls
				for i, p := range tt.packets {
					packet := ipPacket(i, p.size)
					want[p.tunnel] = append(want[p.tunnel], onWire(p.tunnel, packet))
					if r := f.s.Send(p.tunnel, packet); r != Accepted {
						t.Fatal(r)
					}
				}
				trains := len(f.s.trains)
				need.NoError(t, f.s.Flush())
				if tt.trains != 0 && trains != tt.trains {
					t.Errorf("%d trains, want %d", trains, tt.trains)
				}
				if sent := f.e.Stats().Socket.SendCalls - calls; on && sent > 3 {
					t.Errorf("%d system calls", sent)
				}
				got := map[uint16][][]byte{}
				for i := 0; i < len(tt.packets); {
					socket := f.node
					if len(got[toNode2]) < len(want[toNode2]) {
						socket = f.node2
					}
					datagrams, _ := f.datagrams(socket)
					for _, d := range datagrams {
						id := map[byte]uint16{nodeVNI: toNode, vxlanVNI: toVXLAN, ipVNI: toIP, node2VNI: toNode2}[d[6]]
						got[id] = append(got[id], d)
						i++
					}
				}
				for id, want := range want {
					if !slices.EqualFunc(got[id], want, bytes.Equal) {
						t.Errorf("tunnel %d: datagrams lost, changed or out of order", id)
					}
					packets, size := uint64(len(want)), 0
					for _, p := range tt.packets {
						if p.tunnel == id {
							size += p.size
						}
					}
					if s, _ := f.e.TunnelStats(id); s.SentPackets != packets || s.SentBytes != uint64(size) {
						t.Errorf("tunnel %d: counted %d packets of %d bytes, want %d of %d", id, s.SentPackets,
							s.SentBytes, packets, size)
					}
				}
				f.drops(before, nil)
			})
		}
	}
}

func TestSendDrops(t *testing.T) {
	f := newFixture(t)
	f.know()
	tests := []struct {
		name   string
		tunnel uint16
		packet []byte
		want   Reason
	}{
		{"no such tunnel", 2, ipPacket(1, 100), UnknownTunnel},
		{"no such tunnel, beyond all", 65535, ipPacket(1, 100), UnknownTunnel},
		{"too long for Ethernet", toNode, make([]byte, udp.MaxPayload-21), TooLong},
		{"too long for IP", toIP, make([]byte, udp.MaxPayload-7), TooLong},
		{"19 bytes", toNode, ipPacket(1, 20)[:19], BadPacket},
		{"39 bytes of IPv6", toNode, append([]byte{0x60}, make([]byte, 38)...), BadPacket},
		{"version 5", toNode, append([]byte{0x50}, make([]byte, 99)...), BadPacket},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := f.e.Drops()
			if r := f.s.Send(tt.tunnel, tt.packet); r != tt.want {
				t.Errorf("Send: %v, want %v", r, tt.want)
			}
			f.drops(before, map[Reason]uint64{tt.want: 1})
		})
	}
	f.s.Flush()
	f.silent(f.node)
}

func TestReserve(t *testing.T) {
	f := newFixture(t)
	f.know()
	packet := ipPacket(1, 700)
	buffer, r := f.s.Reserve(toNode, 1340)
	if r != Accepted || len(buffer) != 1340 || cap(buffer) != 1340 {
		t.Fatalf("Reserve: %d bytes, %v", len(buffer), r)
	}
	if r := f.s.Commit(copy(buffer, packet)); r != Accepted {
		t.Fatal(r)
	}
	if _, r := f.s.Reserve(toNode, 1340); r != Accepted { // given up
		t.Fatal(r)
	}
	if r := f.s.Commit(0); r != Accepted {
		t.Fatal(r)
	}
	f.s.Send(toNode, packet)
	f.s.Flush()
	want := onWire(toNode, packet)
	if got, _ := f.datagrams(f.node); !slices.EqualFunc(got, [][]byte{want, want}, bytes.Equal) {
		t.Errorf("%d datagrams, want the packet twice", len(got))
	}
	defer func() {
		if recover() == nil {
			t.Error("Commit without a reservation did not panic")
		}
	}()
	f.s.Commit(1)
}

// TestRefusedTrain has the kernel refuse a train: its datagrams leave one by one, and the tunnel
// goes without trains for a while.
func TestRefusedTrain(t *testing.T) {
	f := newFixture(t)
	f.know()
	need.Offloads(t, f.e.Stats().Socket.GSO)
	train := func() (single bool) {
		for i := range 2 {
			f.s.Send(toNode, ipPacket(i, 32000))
		}
		f.s.trains[0].SegmentSize = 100 // more segments than any kernel takes
		single = f.s.trains[0].Single
		f.s.Flush()
		return single
	}
	if train() {
		t.Fatal("single datagrams from the start")
	}
	if s, _ := f.e.TunnelStats(toNode); s.RefusedTrains != 1 || s.Train {
		t.Errorf("%d trains refused, trains in use %v; want 1, false", s.RefusedTrains, s.Train)
	}
	if !train() {
		t.Error("a train right after the refusal")
	}
	f.advance(singleTime)
	f.know()
	if s, _ := f.e.TunnelStats(toNode); !s.Train {
		t.Error("no trains again after singleTime")
	}
}

func TestSendFailed(t *testing.T) {
	f := newFixture(t)
	f.know()
	before := f.e.Drops()
	f.e.table.Load().byID(toNode).destination = netip.AddrPortFrom(nodeOuter, 0) // which the kernel refuses
	for i := range 3 {
		f.s.Send(toNode, ipPacket(i, 100))
		f.s.Send(toIP, ipPacket(i, 100))
	}
	if err := f.s.Flush(); err != nil {
		t.Error(err)
	}
	f.drops(before, map[Reason]uint64{SendFailed: 3})
	if got, _ := f.datagrams(f.node); len(got) != 3 {
		t.Errorf("%d datagrams of the other tunnel, want 3", len(got))
	}
	if s, _ := f.e.TunnelStats(toNode); s.SentPackets != 0 || s.SentBytes != 0 {
		t.Errorf("%d packets of %d bytes counted as sent", s.SentPackets, s.SentBytes)
	}
}

func TestClosed(t *testing.T) {
	f := newFixture(t)
	f.know()
	before := f.e.Drops()
	f.s.Send(toNode, ipPacket(1, 100))
	f.e.Wake()
	if err := f.r.Fill(); err != udp.ErrWoken {
		t.Errorf("Fill after Wake: %v", err)
	}
	f.e.Close()
	if err := f.s.Flush(); err != net.ErrClosed {
		t.Errorf("Flush after Close: %v", err)
	}
	if err := f.r.Fill(); err != net.ErrClosed {
		t.Errorf("Fill after Close: %v", err)
	}
	f.drops(before, map[Reason]uint64{SendFailed: 1})
}
