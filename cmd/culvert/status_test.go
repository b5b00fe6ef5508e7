package main

import (
	"net/netip"
	"os"
	"strings"
	"testing"

	"culvert/gateway/control"
	"culvert/integration/need"
)

// TestStatusOfLinks: docs/liqo.md shows what is printed of a node that has links.
func TestStatusOfLinks(t *testing.T) {
	rtt := 0.000412
	milan := control.NodeLink{Interface: "liqo.k5dx8v2mq1", State: "carried", VNI: 3, MTU: 1340,
		Underlay:       netip.MustParseAddr("10.244.2.7"),
		GatewayAddress: netip.MustParseAddr("10.80.0.4"), Answers: true, RTTSeconds: &rtt, ReceivedBytes: 1_310_000_000,
		SentBytes: 52_400_000}
	turin := milan
	turin.Interface, turin.VNI, turin.Underlay, turin.GatewayAddress = "liqo.7qwz0n4hte", 5,
		netip.MustParseAddr("10.244.1.9"), netip.MustParseAddr("10.80.0.5")
	turin.Answers, turin.RTTSeconds, turin.ReceivedBytes, turin.SentBytes = false, nil, 0, 8_400
	var b strings.Builder
	if err := printNodeStatus(&b, &control.NodeStatus{Name: "node1", UptimeSeconds: 7_800, PID: 1,
		Version: control.Version{Version: "v1.0.0"},
		Links:   []control.NodeLink{turin, milan}, LinkDrops: []control.Drop{{Reason: "unresolved", Packets: 90}},
		DeviceDrops: []control.Drop{{Reason: "liqo.k5dx8v2mq1", Packets: 393}}}); err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile("../../docs/liqo.md")
	need.NoError(t, err)
	if want := "culvert status\n" + b.String() + "```"; !strings.Contains(string(doc), want) {
		t.Errorf("docs/liqo.md has not\n%s", want)
	}
}

// TestStatusOfFamilies: of a link that has both families, both addresses of the gateway are shown.
func TestStatusOfFamilies(t *testing.T) {
	four, six := netip.MustParseAddr("10.80.0.4"), netip.MustParseAddr("fd80::4")
	var b strings.Builder
	need.NoError(t, printNodeStatus(&b, &control.NodeStatus{Name: "node1", Links: []control.NodeLink{{
		Interface: "cv-milan", State: "carried", Underlay: netip.MustParseAddr("10.244.2.7"),
		GatewayAddress: four, GatewayAddresses: []netip.Addr{four, six}}}}))
	if !strings.Contains(b.String(), " 10.80.0.4, fd80::4  10.244.2.7 ") {
		t.Error(b.String())
	}
}

// TestStatusOfServices: docs/services.md shows how drops are printed of a node that serves
// Services.
func TestStatusOfServices(t *testing.T) {
	var b strings.Builder
	need.NoError(t, printNodeStatus(&b, &control.NodeStatus{
		Mode: "tun", Traffic: control.Traffic{Drops: []control.Drop{{Reason: "bad-source", Packets: 2}}},
		DeviceDrops: []control.Drop{{Reason: "culvert1", Packets: 17}},
	}))
	doc, err := os.ReadFile("../../docs/services.md")
	need.NoError(t, err)
	_, drops, _ := strings.Cut(b.String(), "\n\nDROPPED ")
	if want := "\n\nDROPPED " + drops + "```"; drops == "" || !strings.Contains(string(doc), want) {
		t.Errorf("docs/services.md has not%s", want)
	}
}

// TestStatusOfLinksAndServices: the status of a node that serves Services also lists missing links;
// without links it does not mention them.
func TestStatusOfLinksAndServices(t *testing.T) {
	for _, c := range []struct {
		waiting     []string
		want, never string
	}{
		{[]string{"InternalNode node1"}, "culvert v1.0.0\n\nwaiting: InternalNode node1\n\nserves ", "LINK "},
		{nil, "culvert v1.0.0\n\nserves ", "waiting"},
	} {
		var b strings.Builder
		need.NoError(t, printNodeStatus(&b, &control.NodeStatus{Name: "node1",
			Version: control.Version{Version: "v1.0.0"}, Mode: "tun", Waiting: c.waiting}))
		if !strings.Contains(b.String(), c.want) || strings.Contains(b.String(), c.never) {
			t.Errorf("%q", b.String())
		}
	}
}

// TestStatusUnderLiqo: the gateway is named, since its cluster is not known, and what it waits for
// and leaves out stands above the tables.
func TestStatusUnderLiqo(t *testing.T) {
	var b strings.Builder
	err := printGatewayStatus(&b, &control.Status{Peer: "milan", Role: "server", Resources: &control.Resources{
		Gateway: "liqo-tenant-milan/milan", Waiting: []string{"no PublicKey of cluster milan"},
		LeftOut: []control.LeftOut{{Resource: "FirewallConfiguration/liqo/frames",
			Reason: "spec.table.family: BRIDGE sees frames, and a gateway passes on packets only"}},
	}})
	need.NoError(t, err)
	above, _, _ := strings.Cut(b.String(), "\ntunnel")
	want := "gateway liqo-tenant-milan/milan to milan, server, up 0s, process 0, culvert \n\n" +
		"waiting: no PublicKey of cluster milan\n" +
		"left out: FirewallConfiguration/liqo/frames: spec.table.family: BRIDGE sees frames, and a gateway passes on packets only\n"
	if above != want {
		t.Errorf("%s\nwant\n%s", above, want)
	}
}

// TestStatusOfCopies: what a standby has not taken stands below its line, by reason, with what to
// do; docs/standby.md shows it.
func TestStatusOfCopies(t *testing.T) {
	s := control.Stream{Pod: "gw-milan-6c5f9-k8q2m", Address: "10.244.2.9:38114", Entries: 1650, LagSeconds: 0.06,
		NotTaken: map[string]uint64{"unknown-link": 350, "of-the-future": 1}}
	var b strings.Builder
	need.NoError(t, printGatewayStatus(&b, &control.Status{Peer: "milan", Role: "server",
		Replication: &control.Replication{Followers: []control.Stream{s}}}))
	doc, err := os.ReadFile("../../docs/standby.md")
	need.NoError(t, err)
	shown := 0
	for line := range strings.Lines(b.String()) {
		if strings.HasPrefix(line, "standby ") || strings.Contains(line, "not taken") {
			if shown++; len(line) > 101 || !strings.Contains(line, "of-the-future") && !strings.Contains(string(doc),
				"    "+line) {
				t.Errorf("docs/standby.md has not, or it is too long: %q", line)
			}
		}
	}
	if shown != 3 || !strings.Contains(b.String(), "  1 not taken, of-the-future\n") {
		t.Errorf("%s", b.String())
	}
	for why, want := range map[string]string{"no-room": "memory", "unbound": "configuration",
		"foreign-block": "one version"} {
		s.NotTaken = map[string]uint64{why: 7}
		if all := s.Lacks(); len(all) != 1 || !strings.HasPrefix(all[0], "7 not taken, "+why+": ") ||
			!strings.Contains(all[0], want) {
			t.Errorf("%s: %q", why, all)
		}
	}
}

// TestStatusOfTraffic: what is dropped before or after the received packets is not among them.
func TestStatusOfTraffic(t *testing.T) {
	traffic := control.Traffic{Received: 4, Forwarded: 3, Dropped: 1,
		Drops: []control.Drop{{Reason: "no-route", Packets: 1}, {Reason: "unknown-node", Packets: 4}}}
	if got, want := trafficText(&traffic),
		"4 packets, 3 forwarded, 0 delivered here, 1 dropped, 4 more dropped before or after"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	traffic.Drops = traffic.Drops[:1]
	if got, want := trafficText(&traffic), "4 packets, 3 forwarded, 0 delivered here, 1 dropped"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
