package nat_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"culvert/nat"
	"culvert/nat/nattest"
)

// leastSegment is the smallest payload of a segment, as in Linux (net.ipv4.tcp_min_snd_mss), except
// the last one.
const leastSegment = 48

// Whatever MSS a hostile server announces, and however large the super-frames, the number of
// segments is limited as in Linux, and they contain what the sender sent.
func TestSuperFrameHostileMSS(t *testing.T) {
	for _, mss := range []uint16{0, 1, leastSegment - 1, leastSegment, 536, 1300, 1301, 0xffff} {
		for _, options := range []int{0, 12, 40} {
			t.Run(fmt.Sprintf("%d/options=%d", mss, options), func(t *testing.T) {
				e := engine(t)
				forwarded(t, e, node1, tcp("10.200.1.5", "10.71.3.9", 4000, 80, nattest.SYN, "").Bytes(), start)
				synAck := nattest.IP{Source: "10.200.3.9", Destination: "10.200.1.5", Body: nattest.TCP{SourcePort: 80,
					DestinationPort: 4000,
					Seq:             5000, Ack: 1001, Flags: nattest.SYN | nattest.ACK, Window: 65535,
					Options: binary.BigEndian.AppendUint16([]byte{2, 4}, mss)}}
				forwarded(t, e, nat.Tunnel, synAck.Bytes(), start)
				body := nattest.TCP{SourcePort: 4000, DestinationPort: 80, Seq: 1001, Ack: 5001,
					Flags: nattest.ACK | nattest.PSH, Window: 65535,
					Options: bytes.Repeat([]byte{1}, options), Payload: nattest.Payload(65535-40-options, 3),
					Partial: true}
				v, out := process(t, e, node1, nattest.IP{Source: "10.200.1.5", Destination: "10.71.3.9", DF: true,
					Body: body}.Bytes(), start)
				if v.Action != nat.Forward {
					t.Fatal(v.Reason)
				}
				segment := 1300 - options
				if mss > 0 {
					segment = min(segment, max(int(mss)-options, leastSegment))
				}
				if want := (len(body.Payload) + segment - 1) / segment; len(out) != want ||
					want > 65535/leastSegment+1 {
					t.Fatalf("%d segments, want %d", len(out), want)
				}
				var stream []byte
				for _, b := range out {
					s, err := nattest.Check(b)
					if err != nil || len(b) > 1340 {
						t.Fatalf("segment of %d bytes: %v", len(b), err)
					}
					stream = append(stream, s.Payload...)
				}
				if !bytes.Equal(stream, body.Payload) {
					t.Error("the segments hold other bytes")
				}
			})
		}
	}
}

// superFrame is one of 64 KiB in which a test may change what it likes.
func superFrame(from, to string, change func(ip []byte)) []byte {
	b := nattest.IP{Source: from, Destination: to, DF: true, Body: nattest.TCP{SourcePort: 4000, DestinationPort: 80,
		Seq: 1, Ack: 1,
		Flags: nattest.ACK, Window: 65535, Payload: nattest.Payload(65000, 3), Partial: true}}.Bytes()
	change(b)
	return nattest.Fix(b)
}

// Crafted super-frames, of a node and of the peer, are refused under a reason or become valid
// segments.
func TestSuperFrameCrafted(t *testing.T) {
	// partial puts the sum into the checksum that says that somebody else is to finish it, for a
	// length of the TCP segment.
	partial := func(ip []byte) {
		pseudo := append(append([]byte(nil), ip[12:20]...), 0, 6, 0, 0)
		binary.BigEndian.PutUint16(pseudo[10:], binary.BigEndian.Uint16(ip[2:])-uint16(ip[0]&15)*4)
		binary.BigEndian.PutUint16(ip[20+16:], ^nattest.Checksum(pseudo))
	}
	for _, test := range []struct {
		name   string
		change func(ip []byte)
		want   nat.Reason // ReasonNone = forwarded
	}{
		{"as it should be", func([]byte) {}, nat.ReasonNone},
		{"every flag", func(ip []byte) { ip[33] = 0xff }, nat.ReasonNone},
		{"no flag", func(ip []byte) { ip[33] = 0 }, nat.ReasonNone},
		{"SYN", func(ip []byte) { ip[33] = nattest.SYN }, nat.ReasonNone},
		{"RST", func(ip []byte) { ip[33] = nattest.RST }, nat.ReasonNone},
		{"reserved bits of the header", func(ip []byte) { ip[32] |= 0xf }, nat.ReasonNone},
		{"urgent pointer behind the end", func(ip []byte) { ip[33] |= nattest.URG; ip[38], ip[39] = 0xff, 0xff },
			nat.ReasonNone},
		{"40 bytes of options that are none",
			func(ip []byte) { ip[32] = 0xf0; copy(ip[40:], bytes.Repeat([]byte{2, 0, 8, 255}, 10)) }, nat.ReasonNone},
		{"MSS option that ends behind the header", func(ip []byte) { ip[32] = 0x60; copy(ip[40:], []byte{1, 1, 1, 2}) },
			nat.ReasonNone},
		{"header of 16 bytes", func(ip []byte) { ip[32] = 0x40 }, nat.ReasonMalformed},
		{"claims to be longer", func(ip []byte) { ip[2], ip[3] = 0xff, 0xff }, nat.ReasonMalformed},
		{"claims to be shorter", func(ip []byte) { ip[2], ip[3] = 0x20, 0; partial(ip) }, nat.ReasonNone},
		{"only a header", func(ip []byte) { ip[2], ip[3] = 0, 40; partial(ip) }, nat.ReasonNone},
		{"shorter than its header", func(ip []byte) { ip[2], ip[3] = 0, 39; partial(ip) }, nat.ReasonMalformed},
		{"TTL 1", func(ip []byte) { ip[8] = 1 }, nat.ReasonTTLExceeded},
		{"another checksum", func(ip []byte) { ip[36] ^= 1 }, nat.ReasonTooBig},
		{"as SCTP", func(ip []byte) { ip[9] = 132 }, nat.ReasonTooBig},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, way := range []struct {
				in       nat.Link
				from, to string
			}{{node1, "10.200.1.5", "10.71.3.9"}, {nat.Tunnel, "10.200.3.9", "10.200.1.5"}} {
				e := engine(t)
				v, out := process(t, e, way.in, superFrame(way.from, way.to, test.change), start)
				if v.Reason != test.want || (v.Action == nat.Forward) != (test.want == nat.ReasonNone) {
					t.Errorf("from port %d: %v %v, want %v", way.in, v.Action, v.Reason, test.want)
				}
				for _, b := range out {
					if len(b) > 1340 {
						t.Fatalf("from port %d: a segment of %d bytes", way.in, len(b))
					}
				}
				ledger(t, e)
			}
		})
	}
}
