package sim

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"time"

	"culvert/gateway/config"
	"culvert/geneve"
	"culvert/geneve/genevetest"
	"culvert/nat/nattest"
	"culvert/nat/packet"
)

// node is one node as a kernel would be: it answers ARP and neighbour solicitations for its
// addresses, asks for the gateway's, and has pods.
type node struct {
	side       *side
	towards    *pod // where it finds the gateway
	config     *config.Node
	underlay   netip.AddrPort
	up, down   *leg
	header     []byte // of Geneve or VXLAN
	mac        [6]byte
	gatewayMAC [6]byte  // zero: not known
	waiting    [][]byte // for it
	reassembly reassembly
}

const (
	nodeLatency = 50 * time.Microsecond
	wanLatency  = 2 * time.Millisecond
	maxWaiting  = 16
	podEther    = 14
)

var broadcast = [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

func newNode(s *side, index int) *node {
	c := &s.config.Geneve.Nodes[index]
	n := &node{side: s, towards: s.pod, config: c, underlay: netip.AddrPortFrom(c.Underlay, config.DefaultGenevePort),
		mac: [6]byte{2, 'n', 0, 0, byte(s.index), byte(index)}}
	n.up = s.w.newLeg(c.Name, s.config.Cluster, nodeLatency)
	n.down = s.w.newLeg(s.config.Cluster, c.Name, nodeLatency)
	n.header = genevetest.Geneve(uint32(c.VNI), 0x6558, nil)
	if c.Encap == geneve.VXLAN {
		n.header = genevetest.VXLAN(uint32(c.VNI), nil)
	}
	n.down.garbling = func(sound, garbled []byte) bool { return !linkLocal(sound) && summed(sound, garbled) }
	n.up.garbling = func(sound, garbled []byte) bool {
		if !summed(sound, garbled) {
			return false
		}
		s.w.traffic.recordGarbled(garbled)
		return true
	}
	s.w.listen(n.underlay, n.receive)
	return n
}

// linkLocal reports whether the MAC addresses of a frame matter to a node: nothing sums them up,
// and what is corrupted there, the link below would have discarded.
func linkLocal(b []byte) bool {
	ip := packetOf(b)
	return ip == nil || len(ip) > 40 && ip[0]>>4 == 6 && ip[6] == icmp6 && (ip[40] == 135 || ip[40] == 136)
}

// summed reports whether anything tells that one packet has become another. Nothing sums the
// addresses of SCTP over IPv6 (RFC 9260, Section 6.8). And the gateway finishes a checksum that it
// takes for a partial one, because the field is the sum of the pseudo-header: whoever has sent it
// has left the sum to hardware that it has not passed yet, so that nobody can tell what has become
// of it. One in 65,536 finished checksums looks the same. And what is corrupted a second time may
// have the right sum again.
func summed(sound, garbled []byte) bool {
	_, before := nattest.Check(packetOf(sound))
	if _, after := nattest.Check(packetOf(garbled)); before != nil && after == nil {
		return false
	}
	for _, b := range [][]byte{sound, garbled} {
		v, err := nattest.CheckPartial(packetOf(b))
		switch {
		case v.Offset > 0: // the checksum may miss what is corrupted in two fragments
			return false
		case err == nil && (v.Protocol == packet.TCP || v.Protocol == packet.UDP) && !v.MF:
			return false
		}
	}
	ip := packetOf(sound)
	if len(ip) < 40 || ip[0]>>4 == 4 || ip[6] != packet.SCTP {
		return true
	}
	const end = nodeHeader + podEther + 40
	return bytes.Equal(sound[:end], garbled[:end])
}

// packetOf returns the IP packet in a datagram of a node, or nil.
func packetOf(b []byte) []byte {
	if len(b) < nodeHeader+podEther+20 {
		return nil
	}
	if e := binary.BigEndian.Uint16(b[nodeHeader+12:]); e != genevetest.IPv4 && e != genevetest.IPv6 {
		return nil
	}
	return b[nodeHeader+podEther:]
}

// send sends an IP packet of a pod.
func (n *node) send(ip []byte) {
	if n.gatewayMAC == ([6]byte{}) {
		if len(n.waiting) == 0 {
			n.ask(ip[0]>>4 == 6)
		}
		if len(n.waiting) < maxWaiting {
			n.waiting = append(n.waiting, ip)
		}
		return
	}
	n.frame(n.gatewayMAC, ip)
}

func (n *node) frame(to [6]byte, ip []byte) {
	etherType := uint16(genevetest.IPv4)
	if ip[0]>>4 == 6 {
		etherType = genevetest.IPv6
	}
	n.ether(to, etherType, ip)
}

func (n *node) ether(to [6]byte, etherType uint16, payload []byte) {
	n.side.w.carry(n.up, n.underlay, n.towards.underlay(), slices.Concat(n.header, genevetest.Frame(to, n.mac,
		etherType, payload)))
}

// ask asks for the gateway's MAC address until that is known.
func (n *node) ask(v6 bool) {
	if n.gatewayMAC != ([6]byte{}) {
		return
	}
	if own, gateway := n.config.Address, n.side.config.Geneve.GatewayAddress; v6 {
		ip := genevetest.Solicit(own.V6, gateway.V6, n.mac, true)
		n.ether(genevetest.GroupMAC(netip.AddrFrom16([16]byte(ip[24:]))), genevetest.IPv6, ip)
	} else {
		n.ether(broadcast, genevetest.ARP, n.arp(1, [6]byte{}, gateway.V4))
	}
	n.side.w.after(time.Second, func() { n.ask(v6) })
}

// arp returns an ARP message from the node.
func (n *node) arp(operation byte, to [6]byte, target netip.Addr) []byte {
	return slices.Concat([]byte{0, 1, 8, 0, 6, 4, 0, operation}, n.mac[:], n.config.Address.V4.AsSlice(), to[:],
		target.AsSlice())
}

// receive handles a datagram from the gateway.
func (n *node) receive(_ netip.AddrPort, b []byte) {
	if !bytes.HasPrefix(b, n.header) || len(b) < len(n.header)+podEther {
		return
	}
	b = b[len(n.header):]
	to, from, etherType, b := [6]byte(b), [6]byte(b[6:]), binary.BigEndian.Uint16(b[12:]), b[14:]
	switch {
	case etherType == genevetest.ARP && len(b) >= 28 && (to == n.mac || to == broadcast):
		n.hear(from, b)
	case etherType == genevetest.IPv6 && to[0] == 0x33 && to[1] == 0x33, to == n.mac && (etherType == genevetest.IPv4 ||
		etherType == genevetest.IPv6):
		v, err := nattest.Check(b)
		if err != nil {
			return // corrupted
		}
		switch own := v.Destination == n.config.Address.V4 || v.Destination == n.config.Address.V6; {
		case v.Protocol == icmp6 && len(v.Body) >= 24 && (v.Body[0] == 135 || v.Body[0] == 136):
			n.hear6(from, v)
		case v.Offset > 0 || v.MF:
			if b := n.reassembly.add(v); b != nil {
				if v, err := nattest.Check(b); err == nil {
					n.take(v, b)
				}
			}
		case own && (v.Protocol == icmp || v.Protocol == icmp6):
			n.answer(v)
		default:
			n.take(v, b)
		}
	}
}

func (n *node) take(v nattest.View, b []byte) { n.side.w.traffic.arrive(n, v, b) }

func (n *node) hear(from [6]byte, b []byte) {
	sender, target := netip.AddrFrom4([4]byte(b[14:])), netip.AddrFrom4([4]byte(b[24:]))
	if sender == n.side.config.Geneve.GatewayAddress.V4 {
		n.learn(from)
	}
	if b[7] == 1 && target == n.config.Address.V4 {
		n.ether(from, genevetest.ARP, n.arp(2, from, sender))
	}
}

// hear6 heeds a message of neighbour discovery (RFC 4861, Section 7.2).
func (n *node) hear6(from [6]byte, v nattest.View) {
	target := netip.AddrFrom16([16]byte(v.Body[8:]))
	if v.Source == n.side.config.Geneve.GatewayAddress.V6 {
		n.learn(from)
	}
	if v.Body[0] == 135 && target == n.config.Address.V6 {
		const solicited, override = 0x40, 0x20
		n.ether(from, genevetest.IPv6, genevetest.Advertise(target, v.Source, solicited|override, n.mac))
	}
}

func (n *node) learn(gateway [6]byte) {
	n.gatewayMAC = gateway
	for _, ip := range n.waiting {
		n.frame(gateway, ip)
	}
	n.waiting = nil
}

// answer answers an echo request of the gateway.
func (n *node) answer(v nattest.View) {
	reply := map[[2]uint8]uint8{{icmp, 8}: 0, {icmp6, 128}: 129}
	kind, ok := reply[[2]uint8{v.Protocol, v.Body[0]}]
	if ok && n.gatewayMAC != ([6]byte{}) {
		n.frame(n.gatewayMAC, nattest.IP{
			Source: v.Destination.String(), Destination: v.Source.String(), DF: true,
			Body: nattest.ICMP{Type: kind, Rest: binary.BigEndian.Uint32(v.Body[4:]), Payload: v.Payload}}.Bytes())
	}
}
