package nat_test

import (
	"bytes"
	"slices"
	"testing"

	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// A connection without a record is recreated by its next packet, from whichever end: the packet is
// translated and routed as before.
func TestUnwrittenConnections(t *testing.T) {
	outbound := []string{"10.200.1.5", "10.200.1.77", "10.200.2.5", "10.64.32.9", "10.80.0.2", "10.80.0.3", "10.70.0.0",
		"192.0.2.10", "203.0.113.9", "fd00:200:0:1::5", "fd80::2"}
	seen := []string{"10.71.3.9", "10.72.49.9", "10.99.64.9", "10.74.0.5", "192.0.2.9", "fd00:71:0:4000::9"}
	inbound := []string{"10.200.3.9", "10.64.1.9", "10.99.64.9", "10.70.0.5", "169.254.18.1", "192.0.2.9",
		"fd00:200::9"}
	local := []string{"10.200.1.5", "10.200.2.5", "10.64.32.9", "10.70.0.8", "10.70.0.9", "10.70.0.20",
		"fd00:200:0:1::5"}
	for _, test := range []struct {
		name   string
		change []func(*nat.Config)
	}{
		{"pods", nil}, {"all kinds", []func(*nat.Config){keeping, func(c *nat.Config) {
			c.Addresses = append(c.Addresses, rules.AddressMapping{External: address("10.70.0.8"),
				Internal: address("10.200.2.5")})
		}}}, {"any node", []func(*nat.Config){keeping, speakForAll}},
		{"no remapping", []func(*nat.Config){func(c *nat.Config) {
			for i := range c.Remote {
				c.Remote[i].Remapped = c.Remote[i].Real
			}
			c.LocalPodCIDRs[0], c.Remote = prefix("10.200.1.0/24"), c.Remote[2:3]
		}}},
		{"given rules", []func(*nat.Config){given}},
	} {
		t.Run(test.name, func(t *testing.T) {
			e, other := engine(t, test.change...), engine(t, test.change...)
			open := func(in nat.Link, from, to []string, port uint16) {
				for _, f := range from {
					for _, d := range to {
						if address(f).Is6() == address(d).Is6() {
							process(t, e, in, udp(f, d, 2000, port).Bytes(), start)
							process(t, e, in, tcp(f, d, 2000, port, nattest.SYN, "").Bytes(), start)
						}
					}
				}
			}
			open(node1, outbound, seen, 53)
			open(node2, outbound, seen, 54)
			open(nat.Tunnel, inbound, local, 80)
			restore(other, start, records(e, 0, start))
			written, unwritten := map[string]bool{}, 0
			for _, c := range connections(other, nat.ConnFilter{}, start) {
				written[c.Original.String()] = true
			}
			for _, c := range connections(e, nat.ConnFilter{}, start) {
				if written[c.Original.String()] {
					continue
				}
				unwritten++
				for d, tuple := range []packet.Tuple{c.Original, c.Reply} {
					if d == 1 && !tuple.Link.Outside() {
						tuple.Link = c.Out[0]
					}
					b := udp(tuple.Source().String(), tuple.Destination().String(), tuple.SourcePort(),
						tuple.DestinationPort())
					if tuple.Protocol == packet.TCP {
						b = tcp(tuple.Source().String(), tuple.Destination().String(), tuple.SourcePort(),
							tuple.DestinationPort(), nattest.ACK, "x")
					}
					v, was := process(t, e, tuple.Link, b.Bytes(), start)
					w, is := process(t, engine(t, test.change...), tuple.Link, b.Bytes(), start)
					if v.Out != w.Out || v.Reason != w.Reason || !slices.EqualFunc(was, is, bytes.Equal) {
						t.Errorf("%s: %v %v to link %d, was %v %v to %d: % x, was % x", tuple.String(), w.Action,
							w.Reason, w.Out, v.Action, v.Reason, v.Out, is, was)
					}
				}
			}
			if len(written) == 0 || unwritten == 0 != (test.name == "given rules") {
				t.Errorf("%d written, %d not", len(written), unwritten)
			}
			t.Logf("%d written, %d not", len(written), unwritten)
		})
	}
}
