package verify

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"culvert/kube/peering"
)

func address(text string) netip.Addr {
	a, _ := netip.ParseAddr(text)
	return a
}

// requireClean fails if something of a run is left.
func requireClean(t *testing.T, w *world) {
	t.Helper()
	for _, c := range []*played{w.rome, w.milan} {
		if len(c.spaces) > 0 {
			t.Errorf("%s still has %v", c.name, c.spaces)
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
	if !strings.Contains(strings.Join(progress, "\n"), "milan: removed namespace culvert-verify-old, which an earlier run has left") {
		t.Errorf("%q", progress)
	}
	requireClean(t, w)
}

// TestRunRights: what is not allowed is said before anything is made.
func TestRunRights(t *testing.T) {
	w := newWorld(t)
	w.rome.missing, w.milan.missing = []string{"create pods", "list nodes"}, []string{"list namespaces"}
	_, err := w.run(t.Context(), Options{})
	if err == nil || err.Error() != "rome: you may not create pods; nor list nodes\nmilan: you may not list namespaces" {
		t.Error(err)
	}
	if len(w.rome.created)+len(w.milan.created) > 0 {
		t.Error("it has made something")
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
		}, "rome: pod server-0 on node rome-1 did not do its part within 1m0s: it is Failed: ErrImagePull: nobody has it"},
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

// TestRunUnpaired: clusters that nothing joins are told so, and a gateway that is not there keeps no run from saying it.
func TestRunUnpaired(t *testing.T) {
	w := newWorld(t)
	w.milan.Peerings = nil
	if _, err := w.run(t.Context(), Options{}); err == nil || err.Error() != "no Peering joins them: the first has milan (cluster rome, peer milan), the second has none" {
		t.Error(err)
	}
	w = newWorld(t)
	w.rome.Deployments, w.rome.Gateways, w.rome.Peerings[0].Status.Nodes = nil, nil, nil
	r, err := w.run(t.Context(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(wrongs(r), "\n"); r.OK || !strings.Contains(got, "Deployment culvert-milan is not there") || !strings.Contains(got, "no node that is ready") {
		t.Error(got)
	}
}

// TestRunLarge: a ring has at most ten nodes of each cluster, the gateway's among them, and all nodes are asked on demand.
func TestRunLarge(t *testing.T) {
	for _, all := range []bool{false, true} {
		w := newWorld(t)
		for n := 3; n < 16; n++ {
			name := fmt.Sprintf("rome-%x", n)
			w.rome.Nodes = append(w.rome.Nodes, Node{name, true, address("192.0.2.9")})
			w.rome.Peerings[0].Status.Nodes = append(w.rome.Peerings[0].Status.Nodes, peering.Assigned{Name: name, VNI: uint32(n), Address: fmt.Sprint("10.80.0.", n+1)})
		}
		w.rome.Peerings[0].Status.Active.Node = "rome-f"
		r := &run{sides: [2]*Side{{"rome", w.rome.Snapshot, w.rome.Peerings[0]}, {"milan", w.milan.Snapshot, w.milan.Peerings[0]}}}
		nodes, of := r.sides[0].chosen(all)
		if want := map[bool]int{false: 10, true: 15}[all]; len(nodes) != want || of != 15 || nodes[0] != "rome-f" {
			t.Errorf("all %t: %d of %d: %v", all, len(nodes), of, nodes)
		}
	}
}
