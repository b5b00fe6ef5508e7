package deploy

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"culvert/kube/join/terms"
	"culvert/kube/manifests"
	"culvert/kube/peering"
)

// TestParts: every object of the manifests has a resource, and needs no rights but those that are
// checked first.
func TestParts(t *testing.T) {
	all, err := Parts(&manifests.Gateway{Peering: "milan", Image: "registry.example/another:2.0", Expose: "NodePort",
		Replicas: 2})
	if err != nil || len(all) < 20 {
		t.Fatalf("%d objects, %v", len(all), err)
	}
	resources := map[string]bool{}
	for _, u := range all {
		resources[resourceOf(u).Resource] = true
		if strings.Contains(u.GetName(), manifests.Peering) || u.GetAPIVersion() == "" {
			t.Errorf("%s", nameOf(u))
		}
	}
	for _, r := range []string{"customresourcedefinitions", "namespaces", "daemonsets", "validatingadmissionpolicies",
		"validatingadmissionpolicybindings", "deployments", "secrets", "poddisruptionbudgets"} {
		if !resources[r] {
			t.Errorf("no %s", r)
		}
	}
	for _, rights := range [][]Right{InstallRights(), LeaveRights()} {
		for _, u := range append(all, newPeering("milan", nil, nil)) {
			r := resourceOf(u)
			if !slices.ContainsFunc(rights, func(x Right) bool {
				return x.Group == r.Group && x.Resource == r.Resource && x.Namespace == u.GetNamespace()
			}) {
				t.Errorf("no right is checked for %s", nameOf(u))
			}
		}
	}
}

// TestNewPeering: fields that a Peering does not set are absent.
func TestNewPeering(t *testing.T) {
	u := newPeering("milan", &peering.Spec{Cluster: "rome", Peer: "milan", Role: "Server", InternalCIDR: "10.80.0.0/22",
		Local: peering.SpecLocal{PodCIDRs: []string{"10.0.0.0/16"}}}, map[string]string{terms.Annotation: "abc"})
	spec := u.Object["spec"].(map[string]any)
	for _, field := range []string{"publicKey", "endpoint", "mtu", "remote"} {
		if _, ok := spec[field]; ok {
			t.Errorf("spec.%s is there: %v", field, spec)
		}
	}
	if spec["cluster"] != "rome" || u.GetAnnotations()["culvert.io/invitation"] != "abc" ||
		u.GetNamespace() != "culvert" {
		t.Error(u.Object)
	}
}

func TestPodTrouble(t *testing.T) {
	for want, status := range map[string]map[string]any{
		"": {"phase": "Running"},
		"ImagePullBackOff: no such image": {"containerStatuses": []any{
			map[string]any{"state": map[string]any{"waiting": map[string]any{"reason": "ImagePullBackOff",
				"message": "no such image"}}}}},
		"ContainerCreating": {"containerStatuses": []any{
			map[string]any{"state": map[string]any{"waiting": map[string]any{"reason": "ContainerCreating"}}}}},
		"Unschedulable: 0/2 nodes": {"conditions": []any{map[string]any{"type": "PodScheduled",
			"status": "False", "reason": "Unschedulable", "message": "0/2 nodes"}}},
	} {
		if got, stuck := podTrouble(&unstructured.Unstructured{Object: map[string]any{"status": status}}); got !=
			want || stuck != strings.HasPrefix(want, "ImagePull") {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
