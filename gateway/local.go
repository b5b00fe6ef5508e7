package gateway

import (
	"fmt"
	"net/netip"
	"sync"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"

	"culvert/nat"
)

// local is the gateway as a host: a gVisor stack with two interfaces, one that
// has the internal address and faces the nodes, one that has the tunnel address
// and faces the peer. It answers ICMP echo and nothing else; what is neither an
// echo request nor a fragment of one does not reach it.
type local struct {
	stack    *stack.Stack
	internal *nic // used by the outbound goroutine alone
	tunnel   *nic // used by the inbound goroutine alone
}

const (
	internalNIC tcpip.NICID = 1
	tunnelNIC   tcpip.NICID = 2
)

// maxAnswers bounds what one packet can make the stack send: the fragments of an
// echo reply of 64 KiB at the smallest MTU.
const maxAnswers = 128

func newLocal(internal, tunnel netip.Addr, mtu TunnelMTU) (*local, error) {
	l := &local{
		stack: stack.New(stack.Options{
			NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol},
			TransportProtocols: []stack.TransportProtocolFactory{icmp.NewProtocol4},
		}),
		internal: newNIC(mtu),
		tunnel:   newNIC(mtu),
	}
	for id, end := range map[tcpip.NICID]struct {
		nic  *nic
		addr netip.Addr
	}{internalNIC: {l.internal, internal}, tunnelNIC: {l.tunnel, tunnel}} {
		if err := l.stack.CreateNIC(id, end.nic); err != nil {
			return nil, fmt.Errorf("gateway: local stack: %s", err)
		}
		if err := l.stack.AddProtocolAddress(id, tcpip.ProtocolAddress{
			Protocol:          ipv4.ProtocolNumber,
			AddressWithPrefix: tcpip.AddrFrom4(end.addr.As4()).WithPrefix(),
		}, stack.AddressProperties{}); err != nil {
			return nil, fmt.Errorf("gateway: local stack: address %s: %s", end.addr, err)
		}
	}
	l.stack.SetRouteTable([]tcpip.Route{
		{Destination: header.IPv4EmptySubnet, NIC: internalNIC},
		{Destination: header.IPv4EmptySubnet, NIC: tunnelNIC},
	})
	return l, nil
}

func (l *local) close() { l.stack.Destroy() }

// nic is one interface of the stack. What the stack sends is collected while a
// packet is injected, so that the answer leaves the way the question came,
// whatever its addresses.
type nic struct {
	*channel.Endpoint

	mu      sync.Mutex
	answers [][]byte // +checklocks:mu
}

func newNIC(mtu TunnelMTU) *nic {
	return &nic{Endpoint: channel.New(0, uint32(mtu), "")}
}

// WritePackets implements stack.LinkEndpoint.
func (n *nic) WritePackets(pkts stack.PacketBufferList) (int, tcpip.Error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i, pkt := range pkts.AsSlice() {
		if len(n.answers) == maxAnswers {
			return i, &tcpip.ErrNoBufferSpace{}
		}
		view := pkt.ToView()
		n.answers = append(n.answers, append([]byte(nil), view.AsSlice()...))
		view.Release()
	}
	return pkts.Len(), nil
}

// ask hands packet to the stack and returns what it sends back. What the stack
// had to say between two questions (a reassembly that timed out) is dropped: it
// has no way to go.
func (n *nic) ask(packet []byte) [][]byte {
	n.take()
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(packet)})
	n.InjectInbound(ipv4.ProtocolNumber, pkt)
	pkt.DecRef()
	return n.take()
}

func (n *nic) take() [][]byte {
	n.mu.Lock()
	defer n.mu.Unlock()
	answers := n.answers
	n.answers = nil
	return answers
}

// answerable reports whether p, addressed to the gateway itself, may reach the
// stack: an ICMP echo request, or a fragment that may belong to one.
func answerable(p *nat.Packet) bool {
	ip := header.IPv4(p.Bytes())
	if header.IPVersion(ip) != header.IPv4Version || ip.TransportProtocol() != header.ICMPv4ProtocolNumber {
		return false
	}
	if ip.More() || ip.FragmentOffset() != 0 {
		return true
	}
	return header.ICMPv4(ip.Payload()).Type() == header.ICMPv4Echo
}

// portUnreachable is what the sender of anything else is told: the last step of a
// traceroute by UDP.
var portUnreachable = nat.Verdict{Action: nat.Drop, Answer: nat.AnswerPortUnreachable}
