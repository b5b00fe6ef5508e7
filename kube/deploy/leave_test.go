package deploy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"
	kubetesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"

	"culvert/integration/need"
	"culvert/kube/objects"
)

// simulated is a cluster that has some objects, those of its gateway and of what that has imported
// among them.
func simulated(t *testing.T, more ...string) (*Cluster, *fake.FakeDynamicClient, []*unstructured.Unstructured) {
	t.Helper()
	kinds := map[schema.GroupVersionResource]string{}
	for _, r := range []schema.GroupVersionResource{objects.Peerings, objects.ClusterRoleBindings, objects.TunnelNodes,
		objects.Nodes, objects.Pods, objects.Services, objects.EndpointSlices, objects.Roles, objects.RoleBindings,
		objects.ServiceExports, objects.ServiceImports} {
		kinds[r] = "List"
	}
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds)
	all, err := Objects(anyGateway("milan").YAML())
	need.NoError(t, err)
	all = append(all, newPeering("milan", nil, nil), newLease("milan"))
	for _, text := range append(more,
		`{apiVersion: v1, kind: Service, metadata: {name: web-shop, namespace: imported, labels: {culvert.io/imported-by: milan},
			ownerReferences: [{kind: Role, name: culvert-imports-milan}]}}`,
		`{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: web-shop, namespace: imported, labels: {culvert.io/imported-by: milan},
			ownerReferences: [{kind: Service, name: web-shop}]}}`,
		`{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: culvert-imports-milan, namespace: imported}}`) {
		u := &unstructured.Unstructured{}
		need.NoError(t, yaml.Unmarshal([]byte(text), &u.Object))
		all = append(all, u)
	}
	for _, u := range all {
		need.NoError(t, client.Tracker().Create(resourceOf(u), u, u.GetNamespace()))
	}
	return &Cluster{client: client}, client, all
}

// TestLeaveAgain: wherever a removal is interrupted, the same command finds what is left, and
// removes it.
func TestLeaveAgain(t *testing.T) {
	for stop := 1; ; stop++ {
		c, client, all := simulated(t)
		requests := 0
		client.PrependReactor("delete", "*", func(kubetesting.Action) (bool, runtime.Object, error) {
			requests++
			return requests == stop, nil, errors.New("away")
		})
		err := c.Leave(t.Context(), "milan", func(string) {})
		if err == nil {
			if stop < 10 {
				t.Errorf("%d deletions", stop-1)
			}
			return
		}
		if names, err := c.Peerings(t.Context()); err != nil || !slices.Equal(names, []string{"milan"}) {
			t.Fatalf("interrupted after %d deletions: %q, %v; what was left is not found again", stop-1, names, err)
		}
		need.NoError(t, c.Leave(t.Context(), "milan", func(string) {}))
		for _, u := range all {
			if _, err := client.Tracker().Get(resourceOf(u), u.GetNamespace(),
				u.GetName()); !apierrors.IsNotFound(err) {
				t.Errorf("interrupted after %d deletions: %s is left: %v", stop-1, nameOf(u), err)
			}
		}
	}
}

// TestLeaveWithoutAgents: what a node has is waited for as long as somebody there can remove it and
// say so. If nobody can, the nodes are named, and what a removal needs is left.
func TestLeaveWithoutAgents(t *testing.T) {
	const (
		node    = `{apiVersion: v1, kind: Node, metadata: {name: n1}}`
		virtual = `{apiVersion: v1, kind: Node, metadata: {name: far, labels: {type: virtual-kubelet}}}`
		has     = `{apiVersion: culvert.io/v1alpha1, kind: TunnelNode, metadata: {name: n1, namespace: culvert-nodes}, status: {peerings: [{name: milan, ready: true}]}}`
		clean   = `{apiVersion: culvert.io/v1alpha1, kind: TunnelNode, metadata: {name: n1, namespace: culvert-nodes}, status: {peerings: []}}`
		set     = `{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: culvert-node, namespace: culvert-nodes}}`
		pod     = `{apiVersion: v1, kind: Pod, metadata: {name: culvert-node-x, namespace: culvert-nodes, labels: {app: culvert-node}}, spec: {nodeName: n1}, status: {phase: PHASE}}`
		rights  = `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: culvert-node}}`
	)
	running, pulling := strings.Replace(pod, "PHASE", "Running", 1), strings.Replace(pod, "PHASE", "Pending", 1)
	const waits, alone = "still missing: the agent of node n1 has not removed",
		"links, routes and the exception from masquerade may be left on n1: the agents went"
	for name, c := range map[string]struct {
		objects []string
		want    string
	}{
		"agent":                           {[]string{node, rights, set, running, has}, waits},
		"set alone":                       {[]string{node, rights, set, has}, waits},
		"pod alone":                       {[]string{node, rights, running, has}, waits},
		"agent has not said anything":     {[]string{node, rights, set, running}, waits},
		"agent has never run":             {[]string{node, rights, set, pulling}, ""},
		"agent is done":                   {[]string{node, rights, set, running, clean}, ""},
		"agents went, and had cleaned":    {[]string{node, rights, clean}, ""},
		"agents went, and had not":        {[]string{node, virtual, rights, has}, alone},
		"the namespace went":              {[]string{node, virtual, rights}, alone},
		"the namespace and the node went": {[]string{virtual, rights}, ""},
		"nothing is left":                 {[]string{node, virtual}, ""},
	} {
		need.Bubble(t, func(t *testing.T) {
			leave, _, _ := simulated(t, c.objects...)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			err := leave.Leave(ctx, "milan", func(string) {})
			if (err == nil) != (c.want == "") || err != nil && !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("%s: %v, want %q", name, err, c.want)
			}
			all, client, _ := simulated(t, c.objects...)
			if c.want != alone {
				return
			}
			if err := all.LeaveAll(ctx, func(string) {}); err == nil || !strings.HasPrefix(err.Error(), alone) {
				t.Errorf("%s, all: %v", name, err)
			}
			for _, a := range client.Actions() {
				if a.GetVerb() == "delete" {
					t.Errorf("%s: %v", name, a)
				}
			}
		})
	}
}

// TestLeaveOwned: what Helm has installed stays for Helm, and what stands beside it goes.
func TestLeaveOwned(t *testing.T) {
	c, client, all := simulated(t)
	for _, u := range all {
		if u.GetKind() != "Peering" && u.GetKind() != "Lease" && u.GetKind() != "Secret" &&
			u.GetNamespace() != "imported" {
			u.SetAnnotations(map[string]string{"meta.helm.sh/release-name": "culvert",
				"meta.helm.sh/release-namespace": "kube-system"})
			need.NoError(t, client.Tracker().Update(resourceOf(u), u, u.GetNamespace()))
		}
	}
	need.NoError(t, c.Leave(t.Context(), "milan", func(string) {}))
	if c.Owner() != "Helm's release kube-system/culvert" {
		t.Error(c.Owner())
	}
	for _, u := range all {
		_, err := client.Tracker().Get(resourceOf(u), u.GetNamespace(), u.GetName())
		if owned := ownerOf(u) != ""; owned != (err == nil) {
			t.Errorf("%s, of Helm %t: %v", nameOf(u), owned, err)
		}
	}
}

// TestLeaveWithBait: what looks like an import in a namespace that no Peering names stays if it
// must, and nobody waits for it.
func TestLeaveWithBait(t *testing.T) {
	need.Bubble(t, func(t *testing.T) {
		bait := `{apiVersion: v1, kind: Service, metadata: {name: bait, namespace: evil, labels: {culvert.io/imported-by: milan}}}`
		owned := strings.Replace(bait, "name: bait",
			"ownerReferences: [{kind: Role, name: culvert-imports-milan}], name: owned", 1)
		role := `{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: culvert-imports-milan, namespace: evil}}`
		c, client, _ := simulated(t, bait, owned, role)
		client.PrependReactor("delete", "*", func(a kubetesting.Action) (bool, runtime.Object, error) {
			if a.GetNamespace() != "evil" {
				return false, nil, nil
			}
			if a.GetResource() == objects.Roles { // as by an admission policy; the others have finalizers
				return true, nil, apierrors.NewForbidden(objects.Roles.GroupResource(), "", errors.New("not allowed"))
			}
			return true, nil, nil
		})
		peering, err := client.Tracker().Get(objects.Peerings, "culvert", "milan")
		need.NoError(t, err)
		need.NoError(t, unstructured.SetNestedField(peering.(*unstructured.Unstructured).Object, "imported",
			"spec", "imports"))
		need.NoError(t, client.Tracker().Update(objects.Peerings, peering, "culvert"))
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if err := c.Leave(ctx, "milan", func(string) {}); err != nil {
			t.Error(err)
		}
		for _, name := range []string{"bait", "owned"} {
			if _, err := client.Tracker().Get(objects.Services, "evil", name); err != nil {
				t.Error(err)
			}
		}
		if _, err := client.Tracker().Get(objects.Services, "imported", "web-shop"); !apierrors.IsNotFound(err) {
			t.Errorf("the import is left: %v", err)
		}
	})
}

// TestLeaveKinds: the kinds of multi-cluster Services go if join has made them, and stay, which is
// said, while there is an object of them or CoreDNS needs them.
func TestLeaveKinds(t *testing.T) {
	kinds := serviceCRDs()
	for name, c := range map[string]struct {
		manager, objects, why string
	}{
		"ours":    {"culvert", "", ""},
		"others'": {"kubectl", "", "-"},
		"an export": {"culvert", "{apiVersion: multicluster.x-k8s.io/v1beta1, kind: ServiceExport, metadata: {name: web, namespace: shop}}",
			"because there is ServiceExport shop/web; if nobody needs them: kubectl delete crd "},
		"the zone": {"culvert", "{apiVersion: v1, kind: ConfigMap, metadata: {name: coredns, namespace: kube-system}, " +
			"data: {Corefile: '.:53 {\n\n kubernetes cluster.local clusterset.local {\n\n  multicluster clusterset.local\n\n }\n\n}'}}",
			"because the cluster's DNS serves clusterset.local and fails without them: take the zone out of the Corefile first; "},
	} {
		var more []string
		if c.objects != "" {
			more = append(more, c.objects)
		}
		cluster, client, _ := simulated(t, more...)
		for _, u := range kinds {
			u.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: c.manager,
				Operation: metav1.ManagedFieldsOperationApply}})
			need.NoError(t, client.Tracker().Create(resourceOf(u), u.DeepCopy(), ""))
		}
		why, err := cluster.leaveServices(t.Context(), func(string) {})
		if err != nil || !strings.Contains(why, strings.TrimPrefix(c.why, "-")) || c.why == "-" && why != "" {
			t.Errorf("%s: %q, %v; want %q", name, why, err, c.why)
		}
		for _, u := range kinds {
			if _, err := client.Tracker().Get(resourceOf(u), "", u.GetName()); (err == nil) != (c.why != "") {
				t.Errorf("%s: %s: %v", name, nameOf(u), err)
			}
		}
	}
}

// TestLeaveAwaitsGateway: a gateway uses its rights until its pod has ended, so that these go
// afterwards. A pod that should have ended is on a lost node.
func TestLeaveAwaitsGateway(t *testing.T) {
	for _, tt := range []struct {
		ends time.Duration // from now
		want string
	}{{time.Minute, "still missing: Pod culvert/culvert-milan-1 is ending"}, {-time.Second, ""}} {
		c, _, _ := simulated(t,
			fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: culvert-milan-1, namespace: culvert, deletionTimestamp: %s,
			labels: {app: culvert-gateway, culvert.io/peering: milan}}}`,
				time.Now().Add(tt.ends).UTC().Format(time.RFC3339)))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := c.Leave(ctx, "milan", func(string) {})
		_, role := c.client.Resource(objects.Roles).Namespace("culvert").Get(t.Context(), "culvert-milan",
			metav1.GetOptions{})
		if tt.want == "" && (err != nil || role == nil) || tt.want != "" &&
			(err == nil || !strings.Contains(err.Error(), tt.want) || role != nil) {
			t.Errorf("%v, want %q; the role: %v", err, tt.want, role)
		}
	}
}
