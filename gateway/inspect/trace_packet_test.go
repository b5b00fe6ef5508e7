package inspect

import (
	"net/netip"
	"strings"
	"testing"

	"culvert/gateway/control"
	"culvert/nat/nattest"
	"culvert/nat/packet"
)

// TestDescribed: a packet is as it was described, with sound lengths and checksums, for each
// protocol and family; so is the next one of a connection, in both directions.
func TestDescribed(t *testing.T) {
	for _, r := range []struct {
		protocol  string
		number    uint8
		least     int // bytes of the headers behind IP's
		ends      [2]string
		id        uint16 // of ICMP, in place of ports
		flags     string
		wantFlags uint8
	}{
		{"tcp", 6, 20, [2]string{"10.0.1.5:1000", "10.0.2.5:80"}, 0, "", nattest.SYN},
		{"tcp", 6, 20, [2]string{"[fd00:1::5]:1000", "[fd00:2::5]:80"}, 0, "syn,ack", nattest.SYN | nattest.ACK},
		{"udp", 17, 8, [2]string{"10.0.1.5:1000", "10.0.2.5:53"}, 0, "", 0},
		{"udp", 17, 8, [2]string{"[fd00:1::5]:1000", "[fd00:2::5]:53"}, 0, "", 0},
		{"sctp", 132, 12, [2]string{"10.0.1.5:1000", "10.0.2.5:80"}, 0, "", 0},
		{"icmp", 1, 8, [2]string{"10.0.1.5:0", "10.0.2.5:0"}, 1, "", 0},
		{"icmpv6", 58, 8, [2]string{"[fd00:1::5]:0", "[fd00:2::5]:0"}, 1, "", 0},
		{"47", 47, 8, [2]string{"10.0.1.5:0", "10.0.2.5:0"}, 0, "", 0},
	} {
		source, destination := netip.MustParseAddrPort(r.ends[0]), netip.MustParseAddrPort(r.ends[1])
		ip := 20
		if source.Addr().Is6() {
			ip = 40
		}
		o := control.TraceOptions{Protocol: r.protocol, Source: source, Destination: destination, TTL: 3, DF: true}
		if r.flags != "" {
			o.Flags = strings.Split(r.flags, ",")
		}
		for _, size := range []int{0, ip + r.least, 1400} {
			o.Size = size
			b, err := described(&o)
			if err != nil {
				t.Fatalf("%+v: %v", o, err)
			}
			v, err := nattest.Check(b)
			if ports := [2]uint16{source.Port() + r.id, destination.Port() + r.id}; err != nil ||
				v.Protocol != r.number || v.Source != source.Addr() || v.Destination != destination.Addr() ||
				r.number != 47 && [2]uint16{v.SourcePort, v.DestinationPort} != ports || v.TTL != 3 ||
				v.Flags != r.wantFlags || len(b) != max(size, ip+r.least) || ip == 20 && !v.DF {
				t.Errorf("%+v makes %+v of %d bytes: %v", o, v, len(b), err)
			}
		}
		o.Size = ip + r.least - 1
		if _, err := described(&o); err == nil || !strings.Contains(err.Error(), " takes at least ") {
			t.Errorf("%+v: %v", o, err)
		}
	}
	for _, reply := range []bool{false, true} {
		for protocol, types := range map[string][2]byte{"icmp": {8, 0}, "icmpv6": {128, 129}} {
			number, _ := control.ProtocolNumber(protocol)
			var p packet.Packet
			var of packet.Tuple
			body := nattest.IP{Source: "10.0.1.5", Destination: "10.0.2.5", Body: nattest.ICMP{Type: 8, Rest: 77 << 16}}
			if protocol == "icmpv6" {
				body = nattest.IP{Source: "fd00::1", Destination: "fd00::2", Body: nattest.ICMP{Type: 128,
					Rest: 77 << 16}}
			}
			p.Parse(body.Bytes())
			p.Tuple(&of, 0)
			want := types[0]
			if reply {
				want = types[1]
			}
			b, err := ofConnection(&of, reply)
			if v, e := nattest.Check(b); err != nil || e != nil || v.Protocol != number || v.Body[0] != want ||
				v.SourcePort != 77 || v.TTL != 64 {
				t.Errorf("%s, reply %t: %+v, %v, %v", protocol, reply, v, err, e)
			}
		}
	}
}
