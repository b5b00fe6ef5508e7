package geneve

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"culvert/geneve/udp"
)

// Inner is the kind of payload of a tunnel.
type Inner uint8

// Kernel links carry Ethernet frames; IP packets without a frame need Geneve.
const (
	Ethernet Inner = iota
	IP
)

// Role says which end of the tunnel an endpoint is.
type Role uint8

// Roles. They seed different MAC addresses at the two ends.
const (
	Gateway Role = iota
	Node
)

// Tunnel is the configuration of one tunnel.
type Tunnel struct {
	ID     uint16     // chosen by the caller: Packet.Tunnel, and the argument of Sender.Send
	VNI    VNI        // identifies the tunnel together with Remote
	Remote netip.Addr // outer address of the other end
	Encap  Encap      // Auto means Geneve if the tunnel carries IP
	Inner  Inner
	// Local and Peer are the inner addresses of the two ends, for ARP and neighbour discovery. A
	// tunnel that carries IP needs none.
	Local, Peer Pair
	Role        Role
}

// A Pair is the addresses of one host; the zero Addr is none of a family.
type Pair struct{ V4, V6 netip.Addr }

// PairOf returns the Pair of one address.
func PairOf(a netip.Addr) Pair {
	if a.Is6() {
		return Pair{V6: a}
	}
	return Pair{V4: a}
}

// First returns the IPv4 address, or else the IPv6 address.
func (p Pair) First() netip.Addr {
	if p.V4.IsValid() {
		return p.V4
	}
	return p.V6
}

// All returns the addresses of p, IPv4 first.
func (p Pair) All() (all []netip.Addr) {
	for _, a := range []netip.Addr{p.V4, p.V6} {
		if a.IsValid() {
			all = append(all, a)
		}
	}
	return all
}

// validate returns the faults of t.
func (t *Tunnel) validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("geneve: tunnel %d: "+format, append([]any{t.ID}, args...)...))
		}
	}
	check(t.VNI <= MaxVNI, "VNI %d above %d", t.VNI, MaxVNI)
	check(t.Remote.IsValid() && t.Remote.Zone() == "", "remote address %v is none, or has a zone", t.Remote)
	check(t.Encap <= VXLAN, "unknown encapsulation %d", t.Encap)
	check(t.Inner <= IP, "unknown inner protocol %d", t.Inner)
	check(t.Role <= Node, "unknown role %d", t.Role)
	check(t.Encap != VXLAN || t.Inner != IP, "VXLAN carries Ethernet only")
	if t.Inner == Ethernet {
		check(t.Local != Pair{}, "no inner addresses")
		for _, ends := range [][2]netip.Addr{{t.Local.V4, t.Peer.V4}, {t.Local.V6, t.Peer.V6}} {
			check(ends[0].IsValid() == ends[1].IsValid(), "inner addresses %v and %v: one end lacks a family",
				ends[0], ends[1])
			check(!ends[0].IsValid() || ends[0] != ends[1], "both ends have the inner address %v", ends[0])
		}
		for _, a := range []netip.Addr{t.Local.V4, t.Peer.V4} {
			check(!a.IsValid() || a.Is4(), "inner address %v is not IPv4", a)
		}
		for _, a := range []netip.Addr{t.Local.V6, t.Peer.V6} {
			check(!a.IsValid() || a.Is6() && !a.Is4In6() && a.Zone() == "", "inner address %v is not IPv6", a)
		}
	}
	return errors.Join(errs...)
}

// MAC returns the inner MAC address of one end: locally administered, and the same after every
// restart.
func MAC(vni VNI, role Role) [6]byte {
	return [6]byte{0x02, 'c', 'v' + byte(role), byte(vni >> 16), byte(vni >> 8), byte(vni)}
}

// mac is a MAC address in the lower 48 bits; 0 is none.
type mac uint64

const (
	macBroadcast mac = 1<<48 - 1
	macGroup     mac = 1 << 40 // the group bit of the first byte (IEEE 802)
)

// parseMAC reads a MAC address from the first 6 bytes of b.
func parseMAC(b []byte) mac {
	return mac(binary.BigEndian.Uint32(b))<<16 | mac(binary.BigEndian.Uint16(b[4:]))
}

// put writes m to the first 6 bytes of b.
func (m mac) put(b []byte) {
	binary.BigEndian.PutUint32(b, uint32(m>>16))
	binary.BigEndian.PutUint16(b[4:], uint16(m))
}

const (
	ethernetLen = 14
	maxHeader   = headerLen + ethernetLen
)

// tunnel is a Tunnel in operation.
type tunnel struct {
	Tunnel
	self        mac
	destination netip.AddrPort
	// template, by Encap, precedes each packet: the tunnel header, then an Ethernet header (if the
	// tunnel carries Ethernet) whose destination and type are still to be filled in, or else a
	// protocol type.
	template    [VXLAN + 1][maxHeader]byte
	templateLen int

	neighbour neighbour
	told      Encap // last reported by EncapChanges
	probe     udp.TrainProbe
	local     atomic.Pointer[netip.Addr] // see heardAt
	*tunnelState
}

// tunnelState survives a change of the Tunnel's other fields.
type tunnelState struct {
	receivedPackets, receivedBytes atomic.Uint64
	sentPackets, sentBytes         atomic.Uint64
	sentTrains, lostTrains         atomic.Uint64
	refusedTrains                  atomic.Uint64
	encapChanges                   atomic.Uint64
	largeAnswers                   atomic.Uint64 // bitmap by number, since the last LargeAnswers
	// time.Duration of Options.Now until which trains are off, because the kernel refused one
	singleUntil atomic.Int64
}

func newTunnel(t Tunnel, port uint16, state *tunnelState) *tunnel {
	t.Remote = t.Remote.Unmap()
	addr := MAC(t.VNI, t.Role)
	w := &tunnel{Tunnel: t, self: parseMAC(addr[:]), destination: netip.AddrPortFrom(t.Remote, port), told: t.Encap,
		tunnelState: state}
	(&Header{VNI: t.VNI, Protocol: etherTypeEthernet}).AppendTo(w.template[Geneve][:0]) // validated before
	AppendVXLAN(w.template[VXLAN][:0], t.VNI)
	w.templateLen = headerLen
	if t.Inner == Ethernet {
		w.self.put(w.template[Geneve][headerLen+6:])
		w.self.put(w.template[VXLAN][headerLen+6:])
		w.templateLen = maxHeader
	}
	w.neighbour.init(t.Encap)
	return w
}

// train returns a train to the other end, from our address at which it was last heard: kernel links
// only accept packets from the remote that they were made with, and a host may have several
// addresses.
func (t *tunnel) train(parts [][]byte) udp.Train {
	train := udp.Train{Destination: t.destination, Parts: parts}
	if local := t.local.Load(); local != nil {
		train.Source = *local
	}
	return train
}

// heardAt records our address that the other end sends to.
func (t *tunnel) heardAt(local netip.Addr) {
	if was := t.local.Load(); local.IsValid() && (was == nil || *was != local) {
		changed := local // the parameter stays off the heap
		t.local.Store(&changed)
	}
}

// trains reports whether trains may be sent to the tunnel.
func (t *tunnel) trains(now time.Duration) bool {
	return !t.probe.Lost() && now >= time.Duration(t.singleUntil.Load())
}

// encap writes the headers for an inner packet of this EtherType to the first templateLen bytes of
// b.
func (t *tunnel) encap(b []byte, to speaker, etherType uint16) {
	copy(b[:t.templateLen], t.template[to.encap()][:t.templateLen])
	if t.Inner == IP {
		binary.BigEndian.PutUint16(b[2:], etherType) // RFC 8926, Section 3.4: the protocol type
		return
	}
	to.mac().put(b[headerLen:])
	binary.BigEndian.PutUint16(b[headerLen+12:], etherType)
}

// header parses the tunnel header of a datagram from the tunnel's other end. borrowed: inner is a
// part of b; protocol is its EtherType, etherTypeEthernet for a frame.
func (t *tunnel) header(e Encap, b []byte) (inner []byte, protocol uint16, r Reason) {
	if e == VXLAN {
		_, inner, r = ParseVXLAN(b)
		return inner, etherTypeEthernet, r
	}
	h, inner, r := ParseHeader(b)
	switch {
	case r != Accepted:
		return nil, 0, r
	case h.Control:
		// RFC 8926, Section 3.4: "Tunnel endpoints MUST NOT forward the payload" of a control
		// packet.
		return nil, 0, ControlPacket
	case len(h.Options) > 0 && h.Options.critical():
		// RFC 8926, Section 3.5: unknown options with the critical bit set MUST be dropped; others
		// are skipped. The options decide, so the C flag of the header adds nothing.
		return nil, 0, CriticalOption
	case !known(h.Protocol):
		return nil, 0, UnknownProtocol
	case (h.Protocol == etherTypeEthernet) != (t.Inner == Ethernet):
		return nil, 0, WrongInner
	}
	return inner, h.Protocol, Accepted
}

// known reports whether a tunnel can carry a protocol type.
func known(protocol uint16) bool {
	return protocol == etherTypeEthernet || protocol == etherTypeIPv4 || protocol == etherTypeIPv6
}

// maxPacket is the size in bytes of the largest inner packet that the tunnel can carry.
func (t *tunnel) maxPacket() int { return udp.MaxPayload - t.templateLen }
