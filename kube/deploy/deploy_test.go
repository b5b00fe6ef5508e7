package deploy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	"culvert/integration/need"
	"culvert/kube/join"
	"culvert/kube/manifests"
	"culvert/kube/peering"
)

// TestParts: every object of the manifests has a resource, and needs no rights but those that are checked first.
func TestParts(t *testing.T) {
	all, err := Parts(&manifests.Gateway{Peering: "milan", Image: "registry.example/another:2.0", Expose: "NodePort", Replicas: 2})
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
	for _, r := range []string{"customresourcedefinitions", "namespaces", "daemonsets", "validatingadmissionpolicies", "validatingadmissionpolicybindings", "deployments", "secrets", "poddisruptionbudgets"} {
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

// TestInterrupted: a change that is interrupted says so, and not which request failed.
func TestInterrupted(t *testing.T) {
	c, err := New(&rest.Config{Host: "http://127.0.0.1:9"})
	need.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, err := range []error{c.apply(ctx, newLease("milan")), c.remove(ctx, []*unstructured.Unstructured{newLease("milan")}, func(string) {})} {
		if !errors.Is(err, errInterrupted) {
			t.Error(err)
		}
	}
}

// TestNewPeering: fields that a Peering does not set are absent.
func TestNewPeering(t *testing.T) {
	u := newPeering("milan", &peering.Spec{Cluster: "rome", Peer: "milan", Role: "Server", InternalCIDR: "10.80.0.0/22", Local: peering.SpecLocal{PodCIDRs: []string{"10.0.0.0/16"}}}, map[string]string{join.Annotation: "abc"})
	spec := u.Object["spec"].(map[string]any)
	for _, field := range []string{"publicKey", "endpoint", "mtu", "remote"} {
		if _, ok := spec[field]; ok {
			t.Errorf("spec.%s is there: %v", field, spec)
		}
	}
	if spec["cluster"] != "rome" || u.GetAnnotations()["culvert.io/invitation"] != "abc" || u.GetNamespace() != "culvert" {
		t.Error(u.Object)
	}
}

func TestPodTrouble(t *testing.T) {
	for want, status := range map[string]map[string]any{
		"":                                {"phase": "Running"},
		"ImagePullBackOff: no such image": {"containerStatuses": []any{map[string]any{"state": map[string]any{"waiting": map[string]any{"reason": "ImagePullBackOff", "message": "no such image"}}}}},
		"ContainerCreating":               {"containerStatuses": []any{map[string]any{"state": map[string]any{"waiting": map[string]any{"reason": "ContainerCreating"}}}}},
		"Unschedulable: 0/2 nodes":        {"conditions": []any{map[string]any{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes"}}},
	} {
		if got, stuck := podTrouble(&unstructured.Unstructured{Object: map[string]any{"status": status}}); got != want || stuck != strings.HasPrefix(want, "ImagePull") {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestAwait: each missing thing is reported once, and so is each error. The last one is the error at the end.
func TestAwait(t *testing.T) {
	need.Bubble(t, func(t *testing.T) {
		var said []string
		say := func(text string) { said = append(said, text) }
		looks := []string{"a", "a", "!away", "b"}
		look := func(context.Context) (string, error) {
			if len(looks) == 0 {
				return "", nil
			}
			next := looks[0]
			looks = looks[1:]
			if text, ok := strings.CutPrefix(next, "!"); ok {
				return "", errors.New(text)
			}
			return next, nil
		}
		if err := Await(t.Context(), say, look); err != nil || !slices.Equal(said, []string{"a", "away", "b"}) {
			t.Errorf("%v, %q", err, said)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		never := func(context.Context) (string, error) { return "an address", nil }
		if err := Await(ctx, say, never); err == nil || err.Error() != "still missing: an address" {
			t.Error(err)
		}
		ctx, cancel = context.WithCancel(t.Context())
		cancel()
		if err := Await(ctx, say, never); err == nil || !strings.HasPrefix(err.Error(), "interrupted") {
			t.Error(err)
		}
	})
}

// TestStatusIsOfNow: what a gateway has said of an earlier spec says nothing about this one, neither that packets pass nor what is missing.
func TestStatusIsOfNow(t *testing.T) {
	generation := int64(0)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"apiVersion": "culvert.io/v1alpha1", "kind": "Peering", "metadata": {"name": "milan", "namespace": "culvert", "generation": %d},
			"status": {"publicKey": "k", "message": "no key", "conditions": [{"type": "Accepted", "status": "True", "observedGeneration": 7}, {"type": "Connected", "status": "True", "observedGeneration": 7}, {"type": "Other", "observedGeneration": 3}]}}`, generation)
	}))
	defer server.Close()
	c, err := New(&rest.Config{Host: server.URL})
	need.NoError(t, err)
	for generation = range int64(9) {
		s, err := c.Status(t.Context(), "milan")
		if err != nil || s.PublicKey != "k" || (len(s.Conditions) == 3) != (generation == 7) || (s.Message == "no key") != (generation == 7) {
			t.Errorf("generation %d: %+v, %v", generation, s, err)
		}
	}
}
