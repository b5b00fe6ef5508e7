package fabric

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"culvert/gateway/control"
	"culvert/gateway/node/links"
	"culvert/geneve"
	"culvert/integration/need"
	"culvert/kube"
	"culvert/kube/liqo"
	"culvert/kube/objects"
	"culvert/nat/rules"
)

var start = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// late is a time by which every resource that could still arrive has arrived.
var late = start.Add(patience)

func object(t *testing.T, text string) *objects.Object {
	t.Helper()
	o := &objects.Object{}
	if err := yaml.Unmarshal([]byte(text), o); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return o
}

// captured returns what a Liqo control plane made for two nodes and two peerings.
func captured(t *testing.T) (all []*objects.Object) {
	t.Helper()
	for _, name := range []string{"genevetunnels", "internalfabrics", "internalnodes"} {
		b, err := os.ReadFile(filepath.Join("..", "testdata", "v1.2.0", name+".yaml"))
		need.NoError(t, err)
		for _, doc := range bytes.Split(b, []byte("\n---\n")) {
			all = append(all, object(t, string(doc)))
		}
	}
	return all
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// ofN1 are the links that the captured resources describe for node n1.
var ofN1 = []links.Link{
	{Name: "liqo.gmn5mr9h7p", VNI: 1, MTU: 1340, Remote: addr("10.244.0.7"), Address: geneve.PairOf(addr("10.80.0.2")),
		Gateway: geneve.PairOf(addr("10.80.0.3"))},
	{Name: "liqo.s4r5pgz9fk", VNI: 3, MTU: 1340, Remote: addr("10.244.0.8"), Address: geneve.PairOf(addr("10.80.0.2")),
		Gateway: geneve.PairOf(addr("10.80.0.4"))},
}

func texts(d Desired) (all []string) {
	for _, f := range d.Faults {
		all = append(all, f.Key().String()+": "+f.Message)
	}
	return all
}

// TestCapturedResources: the resources of a real control plane describe one link for each gateway,
// in whatever order they arrive.
func TestCapturedResources(t *testing.T) {
	all := captured(t)
	for range 20 {
		s := NewState("n1")
		rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		for _, o := range all {
			s.Put(o, start)
		}
		d := s.Desired(late)
		if !slices.Equal(d.Links, ofN1) || len(d.Faults) > 0 || d.Waiting != "" {
			t.Fatalf("%+v", d)
		}
		if m := d.Origin["liqo.gmn5mr9h7p"]; m.Name != "cluster-b" || m.Namespace != "liqo-tenant-cluster-b" {
			t.Errorf("%+v", m)
		}
	}
	s := NewState("n9")
	for _, o := range all {
		s.Put(o, start)
	}
	if d := s.Desired(start); d.Waiting != "InternalNode n9" || len(d.Links) > 0 {
		t.Errorf("%+v", d)
	}
}

// TestDeletion: a resource that is being deleted no longer describes a link.
func TestDeletion(t *testing.T) {
	for _, kind := range []string{liqo.KindFabric, liqo.KindTunnel} {
		s := NewState("n1")
		var last *objects.Object
		for _, o := range captured(t) {
			s.Put(o, start)
			if o.Kind == kind && strings.HasPrefix(o.Metadata.Name, "cluster-b") &&
				!strings.HasSuffix(o.Metadata.Name, "n2") {
				last = o
			}
		}
		last.Deleting = true
		s.Put(last, start)
		if d := s.Desired(late); !slices.Equal(d.Links, ofN1[1:]) || len(d.Faults) > 0 && kind == liqo.KindFabric {
			t.Errorf("%s: %+v", kind, d)
		}
		s.Delete(last.Key())
		if d := s.Desired(late); !slices.Equal(d.Links, ofN1[1:]) {
			t.Errorf("%s: %+v", kind, d)
		}
	}
}

// TestMovedGateway: a new gatewayIP changes the link's Remote and nothing else.
func TestMovedGateway(t *testing.T) {
	s := NewState("n1")
	for _, o := range captured(t) {
		if o.Kind == liqo.KindFabric && o.Metadata.Name == "cluster-b" {
			o.Spec = bytes.Replace(o.Spec, []byte("10.244.0.7"), []byte("10.244.2.9"), 1)
		}
		s.Put(o, start)
	}
	want := slices.Clone(ofN1)
	want[0].Remote = addr("10.244.2.9")
	if d := s.Desired(start); !slices.Equal(d.Links, want) {
		t.Errorf("%+v", d)
	}
}

// TestBadResources: each fault names its resource and field once, and the other link is not
// affected.
func TestBadResources(t *testing.T) {
	const namespace = "liqo-tenant-cluster-b"
	change := func(kind, old, new string) func(o *objects.Object) bool {
		return func(o *objects.Object) bool {
			if o.Kind == kind && strings.HasPrefix(o.Metadata.Name, "cluster-b") &&
				!strings.HasSuffix(o.Metadata.Name, "n2") {
				changed := bytes.Replace(o.Spec, []byte(old), []byte(new), 1)
				if bytes.Equal(changed, o.Spec) {
					t.Errorf("%s has no %s", o.Spec, old)
				}
				o.Spec = changed
			}
			return true
		}
	}
	without := func(kind string) func(o *objects.Object) bool {
		return func(o *objects.Object) bool {
			return o.Kind != kind || !strings.HasPrefix(o.Metadata.Name, "cluster-b") ||
				strings.HasSuffix(o.Metadata.Name, "n2")
		}
	}
	fabric, tunnel := "InternalFabric/"+namespace+"/cluster-b: ", "GeneveTunnel/"+namespace+"/cluster-b-n1: "
	for _, c := range []struct {
		name   string
		change func(*objects.Object) bool
		want   string
	}{
		{"no fabric", without(liqo.KindFabric), tunnel + "spec.internalFabricRef: there is no InternalFabric " +
			namespace + "/cluster-b"},
		{"no tunnel", without(liqo.KindTunnel), fabric + "there is no GeneveTunnel from node n1 to it"},
		{"negative id", change(liqo.KindTunnel, `"id":1`, `"id":-1`),
			tunnel + "spec.id: -1 is out of range; want 0 to 16777215"},
		{"large id", change(liqo.KindTunnel, `"id":1`, `"id":16777216`),
			tunnel + "spec.id: 16777216 is out of range; want 0 to 16777215"},
		{"huge id", change(liqo.KindTunnel, `"id":1`, `"id":1e30`), tunnel + "spec.id: number 1e30 is out of range"},
		{"missing id", change(liqo.KindTunnel, `"id":1,`, ``), tunnel + "spec.id: missing"},
		{"text for id", change(liqo.KindTunnel, `"id":1`, `"id":"1"`),
			tunnel + "spec.id: a string, where a number belongs"},
		{"gatewayIP", change(liqo.KindFabric, "10.244.0.7", "10.244.0"),
			fabric + `spec.gatewayIP: "10.244.0" is no address`},
		{"multicast gatewayIP", change(liqo.KindFabric, "10.244.0.7", "224.0.0.7"),
			fabric + "spec.gatewayIP: 224.0.0.7 is no address of a host"},
		{"no gatewayIP", change(liqo.KindFabric, `"gatewayIP"`, `"gateway"`), fabric + "spec.gatewayIP: missing"},
		{"internal address", change(liqo.KindFabric, "10.80.0.3", "::ffff:10.80.0.3"),
			fabric + `spec.interface.gateway.ip: "::ffff:10.80.0.3" is no address`},
		{"family", change(liqo.KindFabric, "10.80.0.3", "fd80::3"),
			fabric + "spec.interface.gateway.ip: fd80::3 and this node's 10.80.0.2 are of different families"},
		{"long name", change(liqo.KindFabric, "liqo.gmn5mr9h7p", "liqo.gmn5mr9h7p1"),
			fabric + `spec.interface.node.name: "liqo.gmn5mr9h7p1" is no name of a link; want 1 to 15 bytes`},
		{"path for a name", change(liqo.KindFabric, "liqo.gmn5mr9h7p", "../liqo"),
			fabric + `spec.interface.node.name: "../liqo" is no name of a link; want 1 to 15 bytes`},
		{"name of another", change(liqo.KindFabric, "liqo.gmn5mr9h7p", "liqo.s4r5pgz9fk"),
			"InternalFabric/liqo-tenant-cluster-c/cluster-c: spec.interface.node.name: liqo.s4r5pgz9fk is the name of InternalFabric " + namespace + "/cluster-b"},
		{"mtu", change(liqo.KindFabric, `"mtu":1340`, `"mtu":100`),
			fabric + "spec.mtu: 100 is out of range; want 576 to 65535"},
		{"text for mtu", change(liqo.KindFabric, `"mtu":1340`, `"mtu":"1340"`),
			fabric + "spec.mtu: a string, where a number belongs"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := NewState("n1")
			for _, o := range captured(t) {
				if c.change(o) {
					s.Put(o, start)
				}
			}
			d := s.Desired(late)
			if got := texts(d); len(got) != 1 || got[0] != c.want {
				t.Errorf("faults %q, want %q", got, c.want)
			}
			want := ofN1[1:]
			if c.name == "name of another" { // the older one has it
				want = []links.Link{ofN1[0]}
				want[0].Name = ofN1[1].Name
			}
			if !slices.Equal(d.Links, want) {
				t.Errorf("links %+v", d.Links)
			}
			if strings.HasPrefix(c.name, "no ") && c.name != "no gatewayIP" && len(s.Desired(late.Add(-1)).Faults) > 0 {
				t.Error("a fault is reported while the missing resource may still arrive")
			}
		})
	}
}

// TestTwoTunnels: if there are two GeneveTunnels from one node to one gateway, the older one wins.
func TestTwoTunnels(t *testing.T) {
	s := NewState("n1")
	for _, o := range captured(t) {
		s.Put(o, start)
		if o.Metadata.Name == "cluster-b-n1" {
			o.Metadata.Name, o.Metadata.Created = "later", o.Metadata.Created.Add(time.Hour)
			o.Spec = bytes.Replace(o.Spec, []byte(`"id":1`), []byte(`"id":77`), 1)
			s.Put(o, start)
		}
	}
	d := s.Desired(late)
	if got := fmt.Sprint(texts(d)); !slices.Equal(d.Links, ofN1) ||
		!strings.Contains(got,
			"GeneveTunnel/liqo-tenant-cluster-b/later: spec.internalNodeRef: an older GeneveTunnel") {
		t.Errorf("%v, %+v", got, d.Links)
	}
}

// TestRandomEdits: after edits and deletions in any order, the links follow from the resources that
// exist.
func TestRandomEdits(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 1))
	s, there := NewState("n1"), map[rules.Key]*objects.Object{}
	all := captured(t)
	for i := range 2000 {
		o := *all[r.IntN(len(all))]
		if r.IntN(3) == 0 {
			s.Delete(o.Key())
			delete(there, o.Key())
		} else {
			if r.IntN(2) == 0 {
				o.Spec = bytes.ReplaceAll(o.Spec, []byte("10.244.0."), []byte(fmt.Sprintf("10.244.%d.", r.IntN(200))))
			}
			s.Put(&o, start)
			there[o.Key()] = &o
		}
		fresh := NewState("n1")
		for _, o := range there {
			fresh.Put(o, start)
		}
		if a, b := s.Desired(late), fresh.Desired(late); !slices.Equal(a.Links, b.Links) ||
			!slices.Equal(texts(a), texts(b)) {
			t.Fatalf("seed %d, edit %d: %+v, afresh %+v", seed, i, a, b)
		}
	}
}

// TestKernelLinks: that the kernel serves a link is logged once, and again for one that has been
// away: a node keeps nothing of links that it had.
func TestKernelLinks(t *testing.T) {
	log, hook := test.NewNullLogger()
	s := NewSource(nil, "n1", logrus.NewEntry(log))
	for _, set := range s.sets() {
		need.NoError(t, kube.Sink{Loop: s.loop, Set: set}.Replace(nil, ""))
	}
	link := []links.Status{{Link: links.Link{Name: "liqo.milan"}, State: links.Kernel}}
	for i, statuses := range [][]links.Status{link, link, nil, link} {
		s.Report(statuses)
		s.follow(func([]links.Link) {})
		if len(s.kernel) != len(statuses) {
			t.Errorf("%d: %v", i, s.kernel)
		}
	}
	said := 0
	for _, e := range hook.AllEntries() {
		if e.Data["interface"] == "liqo.milan" {
			said++
		}
	}
	if said != 2 {
		t.Errorf("logged %d times", said)
	}
}

// gatewayPod is a pod that says that it is the active gateway to cluster-b.
func gatewayPod(t *testing.T, name, address, phase string) *objects.Object {
	return object(t, fmt.Sprintf(
		"{kind: Pod, metadata: {namespace: liqo-tenant-cluster-b, name: %s}, status: {phase: %s, podIP: %q}}", name,
		phase, address))
}

// TestActivePod: links lead to the one running pod that says that it is active, whatever Liqo's
// controller has written last. If there is none, or if there are two, the controller decides.
func TestActivePod(t *testing.T) {
	s := NewState("n1")
	for _, o := range captured(t) {
		s.Put(o, start)
	}
	leads := func(what, to string) {
		t.Helper()
		want := slices.Clone(ofN1)
		want[0].Remote = addr(to)
		if d := s.Desired(late); !slices.Equal(d.Links, want) || len(d.Faults) > 0 {
			t.Errorf("%s: %+v, want %+v", what, d, want)
		}
	}
	leads("no pod", "10.244.0.7")
	for _, p := range []struct{ what, address, phase, to string }{
		{"a pod", "10.244.2.9", "Running", "10.244.2.9"},
		{"a pod that has ended", "10.244.2.9", "Failed", "10.244.0.7"},
		{"a pod without address", "", "Running", "10.244.0.7"},
		{"a pod with an address of the other family", "fd00::9", "Running", "10.244.0.7"},
		{"a pod with nonsense", "127.0.0.1", "Running", "10.244.0.7"},
		{"a pod again", "10.244.2.9", "Running", "10.244.2.9"},
	} {
		s.Put(gatewayPod(t, "gw-a", p.address, p.phase), start)
		leads(p.what, p.to)
	}
	s.Put(gatewayPod(t, "gw-b", "10.244.3.9", "Running"), start)
	leads("two pods", "10.244.0.7")
	s.Delete(gatewayPod(t, "gw-a", "", "").Key())
	leads("the other pod", "10.244.3.9")
	ending := gatewayPod(t, "gw-b", "10.244.3.9", "Running")
	ending.Deleting = true
	s.Put(ending, start)
	leads("a pod that is being deleted", "10.244.0.7")
	other := gatewayPod(t, "gw-c", "10.244.3.9", "Running")
	other.Metadata.Namespace = "default"
	s.Put(other, start)
	leads("a pod of another namespace", "10.244.0.7")

	// Two InternalFabrics in the namespace: the pod's label names the gateway of one.
	p := gatewayPod(t, "gw-b", "10.244.3.9", "Running")
	p.Metadata.Labels = map[string]string{labelGateway: "cluster-b"}
	s.Put(p, start)
	for _, o := range captured(t) {
		if o.Kind == liqo.KindFabric && o.Metadata.Name == "cluster-c" {
			s.Delete(o.Key())
			o.Metadata.Namespace = "liqo-tenant-cluster-b"
			s.Put(o, start)
			if got := s.gateway(s.fabrics[o.Key()]); got != ofN1[1].Remote {
				t.Errorf("the link of another gateway leads to %s, want %s", got, ofN1[1].Remote)
			}
		}
		if o.Kind == liqo.KindFabric && o.Metadata.Name == "cluster-b" {
			if got := s.gateway(s.fabrics[o.Key()]); got != addr("10.244.3.9") {
				t.Errorf("the link of the pod's gateway leads to %s", got)
			}
		}
	}
}

// TestWithoutPods: an agent whose older manifest grants no pods follows InternalFabrics after a
// moment, and says so.
func TestWithoutPods(t *testing.T) {
	need.Bubble(t, func(t *testing.T) {
		log, _ := test.NewNullLogger()
		s := NewSource(nil, "n1", logrus.NewEntry(log))
		for _, o := range captured(t) {
			s.state.Put(o, start)
		}
		var applied []links.Link
		follow := func() { s.follow(func(l []links.Link) { applied = l }) }
		follow()
		time.Sleep(time.Hour)
		sets := s.sets()
		listed := func(set kube.Set) { need.NoError(t, kube.Sink{Loop: s.loop, Set: set}.Replace(nil, "")) }
		for _, set := range sets[:3] {
			follow()
			listed(set)
		}
		follow()
		time.Sleep(podsPatience - time.Nanosecond)
		if follow(); applied != nil {
			t.Error("links are applied although the list of pods may still arrive")
		}
		time.Sleep(time.Nanosecond)
		if follow(); !slices.Equal(applied, ofN1) || !strings.Contains(s.waiting, "the list of pods") {
			t.Errorf("%v; waiting for %q", applied, s.waiting)
		}
		listed(sets[3])
		if follow(); s.waiting != "" {
			t.Errorf("waiting for %q", s.waiting)
		}
		for _, err := range []error{apierrors.NewForbidden(schema.GroupResource{Resource: "internalnodes"},
			"", nil), nil} {
			var n control.NodeStatus
			s.loop.Causes.Log(t.Context(), "list", "internalnodes", err)
			if s.Show(&n); strings.Contains(fmt.Sprint(n.Waiting), "rights: list internalnodes") != (err != nil) {
				t.Errorf("after %v it waits for %q", err, n.Waiting)
			}
		}
	})
}
