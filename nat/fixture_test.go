package nat_test

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"culvert/integration/need"
	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/packet"
	"culvert/nat/rules"
)

const (
	node1, node2 nat.Link = 1, 7
	start                 = nat.Time(time.Hour)
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }
func address(s string) netip.Addr  { return netip.MustParseAddr(s) }

// rome is the configuration of the tests: both clusters use 10.200.0.0/16 and 10.70.0.0/16; other
// CIDRs have other sizes, one is not remapped, and IPv6 prefixes end within a byte.
func rome() *nat.Config {
	return &nat.Config{MTU: 1340, Config: rules.Config{
		Nodes: []rules.Node{
			{Link: node1, Name: "rome-1", Address: rules.PairOf(address("10.80.0.2"))},
			{Link: node2, Name: "rome-2", Address: rules.PairOf(address("10.80.0.3"))},
		},
		LocalPodCIDRs:      []netip.Prefix{prefix("10.200.0.0/16"), prefix("10.64.32.0/19"), prefix("fd00:200::/50")},
		LocalExternalCIDRs: []netip.Prefix{prefix("10.70.0.0/16"), prefix("fd00:70::/64")},
		Remote: []rules.RemoteCIDR{
			{Real: prefix("10.200.0.0/16"), Remapped: prefix("10.71.0.0/16")},
			{Real: prefix("10.64.0.0/20"), Remapped: prefix("10.72.48.0/20")},
			{Real: prefix("10.99.64.0/18")},
			{Real: prefix("10.70.0.0/16"), Remapped: prefix("10.74.0.0/16"), External: true},
			{Real: prefix("fd00:200::/50"), Remapped: prefix("fd00:71:0:4000::/50")},
		},
		GatewayAddress:    rules.PairOf(address("10.80.0.4")),
		TunnelAddress:     rules.PairOf(address("169.254.18.2")),
		PeerTunnelAddress: rules.PairOf(address("169.254.18.1")),
		UnknownSource:     rules.PairOf(address("10.70.0.0")),
		Routes: []rules.Route{
			{Prefix: prefix("10.200.1.0/24"), Link: node1}, {Prefix: prefix("10.200.2.0/23"), Link: node2},
			{Prefix: prefix("10.64.32.0/20"), Link: node1}, {Prefix: prefix("10.80.0.2/32"), Link: node1},
			{Prefix: prefix("10.80.0.3/32"), Link: node2}, {Prefix: prefix("10.200.1.77/32"), Link: node2},
			{Prefix: prefix("fd00:200:0:1::/64"), Link: node1},
		},
	}}
}

func engine(t testing.TB, change ...func(*nat.Config)) *nat.Engine {
	t.Helper()
	c := rome()
	for _, f := range change {
		f(c)
	}
	e, err := nat.New([16]byte{1, 2, 3}, c)
	need.NoError(t, err)
	return e
}

// speakForAll lets every node send from all pods' addresses.
func speakForAll(c *nat.Config) { c.SourceCheck = nat.SourceCheckCluster }

// process passes one packet through e and the Cutter. It returns the verdict and the packets for
// the wire, each checked in full. It fails if bytes change without a Forward, or if Verdict.Packets
// is wrong.
func process(t testing.TB, e *nat.Engine, in nat.Link, b []byte, now nat.Time) (nat.Verdict, [][]byte) {
	t.Helper()
	return processTrain(t, e, in, b, 0, now)
}

func processTrain(t testing.TB, e *nat.Engine, in nat.Link, b []byte, segment int,
	now nat.Time) (nat.Verdict, [][]byte) {
	t.Helper()
	work := bytes.Clone(b)
	var p packet.Packet
	p.Parse(work)
	p.SegmentSize = segment
	v := e.Process(&p, in, now)
	if v.Action != nat.Forward {
		if !bytes.Equal(work, b) {
			t.Fatalf("%v %v changed the packet", v.Action, v.Reason)
		}
		if v.Packets != 1 {
			t.Fatalf("%v counts %d packets", v.Action, v.Packets)
		}
		return v, nil
	}
	if v.Reason != nat.ReasonNone {
		t.Fatalf("forwarded with reason %v", v.Reason)
	}
	out := cut(t, &p, v)
	if len(out) != v.Packets {
		t.Fatalf("%d packets on the wire, the verdict says %d", len(out), v.Packets)
	}
	for i, b := range out {
		if _, err := nattest.Check(b); err != nil {
			t.Fatalf("packet %d of %d: %v\n%x", i, len(out), err, b)
		}
	}
	return v, out
}

func cut(t testing.TB, p *packet.Packet, v nat.Verdict) [][]byte {
	t.Helper()
	var c packet.Cutter
	var out [][]byte
	buffer := make([]byte, 65536)
	c.Start(p, v.SegmentSize, v.MTU)
	for {
		n := c.Next(buffer)
		if n == 0 {
			return out
		}
		out = append(out, bytes.Clone(buffer[:n]))
		if len(out) > 70000 {
			t.Fatal("the Cutter does not end")
		}
	}
}

// forwarded is process for a packet that must go on as exactly one.
func forwarded(t testing.TB, e *nat.Engine, in nat.Link, b []byte, now nat.Time) (nat.Verdict, nattest.View, []byte) {
	t.Helper()
	v, out := process(t, e, in, b, now)
	if v.Action != nat.Forward || len(out) != 1 {
		t.Fatalf("verdict %v %v, %d packets", v.Action, v.Reason, len(out))
	}
	view, err := nattest.Check(out[0])
	need.NoError(t, err)
	return v, view, out[0]
}

// dropped is process for a packet that must be dropped.
func dropped(t testing.TB, e *nat.Engine, in nat.Link, b []byte, now nat.Time, want nat.Reason) nat.Verdict {
	t.Helper()
	v, _ := process(t, e, in, b, now)
	if v.Action != nat.Drop || v.Reason != want {
		t.Fatalf("verdict %v %v, want drop %v", v.Action, v.Reason, want)
	}
	return v
}

// answer returns the error that e makes for a dropped packet, checked, or nil.
func answer(t testing.TB, e *nat.Engine, in nat.Link, b []byte, v nat.Verdict, now nat.Time) []byte {
	t.Helper()
	var p packet.Packet
	p.Parse(b)
	a := e.AppendError(nil, &p, in, v, now)
	if a != nil {
		if _, err := nattest.Check(a); err != nil {
			t.Fatal(err)
		}
	}
	return a
}

func udp(source, destination string, sport, dport uint16) nattest.IP {
	return nattest.IP{Source: source, Destination: destination,
		Body: nattest.UDP{SourcePort: sport, DestinationPort: dport, Payload: []byte("payload")}}
}

func tcp(source, destination string, sport, dport uint16, flags uint8, payload string) nattest.IP {
	return nattest.IP{Source: source, Destination: destination, DF: true,
		Body: nattest.TCP{SourcePort: sport, DestinationPort: dport, Seq: 1000, Ack: 2000, Flags: flags, Window: 65535,
			Payload: []byte(payload)}}
}

func expect(t testing.TB, v nattest.View, source, destination string) {
	t.Helper()
	if v.Source != address(source) || v.Destination != address(destination) {
		t.Fatalf("%s > %s, want %s > %s", v.Source, v.Destination, source, destination)
	}
}

func netipFrom4(b []byte) string  { return netip.AddrFrom4([4]byte(b)).String() }
func netipFrom16(b []byte) string { return netip.AddrFrom16([16]byte(b)).String() }
