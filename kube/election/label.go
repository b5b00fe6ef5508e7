package election

import (
	"context"
	"encoding/json"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"culvert/gateway/role"
	"culvert/kube/objects"
)

// label makes this pod the only one with the label while it is active, until ctx ends. It soon
// checks again, because the previous gateway may have labelled itself late, and from then on once
// per duration of a Lease, because somebody else may move the label.
func (e *Elector) label(ctx context.Context) {
	if e.Label.Name == "" {
		return
	}
	tick := time.NewTicker(look)
	defer tick.Stop()
	var due time.Time
	again := false // it has checked again since the pod became active
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.relabels:
		case <-tick.C:
		}
		switch now := time.Now(); {
		case !e.labels():
			due, again = now, false
		case now.Before(due):
		case e.relabel(ctx) != nil:
			due = now.Add(e.Retry)
		case !again:
			due, again = now.Add(e.Retry), true
		default:
			due = now.Add(e.Times.Lease)
		}
	}
}

// labels reports whether this pod should have the label. A pod that leaves does not take it back
// from its successor.
func (e *Elector) labels() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.role == role.Active && !e.ending
}

// relabel takes the label from all other selected pods, and then gives it to this one. So two pods
// never carry it at once; for the time of one request, none does.
func (e *Elector) relabel(ctx context.Context) error {
	if !e.labels() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, max(e.Deadline/2, e.Retry))
	defer cancel()
	client := e.Client.Resource(objects.Pods).Namespace(e.Namespace)
	all, err := client.List(ctx, metav1.ListOptions{LabelSelector: e.Label.Selector + "," + e.Label.Name})
	e.Causes.Log(ctx, "list", objects.Pods.Resource, err)
	if err != nil {
		return err
	}
	mine := false
	for i := range all.Items {
		name := all.Items[i].GetName()
		if name == e.Pod {
			mine = all.Items[i].GetLabels()[e.Label.Name] == active
			continue
		}
		if err := e.patch(ctx, name, nil); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		e.Log.WithField("pod", name).Info("another pod was labelled as the active gateway; its label is removed")
	}
	if mine || !e.labels() {
		return nil
	}
	return e.patch(ctx, e.Pod, active)
}

// active is the label's value.
const active = "true"

// patch sets the label of a pod; nil removes it.
func (e *Elector) patch(ctx context.Context, pod string, value any) error {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]any{e.Label.Name: value}}})
	if err != nil {
		return err
	}
	_, err = e.Client.Resource(objects.Pods).Namespace(e.Namespace).Patch(ctx, pod, types.MergePatchType, body,
		metav1.PatchOptions{})
	e.Causes.Log(ctx, "patch", objects.Pods.Resource, err)
	return err
}
