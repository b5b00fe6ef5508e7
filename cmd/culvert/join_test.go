//go:build !nokube

package main

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"culvert/cmd/internal/cli"
	"culvert/integration/need"
	"culvert/kube/join"
	"culvert/kube/join/terms"
	"culvert/kube/multicluster"
	"culvert/kube/peering"
)

// TestJoinFlags: faults of flags are reported before any cluster is asked.
func TestJoinFlags(t *testing.T) {
	for args, want := range map[string]string{
		"--avoid rome=10.48.0.0/12":                             `--avoid: "rome=10.48.0.0/12"`,
		"--pod-cidr 10.48.0.0/12":                               `--pod-cidr: "10.48.0.0/12": want NAME=CIDR`,
		"--pod-cidr rome=10.48.0.0/99":                          `--pod-cidr: "10.48.0.0/99"`,
		"--pod-cidr rome=64:ff9b::/96":                          "--pod-cidr: 64:ff9b::/96 overlaps 64:ff9b::/96, whose addresses",
		"--pod-cidr rome=127.0.0.0/8":                           "--pod-cidr: 127.0.0.0/8 has addresses that routers do not forward to",
		"--push x.example/a --image x":                          "--push: it makes the image that --image names: give one of the two",
		"--services all,shop":                                   `--services: "all,shop": want all, none, or names of namespaces with commas`,
		"--services Shop":                                       `--services: "Shop" is no name of a namespace: want small letters, digits and dashes`,
		"--services shop,":                                      `--services: "" is no name of a namespace`,
		"--values " + write(t, ""):                              `values.yaml": want NAME=FILE with the name of a cluster`,
		"--values rome=/nowhere/values.yaml":                    "--values: /nowhere/values.yaml: no such file or directory",
		"--values rome=" + write(t, "agents: {toleration: []}"): "values.yaml:1:10: agents.toleration: no such field; did you mean tolerations?",
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
	j.Waiting("rome")(missing)
	for line := range strings.Lines(page.String()) {
		if n := utf8.RuneCountInString(line) - 1; n > page.Columns {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	if said := strings.Join(strings.Fields(page.String()), " "); said != "rome: waiting: "+missing {
		t.Error(said)
	}
}

// TestShowPlan: lines that all ends of a cluster share are printed once, and of an end that stands
// there is one line. A cluster that no pair names is left out.
func TestShowPlan(t *testing.T) {
	of := func(name string, n int) *join.Site {
		return &join.Site{Name: name, Context: "admin@" + name, Version: "1.36.0", Found: &terms.Cluster{Nodes: n}}
	}
	rome, milan, turin, genoa := of("rome", 2), of("milan", 1), of("turin", 3), of("genoa", 1)
	ended := func(s, peer *join.Site, role string, lines ...terms.Line) *join.End {
		return &join.End{Site: s, Title: s.Name + " with " + peer.Name, Lines: lines,
			Spec: &peering.Spec{Peer: peer.Name, Role: role}}
	}
	pods, image := terms.Line{What: "pods", Value: "10.0.0.0/16"}, terms.Line{What: "image", Value: "x"}
	plan := &join.Plan{Sites: []*join.Site{rome, milan, genoa, turin}, Pairs: []*join.Pair{
		{Ends: [2]*join.End{
			ended(rome, milan, "Client", pods, terms.Line{What: "tunnels", Value: "10.80.0.0/22"}, image),
			ended(milan, rome, "Server", pods, image)}},
		{Ends: [2]*join.End{ended(turin, rome, "Client", pods), ended(rome, turin, "Server", pods,
			terms.Line{What: "tunnels", Value: "10.80.4.0/22", Source: "chosen"}, image)}}}}
	out := &bytes.Buffer{}
	need.NoError(t, showPlan(out, plan))
	if want := `rome (context admin@rome, Kubernetes 1.36.0, 2 nodes):
pods 10.0.0.0/16
image x
rome with milan, Client:
tunnels 10.80.0.0/22
rome with turin, Server:
tunnels 10.80.4.0/22 chosen
milan with rome (context admin@milan, Kubernetes 1.36.0, 1 node), Server:
pods 10.0.0.0/16
image x
turin with rome (context admin@turin, Kubernetes 1.36.0, 3 nodes), Client:
pods 10.0.0.0/16
`; fold(out.String()) != want {
		t.Errorf("%s\nwant\n%s", out, want)
	}
}

// TestServicesPrints: of each cluster a line for each name, which fits into 100 columns, and then
// what is wrong, without what a terminal would obey.
func TestServicesPrints(t *testing.T) {
	v := []viewed{{"admin@rome", &multicluster.View{Cluster: "rome", Notes: []string{"Peering milan: no"},
		Services: []multicluster.Viewed{
			{Name: "shop/web", Type: "ClusterSetIP", Addresses: []string{"10.96.123.234"}, To: []string{"milan", "turin"},
				Clusters: []multicluster.Counted{{Cluster: "milan", Ready: 2, All: 3}, {Cluster: "rome"},
					{Cluster: "turin", Ready: 100, All: 100}}},
			{Name: "mcs-conformance-123/hello", Type: "Headless", Notes: []string{"wait\x1b[2J"},
				Clusters: []multicluster.Counted{{Cluster: "rome", Ready: 1, All: 1}}},
		}}}, {"x", &multicluster.View{Services: []multicluster.Viewed{}, Notes: []string{"no cluster"}}}}
	page := &cli.Page{Columns: 100}
	need.NoError(t, printViews(page, v))
	const want = `rome (context admin@rome):
NAME ADDRESS EXPORTED TO ENDPOINTS READY
shop/web 10.96.123.234 milan,turin milan 2 of 3, rome 0, turin 100
mcs-conformance-123/hello headless – rome 1
Peering milan: no
mcs-conformance-123/hello: wait�[2J

a cluster (context x):
no cluster
`
	if got := fold(page.String()); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	for line := range strings.Lines(page.String()) {
		if n := utf8.RuneCountInString(line) - 1; n > page.Columns {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

// TestMatrix: the matrix says of each pair how its ends see each other, or why they do not.
func TestMatrix(t *testing.T) {
	of := func(name string) *join.Site { return &join.Site{Name: name} }
	rome, milan, turin, genoa := of("rome"), of("milan"), of("turin"), of("genoa")
	pair := func(a, b *join.Site, err error) *join.Pair {
		return &join.Pair{Ends: [2]*join.End{{Site: a}, {Site: b}}, Err: err}
	}
	plan := &join.Plan{Names: []string{"rome", "milan", "turin", "bari", "genoa"},
		Sites: []*join.Site{rome, milan, turin, genoa},
		Pairs: []*join.Pair{pair(rome, milan, nil), pair(rome, turin, errors.New("no"))}}
	pods := func(cidr string) []join.Seen {
		return []join.Seen{{What: "pods", As: cidr}, {What: "nodes and Services", As: "10.70.0.0/23"}}
	}
	out := &bytes.Buffer{}
	need.NoError(t, printMatrix(out, plan, []join.Result{{Cluster: "rome", Peer: "milan", Sees: pods("10.61.0.0/16")},
		{Cluster: "milan", Peer: "rome", Sees: append(pods("10.60.0.0/16"), pods("10.62.0.0/16")...)}}))
	var got []string
	for line := range strings.Lines(out.String()) {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	if want := []string{
		"Pods of each cluster (column) as each other cluster (line) sees them:", "rome milan turin bari genoa",
		"rome – 10.61.0.0/16 failed not reached not joined",
		"milan 10.60.0.0/16,10.62.0.0/16 – not joined not reached not joined",
		"turin failed not joined – not reached not joined", "bari not reached not reached not reached – not reached",
		"genoa not joined not joined not joined not reached –",
	}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
