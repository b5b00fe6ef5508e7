package path

import (
	"testing"

	"culvert/nat/nattest"
	"culvert/nat/packet"
)

// TestAnswerEchoIPv6 is TestAnswerEcho for IPv6.
func TestAnswerEchoIPv6(t *testing.T) {
	request := func(edit func(*nattest.IP, *nattest.ICMP)) []byte {
		ip := nattest.IP{Source: "fd00:10:0:1::5", Destination: "fd80::4", TTL: 3}
		icmp := nattest.ICMP{Type: 128, Rest: 0x1234_0001, Payload: nattest.Payload(56, 4)}
		edit(&ip, &icmp)
		if ip.Body == nil {
			ip.Body = icmp
		}
		return ip.Bytes()
	}
	// part is a fragment, whose offset is in bytes.
	part := func(hops uint8, offset uint16, more uint8, body nattest.Body) []byte {
		return request(func(ip *nattest.IP, _ *nattest.ICMP) {
			ip.TTL, ip.First, ip.Body = hops, 44, body
			ip.Extensions = [][]byte{{0, 0, byte(offset >> 8), byte(offset) | more, 0, 0, 0, 9}}
		})
	}
	ping := nattest.ICMP{Type: 128, Rest: 0x1234_0001, Payload: nattest.Payload(56, 4)}
	rest := nattest.Raw{Protocol: packet.ICMPv6, Payload: nattest.Payload(80, 1)}
	for _, tt := range []struct {
		name    string
		request []byte
		hops    uint8 // of the reply; 0 = none
	}{
		{"echo request", request(func(*nattest.IP, *nattest.ICMP) {}), 64},
		{"of no bytes", request(func(_ *nattest.IP, icmp *nattest.ICMP) { icmp.Payload = nil }), 64},
		{"of nothing but zeros", request(func(_ *nattest.IP, icmp *nattest.ICMP) {
			icmp.Rest, icmp.Payload = 0,
				make([]byte, 56)
		}), 64},
		{"with congestion marks", request(func(ip *nattest.IP, _ *nattest.ICMP) { ip.TOS = 0xb8 | 3 }), 64},
		{"first fragment", part(3, 0, 1, ping), 64},
		{"later fragment", part(64, 800, 1, rest), 63},
		{"last fragment", part(255, 800, 0, rest), 64},
		{"later fragment that has come far", part(1, 800, 1, rest), 0},
		{"atomic fragment", part(3, 0, 0, ping), 0},
		{"with destination options", request(func(ip *nattest.IP, _ *nattest.ICMP) {
			ip.First, ip.Extensions = 60, [][]byte{{0, 0, 1, 4, 0, 0, 0, 0}}
		}), 0},
		{"as large as the MTU", request(func(_ *nattest.IP, icmp *nattest.ICMP) {
			icmp.Payload = make([]byte,
				echoMTU-48)
		}), 64},
		{"larger", request(func(_ *nattest.IP, icmp *nattest.ICMP) { icmp.Payload = make([]byte, echoMTU-47) }), 0},
		{"fragment that is larger", part(64, 800, 1, nattest.Raw{Protocol: packet.ICMPv6,
			Payload: nattest.Payload(echoMTU-44, 1)}), 0},
		{"echo reply", request(func(_ *nattest.IP, icmp *nattest.ICMP) { icmp.Type = 129 }), 0},
		{"neighbour solicitation", request(func(_ *nattest.IP, icmp *nattest.ICMP) { icmp.Type = 135 }), 0},
		{"UDP", nattest.IP{Source: "fd00:10:0:1::5", Destination: "fd80::4", Body: nattest.UDP{SourcePort: 4000,
			DestinationPort: 53}}.Bytes(), 0},
		{"another protocol", request(func(ip *nattest.IP, _ *nattest.ICMP) {
			ip.Body = nattest.Raw{Protocol: 47, Payload: []byte{128, 0, 0, 0, 0, 0, 0, 0}}
		}), 0},
	} {
		t.Run(tt.name, func(t *testing.T) { requireAnswer(t, tt.request, tt.hops) })
	}
}
