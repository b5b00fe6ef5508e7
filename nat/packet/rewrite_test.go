package packet_test

import (
	"bytes"
	"net/netip"
	"testing"

	"culvert/integration/need"
	"culvert/nat/nattest"
	"culvert/nat/packet"
)

// other returns a tuple like t with everything else that Rewrite can give.
func other(t packet.Tuple) packet.Tuple {
	a, b := netip.MustParseAddr("192.0.2.77"), netip.MustParseAddr("198.51.100.3")
	if t.IPv6 {
		a, b = netip.MustParseAddr("2001:db8::77"), netip.MustParseAddr("2001:db8:ffff::3")
	}
	t.SetSource(a)
	t.SetDestination(b)
	if t.Ports != 0 {
		t.SetSourcePort(999)
		t.SetDestinationPort(1234)
		if packet.IsICMP(t.Protocol) {
			t.SetSourcePort(1234)
		}
	}
	return t
}

// rewrite gives p another tuple, and returns the one it had.
func rewrite(p *packet.Packet, to packet.Tuple) (was packet.Tuple) {
	p.Tuple(&was, 0)
	addresses, ports := packet.Deltas(&was, &to)
	if p.Protocol() == packet.SCTP {
		p.AdjustSCTP(&to)
	}
	p.Rewrite(&to, addresses, ports)
	return was
}

// What is rewritten has right checksums; rewritten back, it is what it was.
func TestRewrite(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for name, body := range nattest.Bodies(v6) {
			t.Run(name, func(t *testing.T) {
				b := endpoints(v6, nattest.IP{Body: body}).Bytes()
				p := parse(t, b)
				var was packet.Tuple
				p.Tuple(&was, 0)
				to := other(was)
				rewrite(p, to)
				check := nattest.Check
				if p.IsPartial() {
					check = nattest.CheckPartial
				}
				got, err := check(p.Bytes())
				need.NoError(t, err)
				if got.Source != to.Source() || got.Destination != to.Destination() {
					t.Errorf("%s > %s", got.Source, got.Destination)
				}
				if p.HasPorts() && (got.SourcePort != 999 || got.DestinationPort != 1234) || p.HasIdentifier() &&
					got.SourcePort != 1234 {
					t.Errorf("ports %d > %d", got.SourcePort, got.DestinationPort)
				}
				hops := p.Hops()
				if p.DecrementHops(); p.Hops() != hops-1 {
					t.Errorf("hops %d after %d", p.Hops(), hops)
				}
				if _, err := check(p.Bytes()); err != nil {
					t.Fatal(err)
				}
				p = parse(t, b)
				if rewrite(p, to); bytes.Equal(p.Bytes(), b) {
					t.Error("nothing was rewritten")
				}
				if rewrite(p, was); !bytes.Equal(p.Bytes(), b) {
					t.Errorf("there and back:\n%x, was\n%x", p.Bytes(), b)
				}
			})
		}
	}
}

// RFC 768: a UDP checksum that computes to 0 is sent as all ones.
func TestRewriteToZero(t *testing.T) {
	found := 0
	for port := range 1 << 16 {
		p := parse(t, datagram.Bytes())
		var to packet.Tuple
		p.Tuple(&to, 0)
		to.SetSourcePort(uint16(port))
		rewrite(p, to)
		v, err := nattest.Check(p.Bytes())
		if err != nil || v.Body[6] == 0 && v.Body[7] == 0 {
			t.Fatalf("port %d: %x %v", port, v.Body[:8], err)
		}
		if v.Body[6] == 0xff && v.Body[7] == 0xff {
			found++
		}
	}
	if found == 0 {
		t.Error("no checksum became all ones")
	}
}

// An echo reply that becomes nothing but zeros gets a checksum that its receiver takes.
func TestRewriteToNothingButZeros(t *testing.T) {
	for _, n := range []int{0, 1, 56} {
		p := parse(t, endpoints(false, nattest.IP{Body: nattest.ICMP{Rest: 1234 << 16, Payload: make([]byte, n)}}).
			Bytes())
		var to packet.Tuple
		p.Tuple(&to, 0)
		to.SetSourcePort(0)
		to.SetDestinationPort(0)
		rewrite(p, to)
		if v, err := nattest.Check(p.Bytes()); err != nil || v.SourcePort != 0 {
			t.Errorf("%d bytes: identifier %d, %v: %x", n, v.SourcePort, err, v.Body)
		}
	}
}

// A quotation is rewritten with the error around it, wherever it ends.
func TestRewriteQuoted(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for name, body := range nattest.Bodies(v6) {
			quoted := endpoints(v6, nattest.IP{Body: body}).Bytes()
			head := 20
			m := nattest.ICMP{Type: 3, Code: 4, Rest: 1280}
			if v6 {
				m, head = nattest.ICMP{Type: 2, Rest: 1280}, 40
			}
			for n := range len(quoted) + 1 {
				m.Payload = quoted[:n]
				p := parse(t, endpoints(v6, nattest.IP{Body: m}).Bytes())
				if !p.IsICMPError() || !p.IsValidICMP() || p.AnnouncedMTU() != 1280 {
					t.Fatalf("%s: no error of MTU 1280: %d", name, p.AnnouncedMTU())
				}
				var q packet.Packet
				ok := p.Quoted(&q)
				enough := head + 8
				if name == "gre" || name == "empty" {
					enough = head // they have no ports
				}
				if ok != (n >= enough) {
					t.Fatalf("%s: %d bytes quoted: %t", name, n, ok)
				}
				if !ok {
					continue
				}
				var from packet.Tuple
				q.Tuple(&from, 0)
				to := other(from)
				p.RewriteQuoted(&q, &from, &to)
				view, err := nattest.Quoted(p.Bytes())
				if err != nil && n >= head {
					t.Fatalf("%s: %d bytes quoted: %v", name, n, err)
				}
				if view.Source != to.Source() || view.Destination != to.Destination() {
					t.Fatalf("%s: quotes %s > %s", name, view.Source, view.Destination)
				}
			}
		}
	}
}

// An SCTP packet that has arrived broken leaves broken: its checksum is adjusted by what the ports
// differ in.
func TestRewriteBrokenSCTP(t *testing.T) {
	for _, size := range []int{4, 1000, 1500, 4000} {
		b := endpoints(false, nattest.IP{Body: nattest.SCTP{SourcePort: 40000, DestinationPort: 9899, Tag: 7,
			Chunks: nattest.Payload(size, 3)}}).Bytes()
		for _, spoil := range []bool{false, true} {
			b := bytes.Clone(b)
			if spoil {
				b[len(b)-1] ^= 4
			}
			p := parse(t, b)
			var to packet.Tuple
			p.Tuple(&to, 0)
			to.SetSourcePort(40001) // what the one port gains, the other loses
			to.SetDestinationPort(9898)
			rewrite(p, to)
			if _, err := nattest.Check(p.Bytes()); (err != nil) != spoil {
				t.Errorf("%d bytes, broken: %v, leave with %v", size, spoil, err)
			}
		}
	}
}
