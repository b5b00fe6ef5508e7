package geneve

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"culvert/geneve/genevetest"
	"culvert/geneve/udp"
)

// encapsulations are the ways in which a node's packet may come.
var encapsulations = []struct {
	name   string
	tunnel uint16
	header int // bytes in front of the packet
	encap  func(etherType uint16, ip []byte) []byte
}{
	{"Geneve", toNode, 22, func(e uint16, ip []byte) []byte {
		return genevetest.Geneve(nodeVNI, 0x6558, genevetest.Frame(toGateway(nodeVNI), nodeMAC, e, ip))
	}},
	{"Geneve with options", toNode, 34, func(e uint16, ip []byte) []byte {
		b := genevetest.Geneve(nodeVNI, 0x6558, join([]byte{1, 2, 3, 0, 1, 2, 4, 1, 5, 6, 7, 8},
			genevetest.Frame(toGateway(nodeVNI), nodeMAC, e, ip)))
		b[0] = 3
		return b
	}},
	{"VXLAN", toVXLAN, 22, func(e uint16, ip []byte) []byte {
		return genevetest.VXLAN(vxlanVNI, genevetest.Frame(toGateway(vxlanVNI), nodeMAC, e, ip))
	}},
	{"IP", toIP, 8, func(e uint16, ip []byte) []byte { return genevetest.Geneve(ipVNI, e, ip) }},
}

// TestShapes delivers every shape of message that a kernel makes.
func TestShapes(t *testing.T) {
	small, large := genevetest.UDP(pod, remotePod, payload(1, 30)), genevetest.UDP(pod, remotePod, payload(2, 1172))
	large2, small6 := genevetest.UDP(pod, remotePod, payload(3, 1172)), genevetest.UDP(pod6, remotePod6, payload(4, 50))
	large6 := genevetest.UDP(pod6, remotePod6, payload(5, 1152)) // as long as large
	super := genevetest.IP(pod.Addr(), remotePod.Addr(), 6, 0, payload(6, 65300))
	super6 := genevetest.IP(pod6.Addr(), remotePod6.Addr(), 6, 0, payload(7, 65000))
	train, train6 := genevetest.UDP(pod, remotePod, payload(8, 24300)), genevetest.UDP(pod6, remotePod6,
		payload(9, 24300))
	oneSegment := genevetest.UDP(pod, remotePod, payload(10, 1200))
	for _, enc := range encapsulations {
		v4 := func(ip []byte) []byte { return enc.encap(genevetest.IPv4, ip) }
		v6 := func(ip []byte) []byte { return enc.encap(genevetest.IPv6, ip) }
		tests := []struct {
			name    string
			data    []byte
			segment int
			want    [][]byte
			inner   int // SegmentSize of the packets
		}{
			{"single", v4(small), 0, [][]byte{small}, 0},
			{"single IPv6", v6(small6), 0, [][]byte{small6}, 0},
			{"single with Ethernet padding", v4(append(slices.Clone(small), 0, 0, 0)), 0, [][]byte{small}, 0},
			{"single with a size of its own", v4(small), len(v4(small)), [][]byte{small}, 0},
			{"TCP super-frame", v4(super), 0, [][]byte{super}, 0},
			{"TCP super-frame IPv6", v6(super6), 0, [][]byte{super6}, 0},
			{"train", join(v4(large), v4(large2)), len(v4(large)), [][]byte{large, large2}, 0},
			{"train, shorter last", join(v4(large), v4(large2), v4(small)), len(v4(large)),
				[][]byte{large, large2, small}, 0},
			{"train of both families", join(v4(large), v6(large6), v6(small6)), len(v4(large)),
				[][]byte{large, large6, small6}, 0},
			{"inner UDP train", v4(train), 1200, [][]byte{train}, 1200},
			{"inner UDP train, shorter last", v4(train), 1177, [][]byte{train}, 1177},
			{"inner UDP train IPv6", v6(train6), 1200, [][]byte{train6}, 1200},
			{"inner UDP train of one segment", v4(oneSegment), 1199, [][]byte{oneSegment}, 1199},
		}
		for _, tt := range tests {
			t.Run(enc.name+"/"+tt.name, func(t *testing.T) {
				f := newFixture(t)
				before := f.e.Drops()
				m := message(bytes.Clone(tt.data))
				m.SegmentSize = tt.segment
				got := f.deliver(m)
				var data [][]byte
				bytesWanted := 0
				for _, p := range got {
					data = append(data, p.Data)
					bytesWanted += len(p.Data)
					if p.Tunnel != enc.tunnel || p.SegmentSize != tt.inner {
						t.Errorf("tunnel %d, segment size %d; want %d, %d", p.Tunnel, p.SegmentSize,
							enc.tunnel, tt.inner)
					}
				}
				if !slices.EqualFunc(data, tt.want, bytes.Equal) {
					t.Errorf("%d packets, want %d, or not the same", len(data), len(tt.want))
				}
				f.drops(before, nil)
				if s, _ := f.e.TunnelStats(enc.tunnel); s.ReceivedPackets != uint64(len(tt.want)) ||
					s.ReceivedBytes != uint64(bytesWanted) {
					t.Errorf("counted %d packets of %d bytes, want %d of %d", s.ReceivedPackets, s.ReceivedBytes,
						len(tt.want), bytesWanted)
				}
			})
		}
	}
}

// TestForgedTrain sends an inner UDP train in which a pod has put what would be a datagram of the
// tunnel exactly where a receiver would cut that takes the UDP_GRO size for the size of outer
// datagrams.
func TestForgedTrain(t *testing.T) {
	for _, enc := range encapsulations {
		t.Run(enc.name, func(t *testing.T) {
			const segment = 1200
			forgedIP := genevetest.UDP(netip.MustParseAddrPort("10.0.9.9:1"), remotePod, []byte("forged"))
			forged := enc.encap(genevetest.IPv4, forgedIP)
			body := payload(1, 20*segment+300)
			headers := enc.header + 20 + 8
			for cut := segment; cut-headers+len(forged) <= len(body); cut += segment {
				copy(body[cut-headers:], forged)
			}
			packet := genevetest.UDP(pod, remotePod, body)
			m := message(enc.encap(genevetest.IPv4, packet))
			if !bytes.Equal(m.Data[segment:segment+len(forged)], forged) {
				t.Fatal("the forged datagram is not at the cut")
			}
			m.SegmentSize = segment
			f := newFixture(t)
			got := f.deliver(m)
			if len(got) != 1 || got[0].SegmentSize != segment || !bytes.Equal(got[0].Data, packet) {
				t.Errorf("%d packets came out, want the train as one", len(got))
			}
		})
	}
}

// TestBadTrains delivers messages with a UDP_GRO size that are neither kind of train: nothing comes
// out.
func TestBadTrains(t *testing.T) {
	geneve := encapsulations[0].encap
	packet := func(size int) []byte { return genevetest.UDP(pod, remotePod, payload(1, size)) }
	good := geneve(genevetest.IPv4, packet(1000))
	size := len(good)
	otherVNI := bytes.Clone(good)
	otherVNI[6]++
	shortInner := bytes.Clone(good)
	binary.BigEndian.PutUint16(shortInner[22+2:], 900) // the inner length leaves a gap
	arp := geneve(genevetest.ARP, arpMessage(1, nodeMAC, nodeInner, [6]byte{}, gatewayInner))
	fragment := packet(24300)
	binary.BigEndian.PutUint16(fragment[6:], 0x2000)
	laterFragment := packet(24300)
	binary.BigEndian.PutUint16(laterFragment[6:], 0x0010)
	udpLength := packet(24300)
	binary.BigEndian.PutUint16(udpLength[24:], 1208)
	options6 := genevetest.IP(pod6.Addr(), remotePod6.Addr(), 0, 0, payload(3, 24300))
	tests := []struct {
		name    string
		data    []byte
		segment int
		dropped uint64
	}{
		{"another VNI inside", join(good, otherVNI, good), size, 3},
		{"a piece whose inner packet is shorter", join(good, shortInner), size, 2},
		{"first piece whose inner packet is shorter", join(shortInner, good), size, 2},
		{"a piece that is no tunnel datagram", join(good, payload(1, size)), size, 2},
		{"a tail too short for a header", join(good, good[:5]), size, 2},
		{"a tail cut short", join(good, good[:size-1]), size, 2},
		{"padding behind", join(good, good, good[:40], []byte{0}), size, 3},
		{"size between both rules", join(good, good), size - 1, 3},
		{"super-frame with a size, TCP", geneve(genevetest.IPv4, genevetest.IP(pod.Addr(), remotePod.Addr(), 6, 0,
			payload(2, 24300))), 1200, 21},
		{"inner train with bytes behind", append(geneve(genevetest.IPv4, packet(24300)), 0), 1200, 21},
		{"inner train in a first fragment", geneve(genevetest.IPv4, fragment), 1200, 21},
		{"inner train in a later fragment", geneve(genevetest.IPv4, laterFragment), 1200, 21},
		{"inner train with another UDP length", geneve(genevetest.IPv4, udpLength), 1200, 21},
		{"inner train with a hop-by-hop header", geneve(genevetest.IPv6, options6), 1200, 21},
		{"ARP as an inner train", arp, len(arp) - 1, 2},
		{"size of one byte", good, 1, uint64(size)},
		{"inner train of 129 segments", geneve(genevetest.IPv4, packet(128*10+1)), 10, 134},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t)
			before := f.e.Drops()
			m := message(bytes.Clone(tt.data))
			m.SegmentSize = tt.segment
			if got := f.deliver(m); len(got) != 0 {
				t.Errorf("%d packets came out", len(got))
			}
			f.drops(before, map[Reason]uint64{BadTrain: tt.dropped})
		})
	}
}

// TestReceiveDrops has one datagram for each other reason to drop.
func TestReceiveDrops(t *testing.T) {
	ip := genevetest.UDP(pod, remotePod, payload(1, 100))
	ip6 := genevetest.UDP(pod6, remotePod6, payload(1, 100))
	us, vxlanUs := toGateway(nodeVNI), toGateway(vxlanVNI)
	geneve := func(inner []byte) []byte { return genevetest.Geneve(nodeVNI, 0x6558, inner) }
	frame := func(etherType uint16, b []byte) []byte { return geneve(genevetest.Frame(us, nodeMAC, etherType, b)) }
	change := func(b []byte, at int, value ...byte) []byte {
		b = bytes.Clone(b)
		copy(b[at:], value)
		return b
	}
	good := frame(genevetest.IPv4, ip)
	linkLocal := netip.MustParseAddr("fe80::1")
	solicited := [6]byte{0x33, 0x33, 0xff, 0, 0, 1}
	ns := genevetest.IP(linkLocal, netip.MustParseAddr("ff02::1:ff00:1"), 58, 0, append([]byte{135}, payload(1, 23)...))
	mld := genevetest.IP(linkLocal, netip.MustParseAddr("ff02::16"), 0, 0, append([]byte{58, 0, 5, 2, 0, 0, 1, 0, 143},
		payload(1, 27)...))
	echo6 := genevetest.IP(linkLocal, netip.MustParseAddr("ff02::1"), 58, 0, append([]byte{128}, payload(1, 27)...))
	tests := []struct {
		name   string
		data   []byte
		source netip.Addr
		tos    uint8
		want   Reason
	}{
		{"empty", nil, nodeOuter, 0, Truncated},
		{"seven bytes", good[:7], nodeOuter, 0, Truncated},
		{"header only", good[:8], nodeOuter, 0, Truncated},
		{"half an Ethernet header", good[:21], nodeOuter, 0, Truncated},
		{"no room for its options", change(good[:40], 0, 0x3f), nodeOuter, 0, Truncated},
		{"another VNI", change(good, 6, 99), nodeOuter, 0, UnknownNode},
		{"the VNI of the other node", change(good, 6, node2VNI), nodeOuter, 0, UnknownNode},
		{"another source", good, netip.MustParseAddr("127.0.0.9"), 0, UnknownNode},
		{"the source of the other node", good, node2Outer, 0, UnknownNode},
		{"VXLAN in a Geneve tunnel", genevetest.VXLAN(nodeVNI, genevetest.Frame(us, nodeMAC, genevetest.IPv4, ip)),
			nodeOuter, 0, WrongEncap},
		{"Geneve in a VXLAN tunnel", genevetest.Geneve(vxlanVNI, 0x6558, genevetest.Frame(vxlanUs, nodeMAC,
			genevetest.IPv4, ip)), nodeOuter, 0, WrongEncap},
		{"Geneve with IP in a VXLAN tunnel", genevetest.Geneve(vxlanVNI, genevetest.IPv4, ip), nodeOuter,
			0, WrongEncap},
		{"VXLAN without I flag", change(genevetest.VXLAN(vxlanVNI, genevetest.Frame(vxlanUs, nodeMAC, genevetest.IPv4,
			ip)), 0, 0), nodeOuter, 0, BadFlags},
		{"version 1", change(good, 0, 0x40), nodeOuter, 0, BadVersion},
		{"options that do not add up", change(good, 0, 1, 0, 0x65, 0x58, 0, 0, nodeVNI, 0, 0, 1, 0, 9), nodeOuter,
			0, BadOptions},
		{"control", change(good, 1, 0x80), nodeOuter, 0, ControlPacket},
		{"critical option, flagged", change(good, 0, 1, 0x40, 0x65, 0x58, 0, 0, nodeVNI, 0, 0, 1, 0x80, 0), nodeOuter,
			0, CriticalOption},
		{"critical option, not flagged", change(good, 0, 1, 0, 0x65, 0x58, 0, 0, nodeVNI, 0, 0, 1, 0x80, 0), nodeOuter,
			0, CriticalOption},
		{"MPLS", change(good, 2, 0x88, 0x47), nodeOuter, 0, UnknownProtocol},
		{"IP in an Ethernet tunnel", genevetest.Geneve(nodeVNI, genevetest.IPv4, ip), nodeOuter, 0, WrongInner},
		{"Ethernet in an IP tunnel", genevetest.Geneve(ipVNI, 0x6558, genevetest.Frame(us, nodeMAC, genevetest.IPv4,
			ip)), nodeOuter, 0, WrongInner},
		{"group source MAC", geneve(genevetest.Frame(us, [6]byte{0x03}, genevetest.IPv4, ip)), nodeOuter, 0, BadMAC},
		{"no source MAC", geneve(genevetest.Frame(us, [6]byte{}, genevetest.IPv4, ip)), nodeOuter, 0, BadMAC},
		{"our own source MAC", geneve(genevetest.Frame(us, us, genevetest.IPv4, ip)), nodeOuter, 0, BadMAC},
		{"another station", geneve(genevetest.Frame([6]byte{2, 9, 9, 9, 9, 9}, nodeMAC, genevetest.IPv4, ip)),
			nodeOuter, 0, OtherMAC},
		{"the node end's MAC", geneve(genevetest.Frame(MAC(nodeVNI, Node), nodeMAC, genevetest.IPv4, ip)), nodeOuter,
			0, OtherMAC},
		{"broadcast", geneve(genevetest.Frame(broadcastMAC, nodeMAC, genevetest.IPv4, ip)), nodeOuter, 0, Multicast},
		{"IPv4 multicast", geneve(genevetest.Frame([6]byte{1, 0, 0x5e, 0, 0, 1}, nodeMAC, genevetest.IPv4, ip)),
			nodeOuter, 0, Multicast},
		{"IPv6 multicast", geneve(genevetest.Frame([6]byte{0x33, 0x33, 0, 0, 0, 1}, nodeMAC, genevetest.IPv6, echo6)),
			nodeOuter, 0, Multicast},
		{"neighbour solicitation", geneve(genevetest.Frame(solicited, nodeMAC, genevetest.IPv6, ns)), nodeOuter, 0,
			NeighbourDiscovery},
		{"neighbour solicitation to our MAC", frame(genevetest.IPv6, ns), nodeOuter, 0, NeighbourDiscovery},
		{"neighbour solicitation in an IP tunnel", genevetest.Geneve(ipVNI, genevetest.IPv6, ns), nodeOuter, 0,
			NeighbourDiscovery},
		{"listener report", geneve(genevetest.Frame([6]byte{0x33, 0x33, 0, 0, 0, 0x16}, nodeMAC, genevetest.IPv6, mld)),
			nodeOuter, 0, NeighbourDiscovery},
		{"VLAN tag", frame(0x8100, ip), nodeOuter, 0, UnknownEtherType},
		{"LLDP", geneve(genevetest.Frame([6]byte{1, 0x80, 0xc2, 0, 0, 0xe}, nodeMAC, 0x88cc, ip)), nodeOuter, 0,
			UnknownEtherType},
		{"half an ARP message", frame(genevetest.ARP, arpMessage(1, nodeMAC, nodeInner, us, gatewayInner)[:27]),
			nodeOuter, 0, BadARP},
		{"ARP of another hardware", frame(genevetest.ARP, change(arpMessage(1, nodeMAC, nodeInner, us, gatewayInner), 1,
			6)), nodeOuter, 0, BadARP},
		{"reverse ARP", frame(genevetest.ARP, arpMessage(3, nodeMAC, nodeInner, us, gatewayInner)),
			nodeOuter, 0, BadARP},
		{"ARP with another sender than its frame", frame(genevetest.ARP, arpMessage(1, [6]byte{2, 1}, nodeInner, us,
			gatewayInner)), nodeOuter, 0, BadARP},
		{"ARP that claims our address", frame(genevetest.ARP, arpMessage(2, nodeMAC, gatewayInner, us, gatewayInner)),
			nodeOuter, 0, BadARP},
		{"ARP to a group", geneve(genevetest.Frame([6]byte{1, 0, 0x5e, 0, 0, 1}, nodeMAC, genevetest.ARP,
			arpMessage(1, nodeMAC, nodeInner, us, gatewayInner))), nodeOuter, 0, BadARP},
		{"ARP to another station", geneve(genevetest.Frame([6]byte{2, 9}, nodeMAC, genevetest.ARP,
			arpMessage(1, nodeMAC, nodeInner, us, gatewayInner))), nodeOuter, 0, OtherMAC},
		{"ARP for another address", geneve(genevetest.Frame(broadcastMAC, nodeMAC, genevetest.ARP,
			arpMessage(1, nodeMAC, nodeInner, [6]byte{}, node2Inner))), nodeOuter, 0, OtherARP},
		{"ARP reply about another address", frame(genevetest.ARP, arpMessage(2, nodeMAC, node2Inner, us, gatewayInner)),
			nodeOuter, 0, OtherARP},
		{"no IP", frame(genevetest.IPv4, nil), nodeOuter, 0, BadLength},
		{"19 bytes of IPv4", frame(genevetest.IPv4, ip[:19]), nodeOuter, 0, BadLength},
		{"IPv4 cut short", frame(genevetest.IPv4, ip[:len(ip)-1]), nodeOuter, 0, BadLength},
		{"IPv4 header length 16", frame(genevetest.IPv4, change(ip, 0, 0x44)), nodeOuter, 0, BadLength},
		{"IPv4 shorter than its header", frame(genevetest.IPv4, change(ip, 2, 0, 19)), nodeOuter, 0, BadLength},
		{"IPv4 of length 0", frame(genevetest.IPv4, change(ip, 2, 0, 0)), nodeOuter, 0, BadLength},
		{"IPv6 as IPv4", frame(genevetest.IPv4, ip6), nodeOuter, 0, BadLength},
		{"IPv4 as IPv6", frame(genevetest.IPv6, ip), nodeOuter, 0, BadLength},
		{"39 bytes of IPv6", frame(genevetest.IPv6, ip6[:39]), nodeOuter, 0, BadLength},
		{"IPv6 cut short", frame(genevetest.IPv6, ip6[:len(ip6)-1]), nodeOuter, 0, BadLength},
		{"congestion unknown inside", good, nodeOuter, 3, ECN},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t)
			before := f.e.Drops()
			m := udp.Message{Data: bytes.Clone(tt.data), Source: netip.AddrPortFrom(tt.source, 40000), TOS: tt.tos}
			if got := f.deliver(m); len(got) != 0 {
				t.Errorf("%d packets came out", len(got))
			}
			f.drops(before, map[Reason]uint64{tt.want: 1})
			if s, _ := f.e.TunnelStats(toNode); tt.want != ECN && tt.want != OtherARP && s.MAC != nil {
				t.Errorf("neighbour %v learnt from a frame that was dropped", s.MAC)
			}
			f.silent(f.node)
		})
	}
}

// TestTruncatedEverywhere delivers every beginning of a datagram: what is cut never comes out.
func TestTruncatedEverywhere(t *testing.T) {
	f := newFixture(t)
	for _, enc := range encapsulations {
		for _, packet := range [][]byte{genevetest.UDP(pod, remotePod, payload(1, 60)), genevetest.UDP(pod6, remotePod6,
			payload(1, 60))} {
			etherType := uint16(genevetest.IPv4)
			if packet[0]>>4 == 6 {
				etherType = genevetest.IPv6
			}
			whole := enc.encap(etherType, packet)
			for n := range whole {
				if got := f.deliver(message(bytes.Clone(whole[:n]))); len(got) != 0 {
					t.Fatalf("%s: a packet came out of the first %d of %d bytes", enc.name, n, len(whole))
				}
			}
			if got := f.deliver(message(whole)); len(got) != 1 {
				t.Fatalf("%s: the whole datagram was dropped", enc.name)
			}
		}
	}
}
