//go:build !nokube

package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"culvert/cmd/internal/cli"
	"culvert/integration/need"
	"culvert/kube/verify"
	"culvert/kube/verify/probe"
)

// TestVerifyFlags: faults of flags are reported before any cluster is asked.
func TestVerifyFlags(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	for args, want := range map[string]string{
		"":                                "--context: give two or more, one for each cluster",
		"--context a":                     "--context: give two or more",
		"--context a --context a":         "--context: a is given twice",
		"--context a --context b -o yaml": "--output: want text or json",
		"--context a --context b --kubeconfig " + none: none,
	} {
		out, diag, status := run(t, append([]string{"verify"}, strings.Fields(args)...)...)
		if status != 2 || out != "" || !strings.Contains(diag, want) {
			t.Errorf("verify %s: status %d: %s%s", args, status, out, diag)
		}
	}
}

// TestVerifyPrints: a line for each path, what is wrong, and the verdict.
func TestVerifyPrints(t *testing.T) {
	r := &verify.Report{Clusters: []verify.Joined{{Cluster: "rome", Peering: "milan", Gateway: "rome-1", Asked: 10,
		Nodes: 12}, {Cluster: "milan", Peering: "rome", Asked: 1, Nodes: 1}},
		Paths: []verify.Path{{Kind: verify.KindPods, From: "rome/rome-1", To: "milan/milan-1",
			Answer: probe.Answer{Error: "no answer"}, Faults: []string{"no answer"}}},
		Findings: []verify.Finding{{Cluster: "milan", Wrong: true, Text: "the gateway is down"}, {Text: "slow"}}}
	var out strings.Builder
	err := errors.Join(printVerified(&out, r), verifyVerdict(r))
	const want = `rome: Peering milan, gateway on node rome-1, 10 of 12 nodes are asked (--all-nodes asks all)
milan: Peering rome, gateway on node none, 1 nodes

       FROM         TO             ANSWER     UDP  MTU  TCP  SEEN AS
wrong  rome/rome-1  milan/milan-1  no answer  –    –    –    –

wrong: milan: the gateway is down
note: slow
`
	if out.String() != want || err == nil ||
		err.Error() != "verify: 1 of 1 paths have faults; correct what is wrong above" {
		t.Errorf("%v\n%s", err, out.String())
	}
}

// TestVerifyFits: with names as those of make clusters, and what takes most room in each column, a
// line has at most 100 columns. With names as clouds give them, none has on a terminal of 100, and
// what is cut still tells nodes apart.
func TestVerifyFits(t *testing.T) {
	a := probe.Answer{RTT: 123456 * time.Microsecond, Seen: "10.244.123.123", UDP: &probe.UDP{Sent: 20, Answered: 20},
		Size: &probe.Size{Largest: 1340},
		Bulk: &probe.Bulk{Bytes: 10 << 20, Took: 100 * time.Millisecond}}
	six := a
	six.Seen = "fdf1:43e:492a:8000:1:2:3:4"
	table := func(rome, milan [2]string) *verify.Report {
		return &verify.Report{OK: true, Paths: []verify.Path{
			{Kind: verify.KindNodePort, From: milan[0], To: rome[1], Answer: a},
			{Kind: verify.KindService, From: rome[0], To: milan[0], Answer: a},
			{Kind: verify.KindName, From: rome[0], To: "milan/a-name.of-a-namespace", Answer: a},
			{Kind: verify.KindPods, From: rome[1], To: milan[1], Answer: a},
			{Kind: verify.KindNodePort, From: milan[0], To: rome[1], Answer: six, Family: "IPv6"},
			{Kind: verify.KindPods, From: rome[1], To: milan[1], Answer: six, Family: "IPv6"},
		}}
	}
	plain := [2][2]string{{"rome/rome-1", "rome/rome-2"}, {"milan/milan-1", "milan/milan-2"}}
	for _, tt := range []struct {
		columns int
		places  [2][2]string
		want    [2][2]string
	}{
		{0, plain, plain},
		{100, [2][2]string{{"rome/ip-10-244-123-101.eu-central-1.compute.internal",
			"rome/ip-10-244-123-102.eu-central-1.compute.internal"},
			{"milan/gke-production-default-pool-1a2b3c4d-x5z7", "milan/gke-production-default-pool-1a2b3c4d-abcd"}},
			[2][2]string{{"rome/…10-244-123-101", "rome/…10-244-123-102"},
				{"milan/…1a2b3c4d-x5z7", "milan/…1a2b3c4d-abcd"}}},
		{100, [2][2]string{{"rome/aks-nodepool1-12345678-vmss000001", "rome/aks-nodepool1-12345678-vmss000002"},
			{"production-frankfurt/worker-0001", "production-frankfurt/worker-0002"}},
			[2][2]string{{"rome/…678-vmss000001", "rome/…678-vmss000002"}, {"production-frankfurt/…er-0001",
				"production-frankfurt/…er-0002"}}},
	} {
		page := &cli.Page{Columns: tt.columns}
		if err := printVerified(page, table(tt.places[0], tt.places[1])); err != nil {
			t.Fatal(err)
		}
		out := page.String()
		for _, side := range tt.want {
			for _, place := range side {
				if broken := strings.Split(place, "/"); !strings.Contains(out, place) &&
					(!strings.Contains(out, broken[0]+"/") || !strings.Contains(out, broken[1])) {
					t.Errorf("no %s in\n%s", place, out)
				}
			}
		}
		// a wider table has its cells wrapped
		if n := strings.Count(out, "10.244.123.123\n"); tt.columns == 0 && n != 4 {
			t.Errorf("%d lines end with who is seen:\n%s", n, out)
		}
		for line := range strings.Lines(out) {
			if n := utf8.RuneCountInString(line) - 1; n > 100 {
				t.Errorf("%d columns: %s", n, line)
			}
		}
	}
}

// TestVerifyRepeats: what pods and gateways have said is shown without what a terminal would obey.
func TestVerifyRepeats(t *testing.T) {
	const said = "10.0.0.1\x1b[2J"
	r := &verify.Report{Clusters: []verify.Joined{{Cluster: "rome", Peering: "milan", Gateway: said}},
		Findings: []verify.Finding{{Text: said}}, Paths: []verify.Path{
			{From: "rome/rome-1", To: "milan/milan-1", Answer: probe.Answer{Seen: said}},
			{From: "rome/rome-1", To: "milan/milan-1", Answer: probe.Answer{Error: said}}}}
	var out strings.Builder
	printVerified(&out, r)
	if n := strings.Count(out.String(), "10.0.0.1�[2J"); n != 4 || strings.Contains(out.String(), "\x1b") {
		t.Errorf("%d times in %q", n, out.String())
	}
}

// TestProbe: the pods' commands ask each other as they do in pods.
func TestProbe(t *testing.T) {
	result := filepath.Join(t.TempDir(), "result")
	_, diag, status := run(t, "probe", "ask", "--result", result,
		`{"token": "0123456789abcdef", "targets": [{"name": "0", "address": "127.0.0.1:1"}]}`)
	var answers []probe.Answer
	text, err := os.ReadFile(result)
	if err == nil {
		err = json.Unmarshal(text, &answers)
	}
	if status != 0 || err != nil || len(answers) != 1 || answers[0].Error != "connection refused" {
		t.Errorf("status %d: %v %s %s", status, err, text, diag)
	}
	if _, diag, status := run(t, "probe", "serve", "--token", "short"); status != 2 ||
		!strings.Contains(diag, "token: 5 bytes; want 16") {
		t.Errorf("status %d: %s", status, diag)
	}
}

// TestVerifyPairs: the table says of each pair how many paths work, and in which direction, or why
// none was asked. Two clusters that are not joined are no fault beside two that are.
func TestVerifyPairs(t *testing.T) {
	clusters := []verify.Joined{{Cluster: "rome", Context: "admin@rome"}, {Cluster: "milan", Context: "milan"}}
	good := verify.Path{From: "rome/a", To: "milan/b"}
	bad := verify.Path{From: "milan/b", To: "NodePort rome/a", Faults: []string{"no answer"}}
	own := verify.Path{From: "milan/b", To: "milan/c"}
	wrong := &verifiedPair{Contexts: [2]string{"admin@rome", "milan"}, Joined: true, Report: &verify.Report{
		Clusters: clusters, Paths: []verify.Path{good, good, bad, own},
		Findings: []verify.Finding{{Cluster: "milan", Wrong: true, Text: "the gateway is down"}, {Text: "slow"}}}}
	apart := &verifiedPair{Contexts: [2]string{"admin@rome", "turin"}, err: errors.New("no Peering joins them")}
	away := &verifiedPair{Contexts: [2]string{"milan", "turin"}, Joined: true, err: errors.New("cannot be reached")}
	well := &verifiedPair{Contexts: wrong.Contexts, Joined: true, Report: &verify.Report{OK: true, Clusters: clusters,
		Paths: []verify.Path{good}}}
	for _, c := range []struct {
		pairs    []*verifiedPair
		out, err string
	}{
		{[]*verifiedPair{wrong, apart, away}, `            admin@rome    milan  turin
admin@rome  –             2 ok   not joined
milan       1 of 1 wrong  –      not asked
turin       not joined    not asked  –
wrong: admin@rome and milan: milan: the gateway is down
`, "admin@rome and milan: verify: 1 of 4 paths have faults; correct what is wrong above\n" +
			"milan and turin: cannot be reached"},
		{[]*verifiedPair{well, apart}, `            admin@rome  milan  turin
admin@rome  –           1 ok   not joined
milan       0 ok        –      –
turin       not joined  –      –
All is well.
`, ""},
		{[]*verifiedPair{apart}, "", "no two of these clusters are joined: culvert join"},
	} {
		var out strings.Builder
		err := printVerifiedPairs(&out, []string{"admin@rome", "milan", "turin"}, c.pairs)
		need.NoError(t, err)
		if fold(out.String()) != fold(c.out) && c.out != "" {
			t.Errorf("%s\nwant\n%s", out.String(), c.out)
		}
		text := ""
		if err := verdictOfPairs(c.pairs); err != nil {
			text = err.Error()
		}
		if text != c.err {
			t.Errorf("%q, want %q", text, c.err)
		}
	}
}

// fold makes each run of spaces one.
func fold(text string) (folded string) {
	for line := range strings.Lines(text) {
		folded += strings.Join(strings.Fields(line), " ") + "\n"
	}
	return folded
}
