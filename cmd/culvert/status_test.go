package main

import (
	"strings"
	"testing"

	"culvert/gateway/control"
)

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
		"left out: FirewallConfiguration/liqo/frames: spec.table.family: BRIDGE sees frames, and a gateway\n  passes on packets only\n"
	if above != want {
		t.Errorf("%s\nwant\n%s", above, want)
	}
}
