package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/gopacket/gopacket/pcapgo"
	"golang.zx2c4.com/wireguard/device"

	"culvert/gateway/config"
	"culvert/gateway/control"
	"culvert/gateway/health"
	"culvert/gateway/wg"
	"culvert/geneve"
	"culvert/geneve/genevetest"
	"culvert/geneve/udp"
	"culvert/integration/need"
	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/rules"
)

// A losing pair is one whose first gateway is made to drop packets.
type losingPair struct {
	*pair
	t      *testing.T
	client *control.Client
	node   *genevetest.Node // speaks Geneve
	sender udp.Sender       // of the node's address, from another port
}

var losingGateway6 = netip.MustParseAddr("fd80::4")

func newLosingPair(t *testing.T, edit func(rome *config.Config)) *losingPair {
	p := &losingPair{t: t}
	p.pair, p.client = newControlled(t, func(rome, _ *config.Config) {
		rome.Metrics = "127.0.0.1:0"
		rome.Geneve.GatewayAddress.V6 = losingGateway6
		for i := range rome.Geneve.Nodes {
			rome.Geneve.Nodes[i].Address.V6 = netip.AddrFrom16([16]byte{0xfd, 0x80, 15: byte(100 + i)})
		}
		edit(rome)
	})
	p.node = p.rome.nodes[0]
	socket, err := udp.Listen("udp4", netip.AddrPortFrom(p.node.Underlay().Addr(), 0), udp.Options{})
	need.NoError(t, err)
	t.Cleanup(func() { socket.Close() })
	p.sender = socket.NewSender()
	p.node.Send(udpPacket("10.0.1.5", "10.61.1.7", nil)) // there is a session
	expect(t, p.milan.nodes[0], "10.62.1.5", "10.0.1.7")
	return p
}

// inner sends a packet from the node.
func (p *losingPair) inner(ip nattest.IP) { p.node.Send(ip.Bytes()) }

// tunnel sends a packet from the peer, unchanged.
func (p *losingPair) tunnel(ip nattest.IP) { p.milan.path.Send(ip.Bytes()) }

// outer sends datagrams from the node's address.
func (p *losingPair) outer(train udp.Train) {
	train.Destination = p.rome.endpoint.LocalAddr()
	if _, err := p.sender.Send([]udp.Train{train}); err != nil {
		p.t.Error(err)
	}
}

// port sends messages of an unknown sender to WireGuard's port.
func (p *losingPair) port(n int, message []byte) {
	dialer := net.Dialer{LocalAddr: &net.UDPAddr{IP: net.IPv4(127, 0, 0, 77)}} // which is not the peer's
	conn, err := dialer.Dial("udp4", fmt.Sprintf("127.0.0.1:%d", p.rome.wg.Port()))
	need.NoError(p.t, err)
	defer conn.Close()
	for range n {
		conn.Write(message)
	}
}

// lost reports whether rome has dropped packets for a reason.
func (p *losingPair) lost(reason string) bool {
	drops := dropsOf(p.rome.Gateway)
	return drops[dropKey{"outbound", reason}]+drops[dropKey{"inbound", reason}] > 0
}

// apply changes rome's configuration.
func (p *losingPair) apply(change func(*config.Config)) {
	c := *p.rome.config()
	c.Geneve.Nodes = slices.Clone(c.Geneve.Nodes)
	change(&c)
	need.NoError(p.t, p.rome.Apply(&c))
}

// provoke drops a packet for each reason of this pair, in the order of their names, but the slowest
// first.
func (p *losingPair) provoke(ways map[string]func()) {
	const slow = "unresolved"
	if begin := ways[slow]; begin != nil {
		begin()
	}
	for _, reason := range slices.Sorted(maps.Keys(ways)) {
		if reason != slow {
			ways[reason]()
		}
	}
	for reason := range ways {
		awaits(p.t, func() bool { return p.lost(reason) }, reason)
	}
}

// shown returns the reasons that a capture of drops, status and metrics all contain.
func (p *losingPair) shown(ways map[string]func()) map[string]bool {
	t := p.t
	file := recorded(t, p.pair, p.client, control.CaptureOptions{Drops: true}, func() {
		p.provoke(ways)
		p.rome.inspect.Look() // status would otherwise be up to a second old
	})
	all := map[string]bool{}
	for reason := range ways {
		all[reason] = true
	}
	comments := map[string]bool{}
	r, err := pcapgo.NewNgReader(file, pcapgo.DefaultNgReaderOptions)
	need.NoError(t, err)
	for {
		_, _, options, err := r.ReadPacketDataWithOptions()
		if errors.Is(err, io.EOF) {
			break
		}
		need.NoError(t, err)
		comment, ok := strings.CutPrefix(strings.Join(options.Comments, ""), "drop: ")
		if !ok {
			t.Errorf("in a capture of drops: %q", options.Comments)
		}
		comment, _, _ = strings.Cut(comment, ",")
		comment, _, _ = strings.Cut(comment, ";")
		comments[comment] = true
	}
	status, err := p.client.Status(t.Context())
	need.NoError(t, err)
	stated := map[string]bool{}
	for _, d := range slices.Concat(status.Outbound.Drops, status.Inbound.Drops) {
		stated[d.Reason] = d.Packets > 0
	}
	_, page := getFrom(t, "127.0.0.1", p.rome.metrics.Listener.Addr(), "/metrics")
	for reason := range ways {
		counted := false
		for line := range strings.Lines(page) {
			counted = counted || strings.HasPrefix(line, "culvert_dropped_packets_total{") && strings.Contains(line,
				`reason="`+reason+`"`) && !strings.HasSuffix(line, " 0\n")
		}
		if !comments[reason] || !stated[reason] || !counted {
			t.Errorf("%s: in the capture %v, in status %v, in the metrics %v", reason, comments[reason],
				stated[reason], counted)
		}
	}
	return all
}

// TestEveryReasonShows: for every reason, a dropped packet appears under its name in status,
// metrics and a capture of drops.
func TestEveryReasonShows(t *testing.T) {
	done := map[string]bool{
		"bad-packet": true, // the sender only gets packets of the engine, which are IP
		"too-long":   true, // they are no longer than the MTU
		"standby":    true, // TestBecome covers it: a standby does not parse what it drops
	}
	pod := nattest.IP{Source: "10.0.1.5", Destination: "10.61.1.7", Body: nattest.UDP{SourcePort: 4000,
		DestinationPort: 53}}
	with := func(change func(*nattest.IP)) nattest.IP {
		ip := pod
		change(&ip)
		return ip
	}
	p := newLosingPair(t, func(rome *config.Config) {
		rome.Rules = []rules.FilterRule{
			{Name: "drop", Protocol: 17, Ports: []rules.PortRange{{First: 7, Last: 7}}, Action: rules.FilterDrop},
			{Name: "reject", Protocol: 17, Ports: []rules.PortRange{{First: 9, Last: 9}}, Action: rules.FilterReject},
		}
		rome.Services = []config.Service{{Name: "empty", Address: rules.PairOf(netip.MustParseAddr("10.70.0.21")),
			Port: 80, Protocol: 17},
			{Name: "told", Address: rules.PairOf(netip.MustParseAddr("10.70.0.22")), Port: 80, Protocol: 6,
				ProxyProtocol: true,
				Backends:      []config.Backend{{Address: netip.MustParseAddr("10.0.1.7"), Port: 80}}}}
	})
	ways := p.ofPackets(with)
	maps.Copy(ways, p.ofTunnels())
	ways["output"] = func() {
		keep := rules.Chain{Name: "c", Type: rules.ChainFilter, Hook: rules.HookOutput, Rules: []rules.Rule{
			{Name: "keep", Action: rules.ActionDrop,
				Match: []rules.Match{{IP: rules.Operand{Value: "10.0.1.6", Position: rules.PositionDestination}}}},
		}}
		table := rules.Table{Name: "own", Family: rules.FamilyIPv4, Chains: []rules.Chain{keep}}
		need.NoError(t, p.rome.Put(rules.Key{Kind: "user", Name: "output"},
			rules.Resource{Tables: []rules.Table{table}}))
		p.rome.CommitRules()
		p.inner(nattest.IP{Source: "10.0.1.6", Destination: "10.80.0.4", Body: nattest.ICMP{Type: 8, Rest: 7}})
	}
	if s := p.rome.endpoint.Stats().Socket; !s.GRO || !s.GSO {
		t.Log("this kernel merges no trains, so that none is a bad one")
		delete(ways, "bad-train")
		done["bad-train"] = true
	}
	maps.Copy(done, p.shown(ways))

	p = newLosingPair(t, func(rome *config.Config) { rome.MaxConnections = 8 })
	maps.Copy(done, p.shown(map[string]func(){
		"connection-share": func() { p.fillTable() },
		"not-admitted": func() {
			awaits(t, func() bool { return p.lost("connection-share") })
			p.apply(func(c *config.Config) { c.Admit = config.AdmitExports })
			p.tunnel(nattest.IP{Source: "10.0.1.7", Destination: "10.0.1.5", Body: nattest.UDP{SourcePort: 4000,
				DestinationPort: 9999}})
		},
		"table-full": func() {
			awaits(t, func() bool { return p.lost("connection-share") })
			p.apply(func(c *config.Config) { c.MaxConnections = 2 })
			p.inner(with(func(ip *nattest.IP) { ip.Source = "203.0.113.200" }))
		},
		"unknown-source": func() {
			awaits(t, func() bool { return p.lost("table-full") })
			p.apply(func(c *config.Config) { c.UnknownSource = rules.Pair{} })
			p.inner(with(func(ip *nattest.IP) { ip.Source = "203.0.113.9" }))
		},
	}))
	for key := range dropsOf(p.rome.Gateway) {
		if !done[key.reason] {
			t.Errorf("nobody drops a packet for %s here", key.reason)
		}
	}
}

// ofPackets lose packets because of their content.
func (p *losingPair) ofPackets(with func(func(*nattest.IP)) nattest.IP) map[string]func() {
	datagram := func(port uint16) nattest.Body { return nattest.UDP{SourcePort: 4000, DestinationPort: port} }
	quoted := nattest.IP{Source: "10.61.1.7", Destination: "10.9.9.9", Body: datagram(1)}.Bytes()
	return map[string]func(){
		"malformed": func() {
			b := with(func(*nattest.IP) {}).Bytes()
			b[10] ^= 0x55
			p.node.Send(b)
		},
		"source-route":    func() { p.inner(with(func(ip *nattest.IP) { ip.Options = []byte{131, 3, 4, 0} })) },
		"bad-source":      func() { p.inner(with(func(ip *nattest.IP) { ip.Source = "127.0.0.1" })) },
		"bad-destination": func() { p.inner(with(func(ip *nattest.IP) { ip.Destination = "224.0.0.5" })) },
		"to-node": func() {
			p.tunnel(nattest.IP{Source: "10.0.1.7", Destination: "10.80.0.2", Body: datagram(10250)})
		},
		"no-mapping": func() {
			p.tunnel(nattest.IP{Source: "10.0.1.7", Destination: "10.70.0.99", Body: datagram(53)})
		},
		"no-backend": func() {
			p.tunnel(nattest.IP{Source: "10.0.1.7", Destination: "10.70.0.21", Body: datagram(80)})
		},
		"mid-stream": func() {
			p.tunnel(nattest.IP{Source: "10.0.1.7", Destination: "10.70.0.22", Body: nattest.TCP{DestinationPort: 80,
				Flags: nattest.ACK}})
		},
		"no-route":     func() { p.inner(with(func(ip *nattest.IP) { ip.Destination = "8.8.8.8" })) },
		"ttl-exceeded": func() { p.inner(with(func(ip *nattest.IP) { ip.TTL = 1 })) },
		"too-big": func() {
			p.inner(with(func(ip *nattest.IP) {
				ip.DF, ip.Body = true, nattest.UDP{DestinationPort: 53, Payload: make([]byte, 1400)}
			}))
		},
		"icmp-unrelated": func() {
			p.inner(with(func(ip *nattest.IP) { ip.Body = nattest.ICMP{Type: 3, Code: 1, Payload: quoted} }))
		},
		"icmp-type": func() {
			p.inner(with(func(ip *nattest.IP) { ip.Body = nattest.ICMP{Type: 5, Payload: make([]byte, 28)} }))
		},
		"filtered": func() { p.inner(with(func(ip *nattest.IP) { ip.Body = datagram(7) })) },
		"rejected": func() { p.inner(with(func(ip *nattest.IP) { ip.Body = datagram(9) })) },
		"port-exhausted": func() { // two clients with one address, and no port to tell them apart
			for _, source := range []string{"203.0.113.1", "203.0.113.2"} {
				p.inner(with(func(ip *nattest.IP) {
					ip.Source, ip.Body = source, nattest.Raw{Protocol: 47, Payload: make([]byte, 8)}
				}))
			}
		},
		"port-share": func() {
			for port := range uint16(512) {
				p.inner(with(func(ip *nattest.IP) {
					ip.Source, ip.Body = "203.0.113.3", nattest.UDP{SourcePort: 512 + port, DestinationPort: 54}
				}))
			}
		},
		"fragment": func() { // its port must change, but the checksum is in another fragment
			for _, source := range []string{"203.0.113.1", "203.0.113.2"} {
				p.inner(with(func(ip *nattest.IP) {
					ip.Source, ip.MF, ip.Body = source, true, nattest.SCTP{SourcePort: 700, DestinationPort: 53, Tag: 7,
						Chunks: make([]byte, 12)}
				}))
			}
		},
		"fragment-overlap": func() {
			for range 2 {
				p.inner(with(func(ip *nattest.IP) {
					ip.ID, ip.Offset, ip.Body = 3, 800, nattest.Raw{Protocol: 17, Payload: make([]byte, 8)}
				}))
			}
		},
		"fragment-limit": func() {
			p.inner(with(func(ip *nattest.IP) {
				ip.Source, ip.ID, ip.Offset, ip.Body = "203.0.113.1", 4, 800, nattest.Raw{Protocol: 17,
					Payload: make([]byte, 2400)}
			}))
		},
		"no-service": func() { p.inner(with(func(ip *nattest.IP) { ip.Destination = "10.80.0.4" })) },
		"bad-check": func() {
			p.milan.path.Send(fromPeer(4000, "junk"))
		},
		"bad-exports": func() {
			p.rome.Exchange(func([]byte) bool { return false })
			p.milan.Tell([]byte("junk"))
		},
		"local-queue-full": func() {
			b := with(func(*nattest.IP) {}).Bytes()
			for !p.lost("local-queue-full") {
				p.rome.path.Send(b)
			}
		},
	}
}

// ofTunnels lose datagrams of the tunnels.
func (p *losingPair) ofTunnels() map[string]func() {
	good := p.node.Encap(udpPacket("10.0.1.5", "10.61.1.7", make([]byte, 100)))
	us := p.node.GatewayMAC()
	changed := func(at int, value ...byte) func() {
		return func() {
			b := bytes.Clone(good)
			copy(b[at:], value)
			p.outer(udp.Train{Parts: [][]byte{b}})
		}
	}
	arp := func(n int, message ...byte) func() {
		return func() {
			for range n {
				p.outer(udp.Train{Parts: [][]byte{genevetest.Geneve(11, 0x6558,
					genevetest.Frame([6]byte{255, 255, 255, 255, 255, 255}, p.node.MAC, genevetest.ARP, message))}})
			}
		}
	}
	request := func(target ...byte) []byte {
		return slices.Concat([]byte{0, 1, 8, 0, 6, 4, 0, 1}, p.node.MAC[:], []byte{10, 80, 0, 2},
			make([]byte, 6), target)
	}
	frame := func(to, from [6]byte, etherType uint16, b []byte) func() {
		return func() {
			p.outer(udp.Train{Parts: [][]byte{genevetest.Geneve(11, 0x6558, genevetest.Frame(to, from, etherType, b))}})
		}
	}
	ip := udpPacket("10.0.1.5", "10.61.1.7", nil)
	solicitation := append([]byte{0x60, 0, 0, 0, 0, 24, 58, 255, 0xfe, 0x80, 15: 1, 23: 0, 24: 0xff, 25: 2, 39: 1},
		append([]byte{133}, make([]byte, 23)...)...)
	discovery := func(n int, ip []byte) func() {
		return func() {
			for range n {
				frame(us, p.node.MAC, genevetest.IPv6, ip)()
			}
		}
	}
	node6, other6 := netip.MustParseAddr("fd80::64"), netip.MustParseAddr("fd80::99")
	message := func(n, size int, kind byte) func() {
		return func() { p.port(n, append([]byte{kind}, make([]byte, size-1)...)) }
	}
	ghost := func(name string, n byte, packets int) { // packets to a node that never answers
		p.apply(func(c *config.Config) {
			c.Geneve.Nodes = append(c.Geneve.Nodes, config.Node{Name: name, VNI: geneve.VNI(n),
				Underlay: netip.AddrFrom4([4]byte{127, 0, 10, n}),
				Address: rules.PairOf(netip.AddrFrom4([4]byte{10, 80, 0, n}),
					netip.AddrFrom16([16]byte{0xfd, 0x80, 15: n})),
				PodCIDRs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, n, 0}), 24)}})
		})
		for range packets {
			p.node.Send(udpPacket("10.0.1.5", fmt.Sprintf("10.0.%d.5", n), nil))
		}
	}
	gone := func(name string) {
		p.apply(func(c *config.Config) {
			c.Geneve.Nodes = slices.DeleteFunc(c.Geneve.Nodes, func(n config.Node) bool { return n.Name == name })
		})
	}
	return map[string]func(){
		"truncated":    func() { p.outer(udp.Train{Parts: [][]byte{good[:7]}}) },
		"unknown-node": changed(4, 0, 0, 77),
		"wrong-encap":  func() { p.rome.nodes[1].SendRaw(genevetest.Geneve(7, 0x6558, good[8:])) },
		"bad-version":  changed(0, 0x40),
		"bad-flags": func() {
			p.rome.nodes[1].SendRaw(append(make([]byte, 4), genevetest.VXLAN(7, good[8:])[4:]...))
		},
		"bad-options":         changed(0, 1, 0, 0x65, 0x58, 0, 0, 11, 0, 0, 1, 0, 9),
		"control-packet":      changed(1, 0x80),
		"critical-option":     changed(0, 1, 0x40, 0x65, 0x58, 0, 0, 11, 0, 0, 1, 0x80, 0),
		"unknown-protocol":    changed(2, 0x88, 0x47),
		"wrong-inner":         changed(2, 8, 0),
		"bad-mac":             frame(us, [6]byte{3}, genevetest.IPv4, ip),
		"other-mac":           frame([6]byte{2, 9, 9, 9, 9, 9}, p.node.MAC, genevetest.IPv4, ip),
		"multicast":           frame([6]byte{1, 0, 0x5e, 0, 0, 1}, p.node.MAC, genevetest.IPv4, ip),
		"neighbour-discovery": frame(us, p.node.MAC, genevetest.IPv6, solicitation),
		"unknown-ethertype":   frame(us, p.node.MAC, 0x8100, ip),
		"bad-length":          frame(us, p.node.MAC, genevetest.IPv4, ip[:19]),
		"bad-arp":             arp(1, request(10, 80, 0, 4)[:27]...),
		"other-arp":           arp(1, request(10, 80, 0, 9)...),
		"arp-rate":            arp(100, request(10, 80, 0, 4)...),
		"bad-nd": discovery(1, genevetest.Solicit(node6, losingGateway6,
			[6]byte{2, 9, 9, 9, 9, 9}, false)),
		"other-nd": discovery(1, genevetest.Solicit(node6, other6, p.node.MAC, false)),
		"nd-rate":  discovery(100, genevetest.Solicit(node6, losingGateway6, p.node.MAC, false)),
		"ecn":      func() { p.outer(udp.Train{Parts: [][]byte{good}, TOS: 3}) },
		"bad-train": func() {
			p.outer(udp.Train{SegmentSize: len(good), Parts: [][]byte{good, bytes.Repeat([]byte{0}, len(good))}})
		},
		"not-wireguard":  message(1, 3, 'x'),
		"bad-mac1":       message(1, device.MessageInitiationSize, device.MessageInitiationType),
		"handshake-rate": message(20, device.MessageKeepaliveSize, device.MessageTransportType),
		"stranger-data":  message(40, device.MessageKeepaliveSize+16, device.MessageTransportType),
		"tunnel-discard": func() {}, // some of the others have caused it
		"hold-full":      func() { ghost("ghost", 99, 70) },
		"unknown-tunnel": func() {
			ghost("brief", 96, 1)
			awaits(p.t, func() bool {
				s, _ := p.rome.endpoint.TunnelStats(uint16(p.rome.links().ByName["brief"]))
				return s.Held > 0
			}, "a packet that is held for brief")
			gone("brief")
		},
		"send-failed": func() { // from a socket that is bound to loopback
			p.apply(func(c *config.Config) {
				c.Geneve.Nodes = append(c.Geneve.Nodes, config.Node{Name: "far", VNI: 98,
					Underlay: netip.MustParseAddr("192.0.2.98"), Inner: geneve.IP,
					Address:  rules.PairOf(netip.MustParseAddr("10.80.0.98"), netip.MustParseAddr("fd80::98")),
					PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.98.0/24")}})
			})
			p.node.Send(udpPacket("10.0.1.5", "10.0.98.5", nil))
		},
		"unresolved": func() { ghost("mute", 97, 1) },
	}
}

// fillTable opens connections with answers until no more can be made.
func (p *losingPair) fillTable() {
	for i := range uint16(9) {
		body := nattest.UDP{SourcePort: 5000 + i, DestinationPort: 53}
		for range 2 { // four packets in both directions make a stream, which is not evicted
			p.inner(nattest.IP{Source: fmt.Sprintf("203.0.113.%d", 100+i), Destination: "10.61.1.7", Body: body})
			awaits(p.t, func() bool {
				return p.lost("connection-share") || p.rome.engine.Stats().Created >= uint64(i)+2
			})
			if p.lost("connection-share") {
				return
			}
			v := until(p.t, p.milan.nodes[0], body.SourcePort)
			p.milan.nodes[0].Send(nattest.IP{Source: "10.0.1.7", Destination: v.Source.String(),
				Body: nattest.UDP{SourcePort: 53, DestinationPort: v.SourcePort}}.Bytes())
			until(p.t, p.node, 53)
		}
	}
}

// TestEachReasonIsExplained: a status explains every reason.
func TestEachReasonIsExplained(t *testing.T) {
	p := newPair(t, nil)
	p.rome.path.EachDrop(&nat.Stats{}, &geneve.Stats{}, &wg.Stats{}, func(_, reason string, _ uint64) {
		for _, by := range []health.By{health.ByFile, health.ByLiqo, health.ByPeering} {
			if means, remedy := health.Explain(reason, by); !strings.HasSuffix(means, ".") ||
				strings.HasSuffix(remedy, ".") {
				t.Errorf("%s: %q, %q", reason, means, remedy)
			}
		}
	})
}
