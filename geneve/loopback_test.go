package geneve

import (
	"bytes"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"culvert/geneve/genevetest"
	"culvert/geneve/udp"
	"culvert/integration/need"
)

// run receives on e until it is closed, and sends each packet to out.
func run(t *testing.T, e *Endpoint, out chan<- Packet) {
	var wg sync.WaitGroup
	done := make(chan struct{})
	r := e.NewReceiver()
	wg.Go(func() {
		for {
			if err := r.Fill(); err != nil {
				if err != net.ErrClosed {
					t.Errorf("Fill: %v", err)
				}
				return
			}
			for {
				p, ok := r.Next()
				if !ok {
					break
				}
				p.Data = bytes.Clone(p.Data)
				select {
				case out <- p:
				case <-done: // nobody reads what comes
					return
				}
			}
		}
	})
	t.Cleanup(func() {
		e.Close()
		close(done)
		wg.Wait()
	})
}

// TestGatewayAndNode joins two endpoints: neither knows the other's MAC address, packets go both
// ways.
func TestGatewayAndNode(t *testing.T) {
	loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	underlays := []struct {
		name          string
		gateway, node netip.Addr
		all           bool // the gateway listens on all
	}{
		{"IPv4", gatewayOuter, nodeOuter, false}, {"IPv6", netip.IPv6Loopback(), netip.IPv6Loopback(), false},
		{"IPv4", loopback, loopback, true}, {"IPv6", netip.IPv6Loopback(), netip.IPv6Loopback(), true},
	}
	shapes := []struct {
		name  string
		encap Encap
		inner Inner
	}{{"Geneve", Geneve, Ethernet}, {"VXLAN", VXLAN, Ethernet}, {"IP", Geneve, IP}}
	for _, u := range underlays {
		for _, shape := range shapes {
			for _, o := range []udp.Options{{}, {NoGRO: true, NoGSO: true}} {
				t.Run(u.name+"/"+shape.name, func(t *testing.T) {
					probe, err := net.ListenPacket("udp", netip.AddrPortFrom(u.gateway, 0).String())
					need.Kernel(t, strings.ToLower(u.name), err)
					probe.Close()
					// Real ends share one port number; on one loopback address they cannot.
					node, err := Listen(Options{Listen: netip.AddrPortFrom(u.node, 0), UDP: o})
					need.NoError(t, err)
					listen := u.gateway
					if u.all {
						listen = netip.Addr{}
					}
					gateway, err := Listen(Options{Listen: netip.AddrPortFrom(listen, 0),
						RemotePort: node.LocalAddr().Port(), UDP: o})
					need.NoError(t, err)
					node.remotePort = gateway.LocalAddr().Port()
					if err := gateway.Apply([]Tunnel{{ID: 2, VNI: 300, Remote: u.node, Encap: shape.encap,
						Inner: shape.inner, Local: Pair{V4: gatewayInner}, Peer: Pair{V4: nodeInner}}}); err != nil {
						t.Fatal(err)
					}
					if err := node.Apply([]Tunnel{{ID: 0, VNI: 300, Remote: u.gateway, Encap: shape.encap,
						Inner: shape.inner, Local: Pair{V4: nodeInner}, Peer: Pair{V4: gatewayInner},
						Role: Node}}); err != nil {
						t.Fatal(err)
					}
					atGateway, atNode := make(chan Packet, 200), make(chan Packet, 200)
					run(t, gateway, atGateway)
					run(t, node, atNode)
					for _, way := range []struct {
						from *Endpoint
						id   uint16
						at   <-chan Packet
						name uint16
					}{{node, 0, atGateway, 2}, {gateway, 2, atNode, 0}} {
						s := way.from.NewSender()
						var want [][]byte
						for i := range 150 {
							want = append(want, ipPacket(i, 1340-i%3*500))
						}
						// One alone first: it waits for ARP. The rest are more than may wait.
						s.Send(way.id, want[0])
						s.Flush()
						got := [][]byte{(<-way.at).Data}
						for _, p := range want[1:] {
							if r := s.Send(way.id, p); r != Accepted {
								t.Fatal(r)
							}
						}
						s.Flush()
						for len(got) < len(want) {
							p := <-way.at
							if p.Tunnel != way.name || p.SegmentSize != 0 {
								t.Errorf("tunnel %d, segment size %d", p.Tunnel, p.SegmentSize)
							}
							got = append(got, p.Data)
						}
						if !slices.EqualFunc(got, want, bytes.Equal) {
							t.Error("packets changed or out of order")
						}
					}
					if g, n := gateway.Drops(), node.Drops(); g != n || g != [NumReasons]uint64{} {
						t.Errorf("drops %v and %v", g, n)
					}
				})
			}
		}
	}
}

// TestFakeNode runs the endpoint against genevetest.Node, on which other packages' tests rely.
func TestFakeNode(t *testing.T) {
	for _, c := range []genevetest.NodeConfig{{VNI: 5}, {VNI: 0xfedcba, VXLAN: true}, {VNI: 0, IP: true}} {
		e, err := Listen(Options{Listen: netip.AddrPortFrom(gatewayOuter, 0)})
		need.NoError(t, err)
		c.Listen, c.Gateway = netip.AddrPortFrom(nodeOuter, 0), e.LocalAddr()
		c.Address, c.GatewayAddress = nodeInner, gatewayInner
		node := genevetest.NewNode(t, c)
		e.remotePort = node.Underlay().Port()
		tunnel := Tunnel{ID: 1, VNI: VNI(c.VNI), Remote: nodeOuter, Local: Pair{V4: gatewayInner},
			Peer: Pair{V4: nodeInner}}
		if c.VXLAN {
			tunnel.Encap = VXLAN
		}
		if c.IP {
			tunnel.Inner = IP
		}
		need.NoError(t, e.Apply([]Tunnel{tunnel}))
		at := make(chan Packet, 16)
		run(t, e, at)
		s := e.NewSender()
		answer := genevetest.UDP(remotePod, pod, []byte("answer"))
		s.Send(1, answer)
		s.Flush()
		if got := node.Receive(); !bytes.Equal(got, answer) {
			t.Errorf("node received % x, want % x", got, answer)
		}
		first, second, third := genevetest.UDP(pod, remotePod, payload(1, 900)), genevetest.UDP(pod6, remotePod6,
			payload(2, 880)), genevetest.UDP(pod, remotePod, payload(3, 8))
		node.Send(first)
		node.SendTrain(first, second, third)
		for _, want := range [][]byte{first, first, second, third} {
			if got := <-at; !bytes.Equal(got.Data, want) {
				t.Errorf("gateway received % x, want % x", got.Data, want)
			}
		}
		if !c.IP && node.GatewayMAC() != MAC(VNI(c.VNI), Gateway) {
			t.Errorf("the node knows the gateway as % x", node.GatewayMAC())
		}
	}
}

// TestConcurrency has two Senders, a Receiver, Apply and the counters at work at once, for the race
// detector.
func TestConcurrency(t *testing.T) {
	f := newFixture(t)
	var senders, others sync.WaitGroup
	stop := make(chan struct{})
	others.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			tunnels := fixtureTunnels()
			if i%2 == 0 {
				tunnels = tunnels[:2]
			}
			if err := f.e.Apply(tunnels); err != nil {
				t.Error(err)
			}
			f.e.Stats()
			f.e.TunnelStats(toNode)
			f.e.Wake()
		}
	})
	for range 2 {
		senders.Go(func() {
			s := f.e.NewSender()
			for i := range 300 {
				for _, id := range []uint16{toNode, toNode2, toIP} {
					s.Send(id, ipPacket(i, 200))
				}
				if i%20 == 0 {
					s.Flush()
				}
			}
			s.Flush()
		})
	}
	senders.Go(func() {
		for range 300 {
			f.arpFrom(us, 2, nodeMAC, nodeInner, gatewayInner)
			f.ipFrom(station)
		}
	})
	senders.Wait()
	close(stop)
	others.Wait()
}

// FuzzReceive delivers arbitrary messages: whatever they are, packets come out that lie inside the
// message one after the other, or a reason is counted.
func FuzzReceive(f *testing.F) {
	ip := genevetest.UDP(pod, remotePod, payload(1, 60))
	good := encapsulations[0].encap(genevetest.IPv4, ip)
	f.Add(good, 0, uint8(0), false)
	f.Add(join(good, good, good[:40]), len(good), uint8(2), false)
	f.Add(encapsulations[1].encap(genevetest.IPv6, genevetest.UDP(pod6, remotePod6, payload(1, 600))), 100,
		uint8(3), false)
	f.Add(encapsulations[2].encap(genevetest.ARP, arpMessage(1, nodeMAC, nodeInner, [6]byte{}, gatewayInner)), 0,
		uint8(0), false)
	f.Add(encapsulations[3].encap(genevetest.IPv4, ip), 20, uint8(1), true)
	f.Add(openEncap(Geneve)(genevetest.IPv4, ip), 0, uint8(0), false)
	f.Add(openEncap(VXLAN)(genevetest.ARP, arpMessage(1, nodeMAC, nodeInner, [6]byte{}, gatewayInner)), 0,
		uint8(0), false)
	f.Add(join(openEncap(VXLAN)(genevetest.IPv4, ip), openEncap(Geneve)(genevetest.IPv4, ip)), len(good),
		uint8(0), false)
	e, err := Listen(Options{Listen: netip.AddrPortFrom(gatewayOuter, 0), RemotePort: 9})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { e.Close() })
	f.Add(inFrame(us, nodeMAC, genevetest.Solicit(nodeInner6, gatewayInner6, nodeMAC, false)), 0, uint8(0), false)
	f.Add(inFrame(us, nodeMAC, genevetest.Advertise(nodeInner6, gatewayInner6, whenSolicited|overriding, nodeMAC)), 0,
		uint8(0), false)
	f.Add(inFrame(us, nodeMAC, genevetest.Solicit(nodeInner6, node2Inner6, nodeMAC, false)), 0, uint8(0), false)
	f.Add(inFrame(us, nodeMAC, genevetest.Advertise(node2Inner6, gatewayInner6, overriding, nodeMAC)), 0,
		uint8(0), false)
	f.Add(inFrame([6]byte{0x33, 0x33, 0xff, 0, 0, 4}, nodeMAC, genevetest.Solicit(netip.IPv6Unspecified(),
		gatewayInner6, [6]byte{}, true)), 0, uint8(0), false)
	tunnels := append(fixtureTunnels(), openTunnel)
	tunnels[0] = tunnel6(true)
	if err := e.Apply(tunnels); err != nil {
		f.Fatal(err)
	}
	r := e.NewReceiver()
	f.Fuzz(func(t *testing.T, data []byte, segment int, tos uint8, other bool) {
		if segment < 0 || segment > 65535 || len(data) > udp.MaxPayload {
			return
		}
		m := udp.Message{Data: data, SegmentSize: segment, TOS: tos, Source: netip.AddrPortFrom(nodeOuter, 1)}
		if other {
			m.Source = netip.AddrPortFrom(node2Outer, 1)
		}
		before, stats := e.Drops(), e.Stats()
		r.messages[0], r.received, r.next, r.rest = m, 1, 0, nil
		packets, used := 0, 0
		for {
			p, ok := r.Next()
			if !ok {
				break
			}
			packets++
			used += headerLen + len(p.Data)
			if len(p.Data) < 20 || p.SegmentSize != 0 && (packets > 1 || p.SegmentSize != segment ||
				len(p.Data) <= segment) {
				t.Fatalf("packet of %d bytes, segment size %d", len(p.Data), p.SegmentSize)
			}
		}
		if used > len(data) {
			t.Fatalf("%d packets of %d bytes with their headers from a message of %d", packets, used, len(data))
		}
		if packets == 0 && e.Drops() == before && e.Stats().ARPReceived+e.Stats().NDReceived == stats.ARPReceived+
			stats.NDReceived {
			t.Fatal("nothing came out and nothing was counted")
		}
	})
}
