package kube

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/retry"

	"culvert/kube/objects"
	"culvert/nat/rules"
)

// writePatience bounds one write.
const writePatience = 10 * time.Second

// breath is the minimum wait between two rounds of writes.
const breath = 100 * time.Millisecond

// write makes the writes. Failed ones are retried: apply finds them again until the resources have
// them.
func (s *Source) write(ctx context.Context, t *writes) {
	s.mu.Lock()
	have := s.connection
	s.mu.Unlock()
	try := func(f func(context.Context) error) bool {
		ctx, cancel := context.WithTimeout(ctx, writePatience)
		defer cancel()
		return f(ctx) == nil
	}
	try(func(ctx context.Context) error { return s.writeConnection(ctx, t, have) })
	failures, began := 0, time.Now()
	for key, good := range t.verdicts { // in any order, so that one that always fails does not block others
		// there is a newer round by then
		if ctx.Err() != nil || failures == maxFailures || time.Since(began) > writePatience {
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

// maxMessage is the maximum length of an Event's message.
const maxMessage = 1024

// A Reporter writes Events.
type Reporter struct {
	Client         dynamic.Interface
	Causes         *Causes
	Self           string // the reporting instance of Events
	Node, Instance string
}

// Cut shortens a text to at most most bytes.
func Cut(text string, most int) string {
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most-3], "") + "..."
	}
	return text
}

// write creates an Event. Its name is derived from its content, so that a restarted process does
// not repeat it. After an error it may be retried.
func (r *Reporter) write(ctx context.Context, e *Event, at time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, writePatience)
	defer cancel()
	now, kind := at.UTC().Format(time.RFC3339), "Warning"
	if e.Reason != "" {
		kind = "Normal"
	}
	message := Cut(e.Message, maxMessage)
	namespace := cmp.Or(e.Metadata.Namespace, metav1.NamespaceDefault)
	sum := sha256.Sum256([]byte(r.Self + "/" + e.Metadata.UID + "/" + message))
	name := e.Metadata.Name
	name = fmt.Sprintf("%s.%x", name[:min(len(name), 200)], sum[:8])
	involved := map[string]any{
		"apiVersion": cmp.Or(e.APIVersion, objects.Liqo), "kind": e.Kind, "name": e.Metadata.Name,
		"uid": e.Metadata.UID,
	}
	if e.Metadata.Namespace != "" {
		involved["namespace"] = e.Metadata.Namespace
	}
	_, err := r.Client.Resource(objects.Events).Namespace(namespace).Create(ctx,
		&unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "Event",
			"metadata":       map[string]any{"name": name, "namespace": namespace},
			"involvedObject": involved,
			"type":           kind, "reason": cmp.Or(e.Reason, "NotApplied"), "message": message,
			"source":         map[string]any{"component": "culvert", "host": r.Node},
			"firstTimestamp": now, "lastTimestamp": now, "count": int64(1),
			"reportingComponent": "culvert", "reportingInstance": r.Instance,
		}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		err = nil
	}
	r.Causes.Log(ctx, "create", "events", err)
	if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || apierrors.IsInvalid(err) {
		return nil // retrying would not help
	}
	return err
}
