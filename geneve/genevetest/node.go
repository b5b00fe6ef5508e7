// Package genevetest has test doubles and packet builders for users of package geneve. It does not
// use that package's codec, so an error there does not cancel out.
package genevetest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"culvert/geneve/udp"
)

// Timeout is how long a Node waits for what a test expects before it fails the test.
const Timeout = 30 * time.Second

var broadcast = [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// NodeConfig describes a Node.
type NodeConfig struct {
	Listen         netip.AddrPort // its underlay address, 127.0.0.2:0 for example
	Gateway        netip.AddrPort // the gateway's underlay address and port
	VNI            uint32
	VXLAN          bool       // else Geneve
	IP             bool       // IP directly inside Geneve, no Ethernet and no ARP
	Address        netip.Addr // its inner IPv4 address; the zero Addr if the tunnel has only IPv6
	GatewayAddress netip.Addr // the gateway's
	MAC            [6]byte    // its inner MAC address (zero: derived from the address)

	Address6, GatewayAddress6 netip.Addr // IPv6, if the tunnel has it
}

// Node is the node's end of a tunnel as a kernel would implement it: it answers ARP and neighbour
// solicitations for its addresses, asks for the gateway's, and carries IP packets.
type Node struct {
	NodeConfig
	tb      testing.TB
	socket  *udp.Socket
	packets chan []byte
	lossy   atomic.Bool
	there   atomic.Int64 // largest inner packet that arrives; 0 = any
	back    atomic.Int64 // largest answer to an echo request that leaves
	asked   atomic.Int64 // echo requests sent to the node, including lost ones
	replied atomic.Int64

	mu         sync.Mutex
	sender     udp.Sender
	gatewayMAC [6]byte
	resolved   chan struct{} // closed when gatewayMAC is known
}

// NewNode starts a Node, which stops at the end of the test.
func NewNode(tb testing.TB, c NodeConfig) *Node {
	tb.Helper()
	network := "udp4"
	if c.Listen.Addr().Is6() {
		network = "udp6"
	}
	socket, err := udp.Listen(network, c.Listen, udp.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	if c.MAC == [6]byte{} {
		a := c.Address6.AsSlice()
		if c.Address.IsValid() {
			a = c.Address.AsSlice()
		}
		c.MAC = [6]byte{0x02, 'n', a[len(a)-4], a[len(a)-3], a[len(a)-2], a[len(a)-1]}
	}
	n := &Node{NodeConfig: c, tb: tb, socket: socket, packets: make(chan []byte, 4096), sender: socket.NewSender(),
		resolved: make(chan struct{})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		n.run()
	}()
	tb.Cleanup(func() {
		socket.Close()
		<-done
	})
	return n
}

// Stats returns the counters of the node's socket.
func (n *Node) Stats() udp.Stats { return n.socket.Stats() }

// Underlay returns the address and port that the node sends from.
func (n *Node) Underlay() netip.AddrPort { return n.socket.LocalAddr() }

// Send sends IP packets, each in a datagram of its own. It resolves the gateway's address first.
func (n *Node) Send(packets ...[]byte) {
	n.tb.Helper()
	for _, p := range packets {
		n.SendRaw(n.Encap(p))
	}
}

// SendTrain sends IP packets of one size (the last may be shorter) as one train.
func (n *Node) SendTrain(packets ...[]byte) {
	n.tb.Helper()
	train := udp.Train{Destination: n.Gateway}
	for _, p := range packets {
		train.Parts = append(train.Parts, n.Encap(p))
	}
	train.SegmentSize = len(train.Parts[0])
	n.send(train)
}

// SendRaw sends one datagram as it is.
func (n *Node) SendRaw(datagram []byte) {
	n.tb.Helper()
	n.send(udp.Train{Destination: n.Gateway, Parts: [][]byte{datagram}})
}

func (n *Node) send(train udp.Train) {
	n.tb.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, err := n.sender.Send([]udp.Train{train}); err != nil && !errors.Is(err, net.ErrClosed) {
		n.tb.Errorf("genevetest: node %v: %v", n.Address, err)
	}
}

// Encap returns the datagram for an IP packet. It resolves the gateway's address first.
func (n *Node) Encap(ip []byte) []byte {
	n.tb.Helper()
	etherType := uint16(IPv4)
	if ip[0]>>4 == 6 {
		etherType = IPv6
	}
	if n.IP {
		return Geneve(n.VNI, etherType, ip)
	}
	return n.tunnel(Frame(n.GatewayMAC(), n.MAC, etherType, ip))
}

func (n *Node) tunnel(frame []byte) []byte {
	if n.VXLAN {
		return VXLAN(n.VNI, frame)
	}
	return Geneve(n.VNI, 0x6558, frame)
}

// GatewayMAC returns the gateway's MAC address, found by ARP or else by neighbour discovery.
func (n *Node) GatewayMAC() [6]byte {
	n.tb.Helper()
	if !n.knowsGateway() {
		n.askGateway()
		select {
		case <-n.resolved:
		case <-time.After(Timeout):
			n.tb.Fatalf("genevetest: node %v %v: no answer for %v %v", n.Address, n.Address6, n.GatewayAddress,
				n.GatewayAddress6)
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.gatewayMAC
}

func (n *Node) knowsGateway() bool {
	select {
	case <-n.resolved:
		return true
	default:
		return false
	}
}

// askGateway asks for the gateway's MAC address.
func (n *Node) askGateway() {
	if n.GatewayAddress.IsValid() {
		n.SendRaw(n.tunnel(Frame(broadcast, n.MAC, ARP, n.arp(1, [6]byte{}, n.GatewayAddress))))
		return
	}
	question := Solicit(n.Address6, n.GatewayAddress6, n.MAC, true)
	n.SendRaw(n.tunnel(Frame(GroupMAC(netip.AddrFrom16([16]byte(question[24:]))), n.MAC, IPv6, question)))
}

// arp returns an ARP message from the node.
func (n *Node) arp(operation byte, to [6]byte, target netip.Addr) []byte {
	return slices.Concat([]byte{0, 1, 8, 0, 6, 4, 0, operation}, n.MAC[:], n.Address.AsSlice(), to[:], target.AsSlice())
}

// Receive returns the next IP packet that the gateway has sent.
func (n *Node) Receive() []byte {
	n.tb.Helper()
	select {
	case p := <-n.packets:
		return p
	case <-time.After(Timeout):
		n.tb.Fatalf("genevetest: node %v: no packet", n.Address)
		return nil
	}
}

// Packets returns a channel with the packets that Receive would return.
func (n *Node) Packets() <-chan []byte { return n.packets }

// Drain discards the packets that wait for Receive.
func (n *Node) Drain() {
	for {
		select {
		case <-n.packets:
		default:
			return
		}
	}
}

// LoseTrains makes the node drop what arrives as a train, as some kernels do, or accept it again.
// It needs UDP_GRO, without which the node's socket cannot recognise trains.
func (n *Node) LoseTrains(lose bool) { n.lossy.Store(lose) }

// LoseLarge makes larger IP packets to the node, and its larger answers to echo requests, vanish; 0
// is no bound.
func (n *Node) LoseLarge(there, back int) {
	n.there.Store(int64(there))
	n.back.Store(int64(back))
}

// Echoes returns how many echo requests the gateway sent to the node, including lost ones, and how
// many answers the node has sent.
func (n *Node) Echoes() (asked, replied int) { return int(n.asked.Load()), int(n.replied.Load()) }

// echo answers an echo request of the gateway as a kernel does, and returns false for anything
// else.
func (n *Node) echo(ip []byte) bool {
	var icmp []byte
	var request, reply byte = 8, 0
	switch {
	case len(ip) >= 28 && ip[0] == 0x45 && ip[9] == 1 && netip.AddrFrom4([4]byte(ip[12:])) == n.GatewayAddress:
		ip = bytes.Clone(ip)
		copy(ip[12:], n.Address.AsSlice())
		copy(ip[16:], n.GatewayAddress.AsSlice())
		icmp = ip[20:]
	case len(ip) >= 48 && ip[0]>>4 == 6 && ip[6] == 58 && netip.AddrFrom16([16]byte(ip[8:])) == n.GatewayAddress6:
		ip = bytes.Clone(ip)
		copy(ip[8:], n.Address6.AsSlice())
		copy(ip[24:], n.GatewayAddress6.AsSlice())
		icmp, request, reply = ip[40:], 128, 129
	}
	if icmp == nil || icmp[0] != request {
		return false
	}
	icmp[0] = reply
	// RFC 1624; the type is the upper half of its word.
	sum := uint32(^binary.BigEndian.Uint16(icmp[2:])) + uint32(^(uint16(request) << 8)) + uint32(reply)<<8
	sum = sum>>16 + sum&0xffff
	binary.BigEndian.PutUint16(icmp[2:], ^uint16(sum>>16+sum))
	switch back := n.back.Load(); {
	case back != 0 && int64(len(ip)) > back:
	case n.IP || n.knowsGateway():
		n.Send(ip)
		n.replied.Add(1)
	default: // the answer would come to this goroutine, which cannot wait for it
		n.askGateway()
	}
	n.asked.Add(1)
	return true
}

// run receives until the socket is closed.
func (n *Node) run() {
	m := make([]udp.Message, 4)
	for i := range m {
		m[i].Buffer = make([]byte, udp.BufferSize)
	}
	for {
		count, err := n.socket.Receive(m)
		if err != nil {
			return
		}
		for i := range m[:count] {
			size := m[i].SegmentSize
			if size == 0 {
				size = max(len(m[i].Data), 1)
			}
			if len(m[i].Data) > size && n.lossy.Load() {
				continue
			}
			for datagram := range slices.Chunk(m[i].Data, size) {
				n.datagram(datagram)
			}
		}
	}
}

// datagram handles one received datagram.
func (n *Node) datagram(b []byte) {
	header := n.tunnel(nil)
	if n.IP {
		header = Geneve(n.VNI, binary.BigEndian.Uint16(b[2:]), nil)
	}
	other := VXLAN(n.VNI, nil)
	if n.VXLAN {
		other = Geneve(n.VNI, 0x6558, nil)
	}
	if len(b) > 22 && bytes.HasPrefix(b, other) && [6]byte(b[8:]) == broadcast &&
		binary.BigEndian.Uint16(b[20:]) == ARP {
		return // the gateway is trying encapsulations; a kernel ignores the wrong one too
	}
	if !bytes.HasPrefix(b, header) {
		n.tb.Errorf("genevetest: node %v: datagram begins with % x, want % x", n.Address, b[:min(len(b), 8)], header)
		return
	}
	b = b[len(header):]
	if n.IP {
		n.take(b)
		return
	}
	to, from, etherType, b := [6]byte(b), [6]byte(b[6:]), binary.BigEndian.Uint16(b[12:]), b[14:]
	switch {
	case n.there.Load() != 0 && int64(len(b)) > n.there.Load() && (etherType == ARP || etherType == IPv6 &&
		b[6] == 58 && b[40] != 128):
	case etherType == IPv6 && n.discover(to, from, b):
	case etherType == ARP && to != n.MAC && to != broadcast, etherType != ARP && to != n.MAC:
		n.tb.Errorf("genevetest: node %v: frame to % x, want % x", n.Address, to, n.MAC)
	case etherType == ARP:
		if sender := netip.AddrFrom4([4]byte(b[14:])); sender == n.GatewayAddress {
			n.learn(from)
		}
		if b[7] == 1 && netip.AddrFrom4([4]byte(b[24:])) == n.Address {
			n.SendRaw(n.tunnel(Frame(from, n.MAC, ARP, n.arp(2, from, netip.AddrFrom4([4]byte(b[14:]))))))
		}
	default:
		n.take(b)
	}
}

// take handles a received IP packet.
func (n *Node) take(ip []byte) {
	if there := n.there.Load(); there != 0 && int64(len(ip)) > there {
		if ip[0]>>4 == 4 && ip[9] == 1 && ip[20] == 8 || ip[0]>>4 == 6 && ip[6] == 58 && ip[40] == 128 {
			n.asked.Add(1)
		}
		return
	}
	if !n.echo(ip) {
		n.deliver(ip)
	}
}

// deliver queues a copy of an IP packet for Receive.
func (n *Node) deliver(ip []byte) {
	select {
	case n.packets <- bytes.Clone(ip):
	default:
		n.tb.Errorf("genevetest: node %v: more than %d packets wait for Receive", n.Address, cap(n.packets))
	}
}

func (n *Node) learn(mac [6]byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.gatewayMAC = mac
	select {
	case <-n.resolved:
	default:
		close(n.resolved)
	}
}
