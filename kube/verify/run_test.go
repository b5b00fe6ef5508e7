package verify

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"culvert/gateway/config"
	"culvert/integration/need"
	"culvert/kube/peering"
	"culvert/kube/verify/probe"
	"culvert/nat/rules"
)

func address(text string) netip.Addr {
	a, _ := netip.ParseAddr(text)
	return a
}

// requireClean fails if a run has left a namespace.
func requireClean(t *testing.T, w *world) {
	t.Helper()
	for _, c := range []*played{w.rome, w.milan} {
		if len(c.spaces) > 0 {
			t.Errorf("%s still has the namespaces %v, want none", c.name, c.spaces)
		}
	}
}

// TestRun: a line for each path, and nothing is left.
func TestRun(t *testing.T) {
	w := newWorld(t)
	w.milan.left = []string{"culvert-verify-old"}
	var progress []string
	r, err := w.run(t.Context(), Options{Progress: func(s string) { progress = append(progress, s) }})
	if err != nil || !r.OK {
		t.Fatal(err, wrongs(r))
	}
	var lines []string
	for i := range r.Paths {
		lines = append(lines, strings.Join(r.Paths[i].Figures(), " "))
	}
	const want = `ok rome/rome-1 rome/rome-2 900 µs – – – 10.244.1.60
ok rome/rome-2 rome/rome-1 900 µs – – – 10.244.2.60
ok milan/milan-1 milan/milan-2 900 µs – – – 10.244.1.60
ok milan/milan-2 milan/milan-1 900 µs – – – 10.244.2.60
ok rome/rome-1 milan/milan-1 900 µs 20/20 1340 839 Mb/s 10.62.1.60
ok milan/milan-1 rome/rome-2 900 µs 20/20 1340 839 Mb/s 10.61.1.60
ok rome/rome-2 milan/milan-2 900 µs 20/20 1340 839 Mb/s 10.62.2.60
ok milan/milan-2 rome/rome-1 900 µs 20/20 1340 839 Mb/s 10.61.2.60
ok milan/milan-1 NodePort rome/rome-2 900 µs – – – 10.71.0.0
ok rome/rome-1 NodePort milan/milan-2 900 µs – – – 10.72.0.0`
	if got := strings.Join(lines, "\n"); got != want {
		t.Errorf("%s\nwant:\n%s", got, want)
	}
	if !strings.Contains(strings.Join(progress, "\n"),
		"milan: removed namespace culvert-verify-old, which an earlier run has left") {
		t.Errorf("%q", progress)
	}
	for i, f := range r.Findings {
		if want := []string{"rome", "milan"}[i]; f.Wrong || f.Cluster != want || !strings.HasPrefix(f.Text,
			"spec.imports of Peering ") || !strings.HasSuffix(f.Text, " was not tried") {
			t.Errorf("%+v", f)
		}
	}
	requireClean(t, w)
}

// TestRunExports: a Service of the run is reached by its address and, if imports have a namespace,
// by its name. It is removed at the end.
func TestRunExports(t *testing.T) {
	const ok = `ok rome/rome-2 milan/milan-1 Service 900 µs – – – 10.62.2.60
ok rome/rome-2 milan/milan-1 by name 900 µs – – – 10.62.2.60`
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "services"}, "probe", nil)
	for _, tt := range []struct {
		name, lines, wrong, note, err string
		seed                          func(w *world)
	}{
		{"", ok, "",
			"milan: spec.imports of Peering rome names no namespace: an exported Service of rome was not tried", "",
			func(*world) {}},
		{"no rights", "", "",
			"rome: you may not get services in namespace imports: an exported Service of milan was not tried", "",
			func(w *world) { w.rome.importError = forbidden }},
		{"no external CIDR", "", "", "rome: milan's Peering has no spec.local.externalCIDR*", "", func(w *world) {
			w.milan.Peerings[0].External = nil
		}},
		{"no DNS", strings.ReplaceAll(ok, "ok rome/rome-2 milan/milan-1 by name 900 µs – – – 10.62.2.60",
			"– rome/rome-2 milan/milan-1 by name no DNS – – – –"), "",
			"rome: pods find no names at all*", "", func(w *world) {
				w.spoil = func(p *Path) {
					if p.host != "" {
						p.Error = probe.NoDNS
					}
				}
			}},
		{"no name", "wrong rome/rome-2 milan/milan-1 by name the cluster's DNS finds no x",
			"rome: rome/rome-2 to milan/milan-1 by name: the cluster's DNS finds no x, although its address answers*",
			"", "", func(w *world) {
				w.spoil = func(p *Path) {
					if p.host != "" {
						p.Error = "the cluster's DNS finds no x"
					}
				}
			}},
		{"no kube-proxy", "wrong rome/rome-2 milan/milan-1 Service no answer",
			"rome: rome/rome-2 to milan/milan-1 Service: no answer, although pods reach each other: see what kube-proxy*", "", "", func(w *world) {
				w.spoil = func(p *Path) {
					if p.Kind == KindService {
						p.Error = "no answer"
					}
				}
			}},
		{"admission", "– rome/rome-1 milan/milan-1 not admitted – – – –", "",
			"milan: spec.imports of Peering rome names no namespace*", "", func(w *world) {
				w.milan.Peerings[0].Admit = config.AdmitExports
				w.spoil = func(p *Path) {
					if p.Kind == KindPods && strings.HasPrefix(p.To, "milan/") ||
						p.Kind == KindNodePort && strings.HasPrefix(p.From, "rome/") {
						p.Error = "connect: no route to host"
					}
				}
			}},
		{"an export that is not admitted", "wrong rome/rome-2 milan/milan-1 Service no answer",
			"rome: rome/rome-2 to milan/milan-1 Service: no answer: see what its gateway drops, and why: kubectl --context milan*", "", "", func(w *world) {
				w.milan.Peerings[0].Admit = config.AdmitExports
				w.spoil = func(p *Path) {
					if p.Kind == KindService || p.Kind == KindPods && strings.HasPrefix(p.To, "milan/") ||
						p.Kind == KindNodePort && strings.HasPrefix(p.From, "rome/") {
						p.Error = "no answer"
					}
				}
			}},
		{"not imported", "wrong rome/rome-2 milan/milan-1 Service not imported within 20s",
			"rome: a Service that milan exports is not in namespace imports after 20s; milan says: the peer is silent; rome's gateway says nothing of it*", "", "", func(w *world) {
				w.rome.deaf = true
				w.milan.Peerings[0].Status.Conditions = append(w.milan.Peerings[0].Status.Conditions,
					&peering.Condition{Type: peering.Exported, Status: "False", Message: "the peer is silent"})
			}},
		{"stays", ok, "", "",
			"rome: the Service imports/probe-culvert-verify-*is still there: the gateway removes it when milan's tells it so*", func(w *world) { w.rome.keeps = true }},
		{"stays for the gateway", ok, "",
			"rome: the Service imports/probe-culvert-verify-* is still there, and you may not remove it: the gateway does within minutes", "", func(w *world) { w.rome.mayNot = forbidden }},
	} {
		need.Bubble(t, func(t *testing.T) {
			w := newWorld(t)
			w.rome.Peerings[0].Imports = "imports"
			tt.seed(w)
			r, err := w.run(t.Context(), Options{})
			if r == nil || (err == nil) != (tt.err == "") || err != nil && !like(err.Error(), tt.err) {
				t.Fatalf("%s: %v, want %q", tt.name, err, tt.err)
			}
			var lines, notes []string
			for i := range r.Paths {
				lines = append(lines, strings.Join(r.Paths[i].Figures(), " "))
			}
			for _, f := range r.Findings {
				if !f.Wrong {
					notes = append(notes, f.Cluster+": "+f.Text)
				}
			}
			found := func(all []string, want string) bool {
				return slices.ContainsFunc(all, func(x string) bool { return like(x, want) })
			}
			if !strings.Contains(strings.Join(lines, "\n"), tt.lines) || r.OK != (tt.wrong == "") {
				t.Errorf("%s: ok %t\n%s", tt.name, r.OK, strings.Join(lines, "\n"))
			}
			if got := wrongs(r); tt.wrong == "" && len(got) > 0 || tt.wrong != "" &&
				(len(got) != 1 || !like(got[0], tt.wrong)) {
				t.Errorf("%s: %q, want %q", tt.name, got, tt.wrong)
			}
			if tt.note != "" && !found(notes, tt.note) {
				t.Errorf("%s: %q, want %q", tt.name, notes, tt.note)
			}
			if tried := strings.Contains(strings.Join(lines, "\n"), " Service "); tried && tt.err == "" &&
				w.rome.mayNot == nil && len(w.rome.forgot) != 1 {
				t.Errorf("%s: removed %q, want the import", tt.name, w.rome.forgot)
			}
			requireClean(t, w)
		})
	}
}

// TestRunNames: the DNS of a cluster is asked for the names that the other one exports. One
// sentence says why it finds none, with the remedy.
func TestRunNames(t *testing.T) {
	const line = "rome/rome-2 milan/web.shop "
	const corefile = "cluster.local clusterset.local {\n multicluster clusterset.local\n}"
	failing := func(why string) func(*world) {
		return func(w *world) {
			w.spoil = func(p *Path) {
				if p.Kind == KindName {
					p.Error = why
				}
			}
		}
	}
	for _, tt := range []struct {
		name, lines, wrong, note string
		seed                     func(w *world)
	}{
		{"", "ok " + line + "900 µs – – – 10.96.0.7", "", "", func(*world) {}},
		{"of another cluster", "– rome/rome-2 milan/none.culvert-… ", "",
			"rome: there is no multi-cluster Service of milan, so *",
			func(w *world) {
				w.rome.Imports[0].Clusters = []string{"turin"}
				failing("the cluster's DNS finds no x")(w)
			}},
		{"no right, and no name", "wrong rome/rome-2 milan/none.culvert-… ",
			"rome: the cluster's DNS answers SERVFAIL in clusterset.local, *system:coredns*", "", func(w *world) {
				w.rome.Imports = nil
				failing(probe.Failing)(w)
			}},
		{"too many", "ok " + line, "", "rome: 16 of 17 names of multi-cluster Services of milan are tried",
			func(w *world) {
				for range 16 {
					w.rome.Imports = append(w.rome.Imports, w.rome.Imports[0])
				}
			}},
		{"no zone", "wrong " + line + "no zone", "rome: the cluster's DNS does not serve clusterset.local. CoreDNS does since " +
			"1.12.2 by two lines of its Corefile, \"kubernetes cluster.local clusterset.local in-addr.arpa ip6.arpa {\" and " +
			"below it \"multicluster clusterset.local\": kubectl --context rome -n kube-system edit configmap coredns", "",
			func(w *world) {
				w.rome.Imports = append(w.rome.Imports, w.rome.Imports[0]) // said once
				failing(probe.NoZone)(w)
			}},
		{"an old CoreDNS", "wrong " + line + "no zone", "rome: the cluster's DNS does not serve clusterset.local, although its " +
			"Corefile says so: CoreDNS does since 1.12.2, *", "", func(w *world) {
			w.rome.Corefile = corefile
			failing(probe.NoZone)(w)
		}},
		{"no right", "wrong " + line + "SERVFAIL", "rome: the cluster's DNS answers SERVFAIL in clusterset.local, *system:coredns*",
			"", failing(probe.Failing)},
		{"no name", "wrong " + line + "the cluster's DNS finds no x", "rome: rome/rome-2 to " +
			"milan/web.shop by name: the cluster's DNS finds no x, although there is a ServiceImport: *", "", failing("the cluster's DNS finds no x")},
		{"no DNS", "– " + line + "no DNS", "", "rome: pods find no names at all*", failing(probe.NoDNS)},
		{"another address", "wrong " + line, "rome: the cluster's DNS says that web.shop.svc.clusterset.local is 10.96.0.7, and " +
			"the ServiceImport says 10.96.0.8*", "", func(w *world) { w.rome.Imports[0].Addresses = "10.96.0.8" }},
		{"headless", "ok " + line, "", "", func(w *world) {
			w.rome.Imports[0].Headless, w.rome.Imports[0].Addresses = true, ""
		}},
		{"headless without pods", "– " + line + "no address", "", "", func(w *world) {
			w.rome.Imports[0].Headless, w.rome.Imports[0].Addresses = true, ""
			failing("the cluster's DNS finds no x")(w)
		}},
		{"no kind", "", "rome: Peering milan shares Services, and the cluster has no kind ServiceImport: culvert join with " +
			"--services makes it, or *", "", func(w *world) { w.rome.Imports, w.rome.NoImports = nil, noKind }},
		{"may not", "", "", "rome: you may not list serviceimports: names of multi-cluster Services were not tried",
			func(w *world) { w.rome.Imports, w.rome.NoImports = nil, "you may not list serviceimports" }},
		{"nobody makes PeerExports", "ok " + line, "rome: Services of milan do not come, or not all: does it run?", "",
			func(w *world) {
				w.rome.Peerings[0].Status.Conditions = append(w.rome.Peerings[0].Status.Conditions,
					&peering.Condition{Type: peering.Imported, Status: "False", Message: "does it run?"})
			}},
	} {
		w := newWorld(t)
		w.rome.Peerings[0].Services.Import = []string{"shop"}
		w.rome.Imports = []Import{{Namespace: "shop", Name: "web", Addresses: "10.96.0.7", Clusters: []string{"milan", "rome"}}}
		tt.seed(w)
		r, err := w.run(t.Context(), Options{})
		need.NoError(t, err)
		var lines, notes []string
		for _, row := range r.Rows() {
			lines = append(lines, strings.Join(row, " "))
		}
		for _, f := range r.Findings {
			if !f.Wrong {
				notes = append(notes, f.Cluster+": "+f.Text)
			}
		}
		has := strings.Contains(strings.Join(lines, "\n"), cmp.Or(tt.lines, "rome/rome-2 milan/web."))
		if has != (tt.lines != "") || r.OK != (tt.wrong == "") {
			t.Errorf("%s: ok %t\n%s", tt.name, r.OK, strings.Join(lines, "\n"))
		}
		if got := wrongs(r); tt.wrong == "" && len(got) > 0 || tt.wrong != "" &&
			(len(got) != 1 || !like(got[0], tt.wrong)) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.wrong)
		}
		if tt.note != "" && !slices.ContainsFunc(notes, func(n string) bool { return like(n, tt.note) }) {
			t.Errorf("%s: %q, want %q", tt.name, notes, tt.note)
		}
	}
}

// TestRunRights: missing rights are reported before anything is made.
func TestRunRights(t *testing.T) {
	w := newWorld(t)
	w.rome.missing, w.milan.missing = []string{"create pods", "list nodes"}, []string{"list namespaces"}
	_, err := w.run(t.Context(), Options{})
	if err == nil || err.Error() !=
		"rome: you may not create pods; nor list nodes\nmilan: you may not list namespaces" {
		t.Error(err)
	}
	if len(w.rome.created)+len(w.milan.created) > 0 {
		t.Error("objects were created although rights are missing")
	}
}

// TestRunInterrupted: a run that is interrupted, or cannot go on, removes what it has made.
func TestRunInterrupted(t *testing.T) {
	for _, tt := range []struct {
		name string
		seed func(w *world, interrupt func())
		want string
	}{
		{"interrupted", func(w *world, interrupt func()) {
			w.milan.stuck = func(p *Pod) { p.Ready = false; interrupt() }
		}, "milan: context canceled"},
		{"no pods", func(w *world, _ func()) { w.rome.refuse = errors.New("exceeded quota") }, "rome: exceeded quota"},
		{"no image", func(w *world, _ func()) {
			w.rome.stuck = func(p *Pod) { p.Ready, p.Phase, p.Trouble = false, "Failed", "ErrImagePull: nobody has it" }
		},
			"rome: pod server-0 on node rome-1 did not do its part within 1m0s: it is Failed: ErrImagePull: nobody has it"},
		{"another image", func(w *world, _ func()) {
			w.milan.stuck = func(p *Pod) { p.Message = "" }
		}, `milan: pod asker-0 on node milan-1 has said "": is its image as new as this culvert?`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			tt.seed(w, interrupt)
			_, err := w.run(ctx, Options{})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %s", err, tt.want)
			}
			requireClean(t, w)
		})
	}
}

// TestRunUnpaired: two clusters without a common Peering are reported as such, even if a gateway is
// missing.
func TestRunUnpaired(t *testing.T) {
	w := newWorld(t)
	w.milan.Peerings = nil
	if _, err := w.run(t.Context(), Options{}); err == nil ||
		err.Error() != "no Peering joins them: the first has milan (cluster rome, peer milan), the second has none" {
		t.Error(err)
	}
	w = newWorld(t)
	w.rome.Deployments, w.rome.Gateways, w.rome.Peerings[0].Status.Nodes = nil, nil, nil
	r, err := w.run(t.Context(), Options{})
	need.NoError(t, err)
	if got := strings.Join(wrongs(r), "\n"); r.OK || !strings.Contains(got, "Deployment culvert-milan is not there") ||
		!strings.Contains(got, "no node that is ready") {
		t.Error(got)
	}
}

// TestRunFamilies: paths are tried in each family that both clusters have, and told apart where
// there are two.
func TestRunFamilies(t *testing.T) {
	// This is what Run finds between nodes of the first two paths, and by the last NodePort.
	const four = `ok rome/rome-1 rome/rome-2 900 µs – – – 10.244.1.60
ok rome/rome-1 milan/milan-1 900 µs 20/20 1340 839 Mb/s 10.62.1.60
ok rome/rome-1 NodePort milan/milan-2 900 µs – – – 10.72.0.0`
	const six = `ok rome/rome-1 rome/rome-2 900 µs – – – …00:244:0:1::60
ok rome/rome-1 milan/milan-1 900 µs 20/20 1340 839 Mb/s fd62:0:0:1::60
ok rome/rome-1 NodePort milan/milan-2 900 µs – – – fd72::`
	named := func(lines, family string) (all []string) {
		for line := range strings.Lines(lines) {
			all = append(all, strings.TrimSuffix(strings.Replace(line, " 900", " "+family+" 900", 1), "\n"))
		}
		return all
	}
	for name, tt := range map[string]struct {
		seed func(w *world)
		want []string
		all  int
	}{
		"both": {func(w *world) {
			w.rome.six(false)
			w.milan.six(false)
		}, append(named(four, "IPv4"), named(six, "IPv6")...), 20},
		"IPv6 alone": {func(w *world) {
			w.rome.six(true)
			w.milan.six(true)
		}, strings.Split(six, "\n"), 10},
		"IPv6 alone, and an exported Service": {func(w *world) {
			w.rome.six(true)
			w.milan.six(true)
			w.rome.Peerings[0].Imports = "imports"
		}, strings.Split(six, "\n"), 12},
		"one of both": {func(w *world) { w.rome.six(false) }, strings.Split(four, "\n"), 10},
		"none in common": {func(w *world) { w.rome.six(true) },
			[]string{"wrong rome/rome-1 milan/milan-1 the Peering has no address for the far end – – – –"}, 10},
		"no Service of IPv6": {func(w *world) {
			w.rome.six(false)
			w.milan.six(false)
			w.rome.onlyV4 = true
		}, []string{"– rome/rome-1 NodePort milan/milan-2 IPv6 no Service – – – –",
			"ok milan/milan-1 NodePort rome/rome-2 IPv6 900 µs – – – fd71::",
			"ok rome/rome-1 NodePort milan/milan-2 IPv4 900 µs – – – 10.72.0.0"}, 20},
	} {
		w := newWorld(t)
		tt.seed(w)
		r, err := w.run(t.Context(), Options{})
		need.NoError(t, err)
		var lines []string
		for i := range r.Paths {
			lines = append(lines, strings.Join(r.Paths[i].Figures(), " "))
		}
		for _, want := range tt.want {
			if !slices.Contains(lines, want) {
				t.Errorf("%s: no line %q in\n%s", name, want, strings.Join(lines, "\n"))
			}
		}
		// what each Peering has and the other lacks is told by itself
		wrong := strings.HasPrefix(tt.want[0], "wrong") || name == "one of both"
		if len(lines) != tt.all || r.OK == wrong {
			t.Errorf("%s: %d lines, want %d; ok %t: %q", name, len(lines), tt.all, r.OK, wrongs(r))
		}
		requireClean(t, w)
	}
}

// TestRunRefusedPeering: of a Peering whose remap has a fault, that is what is said.
func TestRunRefusedPeering(t *testing.T) {
	w := newWorld(t)
	p := w.rome.Peerings[0]
	p.Remote[0].Remapped, p.Faults = netip.Prefix{},
		[]string{"spec.remote.podCIDRs[0].remap: 240.0.0.0/16 has addresses that routers do not forward to"}
	r, err := w.run(t.Context(), Options{})
	need.NoError(t, err)
	if got := strings.Join(wrongs(r), "\n"); !strings.Contains(got,
		"Peering milan is refused: spec.remote.podCIDRs[0].remap: 240.0.0.0/16") {
		t.Error(got)
	}
	requireClean(t, w)
}

// TestRunLists: for scripts, what is empty is a list too.
func TestRunLists(t *testing.T) {
	w := newWorld(t)
	w.rome.Deployments = nil
	asked := newWorld(t)
	asked.rome.Peerings[0].Imports, asked.milan.Peerings[0].Imports = "imports", "imports"
	for _, c := range []struct {
		*world
		want string
	}{{w, `"paths":[]`}, {asked, `"findings":[]`}} {
		r, err := c.run(t.Context(), Options{})
		need.NoError(t, err)
		if text, err := json.Marshal(r); err != nil || !strings.Contains(string(text), c.want) {
			t.Errorf("%v: no %s in %s", err, c.want, text)
		}
	}
}

// TestRunLarge: a ring has at most ten nodes of each cluster, among them the gateway's. All nodes
// are checked on demand.
func TestRunLarge(t *testing.T) {
	for _, all := range []bool{false, true} {
		w := newWorld(t)
		for n := 3; n < 16; n++ {
			name := fmt.Sprintf("rome-%x", n)
			w.rome.Nodes = append(w.rome.Nodes, Node{name, true, rules.PairOf(address("192.0.2.9"))})
			w.rome.Peerings[0].Status.Nodes = append(w.rome.Peerings[0].Status.Nodes, peering.Assigned{Name: name,
				VNI: uint32(n), Address: fmt.Sprint("10.80.0.", n+1)})
		}
		w.rome.Peerings[0].Status.Active.Node = "rome-f"
		r := &run{sides: [2]*Side{{"rome", w.rome.Snapshot, w.rome.Peerings[0]}, {"milan", w.milan.Snapshot,
			w.milan.Peerings[0]}}}
		nodes, of := r.sides[0].chosen(all)
		if want := map[bool]int{false: 10, true: 15}[all]; len(nodes) != want || of != 15 || nodes[0] != "rome-f" {
			t.Errorf("all %t: %d of %d: %v", all, len(nodes), of, nodes)
		}
	}
}
