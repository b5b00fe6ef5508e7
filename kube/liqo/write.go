package liqo

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"

	"culvert/kube"
	"culvert/kube/objects"
	"culvert/nat/rules"
)

// breath is the minimum wait between two rounds of writes.
const breath = 100 * time.Millisecond

// write makes the writes. Failed ones are retried: apply finds them again until the resources have
// them.
func (s *Source) write(ctx context.Context, t *writes) {
	s.mu.Lock()
	have := s.connection
	s.mu.Unlock()
	try := func(f func(context.Context) error) bool {
		ctx, cancel := context.WithTimeout(ctx, kube.WritePatience)
		defer cancel()
		return f(ctx) == nil
	}
	try(func(ctx context.Context) error { return s.writeConnection(ctx, t, have) })
	failures, began := 0, time.Now()
	for key, good := range t.verdicts { // in any order, so that one that always fails does not block others
		// there is a newer round by then
		if ctx.Err() != nil || failures == maxFailures || time.Since(began) > kube.WritePatience {
			break
		}
		if !try(func(ctx context.Context) error { return s.writeCondition(ctx, key, good) }) {
			failures++
		}
	}
	select {
	case <-ctx.Done():
	case <-time.After(breath):
	}
}

// maxFailures ends a round, so that a refusing API server does not get requests about all resources
// every second.
const maxFailures = 3

// writeCondition writes this gateway's condition on a resource. Others write there too: after a
// conflict the resource is read again.
func (s *Source) writeCondition(ctx context.Context, key rules.Key, good bool) error {
	client := s.resource(key.Kind).Namespace(key.Namespace)
	verb := "get"
	err := retry.OnError(conflictBackoff, apierrors.IsConflict, func() error {
		verb = "get"
		u, err := client.Get(ctx, key.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		was, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
		next := setCondition(was, s.identity.Name, good, s.now().UTC().Format(time.RFC3339))
		if sameConditions(was, next) {
			return nil
		}
		if err := unstructured.SetNestedSlice(u.Object, next, "status", "conditions"); err != nil {
			return err
		}
		verb = "update"
		_, err = client.UpdateStatus(ctx, u, metav1.UpdateOptions{})
		return err
	})
	if apierrors.IsNotFound(err) {
		return nil // it is gone
	}
	s.loop.Causes.Log(ctx, verb, objects.LiqoResource(key.Kind).Resource+"/status", err)
	return err
}

// conflictBackoff allows twenty gateways to write to one resource.
var conflictBackoff = wait.Backoff{Duration: 10 * time.Millisecond, Factor: 1.5, Jitter: 1, Steps: 20,
	Cap: 500 * time.Millisecond}

// sameConditions reports whether there is nothing to write.
func sameConditions(a, b []any) bool { return fmt.Sprint(a) == fmt.Sprint(b) }
