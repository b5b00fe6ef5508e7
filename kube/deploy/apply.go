package deploy

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"culvert/kube/objects"
	"culvert/kube/peering"
)

// applyPause is the wait before another attempt, after a kind or a namespace was created.
const applyPause = 200 * time.Millisecond

// apply creates or changes an object.
func (c *Cluster) apply(ctx context.Context, u *unstructured.Unstructured) error {
	_, err := c.once("", u, func() (*unstructured.Unstructured, error) {
		return nil, c.again(ctx, u, func() error {
			_, err := c.of(u).Apply(ctx, u.GetName(), u, metav1.ApplyOptions{FieldManager: manager, Force: true})
			return err
		})
	})
	return err
}

// once calls do for an object and a way of writing it, and returns the result. It does so once for
// all ends of the cluster that share the object.
func (c *Cluster) once(way string, u *unstructured.Unstructured, do func() (*unstructured.Unstructured, error)) (
	*unstructured.Unstructured, error) {
	text, err := json.Marshal(u)
	if err != nil {
		return nil, err
	}
	key := way + string(text)
	c.mu.Lock()
	if c.done[key] == nil {
		if c.done == nil {
			c.done = map[string]func() (*unstructured.Unstructured, error){}
		}
		c.done[key] = sync.OnceValues(do)
	}
	do = c.done[key]
	c.mu.Unlock()
	return do()
}

// again calls f for an object until that succeeds. A new kind takes some time to become usable, and
// somebody else may write an object meanwhile.
func (c *Cluster) again(ctx context.Context, u *unstructured.Unstructured, f func() error) error {
	for {
		err := f()
		switch {
		case err == nil:
			return nil
		case errors.Is(ctx.Err(), context.Canceled):
			return errInterrupted
		}
		if !apierrors.IsNotFound(err) && !apierrors.IsServiceUnavailable(err) && !apierrors.IsTooManyRequests(err) &&
			!apierrors.IsConflict(err) {
			return fmt.Errorf("apply %s: %w", nameOf(u), err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("apply %s: %w", nameOf(u), err)
		case <-time.After(applyPause):
		}
	}
}

// newPeering returns a Peering with annotations.
func newPeering(name string, spec *peering.Spec, notes map[string]string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": objects.Culvert, "kind": peering.KindPeering,
		"metadata": map[string]any{"name": name, "namespace": peering.GatewayNamespace},
	}}
	if len(notes) > 0 {
		u.SetAnnotations(notes)
	}
	if spec != nil {
		if part, err := runtime.DefaultUnstructuredConverter.ToUnstructured(spec); err == nil {
			u.Object["spec"] = part
		}
	}
	return u
}

// ApplyPeering creates a Peering, or makes its spec exactly this one. Server-side apply would leave
// fields that another manager has set, such as a remap beside another CIDR.
func (c *Cluster) ApplyPeering(ctx context.Context, spec *peering.Spec, notes map[string]string) error {
	u := newPeering(spec.Peer, spec, notes)
	return c.again(ctx, u, func() error { return c.replace(ctx, u, nil) })
}

// replace creates an object, or replaces the spec of the one that is there and adds the
// annotations.
func (c *Cluster) replace(ctx context.Context, u *unstructured.Unstructured, dryRun []string) error {
	old, err := c.of(u).Get(ctx, u.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = c.of(u).Create(ctx, u, metav1.CreateOptions{FieldManager: manager, DryRun: dryRun})
		return err
	}
	if err != nil {
		return err
	}
	if owner := ownerOf(old); owner != "" {
		var have, want struct{ Spec peering.Spec }
		if err := errors.Join(read(old, &have), read(u, &want)); err != nil || reflect.DeepEqual(have, want) {
			return err
		}
		text, err := json.Marshal(want.Spec)
		return cmp.Or(err, fmt.Errorf("%s has made it, and would undo a change; change its spec there to %s",
			owner, text))
	}
	next := old.DeepCopy()
	next.Object["spec"] = u.Object["spec"]
	notes := maps.Clone(old.GetAnnotations())
	if notes == nil {
		notes = map[string]string{}
	}
	maps.Copy(notes, u.GetAnnotations())
	next.SetAnnotations(notes)
	_, err = c.of(u).Update(ctx, next, metav1.UpdateOptions{FieldManager: manager, DryRun: dryRun})
	return err
}

// remove deletes objects in the reverse order of apply, and waits until they are gone. It leaves
// what another program has installed, and keeps the name of that program.
func (c *Cluster) remove(ctx context.Context, all []*unstructured.Unstructured, say func(string)) error {
	all = slices.Clone(all)
	slices.Reverse(all)
	policy := metav1.DeletePropagationBackground
	for i, u := range all {
		stored, err := c.of(u).Get(ctx, u.GetName(), metav1.GetOptions{})
		if err == nil {
			if owner := ownerOf(stored); owner != "" {
				c.owner, all[i] = owner, nil
				continue
			}
			err = c.of(u).Delete(ctx, u.GetName(), metav1.DeleteOptions{PropagationPolicy: &policy})
		}
		if errors.Is(ctx.Err(), context.Canceled) {
			return errInterrupted
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete %s: %w", nameOf(u), err)
		}
	}
	all = slices.DeleteFunc(all, func(u *unstructured.Unstructured) bool { return u == nil })
	return Await(ctx, say, func(ctx context.Context) (string, error) {
		for _, u := range all {
			_, err := c.of(u).Get(ctx, u.GetName(), metav1.GetOptions{})
			if err == nil {
				return nameOf(u) + " is being deleted", nil
			}
			if !apierrors.IsNotFound(err) {
				return "", fmt.Errorf("get %s: %w", nameOf(u), err)
			}
		}
		return "", nil
	})
}
