package main

import (
	"net/netip"
	"os"
	"strings"
	"testing"

	"culvert/gateway/control"
)

// TestStatusOfLinks: docs/liqo.md shows what is printed of a node that has links.
func TestStatusOfLinks(t *testing.T) {
	rtt := 0.000412
	milan := control.NodeLink{Interface: "liqo.k5dx8v2mq1", State: "carried", VNI: 3, MTU: 1340, Underlay: netip.MustParseAddr("10.244.2.7"),
		GatewayAddress: netip.MustParseAddr("10.80.0.4"), Answers: true, RTTSeconds: &rtt, ReceivedBytes: 1_310_000_000, SentBytes: 52_400_000}
	turin := milan
	turin.Interface, turin.VNI, turin.Underlay, turin.GatewayAddress = "liqo.7qwz0n4hte", 5, netip.MustParseAddr("10.244.1.9"), netip.MustParseAddr("10.80.0.5")
	turin.Answers, turin.RTTSeconds, turin.ReceivedBytes, turin.SentBytes = false, nil, 0, 8_400
	var b strings.Builder
	if err := printNodeStatus(&b, &control.NodeStatus{Name: "node1", UptimeSeconds: 7_800, PID: 1, Version: control.Version{Version: "v1.0.0"},
		Links: []control.NodeLink{turin, milan}, LinkDrops: []control.Drop{{Reason: "unresolved", Packets: 90}}}); err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile("../../docs/liqo.md")
	if err != nil {
		t.Fatal(err)
	}
	if want := "culvert status\n" + b.String() + "```"; !strings.Contains(string(doc), want) {
		t.Errorf("docs/liqo.md has not\n%s", want)
	}
}

// TestStatusOfLinksAndServices: the status of a node that serves Services also lists missing links; without links it does not mention them.
func TestStatusOfLinksAndServices(t *testing.T) {
	for _, c := range []struct {
		waiting     []string
		want, never string
	}{
		{[]string{"InternalNode node1"}, "culvert v1.0.0\n\nwaiting: InternalNode node1\n\nserves ", "LINK "},
		{nil, "culvert v1.0.0\n\nserves ", "waiting"},
	} {
		var b strings.Builder
		if err := printNodeStatus(&b, &control.NodeStatus{Name: "node1", Version: control.Version{Version: "v1.0.0"}, Mode: "tun", Waiting: c.waiting}); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(b.String(), c.want) || strings.Contains(b.String(), c.never) {
			t.Errorf("%q", b.String())
		}
	}
}

// TestStatusUnderLiqo: the gateway is named, since its cluster is not known, and what it waits for and leaves out stands above the tables.
func TestStatusUnderLiqo(t *testing.T) {
	var b strings.Builder
	err := printGatewayStatus(&b, &control.Status{Peer: "milan", Role: "server", Resources: &control.Resources{
		Gateway: "liqo-tenant-milan/milan", Waiting: []string{"no PublicKey of cluster milan"},
		LeftOut: []control.LeftOut{{Resource: "FirewallConfiguration/liqo/frames", Reason: "spec.table.family: BRIDGE sees frames, and a gateway passes on packets only"}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	above, _, _ := strings.Cut(b.String(), "\ntunnel")
	want := "gateway liqo-tenant-milan/milan to milan, server, up 0s, process 0, culvert \n\n" +
		"waiting: no PublicKey of cluster milan\n" +
		"left out: FirewallConfiguration/liqo/frames: spec.table.family: BRIDGE sees frames, and a gateway passes on packets only\n"
	if above != want {
		t.Errorf("%s\nwant\n%s", above, want)
	}
}
