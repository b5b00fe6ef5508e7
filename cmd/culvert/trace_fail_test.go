package main

import (
	"net/netip"
	"strings"
	"testing"

	"culvert/integration/need"
	"culvert/ipam"
)

// TestTraceFail: with --fail, a packet that is dropped makes exit status 1, and any other none.
func TestTraceFail(t *testing.T) {
	r := newReplaceable(t)
	r.hears("READY=1")
	for _, tt := range []struct {
		args   string
		status int
	}{
		{"tcp 10.0.1.5 8.8.8.8:443", 0},
		{"--fail tcp 10.0.1.5 8.8.8.8:443", 1},
		{"--fail -o json tcp 10.0.1.5 8.8.8.8:443", 1},
		{"--fail icmp 10.0.1.5 10.80.0.4", 0}, // for the gateway itself
	} {
		out, said, status := run(t, append([]string{"trace", "--socket", r.socket}, strings.Fields(tt.args)...)...)
		if status != tt.status || (status == 1) != strings.Contains(said, "trace: --fail: the packet is dropped") {
			t.Errorf("%s: status %d, want %d\n%s%s", tt.args, status, tt.status, out, said)
		}
	}
}

// TestIPAMCheckSaysNoRemap: a CIDR for which no remap could be chosen is not shown with one.
func TestIPAMCheckSaysNoRemap(t *testing.T) {
	var b strings.Builder
	cidr := netip.MustParsePrefix("fd00:10::/48")
	need.NoError(t, printSides(&b, []checkedSide{{File: "rome.yaml", Cluster: "rome", Peer: "milan",
		Seen: []seen{{Kind: ipam.Pod, CIDR: cidr}}, Error: "no pool"}}))
	if got := b.String(); strings.Contains(got, "invalid") ||
		!strings.Contains(got, "sees pod fd00:10::/48 not at all: no remap could be chosen") {
		t.Error(got)
	}
}

// TestVersionFlag: --version prints what culvert version does.
func TestVersionFlag(t *testing.T) {
	want, _, _ := run(t, "version")
	if out, said, status := run(t, "--version"); status != 0 || out != "culvert version "+strings.TrimPrefix(want,
		"culvert ") {
		t.Errorf("status %d, %q%s, want %q", status, out, said, want)
	}
}
