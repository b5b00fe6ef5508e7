package deploy

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"
	kubetesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"

	"culvert/integration/need"
	"culvert/kube/manifests"
	"culvert/kube/objects"
	"culvert/kube/peering"
)

// applying is a cluster that has some objects and understands server-side apply: what is applied is
// merged into metadata and replaces the rest. It counts the writes that change something.
func applying(t *testing.T, refuse string, texts ...string) (c *Cluster, writes *int) {
	t.Helper()
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{
			{Group: "monitoring.coreos.com", Version: "v1", Resource: "podmonitors"}: "PodMonitorList"})
	for _, text := range texts {
		u := &unstructured.Unstructured{}
		need.NoError(t, yaml.Unmarshal([]byte(text), &u.Object))
		need.NoError(t, client.Tracker().Create(resourceOf(u), u, u.GetNamespace()))
	}
	writes = new(int)
	refused := func(resource string, dry []string) error {
		if resource == refuse {
			return apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "any", nil)
		}
		if len(dry) == 0 {
			*writes++
		}
		return nil
	}
	client.PrependReactor("patch", "*", func(a kubetesting.Action) (bool, runtime.Object, error) {
		p := a.(kubetesting.PatchActionImpl)
		if err := refused(a.GetResource().Resource, p.PatchOptions.DryRun); err != nil {
			return true, nil, err
		}
		u := &unstructured.Unstructured{}
		if err := json.Unmarshal(p.Patch, &u.Object); err != nil {
			return true, nil, err
		}
		if old, err := client.Tracker().Get(a.GetResource(), a.GetNamespace(), p.Name); err == nil {
			u.SetAnnotations(old.(*unstructured.Unstructured).GetAnnotations())
			u.SetManagedFields(old.(*unstructured.Unstructured).GetManagedFields())
		}
		return true, u, nil
	})
	client.PrependReactor("create", "*", func(a kubetesting.Action) (bool, runtime.Object, error) {
		err := refused(a.GetResource().Resource, a.(kubetesting.CreateActionImpl).CreateOptions.DryRun)
		return err != nil, nil, err
	})
	client.PrependReactor("update", "*", func(a kubetesting.Action) (bool, runtime.Object, error) {
		err := refused(a.GetResource().Resource, a.(kubetesting.UpdateActionImpl).UpdateOptions.DryRun)
		return err != nil, nil, err
	})
	return &Cluster{client: client}, writes
}

// wanted is a valid Peering of a Client that does not know the Server's endpoint yet.
func wanted() *peering.Spec {
	return &peering.Spec{Cluster: "rome", Peer: "milan", Role: "Client", InternalCIDR: "10.80.0.0/22",
		Local:  peering.SpecLocal{PodCIDRs: []string{"10.244.0.0/16"}, ExternalCIDR: "10.70.0.0/23"},
		Remote: peering.SpecRemote{PodCIDRs: []peering.SpecRemap{{CIDR: "10.244.0.0/16", Remap: "10.61.0.0/16"}}}}
}

// TestRehearse: everything is asked of the API server, and nothing is changed. What others own is
// left alone later, too.
func TestRehearse(t *testing.T) {
	helm := `{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: culvert-node, namespace: culvert-nodes, annotations: {meta.helm.sh/release-name: culvert, meta.helm.sh/release-namespace: kube-system}}}`
	level := func(namespace, level string) string {
		return "{apiVersion: v1, kind: Namespace, metadata: {name: " + namespace +
			", labels: {pod-security.kubernetes.io/enforce: " + level + "}}}"
	}
	bad := wanted()
	bad.InternalCIDR = "10.61.0.0/22"
	for name, c := range map[string]struct {
		objects           []string
		refuse            string
		spec              *peering.Spec
		fails             string
		owner, kept       string
		installs, carries bool // Install writes; it writes the level of the namespace culvert
	}{
		"nothing is there": {spec: wanted(), installs: true, carries: true},
		"a valid one of before": {objects: []string{level("culvert", "restricted"),
			level("culvert-nodes", "privileged")}, spec: wanted(), installs: true, carries: true},
		"Helm": {objects: []string{helm}, spec: wanted(),
			owner: "Helm's release kube-system/culvert"},
		"Argo CD": {objects: []string{strings.Replace(helm, "annotations: {",
			"annotations: {argocd.argoproj.io/tracking-id: 'culvert:apps/DaemonSet:x', ", 1)}, spec: wanted(),
			owner: "Argo CD's application culvert"},
		"Flux": {objects: []string{
			`{apiVersion: v1, kind: Service, metadata: {name: culvert-milan, namespace: culvert, managedFields: [{manager: kustomize-controller}]}}`}, spec: wanted(), owner: "Flux"},
		"an object is refused": {refuse: "validatingadmissionpolicies", spec: wanted(),
			fails: "apply ValidatingAdmissionPolicy culvert-tunnelnodes: "},
		"a Peering is refused": {refuse: "peerings", spec: wanted(), fails: "apply Peering culvert/milan: "},
		"the Peering is invalid": {spec: bad,
			fails: "Peering culvert/milan: spec.remote.podCIDRs[0].remap: 10.61.0.0/16 overlaps spec.internalCIDR"},
		"another level": {objects: []string{level("culvert", "baseline")}, spec: wanted(),
			kept: "pod-security.kubernetes.io/enforce=baseline of namespace culvert", installs: true},
		"no agents": {objects: []string{level("culvert-nodes", "baseline")}, spec: wanted(),
			fails: "namespace culvert-nodes has the label pod-security.kubernetes.io/enforce=baseline, which keeps out the agents"},
	} {
		cluster, writes := applying(t, c.refuse, c.objects...)
		p, err := cluster.Rehearse(t.Context(), anyGateway("milan"), c.spec, nil)
		if (err == nil) != (c.fails == "") || err != nil && !strings.HasPrefix(err.Error(), c.fails) || *writes != 0 {
			t.Errorf("%s: %v, want %q, %d writes", name, err, c.fails, *writes)
		}
		if err != nil {
			continue
		}
		need.NoError(t, cluster.Install(t.Context(), p))
		if p.Owner != c.owner || kept(p) != c.kept || (*writes > 0) != c.installs {
			t.Errorf("%s: owner %q, kept %q, %d writes", name, p.Owner, kept(p), *writes)
		}
		if carries := slices.ContainsFunc(p.all, func(u *unstructured.Unstructured) bool {
			return u.GetKind() == "Namespace" && u.GetName() == "culvert" && u.GetLabels()[levelLabel] == "restricted"
		}); carries != c.carries {
			t.Errorf("%s: the level is applied: %t", name, carries)
		}
	}
}

// TestRehearseConflict: a gateway that writes the status of its Peering in between refuses nothing.
func TestRehearseConflict(t *testing.T) {
	cluster, writes := applying(t, "",
		"{apiVersion: culvert.io/v1alpha1, kind: Peering, metadata: {name: milan, namespace: culvert}}")
	conflicts := 0
	cluster.client.(*fake.FakeDynamicClient).PrependReactor("update", "peerings",
		func(kubetesting.Action) (bool, runtime.Object, error) {
			if conflicts++; conflicts > 2 {
				return false, nil, nil
			}
			return true, nil, apierrors.NewConflict(schema.GroupResource{Resource: "peerings"}, "milan", nil)
		})
	if _, err := cluster.Rehearse(t.Context(), anyGateway("milan"), wanted(), nil); err != nil || conflicts != 3 ||
		*writes != 0 {
		t.Errorf("%v after %d attempts and %d writes, want the third to succeed, and none", err, conflicts, *writes)
	}
}

// kept returns what others have made or set, by name.
func kept(p *Plan) string {
	var all []string
	for _, l := range p.Kept {
		all = append(all, l.Value)
	}
	return strings.Join(all, ", ")
}

// TestServiceKinds: culvert multicluster comes with its kinds, unless others have made them. Theirs
// stay, if they do.
func TestServiceKinds(t *testing.T) {
	kind := func(name, rest string) string {
		return "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: " + name +
			".multicluster.x-k8s.io" + rest + "}}"
	}
	const own = ", managedFields: [{manager: culvert, operation: Apply}]"
	spec := func(version string) string {
		return "}, spec: {versions: [{name: " + version + ", served: true}]"
	}
	const both = "serviceexports.multicluster.x-k8s.io, serviceimports.multicluster.x-k8s.io"
	for name, c := range map[string]struct {
		objects              []string
		refused              string // a ClusterRole
		applied, kept, fails string
	}{
		"nothing is there": {applied: both},
		"ours": {objects: []string{kind("serviceexports", own+spec("v1alpha1")), kind("serviceimports",
			own+spec("v1alpha1"))}, applied: both},
		"one of somebody else": {objects: []string{kind("serviceexports", spec("v1beta1"))},
			applied: "serviceimports.multicluster.x-k8s.io",
			kept:    "CustomResourceDefinition serviceexports.multicluster.x-k8s.io"},
		"an old one": {objects: []string{kind("serviceimports", spec("v1alpha1"))},
			fails: "--services: CustomResourceDefinition serviceimports.multicluster.x-k8s.io is there and does not serve v1beta1; "},
		"Helm": {objects: []string{"{apiVersion: apps/v1, kind: Deployment, metadata: {name: culvert-multicluster, " +
			"namespace: culvert, annotations: {meta.helm.sh/release-name: culvert}}}"},
			kept: "ServiceExport and ServiceImport"},
		"no rights": {refused: "culvert-multicluster", fails: "--services: culvert multicluster needs rights that you " +
			"have not and so may not give; ask an administrator of the cluster: apply ClusterRole culvert-multicluster: "},
		"no rights at all": {refused: "culvert-gateway", fails: "apply ClusterRole culvert-gateway: "},
	} {
		cluster, _ := applying(t, "", c.objects...)
		cluster.client.(*fake.FakeDynamicClient).PrependReactor("patch", "clusterroles",
			func(a kubetesting.Action) (bool, runtime.Object, error) {
				refused := a.(kubetesting.PatchActionImpl).Name == c.refused
				return refused, nil, apierrors.NewForbidden(schema.GroupResource{}, c.refused, nil)
			})
		g := anyGateway("milan")
		g.Multicluster = true
		p, err := cluster.Rehearse(t.Context(), g, wanted(), nil)
		if (err == nil) != (c.fails == "") || err != nil && !strings.HasPrefix(err.Error(), c.fails) {
			t.Errorf("%s: %v, want %q", name, err, c.fails)
		}
		if err != nil {
			continue
		}
		var applied []string
		runs := false
		for _, u := range p.all {
			if strings.HasSuffix(u.GetName(), ".multicluster.x-k8s.io") {
				applied = append(applied, u.GetName())
			}
			runs = runs || u.GetKind() == "Deployment" && u.GetName() == "culvert-multicluster"
		}
		if strings.Join(applied, ", ") != c.applied || kept(p) != c.kept || runs != (p.Owner == "") {
			t.Errorf("%s: applies %q, keeps %q, the Deployment: %t", name, applied, kept(p), runs)
		}
	}
}

// TestUnshare: where a plan does without culvert multicluster, it ends with all that it has made as
// soon as no Peering shares Services, or the values say so. An interrupted removal begins again.
func TestUnshare(t *testing.T) {
	parts := anyGateway("milan")
	parts.Multicluster = true
	all, err := Parts(parts)
	need.NoError(t, err)
	texts := []string{`{apiVersion: multicluster.x-k8s.io/v1beta1, kind: ServiceImport, metadata: {name: web, namespace: shop,
		labels: {culvert.io/multicluster: web}}}`}
	for _, u := range all {
		if u.GetName() == multicluster {
			u.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: manager, Operation: "Apply"}})
			text, err := yaml.Marshal(u.Object)
			need.NoError(t, err)
			texts = append(texts, string(text))
		}
	}
	const other = `{apiVersion: culvert.io/v1alpha1, kind: Peering, metadata: {name: turin, namespace: culvert}, spec: {services: {import: [shop]}}}`
	off, err := manifests.ReadValues("", []byte("multicluster: {enabled: false}"))
	need.NoError(t, err)
	for name, c := range map[string]struct {
		more   []string
		values *manifests.Values
		stays  bool
	}{"alone": {}, "another Peering shares": {more: []string{other}, stays: true},
		"by the values": {more: []string{other}, values: off}} {
		cluster, client, there := simulated(t, append(c.more, texts...)...)
		g := anyGateway("milan")
		g.Values = c.values
		p := &Plan{g: g, unshared: cluster.surplus(t.Context(), g, nil)}
		p.unshared = slices.DeleteFunc(p.unshared, func(u *unstructured.Unstructured) bool {
			return u.GetName() != multicluster
		})
		away := true
		client.PrependReactor("delete", "serviceaccounts", func(kubetesting.Action) (bool, runtime.Object, error) {
			return away, nil, errors.New("away")
		})
		if err := cluster.Unshare(t.Context(), p, func(string) {}); (err == nil) != c.stays {
			t.Errorf("%s: %v", name, err)
		}
		_, err := client.Tracker().Get(objects.Deployments, "culvert", multicluster)
		need.NoError(t, err) // by which it is found again
		away = false
		for range 2 { // another end of the cluster has the same plan
			need.NoError(t, cluster.Unshare(t.Context(), p, func(string) {}))
		}
		for _, u := range there {
			_, err := client.Tracker().Get(resourceOf(u), u.GetNamespace(), u.GetName())
			if u.GetName() == multicluster || u.GetKind() == "ServiceImport" {
				if (err == nil) != c.stays {
					t.Errorf("%s: %s: %v", name, nameOf(u), err)
				}
			}
		}
	}
}

// TestApplyPeering: a Peering has the wanted spec afterwards and nothing else, whoever has set what
// it had. One that another program has made stays.
func TestApplyPeering(t *testing.T) {
	const other = `{apiVersion: culvert.io/v1alpha1, kind: Peering, metadata: {name: milan, namespace: culvert, annotations: {theirs: kept}}, spec: {cluster: rome, peer: milan, role: Server,
  internalCIDR: 10.80.0.0/22, local: {podCIDRs: [10.244.0.0/16]}, remote: {podCIDRs: [{cidr: 10.244.0.0/16}], externalCIDR: {cidr: 10.70.0.0/24, remap: 10.71.0.0/24}}}}`
	c, _ := applying(t, "", other)
	spec := wanted()
	spec.Remote.ExternalCIDR = &peering.SpecRemap{CIDR: "10.70.2.0/23"}
	need.NoError(t, c.ApplyPeering(t.Context(), spec, map[string]string{"ours": "added"}))
	u, err := c.of(newPeering("milan", nil, nil)).Get(t.Context(), "milan", metav1.GetOptions{})
	need.NoError(t, err)
	remap, found, _ := unstructured.NestedString(u.Object, "spec", "remote", "externalCIDR", "remap")
	if notes := u.GetAnnotations(); found || notes["theirs"] != "kept" || notes["ours"] != "added" {
		t.Errorf("remap %q, annotations %q", remap, notes)
	}
	c, writes := applying(t, "", strings.Replace(other, "theirs: kept", "argocd.argoproj.io/tracking-id: 'net:x'", 1))
	if err := c.ApplyPeering(t.Context(), spec, nil); err == nil || !strings.Contains(err.Error(),
		"Argo CD's application net has made it, and would undo a change; change its spec there to {") || *writes != 0 {
		t.Errorf("%v, %d writes", err, *writes)
	}
}

// TestValuesStay: the values by which culvert was installed are what is found the next time, and
// apply to its objects. Values that this version does not know are named.
func TestValuesStay(t *testing.T) {
	values, err := manifests.ReadValues("", []byte("imagePullSecrets: [{name: registry}]"))
	need.NoError(t, err)
	g := anyGateway("milan")
	g.Values = values
	c, _ := applying(t, "")
	p, err := c.Rehearse(t.Context(), g, wanted(), nil)
	need.NoError(t, err)
	stored := ""
	with := 0
	for _, u := range p.all {
		if u.GetName() == "culvert-values" {
			text, err := yaml.Marshal(u.Object)
			need.NoError(t, err)
			stored = string(text)
		}
		pod := []string{"spec", "template", "spec", "imagePullSecrets"}
		if secrets, _, _ := unstructured.NestedSlice(u.Object, pod...); secrets != nil {
			with++
		}
	}
	if with != 2 {
		t.Errorf("%d pods have pull secrets, want the agents' and the gateway's", with)
	}
	c, _ = applying(t, "", stored)
	if had, err := c.Values(t.Context()); err != nil || had.Text() != values.Text() {
		t.Errorf("%v, %+v from %s", err, had, stored)
	}
	c, _ = applying(t, "", strings.Replace(stored, "imagePullSecrets", "secrets", 1))
	if _, err := c.Values(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "--values: those of the last "+
		"time, in ConfigMap culvert/culvert-values, have faults for this version; give them again: secrets: ") {
		t.Error(err)
	}
	c, _ = applying(t, "")
	if had, err := c.Values(t.Context()); err != nil || had != nil {
		t.Errorf("%v, %+v", err, had)
	}
}

// TestSurplus: what values do not switch on any more is removed, if it was made by the same means;
// what others have made stays. A kind that the cluster lacks is named before anything is changed.
func TestSurplus(t *testing.T) {
	const monitor = "{apiVersion: monitoring.coreos.com/v1, kind: PodMonitor, metadata: {name: culvert, namespace: culvert, managedFields: [{manager: culvert, operation: Apply}]}}"
	policy := `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: culvert-milan, namespace: culvert, managedFields: [{manager: kubectl, operation: Apply}]}}`
	on, err := manifests.ReadValues("", []byte("podMonitor: {enabled: true}"))
	need.NoError(t, err)
	for _, c := range []struct {
		values *manifests.Values
		want   string
	}{{nil, "PodMonitor culvert/culvert"}, {on, ""}} {
		cluster, _ := applying(t, "", monitor, policy)
		g := anyGateway("milan")
		g.Values = c.values
		p, err := cluster.Rehearse(t.Context(), g, wanted(), nil)
		need.NoError(t, err)
		var names []string
		for _, u := range p.surplus {
			names = append(names, nameOf(u))
		}
		if got := strings.Join(names, ", "); got != c.want {
			t.Errorf("%q is removed, want %q", got, c.want)
		}
		need.NoError(t, cluster.Install(t.Context(), p))
		for _, u := range p.surplus {
			if _, err := cluster.of(u).Get(t.Context(), u.GetName(), metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				t.Errorf("%s is there: %v", nameOf(u), err)
			}
		}
	}
	cluster, writes := applying(t, "")
	missing := func(a kubetesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewNotFound(schema.GroupResource{Resource: a.GetResource().Resource}, "")
	}
	client := cluster.client.(*fake.FakeDynamicClient)
	client.PrependReactor("patch", "podmonitors", missing)
	client.PrependReactor("list", "podmonitors", missing)
	g := anyGateway("milan")
	g.Values = on
	_, err = cluster.Rehearse(t.Context(), g, wanted(), nil)
	if want := "--values: the cluster has no kind PodMonitor; install the operator that brings it, or leave PodMonitor " +
		"culvert/culvert out"; err == nil || err.Error() != want || *writes != 0 {
		t.Errorf("%v, %d writes", err, *writes)
	}
}

// TestSharedOnce: what all ends of a cluster share is checked once and written once, however many
// ends there are.
func TestSharedOnce(t *testing.T) {
	cluster, writes := applying(t, "")
	total := 0
	for i, peer := range []string{"milan", "turin", "genoa"} {
		spec := wanted()
		spec.Peer = peer
		p, err := cluster.Rehearse(t.Context(), anyGateway(peer), spec, nil)
		need.NoError(t, err)
		had := *writes
		need.NoError(t, cluster.Install(t.Context(), p))
		own := 0
		for _, u := range p.all {
			if strings.HasSuffix(u.GetName(), peer) {
				own++
			}
		}
		if i == 0 {
			own, total = len(p.all), len(p.all)
		} else {
			total += own
		}
		if n := *writes - had; n != own {
			t.Errorf("%d objects are written for %s, want %d", n, peer, own)
		}
	}
	checked := 0
	for _, a := range cluster.client.(*fake.FakeDynamicClient).Actions() {
		if p, ok := a.(kubetesting.PatchActionImpl); ok && len(p.PatchOptions.DryRun) > 0 {
			checked++
		}
	}
	if checked != total {
		t.Errorf("%d objects are checked, want %d", checked, total)
	}
}
