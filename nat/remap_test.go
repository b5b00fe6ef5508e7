package nat_test

import (
	"bytes"
	"fmt"
	"testing"

	"culvert/nat"
	"culvert/nat/nattest"
)

func TestRemap(t *testing.T) {
	tests := []struct {
		name                 string
		in, out              nat.Link
		source, destination  string
		source2, destinaton2 string
	}{
		{"pod to pod, both CIDRs equal", node1, nat.Tunnel, "10.200.1.5", "10.71.3.9", "10.200.1.5", "10.200.3.9"},
		{"to a CIDR of 20 bits", node2, nat.Tunnel, "10.200.2.5", "10.72.61.255", "10.200.2.5", "10.64.13.255"},
		{"to a CIDR that is not remapped", node1, nat.Tunnel, "10.64.40.1", "10.99.127.255", "10.64.40.1",
			"10.99.127.255"},
		{"to an external address", node1, nat.Tunnel, "10.200.1.5", "10.74.0.9", "10.200.1.5", "10.70.0.9"},
		{"U stays U", node2, nat.Tunnel, "10.70.0.0", "10.71.3.9", "10.70.0.0", "10.200.3.9"},
		{"from the tunnel", nat.Tunnel, node1, "10.200.3.9", "10.200.1.5", "10.71.3.9", "10.200.1.5"},
		{"from the tunnel to the other node", nat.Tunnel, node2, "10.64.13.255", "10.200.3.1", "10.72.61.255",
			"10.200.3.1"},
		{"longest prefix", nat.Tunnel, node2, "10.64.0.0", "10.200.1.77", "10.72.48.0", "10.200.1.77"},
		{"from the remote cluster's U", nat.Tunnel, node1, "10.70.0.0", "10.200.1.5", "10.74.0.0", "10.200.1.5"},
		{"from the peer's tunnel address", nat.Tunnel, node1, "169.254.18.1", "10.200.1.5", "169.254.18.1",
			"10.200.1.5"},
		{"IPv6", node1, nat.Tunnel, "fd00:200:0:1::5", "fd00:71:0:7fff:1:2:3:4", "fd00:200:0:1::5",
			"fd00:200:0:3fff:1:2:3:4"},
		{"IPv6 from the tunnel", nat.Tunnel, node1, "fd00:200:0:3fff:1:2:3:4", "fd00:200:0:1::5",
			"fd00:71:0:7fff:1:2:3:4", "fd00:200:0:1::5"},
		{"between nodes", node1, node2, "10.200.1.5", "10.80.0.3", "10.200.1.5", "10.80.0.3"},
	}
	for _, test := range tests {
		v6 := address(test.source).Is6()
		headers := map[string]nattest.IP{"plain": {TTL: 9, TOS: 0xb9, ID: 0xfffe}}
		if v6 {
			headers["extensions"] = nattest.IP{TTL: 2, First: 0, Extensions: [][]byte{{0, 0, 5, 2, 0, 0, 1, 0},
				{0, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}}}
			headers["extensions"].Extensions[0][0] = 60
		} else {
			headers["options"] = nattest.IP{TTL: 2, DF: true, Options: []byte{148, 4, 0, 0, 1, 1, 1, 0}}
		}
		for kind, h := range headers {
			for name, body := range nattest.Bodies(v6) {
				t.Run(fmt.Sprintf("%s/%s/%s", test.name, kind, name), func(t *testing.T) {
					e := engine(t)
					p := h
					p.Source, p.Destination, p.Body = test.source, test.destination, body
					in := p.Bytes()
					v, got, _ := forwarded(t, e, test.in, in, start)
					if v.Out != test.out {
						t.Fatalf("goes to link %d, want %d", v.Out, test.out)
					}
					expect(t, got, test.source2, test.destinaton2)
					if got.TTL != p.TTL-1 || got.TOS != p.TOS || got.DF != p.DF || got.ID != p.ID && !v6 {
						t.Fatalf("header changed: %+v", got)
					}
					// Only the checksum of the body changes.
					p.Source, p.Destination = test.source2, test.destinaton2
					want := p.Bytes()
					at := map[uint8]int{6: 16, 17: 6}[got.Protocol]
					if at > 0 {
						copy(want[len(got.Header)+at:][:2], got.Body[at:])
					}
					if !bytes.Equal(want[len(got.Header):], got.Body) {
						t.Fatalf("body\n%x, want\n%x", got.Body, want[len(got.Header):])
					}
				})
			}
		}
	}
}

// The two gateways of a pair reverse each other's translation: the remote pod's answer comes back
// from the address that was contacted.
func TestRemapInverse(t *testing.T) {
	e := engine(t)
	for i := range 2000 {
		remote := fmt.Sprintf("10.71.%d.%d", i*7%256, i*13%256)
		_, there, _ := forwarded(t, e, node1, udp("10.200.1.5", remote, uint16(i), 53).Bytes(), start)
		reply := udp(there.Destination.String(), there.Source.String(), 53, uint16(i))
		_, back, _ := forwarded(t, e, nat.Tunnel, reply.Bytes(), start)
		expect(t, back, remote, "10.200.1.5")
	}
}

// Fragments in any order are remapped.
func TestRemapFragments(t *testing.T) {
	e := engine(t)
	whole := udp("10.200.1.5", "10.71.3.9", 1, 2)
	whole.Body = nattest.UDP{SourcePort: 1, DestinationPort: 2, Payload: nattest.Payload(3000, 1)}
	datagram := whole.Bytes()[20:]
	var parts [][]byte
	for _, at := range []int{2400, 800, 1600, 0} {
		p := whole
		p.ID, p.Offset, p.MF = 77, at, at < 2400
		p.Body = nattest.Raw{Protocol: 17, Payload: datagram[at:min(at+800, len(datagram))]}
		parts = append(parts, p.Bytes())
	}
	out := deliver(t, e, node1, parts, start)
	whole.ID = 77
	whole.Destination, whole.TTL = "10.200.3.9", 63
	if got := nattest.Reassemble(out); !bytes.Equal(got, whole.Bytes()) {
		t.Fatalf("reassembled\n%x, want\n%x", got[:40], whole.Bytes()[:40])
	}
}
