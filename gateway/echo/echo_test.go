package echo

import (
	"bytes"
	"net/netip"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

var pairs = map[string][2]netip.Addr{
	"IPv4": {netip.MustParseAddr("10.80.0.2"), netip.MustParseAddr("10.80.0.4")},
	"IPv6": {netip.MustParseAddr("fd80::2"), netip.MustParseAddr("fd80::4")},
}

// request makes a packet of a size with a recognisable payload.
func request(pair [2]netip.Addr, size int) []byte {
	b := bytes.Repeat([]byte{0xff}, size) // the old content must not matter
	for i, payload := 0, b[HeaderLen(pair[0]):]; i < len(payload); i++ {
		payload[i] = byte(i)
	}
	(&Request{From: pair[0], To: pair[1], ID: OfPeer, Sequence: 0x1234}).Put(b)
	return b
}

// TestRequest: another implementation can parse the packet.
func TestRequest(t *testing.T) {
	for name, pair := range pairs {
		for _, size := range []int{HeaderLen(pair[0]), 64, 1341} {
			b := request(pair, size)
			var icmp []byte
			if pair[0].Is4() {
				ip := header.IPv4(b)
				if !ip.IsValid(size) || !ip.IsChecksumValid() || ip.Flags() != header.IPv4FlagDontFragment ||
					ip.TTL() != ttl || ip.TransportProtocol() != header.ICMPv4ProtocolNumber ||
					ip.SourceAddress() != tcpip.AddrFrom4(pair[0].As4()) ||
					ip.DestinationAddress() != tcpip.AddrFrom4(pair[1].As4()) {
					t.Errorf("%s, %d bytes: header % x", name, size, b[:20])
				}
				if icmp = ip.Payload(); checksum.Checksum(icmp, 0) != 0xffff ||
					header.ICMPv4(icmp).Type() != header.ICMPv4Echo {
					t.Errorf("%s, %d bytes: message % x", name, size, icmp)
				}
			} else {
				ip := header.IPv6(b)
				if !ip.IsValid(size) || ip.HopLimit() != ttl || ip.NextHeader() != uint8(header.ICMPv6ProtocolNumber) ||
					ip.SourceAddress() != tcpip.AddrFrom16(pair[0].As16()) ||
					ip.DestinationAddress() != tcpip.AddrFrom16(pair[1].As16()) {
					t.Errorf("%s, %d bytes: header % x", name, size, b[:40])
				}
				icmp = ip.Payload()
				want := header.ICMPv6Checksum(header.ICMPv6ChecksumParams{Header: header.ICMPv6(icmp),
					Src: ip.SourceAddress(), Dst: ip.DestinationAddress()})
				if m := header.ICMPv6(icmp); m.Checksum() != want || m.Type() != header.ICMPv6EchoRequest {
					t.Errorf("%s, %d bytes: message % x, checksum %#x", name, size, icmp, want)
				}
			}
			if m := header.ICMPv4(icmp); m.Ident() != OfPeer || m.Sequence() != 0x1234 ||
				!bytes.Equal(icmp, Message(b)) {
				t.Errorf("%s, %d bytes: % x", name, size, icmp[:8])
			}
		}
	}
}

// reply turns a request into its answer, without updating checksums.
func reply(request []byte) []byte {
	b := bytes.Clone(request)
	at, size, kind := 12, 4, byte(reply4)
	if b[0]>>4 == 6 {
		at, size, kind = 8, 16, reply6
	}
	copy(b[at:], request[at+size:at+2*size])
	copy(b[at+size:], request[at:at+size])
	b[at+2*size] = kind
	return b
}

// fragment turns a reply into its fragment at an offset of 8-byte units.
func fragment(b []byte, offset uint16, more bool) []byte {
	b = bytes.Clone(b)
	field := offset
	if b[0]>>4 == 4 {
		if more {
			field |= 0x2000
		}
		b[6], b[7] = byte(field>>8), byte(field)
		return b
	}
	if field <<= 3; more {
		field |= 1
	}
	extension := []byte{b[6], 0, byte(field >> 8), byte(field), 0, 0, 0, 9}
	b[6] = protoFragment
	return append(append(b[:40:40], extension...), b[40:]...)
}

// TestParse: exactly echo replies are recognised, whole or by their first fragment, wherever they
// are cut.
func TestParse(t *testing.T) {
	for name, pair := range pairs {
		b := request(pair, HeaderLen(pair[0])+16)
		answer, payload := reply(b), b[HeaderLen(pair[0]):]
		for what, test := range map[string]struct {
			packet []byte
			want   bool
			more   bool
		}{
			"an answer": {answer, true, false}, "its first fragment": {fragment(answer, 0, true), true, true},
			"all of it in one":  {fragment(answer, 0, false), true, false},
			"a later fragment":  {fragment(answer, 2, true), false, false},
			"the last fragment": {fragment(answer, 2, false), false, false}, "a request": {b, false, false},
		} {
			a, ok := Parse(test.packet)
			if ok != test.want || ok && (a.From != pair[1] || a.ID != OfPeer || a.Sequence != 0x1234 ||
				a.More != test.more || !bytes.Equal(a.Payload, payload)) {
				t.Errorf("%s, %s: %+v %v", name, what, a, ok)
			}
			for n := range test.packet {
				if a, ok := Parse(test.packet[:n]); ok && len(a.Payload) > len(payload)-(len(test.packet)-n) {
					t.Errorf("%s, %s, cut to %d bytes: %+v", name, what, n, a)
				}
			}
		}
		options := bytes.Clone(answer)
		if options[0]++; pair[0].Is4() {
			if a, ok := Parse(options); ok {
				t.Errorf("%s with options: %+v", name, a)
			}
		}
		if a, ok := ParseMessage(Message(answer), pair[0].Is6()); !ok || a.From.IsValid() || a.Sequence != 0x1234 ||
			!bytes.Equal(a.Payload, payload) {
			t.Errorf("%s, its message: %+v %v", name, a, ok)
		}
		if a, ok := ParseMessage(Message(answer), pair[0].Is4()); ok {
			t.Errorf("%s, its message as of the other family: %+v", name, a)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, pair := range pairs {
		b := reply(request(pair, HeaderLen(pair[0])+16))
		f.Add(b)
		f.Add(fragment(b, 0, true))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		a, ok := Parse(b)
		if ok && (!a.From.IsValid() || len(a.Payload) > len(b)-HeaderLen(a.From)) {
			t.Errorf("% x: %+v", b, a)
		}
		ParseMessage(b, len(b)%2 == 0)
	})
}
