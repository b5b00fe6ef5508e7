package packet_test

import (
	"bytes"
	"fmt"
	"testing"

	"culvert/nat/nattest"
	"culvert/nat/packet"
)

// parse makes a Packet of b, which is sound.
func parse(t testing.TB, b []byte) *packet.Packet {
	t.Helper()
	var p packet.Packet
	if f := p.Parse(bytes.Clone(b)); f != packet.NoFault {
		t.Fatalf("fault %d: %x", f, b)
	}
	return &p
}

// cut returns what a Cutter makes of p.
func cut(p *packet.Packet, segment, mtu int) (out [][]byte) {
	var c packet.Cutter
	c.Start(p, segment, mtu)
	buffer := make([]byte, 65536)
	for n := c.Next(buffer); n > 0; n = c.Next(buffer) {
		out = append(out, bytes.Clone(buffer[:n]))
	}
	return out
}

// endpoints returns p with addresses of a family.
func endpoints(v6 bool, p nattest.IP) nattest.IP {
	p.Source, p.Destination = "10.200.1.5", "10.71.3.9"
	if v6 {
		p.Source, p.Destination = "fd00:200::5", "fd00:71::9"
	}
	return p
}

// The segments of a super-frame are what its sender would have sent itself.
func TestCutSuperFrame(t *testing.T) {
	const segment = 1200
	for _, v6 := range []bool{false, true} {
		for _, options := range [][]byte{nil, {1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8}} {
			for _, size := range []int{1, segment - 1, segment, segment + 1, 20_001, 64_000} {
				t.Run(fmt.Sprintf("v6=%t/options=%d/%d", v6, len(options), size), func(t *testing.T) {
					const flags = nattest.ACK | nattest.PSH | nattest.FIN | nattest.CWR | nattest.ECE
					body := nattest.TCP{SourcePort: 1, DestinationPort: 2, Seq: 0xffffff00, Ack: 7,
						Flags: flags, Window: 9,
						Options: options, Payload: nattest.Payload(size, 3), Partial: true}
					ip := endpoints(v6, nattest.IP{ID: 0xfffe, DF: true, Body: body})
					out := cut(parse(t, ip.Bytes()), segment, 0)
					if want := (size + segment - 1) / segment; len(out) != want {
						t.Fatalf("%d segments, want %d", len(out), want)
					}
					for i, b := range out {
						ip.ID = 0xfffe + uint16(i)
						one := body
						one.Partial, one.Seq = false, body.Seq+uint32(i*segment)
						one.Payload = body.Payload[i*segment : min((i+1)*segment, size)]
						if i > 0 {
							one.Flags &^= nattest.CWR
						}
						if i < len(out)-1 {
							one.Flags &^= nattest.FIN | nattest.PSH
						}
						ip.Body = one
						if !bytes.Equal(b, ip.Bytes()) {
							t.Fatalf("segment %d\n%x, want\n%x", i, b[:60], ip.Bytes()[:60])
						}
					}
				})
			}
		}
	}
}

// The datagrams of a train are what its sender would have sent one by one; those of IPv4 may be
// fragmented further.
func TestCutTrain(t *testing.T) {
	const size = 1000
	for _, v6 := range []bool{false, true} {
		for _, body := range []nattest.UDP{{Partial: true}, {}, {NoChecksum: true}} {
			for _, mtu := range []int{0, 600} {
				if v6 && (mtu > 0 || body.NoChecksum) {
					continue
				}
				t.Run(fmt.Sprintf("v6=%t/%+v/%d", v6, body, mtu), func(t *testing.T) {
					body.SourcePort, body.DestinationPort, body.Payload = 4, 5, nattest.Payload(9*size+77, 2)
					ip := endpoints(v6, nattest.IP{ID: 0xfffa, Body: body})
					p := parse(t, ip.Bytes())
					if !p.IsDatagram() {
						t.Fatal("no datagram")
					}
					p.SegmentSize = size
					out := cut(p, 0, mtu)
					for i := range 10 {
						ip.ID = 0xfffa + uint16(i)
						one := body
						one.Partial, one.Payload = false, body.Payload[i*size:min((i+1)*size, len(body.Payload))]
						ip.Body = one
						n := 1
						if mtu > 0 {
							n = packet.Fragments(20, len(ip.Bytes()), mtu)
						}
						got := out[0]
						if n > 1 {
							got = nattest.Reassemble(out[:n])
						}
						if out = out[n:]; !bytes.Equal(got, ip.Bytes()) {
							t.Fatalf("datagram %d is\n%x, want\n%x", i, got, ip.Bytes())
						}
					}
					if len(out) > 0 {
						t.Errorf("%d packets more", len(out))
					}
				})
			}
		}
	}
}

// Fragments, of fragments too, hold what the packet held.
func TestCutFragments(t *testing.T) {
	whole := endpoints(false, nattest.IP{ID: 9, Options: []byte{1, 7, 3, 0, 148, 4, 0, 0},
		Body: nattest.UDP{Payload: nattest.Payload(20_000, 4)}})
	for _, mtus := range [][]int{{68}, {1340}, {19_999}, {1500, 1340}, {8000, 600, 100}} {
		all := [][]byte{whole.Bytes()}
		for _, mtu := range mtus {
			var out [][]byte
			for _, b := range all {
				p := parse(t, b)
				pieces := cut(p, 0, mtu)
				if want := packet.Fragments(p.HeaderLen(), p.Len(), mtu); len(pieces) != want {
					t.Fatalf("%d: %d fragments of %d bytes, want %d", mtu, len(pieces), len(b), want)
				}
				out = append(out, pieces...)
			}
			all = out
		}
		for i, b := range all {
			v, err := nattest.Check(b)
			if err != nil || len(b) > mtus[len(mtus)-1] || v.ID != 9 || v.MF != (i < len(all)-1) {
				t.Fatalf("%d, fragment %d of %d: %d bytes, %v, %+v", mtus, i, len(all), len(b), err, v)
			}
			// RFC 791, Section 3.1: Record Route stands in the first one only, Router Alert in
			// each.
			if options := v.Header[20:]; i == 0 && !bytes.Equal(options, whole.Options) || i > 0 &&
				!bytes.Equal(options, whole.Options[4:]) {
				t.Fatalf("fragment %d has options %x", i, options)
			}
		}
		if !bytes.Equal(nattest.Reassemble(all), whole.Bytes()) {
			t.Fatalf("%d: the fragments hold other bytes", mtus)
		}
	}
}
