package deploy

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"culvert/kube/objects"
	"culvert/kube/peering"
)

// A StuckError says which pod does not start, and why. Waiting alone seldom helps.
type StuckError struct{ why string }

func (e *StuckError) Error() string { return e.why }

// ofPeering are the sets of pods that a Peering needs, and the labels of the pods.
func ofPeering(name string) []podSet {
	return []podSet{
		{objects.Deployments, peering.GatewayNamespace, "culvert-" + name, "Deployment", gatewayLabels(name)},
		{objects.DaemonSets, peering.NodeNamespace, "culvert-node", "DaemonSet", "app=culvert-node"},
	}
}

type podSet struct {
	resource                      schema.GroupVersionResource
	namespace, name, kind, labels string
}

// gatewayLabels select the pods of a Peering's gateway.
func gatewayLabels(name string) string { return "app=culvert-gateway,culvert.io/peering=" + name }

// Rolled returns what is missing until the pods of a Peering's gateway and all agents are those
// that were applied last, and run. The error is a StuckError if one of them cannot start.
func (c *Cluster) Rolled(ctx context.Context, name string) (missing string, err error) {
	for _, of := range ofPeering(name) {
		u, err := c.client.Resource(of.resource).Namespace(of.namespace).Get(ctx, of.name, metav1.GetOptions{})
		if err != nil {
			return "", fmt.Errorf("get %s %s: %w", of.kind, of.name, err)
		}
		if missing := rolled(u); missing != "" {
			why, err := c.Trouble(ctx, name)
			return missing + colon(why), err
		}
	}
	return "", nil
}

func colon(why string) string {
	if why == "" {
		return ""
	}
	return ": " + why
}

// rolled returns what is missing until all pods of a Deployment or DaemonSet are of its present
// template, and available.
func rolled(u *unstructured.Unstructured) string {
	var s struct {
		Metadata struct{ Generation int64 }
		Spec     struct{ Replicas *int64 }
		Status   struct {
			ObservedGeneration, Replicas, UpdatedReplicas, AvailableReplicas int64
			DesiredNumberScheduled, UpdatedNumberScheduled, NumberAvailable  int64
		}
	}
	if err := read(u, &s); err != nil {
		return err.Error()
	}
	st := &s.Status
	want, updated, available := st.DesiredNumberScheduled, st.UpdatedNumberScheduled, st.NumberAvailable
	if u.GetKind() == "Deployment" {
		want, updated, available = 1, st.UpdatedReplicas, st.AvailableReplicas
		if s.Spec.Replicas != nil {
			want = *s.Spec.Replicas
		}
	}
	of := u.GetKind() + " " + u.GetName()
	switch {
	case st.ObservedGeneration < s.Metadata.Generation:
		return of + " has not been looked at yet"
	case updated < want:
		return fmt.Sprintf("%s: %d of %d pods are new", of, updated, want)
	case available < want:
		return fmt.Sprintf("%s: %d of %d pods are available", of, available, want)
	case st.Replicas > want:
		return fmt.Sprintf("%s: %d pods are to end", of, st.Replicas-want)
	}
	return ""
}

// Trouble says, from the cluster's objects, why pods of a Peering's gateway or of agents do not
// run; "" if they do. The error is a StuckError if a pod cannot start.
func (c *Cluster) Trouble(ctx context.Context, name string) (why string, err error) {
	for _, of := range ofPeering(name) {
		text, err := c.trouble(ctx, of)
		if err != nil {
			return "", err
		}
		why = cmp.Or(why, text)
	}
	return why, nil
}

// trouble is Trouble for one set of pods.
func (c *Cluster) trouble(ctx context.Context, of podSet) (why string, err error) {
	none := true
	stuck := error(nil)
	err = c.each(ctx, objects.Pods, of.namespace, of.labels, func(u *unstructured.Unstructured) {
		if u.GetDeletionTimestamp() != nil {
			return
		}
		none = false
		text, cannot := podTrouble(u)
		if text == "" {
			return
		}
		text = fmt.Sprintf("pod %s/%s: %s", of.namespace, u.GetName(), text)
		why = cmp.Or(why, text)
		if cannot && stuck == nil {
			stuck = &StuckError{text}
		}
	})
	switch {
	case err != nil:
		return "", err
	case stuck != nil:
		return "", stuck
	case none:
		why = "there is no pod in " + of.namespace + " yet"
	}
	return why, nil
}

// cannotStart are the reasons of a container that waits for somebody to change something.
var cannotStart = []string{"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull",
	"CreateContainerConfigError", "CreateContainerError",
	"RunContainerError", "CrashLoopBackOff"}

// podTrouble returns why a pod is not ready; "" if it is. cannot: it does not start by itself.
func podTrouble(u *unstructured.Unstructured) (text string, cannot bool) {
	pod, fault := objects.ReadPod(objects.Of("Pod", u))
	if fault != "" {
		return "", false
	}
	for _, c := range pod.Status.Containers {
		if w := c.State.Waiting; w != nil {
			text := objects.Sentence(w.Reason, w.Message)
			if e := c.LastState.Terminated; e != nil {
				text += fmt.Sprintf("; it ended with exit status %d (%s): kubectl -n %s logs %s --previous", e.ExitCode,
					e.Reason, u.GetNamespace(), u.GetName())
			}
			return text, slices.Contains(cannotStart, w.Reason)
		}
	}
	for _, c := range pod.Status.Conditions {
		if c.Status != "True" && (c.Type == "PodScheduled" || c.Type == "Ready") && c.Message != "" {
			return objects.Sentence(c.Reason, c.Message), false
		}
	}
	return "", false
}

// read reads an object into a struct.
func read(u *unstructured.Unstructured, to any) error {
	text, err := json.Marshal(u.Object)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, to)
}
