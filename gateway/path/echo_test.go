package path

import (
	"bytes"
	"encoding/binary"
	"syscall"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/header"

	"culvert/geneve/genevetest"
	"culvert/integration/need"
	"culvert/nat/nattest"
	"culvert/nat/packet"
)

const echoMTU = 1340

func ping(source, destination string, ttl uint8, payload int) []byte {
	return nattest.IP{Source: source, Destination: destination, TTL: ttl,
		Body: nattest.ICMP{Type: 8, Rest: 0x1234_0001, Payload: nattest.Payload(payload, 4)}}.Bytes()
}

// TestAnswerEcho: an echo request, and each fragment of one, becomes its reply; nothing else is
// answered.
func TestAnswerEcho(t *testing.T) {
	request := func(edit func(*nattest.IP, *nattest.ICMP)) []byte {
		ip := nattest.IP{Source: "10.0.1.5", Destination: "10.80.0.4", ID: 9, TTL: 3}
		icmp := nattest.ICMP{Type: 8, Rest: 0x1234_0001, Payload: nattest.Payload(56, 4)}
		edit(&ip, &icmp)
		if ip.Body == nil {
			ip.Body = icmp
		}
		return ip.Bytes()
	}
	later := func(ttl uint8, more bool) []byte {
		return request(func(ip *nattest.IP, _ *nattest.ICMP) {
			ip.TTL, ip.MF, ip.Offset, ip.Body = ttl, more, 800,
				nattest.Raw{Protocol: 1, Payload: nattest.Payload(80, 1)}
		})
	}
	route := []byte{7, 7, 4, 0, 0, 0, 0, 0} // record route, with room for one address
	for _, tt := range []struct {
		name    string
		request []byte
		ttl     uint8 // of the reply; 0 = none
	}{
		{"echo request", request(func(*nattest.IP, *nattest.ICMP) {}), 64},
		{"of no bytes", request(func(_ *nattest.IP, icmp *nattest.ICMP) { icmp.Payload = nil }), 64},
		{"whose checksum is 0", request(func(_ *nattest.IP, icmp *nattest.ICMP) {
			icmp.Rest,
				icmp.Payload = 0xf7ff_0000, nil
		}), 64},
		{"of nothing but zeros", request(func(_ *nattest.IP, icmp *nattest.ICMP) {
			icmp.Rest, icmp.Payload = 0,
				make([]byte, 56)
		}), 64},
		{"not to be fragmented", request(func(ip *nattest.IP, _ *nattest.ICMP) { ip.DF = true }), 64},
		{"with congestion marks", request(func(ip *nattest.IP, _ *nattest.ICMP) { ip.TOS = 0xb8 | 3 }), 64},
		{"with options", request(func(ip *nattest.IP, _ *nattest.ICMP) { ip.Options = route }), 64},
		{"first fragment", request(func(ip *nattest.IP, _ *nattest.ICMP) { ip.MF = true }), 64},
		{"later fragment", later(64, true), 63},
		{"last fragment", later(255, false), 64},
		{"later fragment that has come far", later(1, true), 0},
		{"echo reply", request(func(_ *nattest.IP, icmp *nattest.ICMP) { icmp.Type = 0 }), 0},
		{"timestamp request", request(func(_ *nattest.IP, icmp *nattest.ICMP) { icmp.Type = 13 }), 0},
		{"first fragment of a timestamp request", request(func(ip *nattest.IP, icmp *nattest.ICMP) {
			ip.MF,
				icmp.Type = true, 13
		}), 0},
		{"UDP", nattest.IP{Source: "10.0.1.5", Destination: "10.80.0.4", Body: nattest.UDP{SourcePort: 4000,
			DestinationPort: 53}}.Bytes(), 0},
	} {
		t.Run(tt.name, func(t *testing.T) { requireAnswer(t, tt.request, tt.ttl) })
	}
}

// requireAnswer fails unless AnswerEcho makes the reply to a request, with this TTL or hop limit; 0
// = none, and the packet stays as it is.
func requireAnswer(t *testing.T, request []byte, ttl uint8) {
	t.Helper()
	var p packet.Packet
	if r := p.Parse(bytes.Clone(request)); r != packet.NoFault {
		t.Fatal(r)
	}
	if ok := AnswerEcho(&p, echoMTU); ok != (ttl != 0) {
		t.Fatalf("answered: %v", ok)
	} else if !ok {
		if !bytes.Equal(p.Bytes(), request) {
			t.Error("not answered, and changed")
		}
		return
	}
	before, err := nattest.Check(request)
	need.NoError(t, err)
	after, err := nattest.Check(p.Bytes())
	need.NoError(t, err)
	if after.Source != before.Destination || after.Destination != before.Source || after.TTL != ttl ||
		after.TOS&ecnMask != 0 {
		t.Errorf("%v > %v with TTL %d, type of service %#x", after.Source, after.Destination, after.TTL, after.TOS)
	}
	reply, first, last := byte(0), 4, 8 // identification, flags and offset
	if request[0]>>4 == 6 {
		reply, first, last = 129, 40, len(before.Header) // extension headers
	}
	if is, want := after.Header[first:last], before.Header[first:last]; !bytes.Equal(is, want) {
		t.Errorf("header: % x, want % x", is, want)
	}
	body := bytes.Clone(before.Body)
	if before.Offset == 0 {
		copy(body, []byte{reply, 0, after.Body[2], after.Body[3]})
	}
	if !bytes.Equal(after.Body, body) {
		t.Errorf("body % x, want % x", after.Body, body)
	}
}

// FuzzAnswerEcho gives AnswerEcho anything that parses. A reply parses too, has the request's
// checksums, right or wrong, and two gateways that answer each other stop at some time.
func FuzzAnswerEcho(f *testing.F) {
	whole := ping("10.0.1.5", "10.80.0.4", 64, 100)
	f.Add(whole)
	for _, b := range nattest.Fragment(whole, 40) {
		f.Add(b)
	}
	six := nattest.IP{Source: "fd00::5", Destination: "fd80::4", Body: nattest.ICMP{Type: 128,
		Payload: nattest.Payload(9, 1)}}
	f.Add(six.Bytes())
	six.First, six.Extensions, six.Body = 44, [][]byte{{0, 0, 3, 0x21, 0, 0, 0, 9}},
		nattest.Raw{Protocol: packet.ICMPv6, Payload: nattest.Payload(80, 1)}
	f.Add(six.Bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		var p packet.Packet
		if p.Parse(b) != packet.NoFault {
			return
		}
		size := len(p.Bytes())
		valid := echoSumValid(&p)
		for answers := 0; AnswerEcho(&p, echoMTU); answers++ {
			reply := p.Bytes()
			if p.Parse(reply) != packet.NoFault || len(p.Bytes()) != size {
				t.Fatalf("reply % x does not parse", reply)
			}
			if p.FragmentOffset() == 0 && echoSumValid(&p) != valid {
				t.Fatalf("request's checksum valid: %v; reply's not so: % x", valid, reply)
			}
			if answers > TTL {
				t.Fatalf("answers without end: % x", reply)
			}
		}
	})
}

// echoSumValid reports whether the checksum of ICMP or ICMPv6 is right; a fragment is taken as a
// whole packet.
func echoSumValid(p *packet.Packet) bool {
	b := p.Bytes()
	if !p.IsIPv6() {
		return nattest.Checksum(header.IPv4(b).Payload()) == 0
	}
	body := b[p.HeaderLen():]
	pseudo := binary.BigEndian.AppendUint32(bytes.Clone(b[8:40]), uint32(len(body)))
	return nattest.Checksum(append(binary.BigEndian.AppendUint32(pseudo, uint32(p.Protocol())), body...)) == 0
}

// TestOwnAddressIsNotFilled: incomplete fragments of one pod do not keep another pod's fragmented
// ping from being answered.
func TestOwnAddressIsNotFilled(t *testing.T) {
	p := newPipeline(t)
	p.send(t, tcpPacket(10, false)) // teaches the node's MAC
	p.read(t)
	var view packet.Packet
	deliver := func(b []byte) {
		if f := view.Parse(b); f != packet.NoFault {
			t.Fatal(f)
		}
		p.out.deliver(&view, 1, Now())
	}
	raw, err := p.node.SyscallConn()
	need.NoError(t, err)
	var answer [][]byte // of the ping
	// collect takes what has arrived, and waits until whole returns true: on a busy CPU the kernel
	// may deliver later.
	collect := func(whole func() bool) {
		p.out.replies.Flush()
		b := make([]byte, 65536)
		raw.Read(func(fd uintptr) bool {
			for {
				n, err := syscall.Read(int(fd), b)
				if err != nil {
					return err != syscall.EAGAIN || whole()
				}
				const headers = 8 + 14 // Geneve and Ethernet
				if ip := b[headers:n]; header.IPv4(ip).DestinationAddress().String() == "10.0.1.9" {
					answer = append(answer, bytes.Clone(ip))
				}
			}
		})
	}
	fragments := nattest.Fragment(ping("10.0.1.9", "10.80.0.4", 64, 4000), 1480)
	deliver(fragments[0])
	for id := range 10_000 {
		first := nattest.Fragment(ping("10.0.1.5", "10.80.0.4", 64, 1400), 1000)[0]
		first[4], first[5] = byte(id>>8), byte(id)
		deliver(nattest.Fix(first))
		if id%50 == 0 {
			collect(func() bool { return true })
		}
	}
	for _, f := range fragments[1:] {
		deliver(f)
	}
	p.node.SetReadDeadline(time.Now().Add(genevetest.Timeout))
	collect(func() bool { return nattest.Reassemble(answer) != nil })
	v, err := nattest.Check(nattest.Reassemble(answer))
	if err != nil || v.Body[0] != 0 || !bytes.Equal(v.Body[8:], nattest.Payload(4000, 4)) {
		t.Errorf("the ping in fragments is not answered: %v", err)
	}
}
