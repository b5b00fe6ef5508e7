package path

import (
	"bytes"
	"net/netip"
	"sync/atomic"

	"culvert/gateway/wg"
	"culvert/geneve"
	"culvert/nat"
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// A Stage is a point on a packet's way.
type Stage uint8

// The stages.
const (
	Geneve    Stage = iota // a datagram from or to a node
	Pre                    // an inner packet as it came
	Post                   // an inner packet as it leaves, or would have left
	WireGuard              // a message from or to the peer
)

// An Observation is a packet at a stage of its way, and what has become of it.
type Observation struct {
	At       Stage
	Outbound bool // an inner packet leaves the local cluster, a datagram leaves the gateway
	Made     bool // by the gateway
	// where it came from, and goes; the same for a datagram and for a packet that the gateway made
	In, Out nat.Link
	Parsed  bool         // otherwise, Tuple has addresses at most
	Tuple   packet.Tuple // as it came; of a message of WireGuard, the outer one
	Verdict string       // forward, drop, deliver or hold; "" = a datagram that is not dropped
	Reason  string       // why it is dropped; "" = it is not
	More    string       // what else is known about that
	Bytes   []byte       // the packet or its beginning, or the payload of Outer; valid until Tap.See returns
	Length  int          // of the packet
	Outer   packet.Tuple // of a datagram; the zero Tuple = Bytes have all headers

	engine *nat.Engine    // nil = it must not be asked about this packet
	packet *packet.Packet // nil = Bytes
	now    nat.Time
}

// Observe describes a packet that came by link in. ok is false if it has no addresses.
func Observe(p *packet.Packet, in nat.Link) (o Observation, ok bool) {
	o = Observation{Outbound: in != nat.Tunnel, In: in, Out: in, Parsed: p.Fault() == packet.NoFault}
	if o.Parsed {
		p.Tuple(&o.Tuple, in)
		return o, true
	}
	source, destination, ok := addresses(p.Bytes())
	if ok {
		o.Tuple.IPv6 = source.Is6()
		o.Tuple.SetSource(source)
		o.Tuple.SetDestination(destination)
	}
	return o, ok
}

// observeBytes is Observe for a packet that nobody has parsed.
func observeBytes(at Stage, b []byte, link nat.Link) Observation {
	var p packet.Packet
	p.Parse(b)
	o, _ := Observe(&p, link)
	o.At, o.Bytes, o.Length = at, b, len(b)
	return o
}

func (o *Observation) dropped(reason string) { o.Verdict, o.Reason = nat.Drop.String(), reason }

// Connection returns the connection of the packet, or if none is known the one that it would open.
func (o *Observation) Connection() (c nat.ConnInfo, known bool) {
	if o.engine != nil && !o.Made {
		if c, known = o.engine.FindConnection(&o.Tuple, o.now); known {
			return c, true
		}
	}
	return nat.ConnInfo{Original: o.Tuple, Reply: o.Tuple.Reply(o.Out), Out: [2]nat.Link{o.Out, o.Tuple.Link}}, false
}

// Explain shows t the rules that the packet meets.
func (o *Observation) Explain(t rules.Tracer) {
	switch {
	case o.Made:
		o.engine.ExplainOut(o.Bytes, o.Out, t)
	case o.packet != nil:
		var p packet.Packet
		p.Parse(bytes.Clone(o.packet.Bytes()))
		p.SegmentSize = o.packet.SegmentSize
		o.engine.Explain(&p, o.In, o.now, t)
	}
}

// A Tap sees packets. Its methods must not block.
type Tap interface {
	// Room returns how many of n bytes of a packet it needs.
	Room(n int) int
	// See gets an Observation, which is valid until it returns. Any goroutine may call it. A packet
	// that the path itself drops is counted after the call, so a counted packet has been seen.
	See(o *Observation)
}

// tap holds the Tap. Without a Tap it costs each packet a load and a branch.
type tap = atomic.Pointer[Tap]

// SetTap shows packets and the datagrams of both tunnels to t from now on, instead of to the
// previous Tap; nil = to no Tap.
func (p *Path) SetTap(t Tap) {
	if t == nil {
		p.tap.Store(nil)
		p.Engine.TapFragments(nil)
		p.Endpoint.SetTap(nil)
		p.WG.SetTap(nil)
		return
	}
	p.Endpoint.SetTap(func(d *geneve.Datagram) {
		o := p.observeDatagram(d)
		t.See(&o)
	})
	p.WG.SetTap(func(m *wg.Message) {
		o := p.ObserveMessage(m)
		t.See(&o)
	})
	p.Engine.TapFragments(func(fragment []byte, in nat.Link, why nat.Reason) {
		o := observeBytes(Pre, fragment, in) // without engine, which is locked
		o.dropped(why.String())
		t.See(&o)
	})
	p.tap.Store(&t)
}

// Tapped reports whether there is a Tap.
func (p *Path) Tapped() bool { return p.tap.Load() != nil }

func (p *Path) observeDatagram(d *geneve.Datagram) Observation {
	o := observeBytes(Geneve, d.Inner, nat.Link(d.Tunnel))
	if o.Outbound = d.Outbound; !d.Outbound {
		o.engine, o.now = p.Engine, Now()
	}
	if d.Reason != geneve.Accepted {
		o.dropped(d.Reason.String())
	}
	if d.Data != nil {
		o.Bytes, o.Length, o.Outer = d.Data, len(d.Data), outerTuple(d.Outbound, p.Endpoint.LocalAddr(), d.Peer)
	}
	return o
}

// ObserveMessage describes a message of WireGuard.
func (p *Path) ObserveMessage(m *wg.Message) Observation {
	outer := outerTuple(m.Outbound, netip.AddrPortFrom(netip.IPv4Unspecified(), p.WG.Port()), m.Peer)
	o := Observation{At: WireGuard, Outbound: m.Outbound, Parsed: true, Tuple: outer, Outer: outer, Bytes: m.Data,
		Length: len(m.Data)}
	if m.Dropped {
		o.dropped(m.Reason.String())
	}
	return o
}

// outerTuple returns the tuple of a datagram. A local address of another family than the remote one
// is unspecified.
func outerTuple(outbound bool, local, remote netip.AddrPort) (t packet.Tuple) {
	remote = netip.AddrPortFrom(remote.Addr().Unmap(), remote.Port())
	if !remote.IsValid() {
		remote = netip.AddrPortFrom(netip.IPv4Unspecified(), 0)
	}
	if local.Addr().Is4() != remote.Addr().Is4() {
		local = netip.AddrPortFrom(map[bool]netip.Addr{true: netip.IPv4Unspecified(),
			false: netip.IPv6Unspecified()}[remote.Addr().Is4()], local.Port())
	}
	from, to := remote, local
	if outbound {
		from, to = local, remote
	}
	t.IPv6, t.Protocol = from.Addr().Is6(), packet.UDP
	t.SetSource(from.Addr())
	t.SetDestination(to.Addr())
	t.SetSourcePort(from.Port())
	t.SetDestinationPort(to.Port())
	return t
}

// A sight is what a direction observes of its current packet. Only the goroutine of that direction
// uses it.
type sight struct {
	Observation
	tap    *Tap // that saw the packet come; nil = nobody looks
	before []byte
	length int
}

// arrive begins to observe a packet, before the engine changes it.
func (s *sight) arrive(e *nat.Engine, p *packet.Packet, data []byte, in nat.Link, now nat.Time) {
	s.Observation, _ = Observe(p, in)
	s.engine, s.packet, s.now = e, p, now
	s.remember(data)
}

func (s *sight) remember(data []byte) {
	s.before, s.length = append(s.before[:0], data[:(*s.tap).Room(len(data))]...), len(data)
}

// decided shows what the engine has made of the packet.
func (s *sight) decided(p *packet.Packet, v *nat.Verdict) {
	s.become(v)
	s.show(Pre, s.before, s.length)
	s.leave(p, v)
}

// released shows a fragment that waited for the current packet, the first one of its datagram. Its
// arrival has been shown.
func (s *sight) released(p *packet.Packet, v *nat.Verdict) {
	if s.become(v); v.Action == nat.Drop {
		s.packet = p
		s.remember(p.Bytes())
		s.show(Pre, s.before, s.length)
	}
	s.leave(p, v)
}

func (s *sight) become(v *nat.Verdict) {
	s.Verdict, s.Reason, s.Out = v.Action.String(), "", v.Out
	if v.Action == nat.Drop {
		s.Reason = v.Reason.String()
	}
}

// leave shows a packet that is forwarded.
func (s *sight) leave(p *packet.Packet, v *nat.Verdict) {
	switch {
	case v.Action != nat.Forward:
	case p.LeadLen() > 0: // p does not hold all of the packet that leaves
		var c packet.Cutter
		room := make([]byte, p.Len()+p.LeadLen())
		c.Start(p, v.SegmentSize, v.MTU)
		for n := c.Next(room); n > 0; n = c.Next(room) {
			s.show(Post, room[:n], n)
		}
	default:
		s.show(Post, p.Bytes(), p.Len())
	}
}

// lost shows that the path itself drops the packet: as it would have left or, if b is nil, as it
// came. If another packet took the room of b, b may be one like it.
func (s *sight) lost(reason string, b []byte) {
	if s.tap == nil {
		return
	}
	if s.dropped(reason); b == nil {
		s.show(Pre, s.before, s.length)
		return
	}
	s.show(Post, b, len(b))
}

func (s *sight) show(at Stage, b []byte, length int) {
	s.At, s.Bytes, s.Length = at, b, length
	(*s.tap).See(&s.Observation)
}

// dropMade shows and counts a packet that the gateway made for a link and drops. Any goroutine may
// call it.
func (p *Path) dropMade(of *Counters, r DropReason, b []byte, out nat.Link) {
	if t := p.tap.Load(); t != nil {
		o := observeBytes(Post, b, out)
		o.Made, o.Outbound, o.engine = true, out == nat.Tunnel, p.Engine
		o.dropped(r.String())
		(*t).See(&o)
	}
	of.drops[r].Add(1)
}

// Witness returns a packet that was dropped for a reason since the last call, without its bytes;
// nil = none was.
func (c *Counters) Witness(r nat.Reason) *Observation { return c.witnesses[r].Swap(nil) }

// see keeps a dropped packet as an example of its reason, unless one was kept since the last call
// of Witness. So all but the first in a second cost one load.
func (c *Counters) see(p *packet.Packet, in nat.Link, r nat.Reason) {
	if c.witnesses[r].Load() != nil {
		return
	}
	if o, ok := Observe(p, in); ok {
		o.dropped(r.String())
		c.witnesses[r].Store(&o)
	}
}

// addresses returns the addresses of an IP packet that may be malformed.
func addresses(b []byte) (source, destination netip.Addr, ok bool) {
	switch {
	case len(b) >= 20 && b[0]>>4 == 4:
		return netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:])), true
	case len(b) >= 40 && b[0]>>4 == 6:
		return netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:])), true
	}
	return netip.Addr{}, netip.Addr{}, false
}
