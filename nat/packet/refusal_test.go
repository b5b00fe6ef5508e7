package packet_test

import (
	"bytes"
	"net/netip"
	"testing"

	"culvert/integration/need"
	"culvert/nat/nattest"
	"culvert/nat/packet"
)

func TestAppendRefusal(t *testing.T) {
	long := nattest.UDP{Payload: nattest.Payload(3000, 1)}
	for name, want := range map[string]struct {
		r      packet.Refusal
		v4, v6 [2]byte
	}{
		"net unreachable":  {packet.NetUnreachable, [2]byte{3, 0}, [2]byte{1, 0}},
		"host unreachable": {packet.HostUnreachable, [2]byte{3, 1}, [2]byte{1, 3}},
		"port unreachable": {packet.PortUnreachable, [2]byte{3, 3}, [2]byte{1, 4}},
		"prohibited":       {packet.Prohibited, [2]byte{3, 13}, [2]byte{1, 1}},
		"too big":          {packet.TooBig, [2]byte{3, 4}, [2]byte{2, 0}},
		"time exceeded":    {packet.TimeExceeded, [2]byte{11, 0}, [2]byte{3, 0}},
	} {
		for _, v6 := range []bool{false, true} {
			ip := endpoints(v6, nattest.IP{Body: long})
			from, kind, size := "192.0.2.1", want.v4, 576
			if v6 {
				from, kind, size = "2001:db8::1", want.v6, 1280
			}
			p := parse(t, ip.Bytes())
			if !p.Refusable(want.r) {
				t.Fatalf("%s: not refusable", name)
			}
			b := p.AppendRefusal([]byte("before"), want.r, netip.MustParseAddr(from), 1400)
			b, ok := bytes.CutPrefix(b, []byte("before"))
			view, err := nattest.Check(b)
			if err != nil || !ok {
				t.Fatalf("%s: %v", name, err)
			}
			if view.Source.String() != from || view.Destination.String() != ip.Source || [2]byte(view.Body) != kind ||
				len(b) != size ||
				!bytes.HasPrefix(ip.Bytes(), view.Payload) {
				t.Errorf("%s, v6=%t: %d bytes %x", name, v6, len(b), b)
			}
			mtu := int(view.Body[4])<<24 | int(view.Body[5])<<16 | int(view.Body[6])<<8 | int(view.Body[7])
			if mtu != map[bool]int{true: 1400}[want.r == packet.TooBig] {
				t.Errorf("%s: announces %d", name, mtu)
			}
		}
	}
}

// RFC 9293, Section 3.10.7.1.
func TestAppendReset(t *testing.T) {
	for _, test := range []struct {
		flags    uint8
		seq, ack uint32
		want     uint8
	}{
		{nattest.ACK, 2000, 0, nattest.RST},
		{nattest.SYN, 0, 1001 + 7, nattest.RST | nattest.ACK},
		{nattest.FIN | nattest.PSH, 0, 1001 + 7, nattest.RST | nattest.ACK},
	} {
		for _, v6 := range []bool{false, true} {
			ip := endpoints(v6, nattest.IP{Body: nattest.TCP{SourcePort: 5, DestinationPort: 80, Seq: 1000, Ack: 2000,
				Flags: test.flags, Payload: make([]byte, 7)}})
			p := parse(t, ip.Bytes())
			if !p.Refusable(packet.Reset) {
				t.Fatal("not refusable")
			}
			v, err := nattest.Check(p.AppendRefusal(nil, packet.Reset, netip.Addr{}, 0))
			need.NoError(t, err)
			if v.Source.String() != ip.Destination || v.Destination.String() != ip.Source || v.SourcePort != 80 ||
				v.DestinationPort != 5 ||
				v.Flags != test.want || v.Seq != test.seq || v.Ack != test.ack {
				t.Errorf("%#x is answered by %+v", test.flags, v)
			}
		}
	}
}

func TestNotRefusable(t *testing.T) {
	quoted := datagram.Bytes()
	tcp := func(flags uint8) nattest.Body { return nattest.TCP{Flags: flags, Payload: make([]byte, 12)} }
	for name, test := range map[string]struct {
		r  packet.Refusal
		ip nattest.IP
	}{
		"nothing to tell": {packet.NoRefusal, nattest.IP{Body: nattest.UDP{}}},
		"ICMP error":      {packet.TimeExceeded, nattest.IP{Body: nattest.ICMP{Type: 3, Payload: quoted}}},
		"unknown ICMPv6 error": {packet.TimeExceeded, nattest.IP{Source: "fd00::2", Destination: "fd00::1",
			Body: nattest.ICMP{Type: 100}}},
		"redirect": {packet.TimeExceeded, nattest.IP{Body: nattest.ICMP{Type: 5}}},
		"later fragment": {packet.TimeExceeded, nattest.IP{Offset: 80, Body: nattest.Raw{Protocol: 17,
			Payload: make([]byte, 8)}}},
		"reset of a reset":    {packet.Reset, nattest.IP{Body: tcp(nattest.RST)}},
		"reset of a fragment": {packet.Reset, nattest.IP{MF: true, Body: tcp(nattest.ACK)}},
		"reset of UDP":        {packet.Reset, nattest.IP{Body: nattest.UDP{}}},
		"to multicast": {packet.TimeExceeded, nattest.IP{Source: "10.200.1.5", Destination: "224.0.0.9",
			Body: nattest.UDP{}}},
		"to broadcast": {packet.TimeExceeded, nattest.IP{Source: "10.200.1.5",
			Destination: "255.255.255.255", Body: nattest.UDP{}}},
		"from the unspecified": {packet.TimeExceeded, nattest.IP{Source: "0.0.0.0", Destination: "10.71.3.9",
			Body: nattest.UDP{}}},
		"from a link-local source": {packet.TimeExceeded, nattest.IP{Source: "fe80::1", Destination: "fd00::1",
			Body: nattest.UDP{}}},
	} {
		if test.ip.Source == "" {
			test.ip = endpoints(false, test.ip)
		}
		if parse(t, test.ip.Bytes()).Refusable(test.r) {
			t.Errorf("%s: refusable", name)
		}
	}
	var p packet.Packet
	if p.Parse(quoted[:10]); p.Refusable(packet.TimeExceeded) || p.Fault() != packet.Malformed {
		t.Error("malformed: refusable")
	}
}
