package liqo

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/util/retry"

	"culvert/kube"
	"culvert/kube/objects"
)

// The values of a Connection's status.
const (
	connecting = "Connecting"
	connected  = "Connected"
	failed     = "Error"
)

// noLatency stands for an unknown latency.
const noLatency = "N/A"

// A connection is the part of a Connection's status used here.
type connection struct {
	value, latency string
	at             time.Time
}

func (s *Source) connectionName() string { return "gw-" + s.identity.Name }

func readConnection(u *unstructured.Unstructured) *connection {
	text := func(path ...string) string {
		v, _, _ := unstructured.NestedString(u.Object, append([]string{"status"}, path...)...)
		return v
	}
	c := &connection{value: text("value"), latency: text("latency", "value")}
	c.at, _ = time.Parse(time.RFC3339, text("latency", "timestamp"))
	return c
}

// wanted returns the status that the Connection should have, and whether it must be written.
func (c *connection) wanted(t *writes, refresh time.Duration) (next connection, write bool) {
	next = connection{value: c.value, latency: noLatency}
	switch {
	case !t.hasPeer || t.check.State == kube.CheckLost:
		next.value = failed
	case t.check.State == kube.CheckConnected:
		next.value, next.latency, next.at = connected, formatLatency(t.check.Latency), t.check.At
	case c.value == "":
		next.value = connecting
	default:
		return *c, false // keep the state found by an earlier process until there is a new one
	}
	return next, next.value != c.value || next.at.Sub(c.at) >= refresh
}

// formatLatency formats a latency as Liqo does.
func formatLatency(d time.Duration) string {
	switch {
	case d == 0:
		return noLatency
	case d < time.Millisecond:
		return fmt.Sprintf("%d\u03bcs", d.Microseconds())
	}
	return fmt.Sprintf("%dms", d.Milliseconds())
}

// writeConnection creates the Connection if there is a peer, and maintains its status.
func (s *Source) writeConnection(ctx context.Context, t *writes, have *connection) error {
	client := s.resource(kindConnection).Namespace(s.identity.Namespace)
	if have == nil {
		if !t.hasPeer {
			return nil
		}
		_, err := client.Create(ctx, s.newConnection(), metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			s.loop.Causes.Log(ctx, "create", objects.LiqoResource(kindConnection).Resource, err)
			return err
		}
		s.loop.Causes.Log(ctx, "create", objects.LiqoResource(kindConnection).Resource, nil)
		have = &connection{}
	}
	if _, write := have.wanted(t, s.identity.Refresh); !write {
		return nil
	}
	verb := "get"
	err := retry.OnError(conflictBackoff, apierrors.IsConflict, func() error {
		verb = "get"
		u, err := client.Get(ctx, s.connectionName(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		next, write := readConnection(u).wanted(t, s.identity.Refresh)
		if !write {
			return nil
		}
		latency := map[string]any{"value": next.latency}
		if !next.at.IsZero() {
			latency["timestamp"] = next.at.UTC().Format(time.RFC3339)
		}
		u.Object["status"] = map[string]any{"value": next.value, "latency": latency}
		verb = "update"
		_, err = client.UpdateStatus(ctx, u, metav1.UpdateOptions{})
		return err
	})
	if apierrors.IsNotFound(err) {
		return nil // will be created again
	}
	s.loop.Causes.Log(ctx, verb, objects.LiqoResource(kindConnection).Resource+"/status", err)
	return err
}

func (s *Source) newConnection() *unstructured.Unstructured {
	id, api := &s.identity, objects.Liqo
	side := map[bool]string{true: "Server", false: "Client"}[id.Server]
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": api,
		"kind":       kindConnection,
		"metadata": map[string]any{
			"name":      s.connectionName(),
			"namespace": id.Namespace,
			"labels":    map[string]any{labelRemote: id.Remote},
			"ownerReferences": []any{map[string]any{
				"apiVersion": api, "kind": "Gateway" + side, "name": id.Name, "uid": id.UID,
			}},
		},
		"spec": map[string]any{
			"type": side,
			"gatewayRef": map[string]any{
				"apiVersion": api, "kind": "WgGateway" + side, "name": id.Name, "namespace": id.Namespace,
				"uid": id.UID,
			},
		},
	}}
}
