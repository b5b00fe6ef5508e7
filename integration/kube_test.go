package integration

import (
	"errors"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestKubeControlPlane checks the foundation of the other Kubernetes tests: a real API server with
// Liqo's resource definitions, the rights of a gateway's role, and the stand-in for Liqo's
// controllers.
func TestKubeControlPlane(t *testing.T) {
	beside(t, func(t *testing.T) {
		k := newKubeLab(t, &kubeRome, &kubeMilan)
		for _, test := range []struct {
			name string
			run  func(*testing.T, *kubeLab)
		}{
			{"captured resources", testKubeCaptures},
			{"account", testKubeAccount},
			{"order", testKubeOrder},
		} {
			t.Run(test.name, func(t *testing.T) { test.run(t, k) })
		}
	}, kubernetes)
}

// captures are resources that Liqo's own controllers made, in three versions and settings.
var captures = []string{"main-557c199cf", "v1.2.0", "main-557c199cf-options"}

// testKubeCaptures: the API server accepts everything that Liqo's controllers made, and refuses
// fields that the schema lacks.
func testKubeCaptures(t *testing.T, k *kubeLab) {
	tried := 0
	for _, capture := range captures {
		for _, file := range []string{"firewallconfigurations.yaml", "routeconfigurations.yaml"} {
			for _, o := range readResources(t, filepath.Join("../kube/testdata", capture, file)) {
				meta := o["metadata"].(object)
				for _, name := range []string{"uid", "resourceVersion", "creationTimestamp", "generation"} {
					delete(meta, name)
				}
				k.liqo.apply(object{"apiVersion": "v1", "kind": "Namespace",
					"metadata": object{"name": meta["namespace"]}})
				if err := k.api.admin.dryRun(o); err != nil {
					t.Errorf("%s: %v", capture, err)
				}
				tried++
			}
		}
	}
	if tried < 3*20 {
		t.Errorf("%d resources in the captures", tried)
	}
	odd := k.liqo.mssClamping()
	odd["spec"].(object)["table"].(object)["family"] = "IPX"
	if err := k.api.admin.dryRun(odd); err == nil || !strings.Contains(err.Error(), "spec.table.family") {
		t.Errorf("a table of family IPX: %v", err)
	}
}

var kubeVerbs = []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"}

// testKubeAccount: the gateway's account has the rights of the role, and besides them only those of
// an account without a role.
func testKubeAccount(t *testing.T, k *kubeLab) {
	want := withinRole(t)
	resources := k.api.resources(t)
	for right := range want {
		resource := strings.Fields(right)[1]
		if !slices.Contains(resources, resource) && !strings.HasSuffix(resource, "/finalizers") {
			t.Errorf("the role speaks of %s, which is no resource", resource)
		}
		if !slices.Contains(resources, resource) {
			resources = append(resources, resource)
		}
	}
	nobody := strings.TrimSuffix(k.liqo.user(), k.liqo.account()) + "nobody"
	got := make(map[string]bool)
	for _, resource := range resources {
		for _, verb := range kubeVerbs {
			if k.api.may(t, k.liqo.user(), verb, resource, k.liqo.tenant()) && !k.api.may(t, nobody, verb, resource,
				k.liqo.tenant()) {
				got[verb+" "+resource] = true
			}
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("the account may\n%q, the role says\n%q", slices.Sorted(maps.Keys(got)),
			slices.Sorted(maps.Keys(want)))
	}

	token, err := k.api.token(k.liqo.tenant(), k.liqo.account())
	if err != nil {
		t.Fatal(err)
	}
	account := newKubeClient(k.gatewayHost, k.api.base, k.api.roots, token)
	if _, err := account.list(liqoVersion, "FirewallConfiguration", ""); err != nil {
		t.Error(err)
	}
	err = account.request(http.MethodGet, "/api/v1/namespaces/"+k.liqo.tenant()+"/secrets", "", nil, nil)
	if refused := new(kubeError); !errors.As(err, &refused) || refused.Code != http.StatusForbidden {
		t.Errorf("secrets: %v, want them forbidden", err)
	}
	var codes []int
	for _, e := range k.api.audit(t, k.liqo.user()) {
		codes = append(codes, e.ResponseStatus.Code)
	}
	if !slices.Equal(codes, []int{http.StatusOK, http.StatusForbidden}) {
		t.Errorf("the audit log has answers %v, want 200 and 403", codes)
	}
}

// resources returns all resources of the API server as group/resource or
// group/resource/subresource.
func (k *kubeAPI) resources(t *testing.T) (names []string) {
	t.Helper()
	var groups struct {
		Groups []struct {
			Name             string
			PreferredVersion struct{ GroupVersion string }
		}
	}
	get := func(path string, answer any) {
		if err := k.admin.request(http.MethodGet, path, "", nil, answer); err != nil {
			t.Fatal(err)
		}
	}
	get("/apis", &groups)
	paths := map[string]string{"": "/api/v1"}
	for _, g := range groups.Groups {
		paths[g.Name] = "/apis/" + g.PreferredVersion.GroupVersion
	}
	for group, path := range paths {
		var list struct{ Resources []struct{ Name string } }
		get(path, &list)
		for _, r := range list.Resources {
			names = append(names, group+"/"+r.Name)
		}
	}
	return names
}

// may reports whether an account has a right.
func (k *kubeAPI) may(t *testing.T, user, verb, resource, namespace string) bool {
	t.Helper()
	group, resource, _ := strings.Cut(resource, "/")
	resource, subresource, _ := strings.Cut(resource, "/")
	review := object{"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": object{
		"user": user, "groups": []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace,
			"system:authenticated"},
		"resourceAttributes": object{"verb": verb, "group": group, "resource": resource, "subresource": subresource,
			"namespace": namespace},
	}}
	var answer struct{ Status struct{ Allowed bool } }
	if err := k.admin.request(http.MethodPost, "/apis/authorization.k8s.io/v1/subjectaccessreviews", "application/json",
		review, &answer); err != nil {
		t.Fatal(err)
	}
	return answer.Status.Allowed
}

// awaitRight waits until the API server has read that an account has a right; until then it
// refuses.
func (k *kubeAPI) awaitRight(t *testing.T, user, verb, resource, namespace string) {
	t.Helper()
	await(t, user+" may "+verb+" "+resource, func() bool { return k.may(t, user, verb, resource, namespace) })
}

// testKubeOrder: the stand-in for Liqo's controllers writes everything that a gateway reads, in the
// order of a real control plane, and follows the gateway's pod.
func testKubeOrder(t *testing.T, k *kubeLab) {
	k.liqoSteps()
	k.liqo.keysExchanged(k.key.PublicKey().Bytes())
	first := make(map[string]int) // when a resource was first written
	for i, e := range k.api.audit(t, "admin") {
		if e.Verb != "patch" || strings.Contains(e.RequestURI, "dryRun") {
			continue
		}
		for _, name := range []string{e.ObjectRef.Resource, e.ObjectRef.Resource + "/" + e.ObjectRef.Subresource,
			e.ObjectRef.Name} {
			if _, ok := first[name]; !ok {
				first[name] = i
			}
		}
	}
	order := []string{
		"internalnodes", "service-nodeport-routing", "milan-remap-podcidr", "pods/status", "internalfabrics",
		"genevetunnels",
		"milan-gw-ext", "internalnodes/status", "external-host-remap-ipmapping-gw", "publickeies",
	}
	for i, name := range order {
		at, ok := first[name]
		if !ok {
			t.Errorf("%s was never written", name)
		} else if i > 0 && at < first[order[i-1]] {
			t.Errorf("%s was written before %s", name, order[i-1])
		}
	}
	fabric := resource("InternalFabric", k.liqo.tenant(), k.liqo.remote.name, nil)
	for _, want := range []int{19, k.gatewayN} {
		moved := *k.kubeEnd
		moved.gatewayN = want
		l := *k.liqo
		l.here = &moved
		l.gatewayRuns()
		stored, err := k.api.admin.get(fabric)
		if err != nil {
			t.Fatal(err)
		}
		if got := field(stored, "spec", "gatewayIP"); got != moved.gateway() {
			t.Errorf("the pod is at %s, the fabric says %v", moved.gateway(), got)
		}
	}
}
