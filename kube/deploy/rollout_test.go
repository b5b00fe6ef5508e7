package deploy

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	kubetesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"

	"culvert/integration/need"
	"culvert/kube/objects"
)

func parsed(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	need.NoError(t, yaml.Unmarshal([]byte(text), &u.Object))
	return u
}

// TestRolled: a rollout is complete once all pods are of the present template and available, and no
// other is left.
func TestRolled(t *testing.T) {
	const (
		deployment = "kind: Deployment\nmetadata: {name: d, generation: 3}\nspec: {replicas: 2}\nstatus: "
		set        = "kind: DaemonSet\nmetadata: {name: s, generation: 2}\nstatus: "
	)
	for text, want := range map[string]string{
		deployment + "{}": "Deployment d has not been looked at yet",
		deployment +
			"{observedGeneration: 2, replicas: 2, updatedReplicas: 2, availableReplicas: 2}": "Deployment d has not been looked at yet",
		deployment +
			"{observedGeneration: 3, replicas: 3, updatedReplicas: 1, availableReplicas: 3}": "Deployment d: 1 of 2 pods are new",
		deployment +
			"{observedGeneration: 3, replicas: 2, updatedReplicas: 2, availableReplicas: 1}": "Deployment d: 1 of 2 pods are available",
		deployment +
			"{observedGeneration: 3, replicas: 3, updatedReplicas: 2, availableReplicas: 3}": "Deployment d: 1 pods are to end",
		deployment + "{observedGeneration: 3, replicas: 2, updatedReplicas: 2, availableReplicas: 2}": "",
		set +
			"{observedGeneration: 2, desiredNumberScheduled: 5, updatedNumberScheduled: 1, numberAvailable: 5}": "DaemonSet s: 1 of 5 pods are new",
		set +
			"{observedGeneration: 2, desiredNumberScheduled: 5, updatedNumberScheduled: 5, numberAvailable: 4}": "DaemonSet s: 4 of 5 pods are available",
		set + "{observedGeneration: 2, desiredNumberScheduled: 5, updatedNumberScheduled: 5, numberAvailable: 5}": "",
	} {
		if got := rolled(parsed(t, text)); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

// TestTrouble: a pod that cannot start is named before those that are only about to, ending ones do
// not count, and a refused list is not an empty one.
func TestTrouble(t *testing.T) {
	const pod = `{apiVersion: v1, kind: Pod, metadata: {name: %s, namespace: culvert-nodes, labels: {app: culvert-node}%s}, status: {containerStatuses: [{state: {waiting: {reason: %s}}, lastState: {terminated: {reason: Error, exitCode: 2}}}]}}`
	c, client, _ := simulated(t, fmt.Sprintf(pod, "a", "", "ContainerCreating"),
		fmt.Sprintf(pod, "b", `, deletionTimestamp: "2026-01-01T00:00:00Z", finalizers: [x]`, "ErrImagePull"))
	why, err := c.Trouble(t.Context(), "milan")
	if err != nil || !strings.HasPrefix(why, "there is no pod in culvert yet") {
		t.Errorf("%q, %v", why, err)
	}
	u := parsed(t, fmt.Sprintf(pod, "c", "", "CrashLoopBackOff"))
	need.NoError(t, client.Tracker().Add(u))
	if _, err := c.Trouble(t.Context(), "milan"); !errors.As(err, new(*StuckError)) || err.Error() !=
		"pod culvert-nodes/c: CrashLoopBackOff; it ended with exit status 2 (Error): kubectl -n culvert-nodes logs c --previous" {
		t.Error(err)
	}
	client.PrependReactor("list", "pods", func(kubetesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(objects.Pods.GroupResource(), "", errors.New("no right"))
	})
	if why, err := c.Trouble(t.Context(), "milan"); !apierrors.IsForbidden(errors.Unwrap(err)) || why != "" {
		t.Errorf("%q, %v", why, err)
	}
}

// TestOlderKindEnds: before a gateway that elects takes the place of one that does not, the
// latter's pods have ended.
func TestOlderKindEnds(t *testing.T) {
	need.Bubble(t, func(t *testing.T) {
		c, client, all := simulated(t,
			`{apiVersion: v1, kind: Pod, metadata: {name: old, namespace: culvert, labels: {app: culvert-gateway, culvert.io/peering: milan}}}`)
		next := all[0]
		need.NoError(t, c.elected(t.Context(), next)) // it is of the new kind already
		if n, _, _ := unstructured.NestedInt64(next.Object, "spec", "replicas"); n != 2 ||
			next.GetKind() != "Deployment" {
			t.Fatalf("%d replicas of %s", n, nameOf(next))
		}
		old := next.DeepCopy()
		need.NoError(t, unstructured.SetNestedField(old.Object,
			[]any{map[string]any{"name": "culvert", "args": []any{"gateway", "--kube"}}}, "spec", "template", "spec",
			"containers"))
		need.NoError(t, client.Tracker().Update(objects.Deployments, old, "culvert"))
		time.AfterFunc(3*time.Second, func() { client.Tracker().Delete(objects.Pods, "culvert", "old") })
		began := time.Now()
		need.NoError(t, c.elected(t.Context(), next))
		u, err := client.Resource(objects.Deployments).Namespace("culvert").Get(t.Context(), "culvert-milan",
			metav1.GetOptions{})
		need.NoError(t, err)
		if n, _, _ := unstructured.NestedInt64(u.Object, "spec", "replicas"); n != 0 ||
			time.Since(began) < 3*time.Second {
			t.Errorf("%d replicas after %v", n, time.Since(began))
		}
	})
}
