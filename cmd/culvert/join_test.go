//go:build !nokube

package main

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"culvert/cmd/internal/cli"
	"culvert/kube/deploy"
	"culvert/kube/image"
	"culvert/kube/join"
	"culvert/kube/manifests"
)

// TestJoinFlags: faults of flags are reported before any cluster is asked.
func TestJoinFlags(t *testing.T) {
	for args, want := range map[string]string{
		"--avoid rome=10.48.0.0/12":    `--avoid: "rome=10.48.0.0/12"`,
		"--pod-cidr 10.48.0.0/12":      `--pod-cidr: "10.48.0.0/12": want NAME=CIDR`,
		"--pod-cidr rome=10.48.0.0/99": `--pod-cidr: "10.48.0.0/99"`,
		"--pod-cidr rome=fd00::/64":    `--pod-cidr: "fd00::/64" is no IPv4 CIDR`,
		"--pod-cidr rome=127.0.0.0/8":  "--pod-cidr: 127.0.0.0/8 has addresses that routers do not forward to",
		"--push x.example/a --image x": "--push: it makes the image that --image names: give one of the two",
	} {
		out, diag, status := run(t, append([]string{"join", "--context", "a", "--context", "b", "--kubeconfig",
			"/nowhere"}, strings.Fields(args)...)...)
		if status != cli.ExitBadInput || out != "" || !strings.Contains(diag, want) {
			t.Errorf("%s: status %d: %s%s", args, status, out, diag)
		}
	}
}

// TestWaitingFits: what a command waits for is broken where a terminal is too narrow, with all of
// its words.
func TestWaitingFits(t *testing.T) {
	page := &cli.Page{Columns: 100}
	cmd := &cobra.Command{}
	cmd.SetErr(page)
	j := &joiner{}
	j.addCluster(cmd, "`NAME`")
	const missing = "Accepted: spec.remote.podCIDRs[0].remap: 172.18.0.0/16 contains 172.18.0.60, an address of the API server; " +
		"TunnelNode rome-2: spec.local: 172.18.0.2 is of node rome-1"
	j.waiting(&site{name: "rome"})(missing)
	for line := range strings.Lines(page.String()) {
		if n := utf8.RuneCountInString(line) - 1; n > page.Columns {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	if said := strings.Join(strings.Fields(page.String()), " "); said != "rome: waiting: "+missing {
		t.Error(said)
	}
}

// TestLacksGateway: join says at once what another program has to do before it can go on, and only
// then.
func TestLacksGateway(t *testing.T) {
	wants := &manifests.Gateway{Peering: "milan", Image: "x", Expose: "ClusterIP", Replicas: 2}
	for _, c := range []struct {
		owner    string
		replicas int // of the gateway that is there
		want     string
	}{
		{"", 0, ""}, // join makes it
		{"Helm's release kube-system/culvert", 1, ""},
		{"Helm's release kube-system/culvert", 0,
			"set peerings: [{name: milan, expose: ClusterIP, replicas: 2}] in the values of " +
				"Helm's release kube-system/culvert, then run the same command again"},
	} {
		had := &manifests.Gateway{Peering: "milan", Image: "x", Replicas: c.replicas}
		s := &site{plan: &deploy.Plan{Owner: c.owner}, had: had, wants: wants}
		err := s.lacksGateway()
		if (err == nil) != (c.want == "") || err != nil && !strings.HasSuffix(err.Error(), c.want) {
			t.Errorf("%q, %d pods: %v, want %q", c.owner, c.replicas, err, c.want)
		}
	}
}

// TestPushLacks: an image without a program for some nodes is refused, and what they need is named.
func TestPushLacks(t *testing.T) {
	s := &site{found: &join.Cluster{Archs: []string{"amd64", "arm64", "s390x"}}}
	for _, c := range []struct {
		packed []string // nil: no --push
		want   string
	}{
		{nil, ""}, {[]string{"s390x", "arm64", "amd64"}, ""}, {[]string{"arm64"}, "amd64 and s390x"},
	} {
		j := &joiner{}
		if c.packed != nil {
			j.packed = &image.Image{Archs: c.packed}
		}
		if got := j.lacks(s); got != c.want {
			t.Errorf("%v: %q, want %q", c.packed, got, c.want)
		}
	}
}
