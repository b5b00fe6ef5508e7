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
)

// node is one node as a kernel would be: it answers ARP for its address, asks for the gateway's, and has pods.
type node struct {
	side       *side
	config     *config.Node
	underlay   netip.AddrPort
	up, down   *leg
	header     []byte // of Geneve or VXLAN
	mac        [6]byte
	gatewayMAC [6]byte  // zero: not known
	waiting    [][]byte // for it
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
	n := &node{side: s, config: c, underlay: netip.AddrPortFrom(c.Underlay, config.DefaultGenevePort), mac: [6]byte{2, 'n', 0, 0, byte(s.index), byte(index)}}
	n.up = s.w.newLeg(c.Name, s.config.Cluster, nodeLatency)
	n.down = s.w.newLeg(s.config.Cluster, c.Name, nodeLatency)
	n.header = genevetest.Geneve(uint32(c.VNI), 0x6558, nil)
	if c.Encap == geneve.VXLAN {
		n.header = genevetest.VXLAN(uint32(c.VNI), nil)
	}
	// Nothing sums up what ARP says: what is corrupted there, the link below would have discarded.
	n.down.garbling = func(b []byte) bool {
		return len(b) > len(n.header)+podEther && binary.BigEndian.Uint16(b[len(n.header)+12:]) != genevetest.ARP
	}
	s.w.listen(n.underlay, n.receive)
	return n
}

// send sends an IP packet of a pod.
func (n *node) send(ip []byte) {
	if n.gatewayMAC == ([6]byte{}) {
		if len(n.waiting) == 0 {
			n.ask()
		}
		if len(n.waiting) < maxWaiting {
			n.waiting = append(n.waiting, ip)
		}
		return
	}
	n.frame(n.gatewayMAC, genevetest.IPv4, ip)
}

func (n *node) frame(to [6]byte, etherType uint16, payload []byte) {
	n.side.w.carry(n.up, n.underlay, n.side.underlay(), slices.Concat(n.header, genevetest.Frame(to, n.mac, etherType, payload)))
}

// ask asks for the gateway's MAC address until that is known.
func (n *node) ask() {
	if n.gatewayMAC == ([6]byte{}) {
		n.frame(broadcast, genevetest.ARP, n.arp(1, [6]byte{}, n.gatewayAddress()))
		n.side.w.after(time.Second, n.ask)
	}
}

func (n *node) gatewayAddress() netip.Addr { return n.side.config.Geneve.GatewayAddress.V4 }

// arp returns an ARP message from the node.
func (n *node) arp(operation byte, to [6]byte, target netip.Addr) []byte {
	return slices.Concat([]byte{0, 1, 8, 0, 6, 4, 0, operation}, n.mac[:], n.config.Address.V4.AsSlice(), to[:], target.AsSlice())
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
	case etherType == genevetest.IPv4 && to == n.mac:
		v, err := nattest.Check(b)
		if err != nil {
			return // corrupted
		}
		if v.Protocol == icmp && v.Destination == n.config.Address.V4 {
			n.answer(v, b)
			return
		}
		n.side.w.traffic.arrive(n, v, b)
	}
}

func (n *node) hear(from [6]byte, b []byte) {
	sender, target := netip.AddrFrom4([4]byte(b[14:])), netip.AddrFrom4([4]byte(b[24:]))
	if sender == n.gatewayAddress() {
		n.gatewayMAC = from
		for _, ip := range n.waiting {
			n.frame(from, genevetest.IPv4, ip)
		}
		n.waiting = nil
	}
	if b[7] == 1 && target == n.config.Address.V4 {
		n.frame(from, genevetest.ARP, n.arp(2, from, sender))
	}
}

const icmp = 1

// answer answers an echo request of the gateway.
func (n *node) answer(v nattest.View, b []byte) {
	if v.Body[0] == 8 && n.gatewayMAC != ([6]byte{}) {
		n.frame(n.gatewayMAC, genevetest.IPv4, nattest.IP{
			Source: v.Destination.String(), Destination: v.Source.String(), DF: true,
			Body: nattest.ICMP{Rest: binary.BigEndian.Uint32(v.Body[4:]), Payload: v.Payload}}.Bytes())
	}
}
