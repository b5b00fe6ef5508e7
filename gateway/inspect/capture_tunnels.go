package inspect

import (
	"fmt"
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"culvert/gateway/capture"
	"culvert/gateway/path"
	"culvert/gateway/wg"
	"culvert/geneve"
	"culvert/nat"
	"culvert/nat/packet"
)

// prepare notes what r compares with later.
func (r *recording) prepare(src *Source) {
	s := src.Path.WG.Stats()
	r.telling.Lock()
	r.discards = [2]uint64{s.Outbound[wg.TunnelDiscard], s.Inbound[wg.TunnelDiscard]}
	r.telling.Unlock()
	r.geneve, r.wireguard = src.Path.Endpoint.LocalAddr(), netip.AddrPortFrom(netip.IPv4Unspecified(), src.Path.WG.Port())
}

// attach makes the packet path and the tunnels show their packets to r, until detach is called.
func (r *recording) attach(src *Source) (detach func()) {
	src.Path.Endpoint.SetTap(r.tellGeneve)
	src.Path.WG.SetTap(r.tellWireGuard)
	src.Path.Engine.TapFragments(r.tellWaiting)
	src.Path.SetTap(r)
	return func() {
		src.Path.SetTap(nil)
		src.Path.Engine.TapFragments(nil)
		src.Path.Endpoint.SetTap(nil)
		src.Path.WG.SetTap(nil)
	}
}

// tellGeneve records a datagram of a node. The filter applies to the inner packet.
func (r *recording) tellGeneve(d *geneve.Datagram) {
	dropped := d.Reason != geneve.Accepted
	if !r.Wants(capture.Geneve, dropped) || !r.matchTunnel(dropped, d.Reason.String()) || !r.all && !r.selects(d.Inner, nat.Link(d.Tunnel), d.Outbound) {
		return
	}
	note := ""
	if dropped {
		note = "drop: " + d.Reason.String()
	}
	if d.Data == nil {
		r.Add(capture.Geneve, d.Outbound, note, len(d.Inner), d.Inner)
		return
	}
	r.addOuter(capture.Geneve, d.Outbound, note, r.geneve, d.Peer, d.Data)
}

// tellWaiting records a fragment that was dropped while it waited for the first one of its packet. Its arrival is
// already recorded.
func (r *recording) tellWaiting(fragment []byte, in nat.Link, why nat.Reason) {
	r.addLost(capture.Pre, in != nat.Tunnel, why.String(), ", from "+r.names.names[in], fragment, in)
}

// tellWireGuard records a message of WireGuard. It is encrypted, so the filter applies to its outer addresses.
func (r *recording) tellWireGuard(m *wg.Message) { r.addMessage(m, "") }

// addMessage appends a note to the comment of a drop.
func (r *recording) addMessage(m *wg.Message, note string) {
	if !r.Wants(capture.WireGuard, m.Dropped) || !r.matchTunnel(m.Dropped, m.Reason.String()) {
		return
	}
	if !r.all {
		local, remote := withUnspecified(r.wireguard, m.Peer), m.Peer
		outer := nat.ConnInfo{Original: outerTuple(local, remote), Reply: outerTuple(remote, local)}
		if !r.filter.Selects(&outer) {
			return
		}
	}
	if m.Dropped {
		note = "drop: " + m.Reason.String() + note
	}
	r.addOuter(capture.WireGuard, m.Outbound, note, r.wireguard, m.Peer, m.Data)
}

// tellDiscards records what wireguard-go has discarded since the last look. Only their number is known, because
// wireguard-go discards them silently, so one empty datagram stands for all.
func (src *Source) tellDiscards() {
	r := src.recording.Load()
	if r == nil {
		return
	}
	s := src.Path.WG.Stats()
	r.telling.Lock()
	defer r.telling.Unlock()
	now := [2]uint64{s.Outbound[wg.TunnelDiscard], s.Inbound[wg.TunnelDiscard]}
	var endpoint netip.AddrPort // zero: not known yet
	if p, err := src.Path.WG.PeerStats(); err == nil {
		endpoint, _ = netip.ParseAddrPort(p.Endpoint)
	}
	for i, why := range []string{"without a session, or its queue was full", "forged, replayed or of no session"} {
		if n := now[i] - r.discards[i]; n > 0 {
			r.addMessage(&wg.Message{Outbound: i == 0, Peer: endpoint, Dropped: true, Reason: wg.TunnelDiscard},
				fmt.Sprintf(", %d packets, %s; what was in them is not known", n, why))
		}
	}
	r.discards = now
}

// selects reports whether the filter selects an inner packet of link. It looks up the connection of inbound packets
// only; outbound packets match by their own tuple.
func (r *recording) selects(inner []byte, link nat.Link, outbound bool) bool {
	var p packet.Packet
	if p.Parse(inner) != packet.NoFault {
		return false
	}
	c := nat.ConnInfo{Out: [2]nat.Link{link, link}}
	p.Tuple(&c.Original, link)
	c.Reply = c.Original.Reply(link)
	if outbound {
		return r.filter.Selects(&c)
	}
	if found, ok := r.engine.FindConnection(&c.Original, path.Now()); ok {
		c = found
	}
	return r.filter.Selects(&c)
}

func outerTuple(from, to netip.AddrPort) (t packet.Tuple) {
	t.IPv6, t.Protocol = from.Addr().Is6(), uint8(header.UDPProtocolNumber)
	t.SetSource(from.Addr())
	t.SetDestination(to.Addr())
	t.SetSourcePort(from.Port())
	t.SetDestinationPort(to.Port())
	return t
}

// withUnspecified returns local. If its address is unspecified, the result has the unspecified address of remote's
// family.
func withUnspecified(local, remote netip.AddrPort) netip.AddrPort {
	switch {
	case local.Addr().Is4() == remote.Addr().Is4():
		return local
	case remote.Addr().Is4():
		return netip.AddrPortFrom(netip.IPv4Unspecified(), local.Port())
	}
	return netip.AddrPortFrom(netip.IPv6Unspecified(), local.Port())
}

// addOuter records a UDP payload behind headers made from its addresses. The gateway's own address is unspecified if
// it listens on all addresses.
func (r *recording) addOuter(at capture.Stage, outbound bool, note string, local, remote netip.AddrPort, payload []byte) {
	remote = netip.AddrPortFrom(remote.Addr().Unmap(), remote.Port())
	local = withUnspecified(local, remote)
	from, to := remote, local
	if outbound {
		from, to = local, remote
	}
	var room [header.IPv6MinimumSize + header.UDPMinimumSize]byte
	length := header.UDPMinimumSize + len(payload)
	b := room[:header.IPv4MinimumSize+header.UDPMinimumSize]
	if from.Addr().Is6() {
		b = room[:]
	}
	udp := header.UDP(b[len(b)-header.UDPMinimumSize:])
	udp.Encode(&header.UDPFields{SrcPort: from.Port(), DstPort: to.Port(), Length: uint16(length)})
	if from.Addr().Is4() {
		ip := header.IPv4(b)
		ip.Encode(&header.IPv4Fields{
			TotalLength: uint16(header.IPv4MinimumSize + length), TTL: 64, Protocol: uint8(header.UDPProtocolNumber), Flags: header.IPv4FlagDontFragment,
			SrcAddr: tcpip.AddrFrom4(from.Addr().As4()), DstAddr: tcpip.AddrFrom4(to.Addr().As4()),
		})
		ip.SetChecksum(^ip.CalculateChecksum())
	} else {
		source, destination := tcpip.AddrFrom16(from.Addr().As16()), tcpip.AddrFrom16(to.Addr().As16())
		header.IPv6(b).Encode(&header.IPv6Fields{
			PayloadLength: uint16(length), TransportProtocol: header.UDPProtocolNumber, HopLimit: 64, SrcAddr: source, DstAddr: destination,
		})
		// RFC 8200, Section 8.1: IPv6 has no datagrams without a checksum.
		sum := header.PseudoHeaderChecksum(header.UDPProtocolNumber, source, destination, uint16(length))
		if udp.SetChecksum(^udp.CalculateChecksum(checksum.Checksum(payload, sum))); udp.Checksum() == 0 {
			udp.SetChecksum(0xffff)
		}
	}
	r.Add(at, outbound, note, len(b)+len(payload), b, payload)
}
