package nat_test

import (
	"testing"
	"time"

	"culvert/nat"
	"culvert/nat/nattest"
)

// A call is a TCP connection from a pod of the local cluster to one of the remote cluster. Both
// ends count from 1000 on.
type call struct {
	e                 *nat.Engine
	node              nat.Link
	local, seen, real string // seen and real are the remote pod
	port              uint16
}

func (c call) outbound(flags uint8, seq, ack uint32, payload []byte) []byte {
	return nattest.IP{Source: c.local, Destination: c.seen, Body: nattest.TCP{SourcePort: c.port, DestinationPort: 80,
		Seq: seq, Ack: ack,
		Flags: flags, Window: 65535, Payload: payload, Partial: len(payload) > 1000}}.Bytes()
}

func (c call) inbound(flags uint8, seq, ack uint32) []byte {
	return nattest.IP{Source: c.real, Destination: c.local, Body: nattest.TCP{SourcePort: 80, DestinationPort: c.port,
		Seq: seq, Ack: ack,
		Flags: flags, Window: 65535}}.Bytes()
}

// begin does the handshake.
func (c call) begin(t testing.TB, now nat.Time) call {
	t.Helper()
	forwarded(t, c.e, c.node, c.outbound(nattest.SYN, 1000, 0, nil), now)
	forwarded(t, c.e, nat.Tunnel, c.inbound(nattest.SYN|nattest.ACK, 1000, 1001), now)
	forwarded(t, c.e, c.node, c.outbound(nattest.ACK, 1001, 1001, nil), now)
	return c
}

// segment sends a super-frame of 20,000 bytes and returns the size of the segments that result.
func (c call) segment(t testing.TB, now nat.Time) int {
	t.Helper()
	v, _ := process(t, c.e, c.node, c.outbound(nattest.ACK, 1001, 1001, nattest.Payload(20000, 3)), now)
	if v.Action != nat.Forward {
		t.Fatalf("%v %v", v.Action, v.Reason)
	}
	return v.SegmentSize
}

// sent is a segment of the call as a router beyond the tunnel sees it.
func (c call) sent(seq uint32) nattest.IP {
	return nattest.IP{Source: c.local, Destination: c.real, Body: nattest.TCP{SourcePort: c.port, DestinationPort: 80,
		Seq: seq, Flags: nattest.ACK}}
}

// tooBig is the error of a router that cannot forward a packet.
func tooBig(mtu uint32, quoted nattest.IP) []byte {
	if address(quoted.Source).Is6() {
		return nattest.IP{Source: "2001:db8::1", Destination: quoted.Source, Body: nattest.ICMP{Type: 2, Rest: mtu,
			Payload: quoted.Bytes()}}.Bytes()
	}
	return nattest.IP{Source: "192.0.2.1", Destination: quoted.Source, Body: nattest.ICMP{Type: 3, Code: 4, Rest: mtu,
		Payload: quoted.Bytes()}}.Bytes()
}

// A host that does not see a connection's packets cannot slow the connection down, although its
// errors are forwarded to the sender, which judges them itself.
func TestForgedPathMTU(t *testing.T) {
	other := call{local: "10.200.1.5", real: "10.200.3.9", port: 4001}
	tests := []struct {
		name   string
		quoted func(c call) nattest.IP
	}{
		{"no connection", func(call) nattest.IP { return other.sent(1001) }},
		{"no connection, to a pod that none leads to", func(call) nattest.IP {
			return udp("10.200.1.6", "10.200.3.9", 1, 2)
		}},
		{"a number that was acknowledged", func(c call) nattest.IP { return c.sent(1000) }},
		{"a number that was not sent yet", func(c call) nattest.IP { return c.sent(21_001) }},
		{"any number", func(c call) nattest.IP { return c.sent(1 << 31) }},
		{"a connection of UDP", func(c call) nattest.IP {
			forwarded(t, c.e, c.node, udp(c.local, c.seen, 53, 53).Bytes(), start)
			return udp(c.local, c.real, 53, 53)
		}},
		{"before the handshake", func(c call) nattest.IP {
			c.port = 4001
			forwarded(t, c.e, c.node, c.outbound(nattest.SYN, 1000, 0, nil), start)
			return c.sent(1000)
		}},
		{"a later fragment", func(c call) nattest.IP {
			return nattest.IP{Source: c.local, Destination: c.real, Offset: 8, Body: nattest.Raw{Protocol: 6,
				Payload: make([]byte, 8)}}
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c := call{engine(t), node1, "10.200.1.5", "10.71.3.9", "10.200.3.9", 4000}.begin(t, start)
			c.segment(t, start) // now in flight
			b := tooBig(68, test.quoted(c))
			forwarded(t, c.e, nat.Tunnel, b, start)
			if got := c.segment(t, start); got != 1300 {
				t.Fatalf("segments of %d bytes, want 1300", got)
			}
		})
	}
}

// A host that can send with the server's address, but does not see its sequence numbers, can
// neither end its connections nor make them expire sooner: with windows of 8 MiB, 1,024 FINs hit
// the window twice, but not the acknowledgements.
func TestForgedFIN(t *testing.T) {
	e := engine(t)
	const first = 0x21234567
	scaled := []byte{1, 3, 3, 7}
	client := func(flags uint8, seq, ack uint32, options []byte) []byte {
		return nattest.IP{Source: "203.0.113.9", Destination: "10.71.3.9", Body: nattest.TCP{SourcePort: 4000,
			DestinationPort: 80,
			Seq:             seq, Ack: ack, Flags: flags, Window: 65535, Options: options}}.Bytes()
	}
	server := func(flags uint8, seq, ack uint32, options []byte) []byte {
		return nattest.IP{Source: "10.200.3.9", Destination: "10.70.0.0", Body: nattest.TCP{SourcePort: 80,
			DestinationPort: 4000,
			Seq:             seq, Ack: ack, Flags: flags, Window: 65535, Options: options}}.Bytes()
	}
	forwarded(t, e, node1, client(nattest.SYN, first, 0, scaled), start)
	forwarded(t, e, nat.Tunnel, server(nattest.SYN|nattest.ACK, 5000, first+1, scaled), start)
	forwarded(t, e, node1, client(nattest.ACK, first+1, 5001, nil), start)
	for _, acknowledged := range []uint32{0, 1 << 30, 1 << 31, 3 << 30} {
		for i := range uint32(1024) {
			forwarded(t, e, nat.Tunnel, server(nattest.FIN|nattest.ACK, i<<22, acknowledged, nil), start)
			forwarded(t, e, nat.Tunnel, server(nattest.FIN, i<<22, acknowledged, nil), start)
		}
	}
	forwarded(t, e, nat.Tunnel, server(nattest.ACK, 5001, first+1, nil), start.Add(100*time.Hour))
}
