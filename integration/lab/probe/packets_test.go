package probe

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"golang.org/x/net/ipv4"

	"culvert/nat/nattest"
)

// TestForgedPackets: what attackers send is what it claims to be.
func TestForgedPackets(t *testing.T) {
	from, to := netip.MustParseAddrPort("10.0.1.5:4000"), netip.MustParseAddrPort("10.61.1.5:4001")
	router := netip.MustParseAddr("10.0.130.7")
	udp, tcp := SilentUDP(from, to), SilentTCP(from, to, nattest.SYN, 1, 0)
	error68 := TooBigAbout(router, udp, 68)
	for _, test := range []struct {
		name     string
		packet   []byte
		from, to netip.Addr
		protocol int
		length   int
		offset   int
		more     bool
	}{
		{"datagram", udp, from.Addr(), to.Addr(), 17, 29, 0, false},
		{"segment", tcp, from.Addr(), to.Addr(), 6, 40, 0, false},
		{"too big", error68, router, from.Addr(), 1, 56, 0, false},
		{"later fragment", LaterFragment(from.Addr(), to.Addr(), 7), from.Addr(), to.Addr(), 17, 84,
			fragmentBytes / 8, true},
		{"first fragment", FirstFragment(from, to, 7), from.Addr(), to.Addr(), 17, 92, 0, true},
	} {
		h, err := ipv4.ParseHeader(test.packet)
		if err != nil {
			t.Fatalf("%s: %v", test.name, err)
		}
		if h.Src.String() != test.from.String() || h.Dst.String() != test.to.String() || h.Protocol != test.protocol ||
			h.TotalLen != test.length || h.FragOff != test.offset || h.Flags&ipv4.MoreFragments != 0 != test.more {
			t.Errorf("%s: %v", test.name, h)
		}
		if payload := len(test.packet) - h.Len; test.more && payload%8 != 0 {
			t.Errorf("%s: %d bytes before the next", test.name, payload)
		}
	}
	if _, err := nattest.Check(error68); err != nil {
		t.Errorf("ICMP error: %v", err)
	}
	if mtu := binary.BigEndian.Uint16(error68[26:]); mtu != 68 {
		t.Errorf("MTU %d in the ICMP error", mtu)
	}
}

// TestForgedPacketsIPv6: over IPv6 they are what they claim to be too, with checksums where IPv6
// has no packets without.
func TestForgedPacketsIPv6(t *testing.T) {
	from, to := netip.MustParseAddrPort("[fd00:10:0:1::5]:4000"), netip.MustParseAddrPort("[fd00:61:0:1::5]:4001")
	router := netip.MustParseAddr("fd00:10:0:8002::7")
	for _, tt := range []struct {
		name     string
		packet   []byte
		source   netip.Addr
		protocol uint8
		length   int
	}{
		{"datagram", DatagramOf(from, to, 1, 2, 3).Bytes(), from.Addr(), 17, 51},
		{"too big", TooBigAbout(router, SilentTCP(from, to, nattest.ACK, 1, 1), 1280), router, 58, 96},
	} {
		v, err := nattest.Check(tt.packet)
		if err != nil || v.Source != tt.source || v.Protocol != tt.protocol || len(tt.packet) != tt.length {
			t.Errorf("%s: %d bytes, %+v, %v", tt.name, len(tt.packet), v, err)
		}
	}
	for name, b := range map[string][]byte{"later": LaterFragment(from.Addr(), to.Addr(), 7),
		"first": FirstFragment(from, to, 7)} {
		offset := binary.BigEndian.Uint16(b[42:])
		if b[6] != 44 || b[40] != 17 || offset&1 != 1 || (name == "later") != (offset&^7 == fragmentBytes) ||
			(len(b)-48)%8 != 0 || int(binary.BigEndian.Uint16(b[4:])) != len(b)-40 {
			t.Errorf("%s fragment: % x", name, b[:48])
		}
	}
}
