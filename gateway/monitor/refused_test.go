package monitor

import (
	"net/netip"
	"testing"

	"culvert/gateway/control"
	"culvert/gateway/wg"
	"culvert/geneve"
)

// TestLastRefused: a status lists the last refused packets, newest first, similar ones once.
func TestLastRefused(t *testing.T) {
	m, nodes := monitored(t)
	node := nodes[0]
	for _, badSources := range []int{1, 2} {
		node.Send(udpPacket("10.0.1.5", "192.0.2.1", nil))
		node.Receive() // the ICMP error
		for range badSources {
			node.Send(udpPacket("127.0.0.1", "10.61.1.7", nil))
		}
		node.Send(udpPacket("10.0.1.5", "192.0.2.1", nil))
		node.Receive()
		m.observe(0)
	}
	m.refusedStranger(wg.NotWireGuard, netip.MustParseAddr("192.0.2.9"))
	m.refusedSign(&geneve.Sign{Reason: geneve.UnknownNode, Source: netip.MustParseAddrPort("192.0.2.8:6081")})
	m.refusedSign(&geneve.Sign{Reason: geneve.Accepted})
	m.refusedSign(&geneve.Sign{Reason: geneve.NeighbourDiscovery, Tunnel: 1}) // as it should be
	m.refusedSign(&geneve.Sign{Reason: geneve.WrongEncap, Tunnel: 2})

	refused := m.Refused()
	want := []control.Refusal{
		{Direction: "outbound", Reason: "wrong-encap", From: "rome-2", Packets: 1},
		{Direction: "outbound", Reason: "unknown-node", Protocol: "udp", Source: "192.0.2.8:6081", Packets: 1},
		{Direction: "inbound", Reason: "not-wireguard", Protocol: "udp", Source: "192.0.2.9", Packets: 1},
		{Direction: "outbound", Reason: "no-route", From: "rome-1", Protocol: "udp", Source: "10.0.1.5:4000",
			Destination: "192.0.2.1:53", Packets: 4},
		{Direction: "outbound", Reason: "bad-source", From: "rome-1", Protocol: "udp", Source: "127.0.0.1:4000",
			Destination: "10.61.1.7:53", Packets: 3},
	}
	if len(refused) != len(want) {
		t.Fatalf("%+v", refused)
	}
	for i, got := range refused {
		if got.Time.IsZero() {
			t.Errorf("%+v has no time", got)
		}
		want[i].Time = got.Time
		if got != want[i] {
			t.Errorf("%+v\nwant %+v", got, want[i])
		}
	}
}

// TestRefusalsAreFew: of a flood of different packets, only the last ones are remembered.
func TestRefusalsAreFew(t *testing.T) {
	var r refusals
	for i := range 10 * maxRefusals {
		r.note(control.Refusal{Source: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}).String(), Packets: 1})
	}
	if all := r.all(); len(all) != maxRefusals || all[0].Source != "10.0.1.63" ||
		all[maxRefusals-1].Source != "10.0.1.32" {
		t.Errorf("%d: %+v", len(all), all)
	}
}
