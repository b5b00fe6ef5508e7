//go:build !nokube

package main

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"culvert/cmd/internal/cli"
	"culvert/integration/need"
	"culvert/kube/deploy"
	"culvert/kube/image"
	"culvert/kube/join/terms"
	"culvert/kube/manifests"
	"culvert/kube/peering"
)

// TestJoinFlags: faults of flags are reported before any cluster is asked.
func TestJoinFlags(t *testing.T) {
	for args, want := range map[string]string{
		"--avoid rome=10.48.0.0/12":                             `--avoid: "rome=10.48.0.0/12"`,
		"--pod-cidr 10.48.0.0/12":                               `--pod-cidr: "10.48.0.0/12": want NAME=CIDR`,
		"--pod-cidr rome=10.48.0.0/99":                          `--pod-cidr: "10.48.0.0/99"`,
		"--pod-cidr rome=fd00::/64":                             `--pod-cidr: "fd00::/64" is no IPv4 CIDR`,
		"--pod-cidr rome=127.0.0.0/8":                           "--pod-cidr: 127.0.0.0/8 has addresses that routers do not forward to",
		"--push x.example/a --image x":                          "--push: it makes the image that --image names: give one of the two",
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
	j.waiting("rome")(missing)
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
		e := &end{plan: &deploy.Plan{Owner: c.owner}, had: had, wants: wants}
		err := e.lacksGateway()
		if (err == nil) != (c.want == "") || err != nil && !strings.HasSuffix(err.Error(), c.want) {
			t.Errorf("%q, %d pods: %v, want %q", c.owner, c.replicas, err, c.want)
		}
	}
}

// TestDecide: a flag counts more than given values, and these more than what is there. Without new
// values, those of the last time stay.
func TestDecide(t *testing.T) {
	values := func(text string) *manifests.Values {
		v, err := manifests.ReadValues("", []byte(text))
		need.NoError(t, err)
		return v
	}
	old := values("agents: {labels: {a: b}}")
	given := values("image: given\ndigest: sha256:" + strings.Repeat("0", 64) + "\nimagePullPolicy: Always\n" +
		"peerings: [{name: milan, expose: NodePort, replicas: 3, imports: there}, {name: turin, expose: ClusterIP}]")
	had := manifests.Gateway{Peering: "milan", Image: "old", Expose: "LoadBalancer", Replicas: 2, Values: old}
	with := func(change func(*manifests.Gateway)) manifests.Gateway {
		g := had
		change(&g)
		return g
	}
	for name, c := range map[string]struct {
		role   string
		j      joiner
		given  *manifests.Values
		want   manifests.Gateway
		values string // line about values
	}{
		"as it is": {"Server", joiner{}, nil, had, "agents: as they are"},
		"the same": {"Server", joiner{}, values(old.Text()), had, "agents: as they are"},
		"none any more": {"Server", joiner{}, values(""), with(func(g *manifests.Gateway) { g.Values = values("") }),
			""},
		"given": {"Client", joiner{}, given, manifests.Gateway{Peering: "milan", Image: given.Image(),
			Expose: "NodePort", Replicas: 3, Imports: "there", Values: given},
			"digest, image, imagePullPolicy, peerings: --values"},
		"of another peering": {"Client", joiner{}, values("peerings: [{name: turin, expose: NodePort, replicas: 3}]"),
			with(func(g *manifests.Gateway) {
				g.Expose, g.Values = "ClusterIP", values("peerings: [{name: turin, expose: NodePort, replicas: 3}]")
			}), "peerings: --values"},
		"flags": {"Server", joiner{image: "flag", expose: "LoadBalancer", replicas: 1}, given, manifests.Gateway{
			Peering: "milan", Image: "flag", Expose: "LoadBalancer", Replicas: 1, Imports: "there", Values: given},
			"digest, image, imagePullPolicy, peerings: --values"},
	} {
		e := &end{site: &site{values: c.given, found: &terms.Cluster{Address: netip.MustParseAddr("192.0.2.1")}},
			spec: &peering.Spec{Peer: "milan", Role: c.role}, had: &had}
		need.NoError(t, c.j.decide(e))
		if e.spec.Imports != c.want.Imports || e.wants.Values.Text() != c.want.Values.Text() {
			t.Errorf("%s: imports %q, values %q", name, e.spec.Imports, e.wants.Values.Text())
		}
		if e.wants.Values = c.want.Values; *e.wants != c.want {
			t.Errorf("%s: %+v, want %+v", name, *e.wants, c.want)
		}
		line := ""
		for _, l := range e.lines {
			if l.What == "values" {
				line = l.Value + ": " + l.Source
			}
		}
		if line != c.values {
			t.Errorf("%s: %q, want %q", name, line, c.values)
		}
	}
}

// TestPushLacks: an image without a program for some nodes is refused, and what they need is named.
func TestPushLacks(t *testing.T) {
	s := &site{found: &terms.Cluster{Archs: []string{"amd64", "arm64", "s390x"}}}
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

// TestPairsOf: pairs are all, or those that are named, each once. What names no pair, or two, is
// refused.
func TestPairsOf(t *testing.T) {
	names := []string{"rome", "milan", "rome-milan", "milan-rome"}
	for text, want := range map[string]string{
		"": "[[rome milan] [rome rome-milan] [milan rome-milan] [rome milan-rome] [milan milan-rome] " +
			"[rome-milan milan-rome]]",
		"milan-rome":                       "[[rome milan]]",
		"rome-milan,milan-rome,rome-milan": "[[rome milan]]",
		"milan-milan-rome,rome-milan":      "[[milan milan-rome] [rome milan]]",
		"rome-milan,rome-milan-rome": `--pairs: "rome-milan-rome" may be rome and rome-milan or rome and milan-rome; ` +
			"give other names by --name",
		"rome-turin": `--pairs: "rome-turin" is no two clusters with a dash between them; they are rome, milan, ` +
			"rome-milan, milan-rome",
		"rome-rome": `--pairs: "rome-rome" is no two clusters`,
		"rome":      `--pairs: "rome" is no two clusters`,
	} {
		var texts []string
		if text != "" {
			texts = strings.Split(text, ",")
		}
		pairs, err := pairsOf(texts, names)
		got := fmt.Sprint(pairs)
		if err != nil {
			got = err.Error()
		}
		if !strings.HasPrefix(got, want) {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

// TestShowAll: lines that all ends of a cluster share are printed once, and of an end that stands
// there is one line. A cluster that no pair names is left out.
func TestShowAll(t *testing.T) {
	of := func(name string, n int) *site {
		return &site{name: name, context: "admin@" + name, version: "1.36.0", found: &terms.Cluster{Nodes: n}}
	}
	rome, milan, turin, genoa := of("rome", 2), of("milan", 1), of("turin", 3), of("genoa", 1)
	ended := func(s, peer *site, role string, lines ...terms.Line) *end {
		e := s.end()
		e.title += " with " + peer.name
		e.spec, e.lines = &peering.Spec{Peer: peer.name, Role: role}, lines
		return e
	}
	pods, image := terms.Line{What: "pods", Value: "10.0.0.0/16"}, terms.Line{What: "image", Value: "x"}
	x := &joining{joiner: &joiner{}, sites: []*site{rome, milan, genoa, turin}, pairs: []*pair{
		{ends: [2]*end{ended(rome, milan, "Client", pods, terms.Line{What: "tunnels", Value: "10.80.0.0/22"}, image),
			ended(milan, rome, "Server", pods, image)}},
		{ends: [2]*end{ended(turin, rome, "Client", pods), ended(rome, turin, "Server", pods,
			terms.Line{What: "tunnels", Value: "10.80.4.0/22", Source: "chosen"}, image)}}}}
	out := &bytes.Buffer{}
	x.addCluster(&cobra.Command{}, "`NAME`")
	x.SetErr(out)
	need.NoError(t, x.showAll())
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

// TestMatrix: the matrix says of each pair how its ends see each other, or why they do not.
func TestMatrix(t *testing.T) {
	of := func(name string) *site { return &site{name: name, context: "admin@" + name} }
	rome, milan, turin, genoa := of("rome"), of("milan"), of("turin"), of("genoa")
	x := &joining{joiner: &joiner{contexts: []string{"admin@rome", "admin@milan", "admin@turin", "admin@bari",
		"admin@genoa"}}, sites: []*site{rome, milan, turin, genoa}}
	x.pairs = []*pair{{ends: [2]*end{rome.end(), milan.end()}}, {ends: [2]*end{rome.end(), turin.end()},
		err: errors.New("no")}}
	pods := func(cidr string) []seenAs {
		return []seenAs{{What: "pods", As: cidr}, {What: "nodes and Services", As: "10.70.0.0/23"}}
	}
	out := &bytes.Buffer{}
	cmd := &cobra.Command{}
	cmd.SetOut(out)
	need.NoError(t, x.printMatrix(cmd, []endReport{{Cluster: "rome", Peer: "milan", Sees: pods("10.61.0.0/16")},
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

// TestNamesOfAll: two clusters must not have the same name, even if one of them cannot be reached.
func TestNamesOfAll(t *testing.T) {
	for _, c := range []struct {
		contexts, names string
		want            string
	}{
		{"a@rome a@milan b@turin", "", ""},
		{"a@rome b@rome a@milan", "", "--name: the clusters of contexts a@rome and b@rome would both be rome; give each a name"},
		{"a@rome b@rome a@milan", "rome turin milan", ""},
		{"a@rome b@turin a@milan", "rome milan milan",
			"--name: the clusters of contexts b@turin and a@milan would both be milan; give each a name"},
	} {
		x := &joining{joiner: &joiner{contexts: strings.Fields(c.contexts), names: strings.Fields(c.names)}}
		names := x.clusters()
		for i, context := range x.contexts {
			if strings.HasPrefix(context, "a@") { // those that can be reached
				x.sites = append(x.sites, &site{context: context, name: names[i], id: context})
			}
		}
		got := ""
		if err := x.distinct(); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s, %s: %q, want %q", c.contexts, c.names, got, c.want)
		}
	}
}

// TestReportOfAll: a cluster that goes away at the end hides nothing about the other pairs.
func TestReportOfAll(t *testing.T) {
	gone, err := deploy.New(&rest.Config{Host: "http://127.0.0.1:1"}) // nobody listens there
	need.NoError(t, err)
	of := func(name string) *site { return &site{Cluster: gone, name: name, context: name} }
	rome, milan, turin := of("rome"), of("milan"), of("turin")
	ended := func(s, peer *site) *end {
		e := s.end()
		e.title, e.spec = s.name+" with "+peer.name, &peering.Spec{Peer: peer.name}
		return e
	}
	x := &joining{joiner: &joiner{contexts: []string{"rome", "milan", "turin"}}, sites: []*site{rome, milan, turin},
		pairs: []*pair{{ends: [2]*end{ended(rome, milan), ended(milan, rome)}},
			{ends: [2]*end{ended(rome, turin), ended(turin, rome)}, err: errors.New("turin with rome: no")}}}
	out := &bytes.Buffer{}
	cmd := &cobra.Command{}
	cmd.SetOut(out)
	cmd.SetContext(t.Context())
	x.Command = cmd
	err = x.report(false)
	if err == nil || !strings.HasPrefix(err.Error(), "rome with milan: get Peering milan: ") ||
		!strings.HasSuffix(err.Error(), "\nturin with rome: no") || strings.Count(out.String(), "failed") != 4 {
		t.Errorf("%v\n%s", err, out)
	}
}
