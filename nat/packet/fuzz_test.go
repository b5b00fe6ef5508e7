package packet_test

import (
	"bytes"
	"net/netip"
	"testing"

	"culvert/nat/nattest"
	"culvert/nat/packet"
)

// FuzzPacket sends any bytes through everything that the engine does with them. Nothing may panic;
// Parse and Quoted change nothing; a reply has the tuple the other way round; what was rewritten
// there and back is what it was; refusals are sound.
func FuzzPacket(f *testing.F) {
	for _, v6 := range []bool{false, true} {
		for _, body := range nattest.Bodies(v6) {
			whole := endpoints(v6, nattest.IP{ID: 7, Options: []byte{148, 4, 0, 0}, First: 60,
				Extensions: [][]byte{{0, 0, 1, 4, 0, 0, 0, 0}}, Body: body}).Bytes()
			f.Add(whole, uint16(0), uint16(700))
			m := nattest.ICMP{Type: 3, Code: 4, Rest: 1280, Payload: whole}
			if v6 {
				m.Type, m.Code = 2, 0
			}
			f.Add(endpoints(v6, nattest.IP{Body: m}).Bytes(), uint16(0), uint16(0))
		}
	}
	f.Add(endpoints(false, nattest.IP{MF: true, Body: nattest.UDP{Payload: make([]byte, 16)}}).Bytes(),
		uint16(8), uint16(0))
	f.Add(endpoints(false, nattest.IP{Offset: 24, Body: nattest.Raw{Protocol: 17, Payload: make([]byte, 1600)}}).
		Bytes(), uint16(0), uint16(100))
	f.Add(endpoints(true, nattest.IP{Body: nattest.TCP{Flags: nattest.SYN, Options: []byte{2, 4, 5, 180, 1, 3, 3, 7}}}).
		Bytes(), uint16(0), uint16(0))
	f.Add(endpoints(false, nattest.IP{Body: nattest.TCP{Payload: make([]byte, 5000), Partial: true}}).Bytes(),
		uint16(1300), uint16(0))
	f.Add(endpoints(false, nattest.IP{Body: nattest.UDP{Payload: make([]byte, 5000)}}).Bytes(),
		uint16(700), uint16(500))
	for _, chain := range [][][]byte{ // each names what follows it
		{{44, 0, 1, 4, 0, 0, 0, 0}, {17, 0, 0, 1, 0, 0, 0, 9}}, {{17, 0, 3, 33, 0, 0, 0, 9}},
		{{60, 0, 0, 1, 0, 0, 0, 9}, {17, 0, 1, 4, 0, 0, 0, 0}},
		{{17, 0, 0, 0, 0, 0, 0, 9}}, {{17, 0, 0, 0, 0, 0, 0, 0}}, {{44, 0, 0, 2, 0, 0, 0, 0},
			{17, 0, 0, 0, 0, 0, 0, 9}},
	} {
		for _, first := range []uint8{0, 43, 44} {
			f.Add(endpoints(true, nattest.IP{First: first, Extensions: chain,
				Body: nattest.UDP{Payload: make([]byte, 88)}}).Bytes(), uint16(0), uint16(1300))
		}
	}
	f.Fuzz(play)
}

func play(t *testing.T, b []byte, segment, mtu uint16) {
	var p packet.Packet
	work := bytes.Clone(b)
	fault := p.Parse(work)
	if !bytes.Equal(work, b) {
		t.Fatal("Parse changed the packet")
	}
	if fault != p.Fault() || fault != packet.NoFault && p.Refusable(packet.TimeExceeded) {
		t.Fatalf("fault %d, then %d", fault, p.Fault())
	}
	if fault != packet.NoFault {
		return
	}
	b = b[:p.Len()]
	var was packet.Tuple
	p.Tuple(&was, 3)
	back := was.Reply(4)
	again := back.Reply(3)
	if again != was || back.Source() != was.Destination() || back.Destination() != was.Source() ||
		back.SourcePort() != was.DestinationPort() || back.DestinationPort() != was.SourcePort() || back.Link != 4 {
		t.Fatalf("%v, its reply %v, and of that %v", &was, &back, &again)
	}
	p.Forwardable()
	p.TransportHead()
	if p.HasPorts() && p.Protocol() == packet.TCP {
		var s packet.Segment
		p.Segment(&s)
	}
	if p.HasPorts() && p.Protocol() == packet.SCTP {
		p.Chunk()
	}
	refuse(t, &p)
	if p.IsICMPError() {
		quote(&p)
		p.Parse(bytes.Clone(b))
	}
	to := other(was)
	if p.Protocol() != packet.SCTP { // its checksum is computed anew, right or wrong
		rewrite(&p, to)
		rewrite(&p, was)
		if !equal(p.Bytes(), b) {
			t.Fatalf("there and back:\n%x, was\n%x", p.Bytes(), b)
		}
	}
	if p.Hops() > 0 {
		p.DecrementHops()
	}
	if p.IsSYN() {
		p.ClampMSS(1300)
	}
	cutAll(t, &p, int(segment), int(mtu))
}

// equal compares a packet with what it was. Both zeros of a checksum are equal (RFC 1624, Section
// 3).
func equal(b, was []byte) bool {
	c := bytes.Clone(b)
	for i := range c {
		if c[i] != was[i] && c[i]^was[i] == 0xff && (c[i] == 0 || was[i] == 0) {
			c[i] = was[i]
		}
	}
	return bytes.Equal(c, was)
}

// refuse makes every refusal that may be made.
func refuse(t *testing.T, p *packet.Packet) {
	from := netip.MustParseAddr("192.0.2.1")
	if p.IsIPv6() {
		from = netip.MustParseAddr("2001:db8::1")
	}
	for r := packet.NetUnreachable; r <= packet.Reset; r++ {
		if !p.Refusable(r) {
			continue
		}
		if _, err := nattest.Check(p.AppendRefusal(nil, r, from, 1400)); err != nil {
			t.Fatalf("refusal %d: %v", r, err)
		}
	}
}

// quote rewrites what an ICMP error quotes.
func quote(p *packet.Packet) {
	p.AnnouncedMTU()
	var q packet.Packet
	p.IsValidICMP()
	if !p.Quoted(&q) {
		return
	}
	var from packet.Tuple
	q.Tuple(&from, 0)
	to := other(from)
	p.RewriteQuoted(&q, &from, &to)
}

// cutAll cuts a packet as its kind allows, and counts the pieces.
func cutAll(t *testing.T, p *packet.Packet, segment, mtu int) {
	if mtu < 68 || p.DontFragment() { // RFC 791, Section 3.1: the smallest MTU
		mtu = 0
	}
	want := 1
	switch {
	case segment == 0:
		if mtu > 0 {
			want = packet.Fragments(p.HeaderLen(), p.Len(), mtu)
		}
	case p.IsPartial() && p.Protocol() == packet.TCP:
		want = max(1, (p.Len()-p.HeaderLen()-p.TCPHeaderLen()+segment-1)/segment)
		mtu = 0
	case p.IsDatagram() && p.Len()-p.HeaderLen()-8 > segment:
		p.SegmentSize, segment, mtu = segment, 0, 0
		want = (p.Len() - p.HeaderLen() - 8 + p.SegmentSize - 1) / p.SegmentSize
	default:
		segment, mtu = 0, 0
	}
	if out := cut(p, segment, mtu); len(out) != want {
		t.Fatalf("%d packets, want %d", len(out), want)
	}
}
