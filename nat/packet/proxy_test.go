package packet_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"culvert/nat/nattest"
	"culvert/nat/packet"
)

// annotated joins bytes that are written with what they are.
func annotated(parts ...any) (b []byte) {
	for i := 0; i < len(parts); i += 2 {
		b = append(b, parts[i].(string)...)
	}
	return b
}

// The bytes are those of HAProxy's doc/proxy-protocol.txt, Section 2.2.
func TestProxyHeader(t *testing.T) {
	const signature = "\x0d\x0a\x0d\x0a\x00\x0d\x0a\x51\x55\x49\x54\x0a"
	for _, tt := range []struct {
		client, server string
		want           []byte
	}{
		{"203.0.113.9:40000", "10.70.0.20:443", annotated(
			signature, "", "\x21", "version 2, PROXY", "\x11", "TCP over IPv4", "\x00\x0c", "12 bytes follow",
			"\xcb\x00\x71\x09", "client", "\x0a\x46\x00\x14", "server", "\x9c\x40", "40000", "\x01\xbb", "443")},
		{"[2001:db8::1]:65535", "[fd00:70::14]:1", annotated(
			signature, "", "\x21", "version 2, PROXY", "\x21", "TCP over IPv6", "\x00\x24", "36 bytes follow",
			"\x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01", "client",
			"\xfd\x00\x00\x70\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x14", "server", "\xff\xff", "65535",
			"\x00\x01", "1")},
	} {
		client := netip.MustParseAddrPort(tt.client)
		h := packet.NewProxyHeader(client, netip.MustParseAddrPort(tt.server))
		if !bytes.Equal(h.Bytes(), tt.want) {
			t.Errorf("%s > %s:\n%x, want\n%x", tt.client, tt.server, h.Bytes(), tt.want)
		}
		if n := packet.ProxyHeaderLen(client.Addr().Is6()); n != len(tt.want) {
			t.Errorf("%s: %d bytes, want %d", tt.client, n, len(tt.want))
		}
	}
}

func TestStreamShift(t *testing.T) {
	for _, first := range []uint32{1000, 0, 0xffffffff, 0x80000000} {
		s := packet.StreamShift{First: first, Length: 28}
		for _, tt := range []struct {
			at, want uint32
			far      bool
		}{
			{0, 0, false}, {1, 0, false}, {27, 0, false}, {28, 0, false}, {29, 1, false}, {1 << 30, 1<<30 - 28, false},
			// a keepalive of the server's doing, or its SYN-ACK to another SYN
			{^uint32(0), ^uint32(0), false},
			{3 << 30, 3<<30 - 28, false}, {0, ^uint32(27), true}, // 4 GiB later
			{29, 1, true}, {28, 0, true},
		} {
			s.Far = tt.far
			if got := s.Back(first+tt.at) - first; got != tt.want {
				t.Errorf("first %#x, far %t: %#x is %#x, want %#x", first, tt.far, tt.at, got, tt.want)
			}
		}
	}
}

// sackOption returns NOPs and a SACK option of blocks, each of two numbers.
func sackOption(blocks ...uint32) []byte {
	b := []byte{1, 1, 5, byte(2 + 4*len(blocks))}
	for _, n := range blocks {
		b = binary.BigEndian.AppendUint32(b, n)
	}
	return b
}

// What a server says of a stream, its client hears in its own numbers, under a checksum that is
// right, or wrong if it was.
func TestMoveBack(t *testing.T) {
	s := packet.StreamShift{First: 5000, Length: 28}
	for _, tt := range []struct {
		name          string
		ack, wantAck  uint32
		options, want []byte
	}{
		{"no options", 5028, 5000, nil, nil},
		{"part of the header", 5010, 5000, nil, nil},
		{"blocks", 6028, 6000, sackOption(7028, 8028, 9028, 9128), sackOption(7000, 8000, 9000, 9100)},
		{"a block from within the header", 5000, 5000, sackOption(5014, 5128), sackOption(5000, 5100)},
		{"the header twice", 5028, 5000, sackOption(5000, 5028), bytes.Repeat([]byte{1}, 12)},
		{"the header twice, and more", 5128, 5100, sackOption(5000, 5028, 5228, 5328),
			append(sackOption(5200, 5300)[:2], append([]byte{5, 10}, append(sackOption(5200, 5300)[4:], 1, 1, 1, 1, 1,
				1, 1, 1)...)...)},
		{"timestamps first", 5128, 5100, append([]byte{1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8}, sackOption(5228, 5328)...),
			append([]byte{1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8}, sackOption(5200, 5300)...)},
		{"at an odd place", 5128, 5100, append([]byte{1, 1, 1}, append(sackOption(5228, 5328)[2:], 1, 1, 0)...),
			append([]byte{1, 1, 1}, append(sackOption(5200, 5300)[2:], 1, 1, 0)...)},
		{"a broken option", 5128, 5100, []byte{5, 11, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, []byte{5, 11, 0, 0, 0, 0, 0, 0,
			0, 0, 0, 0}},
		{"an option beyond the header", 5128, 5100, []byte{1, 1, 5, 34}, []byte{1, 1, 5, 34}},
	} {
		for _, v6 := range []bool{false, true} {
			for _, partial := range []bool{false, true} {
				body := nattest.TCP{SourcePort: 80, DestinationPort: 40000, Seq: 77, Ack: tt.ack,
					Flags: nattest.ACK, Window: 500,
					Options: tt.options, Payload: []byte("banner"), Partial: partial}
				p := parse(t, endpoints(v6, nattest.IP{Body: body}).Bytes())
				p.MoveBack(s)
				check := nattest.Check
				if partial {
					check = nattest.CheckPartial
				}
				v, err := check(p.Bytes())
				if err != nil || v.Ack != tt.wantAck || !bytes.Equal(v.Options, tt.want) || v.Seq != 77 ||
					string(v.Payload) != "banner" {
					t.Errorf("%s, v6 %t, partial %t: %v, ack %d and options %x, want %d and %x", tt.name, v6, partial,
						err, v.Ack, v.Options, tt.wantAck, tt.want)
				}
			}
			b := endpoints(v6, nattest.IP{Body: nattest.TCP{Ack: tt.ack, Flags: nattest.ACK, Options: tt.options,
				Payload: []byte("spoilt")}}).Bytes()
			b[len(b)-1] ^= 1
			p := parse(t, b)
			if p.MoveBack(s); p.IsSumRight() {
				t.Errorf("%s, v6 %t: a broken checksum was mended", tt.name, v6)
			}
		}
	}
	// Without the ACK flag the field says nothing (RFC 9293, Section 3.1).
	p := parse(t, endpoints(false, nattest.IP{Body: nattest.TCP{Ack: 6000, Flags: nattest.RST}}).Bytes())
	p.MoveBack(s)
	if v, err := nattest.Check(p.Bytes()); err != nil || v.Ack != 6000 {
		t.Errorf("%v, ack %d", err, v.Ack)
	}
}

// What a Cutter makes of a packet with a lead are the segments of a sender who had the lead to send
// as well.
func TestLead(t *testing.T) {
	header := func(v6 bool) packet.ProxyHeader {
		if v6 {
			return packet.NewProxyHeader(netip.MustParseAddrPort("[2001:db8::1]:40000"),
				netip.MustParseAddrPort("[fd00::1]:80"))
		}
		return packet.NewProxyHeader(netip.MustParseAddrPort("203.0.113.9:40000"),
			netip.MustParseAddrPort("10.70.0.20:80"))
	}
	const flags = nattest.ACK | nattest.FIN | nattest.CWR
	for _, v6 := range []bool{false, true} {
		h := header(v6)
		for _, size := range []int{0, 1, 19, 20, 1200, 1201, 2400, 65400 - 60} {
			for _, segment := range []int{0, 1200, 48, 51} {
				if size > 2400 && segment == 0 {
					continue // longer than a packet can be
				}
				for _, partial := range []bool{false, true} {
					t.Run(fmt.Sprintf("v6=%t/%d/%d/partial=%t", v6, size, segment, partial), func(t *testing.T) {
						body := nattest.TCP{SourcePort: 1, DestinationPort: 2, Seq: 0xffffffc0, Ack: 7,
							Flags: flags, Window: 9,
							Payload: nattest.Payload(size, 3), Partial: partial}
						ip := endpoints(v6, nattest.IP{ID: 5, DF: true, Body: body})
						p := parse(t, ip.Bytes())
						p.Lead(&h)
						if p.Len()+p.LeadLen() != len(ip.Bytes())+len(h.Bytes()) {
							t.Fatalf("%d and %d bytes", p.Len(), p.LeadLen())
						}
						all := slices.Concat(h.Bytes(), body.Payload)
						step := segment
						if segment == 0 {
							step = len(all)
						}
						if size == 0 {
							body.Flags |= nattest.PSH
						}
						out := cut(p, segment, 0)
						if want := (len(all) + step - 1) / step; len(out) != want {
							t.Fatalf("%d segments, want %d", len(out), want)
						}
						for i, b := range out {
							one := body
							one.Partial, one.Seq, one.Payload = false, body.Seq+uint32(i*step),
								all[i*step:min((i+1)*step, len(all))]
							if i > 0 {
								one.Flags &^= nattest.CWR
							}
							if i < len(out)-1 {
								one.Flags &^= nattest.FIN | nattest.PSH
							}
							ip.ID, ip.Body = 5+uint16(i), one
							if !bytes.Equal(b, ip.Bytes()) {
								t.Fatalf("segment %d\n%x, want\n%x", i, b, ip.Bytes())
							}
						}
					})
				}
			}
		}
	}
	// The urgent pointer counts from the sequence number (RFC 9293, Section 3.1).
	h := header(false)
	b := endpoints(false, nattest.IP{Body: nattest.TCP{Flags: nattest.ACK | nattest.URG, Payload: []byte("urgent")}}).
		Bytes()
	b[20+19] = 6
	p := parse(t, b)
	p.Lead(&h)
	if out := cut(p, 0, 0); binary.BigEndian.Uint16(out[0][20+18:]) != 6+28 {
		t.Errorf("urgent pointer %d", binary.BigEndian.Uint16(out[0][20+18:]))
	}
}

// A SYN loses its data and Multipath TCP, and nothing else.
func TestDropPayloadAndMultipath(t *testing.T) {
	capable := []byte{30, 12, 0x01, 0x81, 1, 2, 3, 4, 5, 6, 7, 8} // RFC 8684, Section 3.1
	cookie := []byte{34, 10, 1, 2, 3, 4, 5, 6, 7, 8, 1, 1}        // RFC 7413, Section 4.1.1
	mss := []byte{2, 4, 5, 180}
	for _, v6 := range []bool{false, true} {
		for _, partial := range []bool{false, true} {
			for _, size := range []int{0, 1, 100, 1201} {
				body := nattest.TCP{SourcePort: 1, DestinationPort: 2, Seq: 9, Flags: nattest.SYN, Window: 9,
					Partial: partial,
					Options: slices.Concat(mss, capable, cookie, []byte{1, 30, 3, 7}),
					Payload: nattest.Payload(size, 3)}
				ip := endpoints(v6, nattest.IP{ID: 5, Body: body})
				p := parse(t, ip.Bytes())
				p.DropPayload()
				p.DropMultipath()
				body.Options, body.Payload = slices.Concat(mss, bytes.Repeat([]byte{1}, 12), cookie,
					[]byte{1, 1, 1, 1}), nil
				ip.Body = body
				if !bytes.Equal(p.Bytes(), ip.Bytes()) {
					t.Errorf("v6 %t, partial %t, %d bytes:\n%x, want\n%x", v6, partial, size, p.Bytes(), ip.Bytes())
				}
			}
		}
	}
}

// FuzzProxy has any bytes that are a TCP segment renumbered in every way. What was sound stays so.
func FuzzProxy(f *testing.F) {
	for _, v6 := range []bool{false, true} {
		for _, options := range [][]byte{nil, sackOption(1, 2, 3, 4), {30, 3, 1, 1}, {5, 34, 0, 0}, {5, 10, 0, 0},
			{2, 4, 5, 180, 30, 4, 0, 0}} {
			for _, flags := range []uint8{nattest.SYN, nattest.ACK, nattest.ACK | nattest.URG} {
				f.Add(endpoints(v6, nattest.IP{Body: nattest.TCP{Seq: 1000, Ack: 2000, Flags: flags, Options: options,
					Payload: make([]byte, 99)}}).Bytes(), uint32(1990), uint16(60))
			}
		}
	}
	f.Add(endpoints(false, nattest.IP{MF: true, Body: nattest.TCP{Flags: nattest.ACK, Payload: make([]byte, 12)}}).
		Bytes(), uint32(0), uint16(0))
	f.Fuzz(func(t *testing.T, b []byte, first uint32, segment uint16) {
		var p packet.Packet
		if p.Parse(b) != packet.NoFault || p.Protocol() != packet.TCP || !p.HasPorts() || p.IsFragment() {
			return
		}
		fresh := func() *packet.Packet { return parse(t, p.Bytes()) }
		sound := p.IsSumRight()
		s := packet.StreamShift{First: first, Length: 28, Far: segment&1 == 1}
		for name, change := range map[string]func(*packet.Packet){
			"back":      func(p *packet.Packet) { p.MoveBack(s) },
			"forth":     func(p *packet.Packet) { p.MoveSequence(s.Length) },
			"window":    func(p *packet.Packet) { p.LowerWindow(segment) },
			"payload":   (*packet.Packet).DropPayload,
			"multipath": (*packet.Packet).DropMultipath,
		} {
			q := fresh()
			change(q)
			var again packet.Packet
			if fault := again.Parse(bytes.Clone(q.Bytes())); fault != packet.NoFault {
				t.Fatalf("%s: fault %d", name, fault)
			}
			if sound != again.IsSumRight() && !q.IsPartial() && !again.IsPartial() {
				t.Fatalf("%s: checksum right %t, was %t", name, again.IsSumRight(), sound)
			}
		}
		h := packet.NewProxyHeader(netip.MustParseAddrPort("203.0.113.9:40000"),
			netip.MustParseAddrPort("10.70.0.20:80"))
		q := fresh()
		q.Lead(&h)
		payload := p.Len() - p.HeaderLen() - p.TCPHeaderLen() + len(h.Bytes())
		size := max(int(segment), 48)
		if payload <= size {
			size = 0
		}
		if size == 0 && p.Len()+len(h.Bytes()) > 0xffff {
			size = 1000
		}
		for i, b := range cut(q, size, 0) {
			if q.IsIPv6() || b[0] == 0x45 {
				if _, err := nattest.Check(b); err != nil {
					t.Fatalf("segment %d: %v", i, err)
				}
			}
			if want := q.HeaderLen() + q.TCPHeaderLen() + size; size > 0 && len(b) > want {
				t.Fatalf("segment %d: %d bytes, want at most %d", i, len(b), want)
			}
		}
	})
}
