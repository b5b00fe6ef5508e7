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
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/retry"

	"culvert/nat/rules"
)

// writePatience bounds one write.
const writePatience = 10 * time.Second

// write writes what is to be written. What fails is tried again: apply notes it anew as long as the resources do not say it.
func (s *Source) write(ctx context.Context) {
	s.mu.Lock()
	t, have := s.writes, s.connection
	s.writes.events = nil
	s.mu.Unlock()
	try := func(f func(context.Context) error) bool {
		ctx, cancel := context.WithTimeout(ctx, writePatience)
		defer cancel()
		return f(ctx) == nil
	}
	try(func(ctx context.Context) error { return s.writeConnection(ctx, &t, have) })
	for i := range t.events {
		if !try(func(ctx context.Context) error { return s.writeEvent(ctx, &t.events[i]) }) {
			s.mu.Lock()
			s.writes.events = append(t.events[i:], s.writes.events...)
			s.mu.Unlock()
			break
		}
	}
	failures := 0
	for key, good := range t.verdicts { // in any order: one that always fails keeps no other from being written
		if ctx.Err() != nil || failures == maxFailures {
			return
		}
		if !try(func(ctx context.Context) error { return s.writeCondition(ctx, key, good) }) {
			failures++
		}
	}
}

// maxFailures ends a round: an API server that refuses is not asked about all resources every second.
const maxFailures = 3

// writeCondition says on a resource whether this gateway obeys it. Others write there too: what has changed since it was read is read
// again.
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
		return nil // it has gone
	}
	s.causes.Note(ctx, verb, resources[key.Kind]+"/status", err)
	return err
}

// conflictBackoff lets twenty gateways write to one resource.
var conflictBackoff = wait.Backoff{Duration: 10 * time.Millisecond, Factor: 1.5, Jitter: 1, Steps: 20, Cap: 500 * time.Millisecond}

// sameConditions reports whether nothing is to be written.
func sameConditions(a, b []any) bool { return fmt.Sprint(a) == fmt.Sprint(b) }

// events is core/v1: the role of a gateway has no other.
var events = schema.GroupVersionResource{Version: "v1", Resource: "events"}

// maxMessage is the most that an Event's message may have.
const maxMessage = 1024

// writeEvent makes an Event.
func (s *Source) writeEvent(ctx context.Context, e *Event) error {
	id := &s.identity
	r := &Reporter{Client: s.client, Causes: s.causes, Self: id.Namespace + "/" + id.Name, Node: id.Node, Instance: cmp.Or(id.Pod, id.Name)}
	return r.Write(ctx, e, s.now())
}

// A Reporter writes Events.
type Reporter struct {
	Client         dynamic.Interface
	Causes         *Causes
	Self           string // whose Events are told apart from those of others
	Node, Instance string
}

// Write makes an Event. Its name follows from what it says, so that a process that begins anew does not say it again. After an error it
// may be tried again.
func (r *Reporter) Write(ctx context.Context, e *Event, at time.Time) error {
	now := at.UTC().Format(time.RFC3339)
	message := e.Message
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage-3], "") + "..."
	}
	namespace := cmp.Or(e.Metadata.Namespace, metav1.NamespaceDefault)
	sum := sha256.Sum256([]byte(r.Self + "/" + e.Metadata.UID + "/" + message))
	name := e.Metadata.Name
	name = fmt.Sprintf("%s.%x", name[:min(len(name), 200)], sum[:8])
	involved := map[string]any{
		"apiVersion": cmp.Or(e.APIVersion, group+"/"+version), "kind": e.Kind, "name": e.Metadata.Name, "uid": e.Metadata.UID,
	}
	if e.Metadata.Namespace != "" {
		involved["namespace"] = e.Metadata.Namespace
	}
	_, err := r.Client.Resource(events).Namespace(namespace).Create(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Event",
		"metadata":       map[string]any{"name": name, "namespace": namespace},
		"involvedObject": involved,
		"type":           "Warning", "reason": "NotApplied", "message": message,
		"source":         map[string]any{"component": "culvert", "host": r.Node},
		"firstTimestamp": now, "lastTimestamp": now, "count": int64(1),
		"reportingComponent": "culvert", "reportingInstance": r.Instance,
	}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		err = nil
	}
	r.Causes.Note(ctx, "create", "events", err)
	if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || apierrors.IsInvalid(err) {
		return nil // it will be so again
	}
	return err
}
