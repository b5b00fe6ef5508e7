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
	"k8s.io/client-go/dynamic"

	"culvert/kube/objects"
	"culvert/nat/rules"
)

// An Event tells users why an object has no effect, or what has changed.
type Event struct {
	APIVersion string // "": Liqo's
	Kind       string
	Metadata   objects.Metadata
	Reason     string // "": NotApplied, a warning; all others are informational
	Message    string
}

// Key names the resource.
func (e *Event) Key() rules.Key {
	return rules.Key{Kind: e.Kind, Namespace: e.Metadata.Namespace, Name: e.Metadata.Name}
}

// WritePatience bounds one write.
const WritePatience = 10 * time.Second

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
	ctx, cancel := context.WithTimeout(ctx, WritePatience)
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
