package gateway

import (
	"net/netip"
	"strings"
	"testing"

	logtest "github.com/sirupsen/logrus/hooks/test"

	"culvert/gateway/config"
	"culvert/gateway/control"
	"culvert/gateway/health"
	"culvert/gateway/wg"
	"culvert/gateway/wgkey"
	"culvert/geneve"
	"culvert/nat"
)

// TestEachReasonIsExplained: of each reason for which a packet can be dropped, a status says what
// it means.
func TestEachReasonIsExplained(t *testing.T) {
	p := newPair(t, nil)
	eachDrop(p.rome.Gateway, &nat.Stats{}, &geneve.Stats{}, &wg.Stats{}, func(_, reason string, _ uint64) {
		if means, remedy := health.Explain(reason); !strings.HasSuffix(means, ".") || strings.HasSuffix(remedy, ".") {
			t.Errorf("%s: %q, %q", reason, means, remedy)
		}
	})
}

// TestLastRefused: a status has the packets that were refused last, newest first, those that are
// alike once.
func TestLastRefused(t *testing.T) {
	log, _ := logtest.NewNullLogger()
	c := clusterConfig("rome", "milan", config.Client, "10.61.0.0/16", "10.71.0.0/16")
	c.WireGuard.PeerPublicKey, c.WireGuard.Endpoint = wgkey.NewPrivate().Public(), "127.0.0.1:9"
	rome := open(t, c, 50, log, nil)
	defer rome.close()
	defer rome.watch.knocker.close()
	node, w := rome.nodes[0], rome.watch
	for _, badSources := range []int{1, 2} {
		node.Send(udpPacket("10.0.1.5", "192.0.2.1", nil))
		node.Receive() // the ICMP error
		for range badSources {
			node.Send(udpPacket("127.0.0.1", "10.61.1.7", nil))
		}
		node.Send(udpPacket("10.0.1.5", "192.0.2.1", nil))
		node.Receive()
		w.observe(0)
	}
	w.refusedStranger(wg.NotWireGuard, netip.MustParseAddr("192.0.2.9"))
	w.refusedSign(&geneve.Sign{Reason: geneve.UnknownNode, Source: netip.MustParseAddrPort("192.0.2.8:6081")})
	w.refusedSign(&geneve.Sign{Reason: geneve.Accepted})
	w.refusedSign(&geneve.Sign{Reason: geneve.NeighbourDiscovery, Tunnel: 1}) // as it should be
	w.refusedSign(&geneve.Sign{Reason: geneve.WrongEncap, Tunnel: uint16(rome.links.ByName["rome-2"])})

	s := source{rome.Gateway}.Status()
	want := []control.Refusal{
		{Direction: "outbound", Reason: "wrong-encap", From: "rome-2", Packets: 1},
		{Direction: "outbound", Reason: "unknown-node", Protocol: "udp", Source: "192.0.2.8:6081", Packets: 1},
		{Direction: "inbound", Reason: "not-wireguard", Protocol: "udp", Source: "192.0.2.9", Packets: 1},
		{Direction: "outbound", Reason: "no-route", From: "rome-1", Protocol: "udp", Source: "10.0.1.5:4000", Destination: "192.0.2.1:53", Packets: 4},
		{Direction: "outbound", Reason: "bad-source", From: "rome-1", Protocol: "udp", Source: "127.0.0.1:4000", Destination: "10.61.1.7:53", Packets: 3},
	}
	if len(s.Refused) != len(want) {
		t.Fatalf("%+v", s.Refused)
	}
	for i, got := range s.Refused {
		if got.Time.IsZero() {
			t.Errorf("%+v has no time", got)
		}
		want[i].Time = got.Time
		if got != want[i] {
			t.Errorf("%+v\nwant %+v", got, want[i])
		}
	}
	if d := s.Outbound.Drops[0]; d.Reason != "no-route" || d.Means == "" || d.Remedy == "" {
		t.Errorf("%+v", d)
	}
}

// TestRefusalsAreFew: a flood of different packets is remembered by the last of them.
func TestRefusalsAreFew(t *testing.T) {
	var r refusals
	for i := range 10 * maxRefusals {
		r.note(control.Refusal{Source: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}).String(), Packets: 1})
	}
	if all := r.all(); len(all) != maxRefusals || all[0].Source != "10.0.1.63" || all[maxRefusals-1].Source != "10.0.1.32" {
		t.Errorf("%d: %+v", len(all), all)
	}
}
