package packet_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"culvert/nat/nattest"
	"culvert/nat/packet"
)

var datagram = nattest.IP{Source: "10.200.1.5", Destination: "10.71.0.1",
	Body: nattest.UDP{SourcePort: 1, DestinationPort: 2, Payload: []byte("payload")}}

// Every packet truncated at every length is refused, and never read beyond its end.
func TestParseTruncated(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for name, body := range nattest.Bodies(v6) {
			p := nattest.IP{Source: "10.200.1.5", Destination: "10.71.0.1", Options: []byte{1, 7, 3, 0}, Body: body}
			if v6 {
				p = nattest.IP{Source: "fd00:200::5", Destination: "fd00:71::1", First: 60,
					Extensions: [][]byte{make([]byte, 16)}, Body: body}
				p.Extensions[0][1] = 1
			}
			whole := p.Bytes()
			var q packet.Packet
			if r := q.Parse(whole); r != packet.NoFault {
				t.Fatalf("%s: %v", name, r)
			}
			for n := range whole {
				if r := q.Parse(bytes.Clone(whole[:n])[:n:n]); r != packet.Malformed {
					t.Fatalf("%s: %d of %d bytes: %v", name, n, len(whole), r)
				}
			}
			padded := append(bytes.Clone(whole), make([]byte, 18)...)
			if r := q.Parse(padded); r != packet.NoFault || len(q.Bytes()) != len(whole) {
				t.Fatalf("%s with padding: %v, %d bytes", name, r, len(q.Bytes()))
			}
		}
	}
}

func TestParseFaults(t *testing.T) {
	v4 := func(change func(b []byte)) []byte {
		b := datagram.Bytes()
		change(b)
		b[10], b[11] = 0, 0
		binary.BigEndian.PutUint16(b[10:], nattest.Checksum(b[:20]))
		return b
	}
	raw := func(p nattest.IP, protocol uint8, b ...byte) []byte {
		p.Source, p.Destination = "10.200.1.5", "10.71.0.1"
		p.Body = nattest.Raw{Protocol: protocol, Payload: b}
		return p.Bytes()
	}
	six := func(first uint8, protocol uint8, body []byte, extensions ...[]byte) []byte {
		return nattest.IP{Source: "fd00:200::5", Destination: "fd00:71::1", First: first, Extensions: extensions,
			Body: nattest.Raw{Protocol: protocol, Payload: body}}.Bytes()
	}
	eight := make([]byte, 8)
	tests := []struct {
		name string
		b    []byte
		want packet.Fault
	}{
		{"version 5", v4(func(b []byte) { b[0] = 0x55 }), packet.Malformed},
		{"header length 16", v4(func(b []byte) { b[0] = 0x44 }), packet.Malformed},
		{"header longer than packet", v4(func(b []byte) { binary.BigEndian.PutUint16(b[2:], 19) }), packet.Malformed},
		{"bad header checksum", func() []byte { b := v4(func([]byte) {}); b[10]++; return b }(), packet.Malformed},
		{"UDP length 7", v4(func(b []byte) { b[25] = 7 }), packet.Malformed},
		{"UDP length too large", v4(func(b []byte) { b[25]++ }), packet.Malformed},
		{"UDP surplus area", v4(func(b []byte) { b[25]-- }), packet.NoFault},
		{"option of length 1", nattest.IP{Source: "10.0.0.1", Destination: "10.0.0.2", Options: []byte{7, 1, 0, 0},
			Body: nattest.UDP{}}.Bytes(), packet.Malformed},
		{"option beyond header", nattest.IP{Source: "10.0.0.1", Destination: "10.0.0.2", Options: []byte{1, 1, 7, 3},
			Body: nattest.UDP{}}.Bytes(), packet.Malformed},
		{"lone option byte", nattest.IP{Source: "10.0.0.1", Destination: "10.0.0.2", Options: []byte{1, 1, 1, 7},
			Body: nattest.UDP{}}.Bytes(), packet.Malformed},
		{"loose source route", nattest.IP{Source: "10.0.0.1", Destination: "10.0.0.2", Options: []byte{131, 7, 4, 1, 2,
			3, 4, 0}, Body: nattest.UDP{}}.Bytes(), packet.SourceRoute},
		{"strict source route", nattest.IP{Source: "10.0.0.1", Destination: "10.0.0.2", Options: []byte{137, 7, 4, 1, 2,
			3, 4, 0}, Body: nattest.UDP{}}.Bytes(), packet.SourceRoute},
		{"TCP data offset 4", raw(nattest.IP{}, 6, append(make([]byte, 12), 0x40, 0, 0, 0, 0, 0, 0, 0)...),
			packet.Malformed},
		{"TCP data offset beyond end", raw(nattest.IP{}, 6, append(make([]byte, 12), 0x60, 0, 0, 0, 0, 0, 0, 0)...),
			packet.Malformed},
		{"fragment of 9 bytes in the middle", raw(nattest.IP{MF: true, Offset: 80}, 17, make([]byte, 9)...),
			packet.Malformed},
		{"empty fragment", raw(nattest.IP{MF: true, Offset: 80}, 17), packet.Malformed},
		{"fragment beyond 65535", raw(nattest.IP{Offset: 65528}, 17, eight...), packet.Malformed},
		{"TCP fragment at offset 8", raw(nattest.IP{Offset: 8}, 6, eight...), packet.Malformed},
		{"tiny first TCP fragment", raw(nattest.IP{MF: true}, 6, make([]byte, 16)...), packet.Malformed},
		{"ICMPv6 in IPv4", raw(nattest.IP{}, 58, eight...), packet.Malformed},
		{"IPv6 jumbogram", six(0, 0, nil), packet.Malformed},
		{"IPv6 without payload", six(0, 59, nil), packet.NoFault},
		{"IPv6 UDP without payload", six(0, 17, nil), packet.Malformed},
		{"ICMP in IPv6", six(0, 1, eight), packet.Malformed},
		{"hop-by-hop behind destination options", six(60, 59, eight, []byte{0, 0, 1, 4, 0, 0, 0, 0},
			[]byte{0, 0, 1, 4, 0, 0, 0, 0}), packet.Malformed},
		{"routing header, no segments left", six(43, 59, eight, []byte{0, 0, 4, 0, 0, 0, 0, 0}), packet.NoFault},
		{"routing header, a segment left", six(43, 59, eight, []byte{0, 0, 4, 1, 0, 0, 0, 0}), packet.SourceRoute},
		{"two fragment headers", six(44, 59, eight, []byte{44, 0, 0, 0, 0, 0, 0, 1}, make([]byte, 8)),
			packet.Malformed},
		{"atomic fragment", six(44, 59, eight, make([]byte, 8)), packet.NoFault},
		{"extension beyond end", six(60, 59, nil, []byte{0, 9, 0, 0, 0, 0, 0, 0}), packet.Malformed},
		{"extensions beyond the cap", six(60, 59, eight, append([]byte{0, 40}, make([]byte, 326)...)),
			packet.Malformed},
	}
	tests[len(tests)-4].b[40] = 44 // the builder chains by number; make the second header a Fragment header too
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var p packet.Packet
			if got := p.Parse(test.b); got != test.want {
				t.Fatalf("%v, want %v: %x", got, test.want, test.b)
			}
			if p.Fault() != test.want {
				t.Fatalf("remembers %v", p.Fault())
			}
		})
	}
}
