// Package election lets the replicas of a gateway elect the one that forwards, by a Lease, and
// labels its pod.
//
// The protocol is that of client-go's tools/leaderelection, so that gateways by other software can
// take part. That package is not used, for two reasons: its resource locks bring the clients of all
// of Kubernetes' kinds, 16 MB of program; and its elector stops when it cannot renew, but a gateway
// must not. Package role decides which gateway forwards. A Lease is read and written by get, create
// and update: Liqo's role has no watch.
package election

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"culvert/gateway/role"
	"culvert/kube/objects"
)

func readLease(u *unstructured.Unstructured) (*role.Lease, error) {
	l, fault := objects.ReadLease(objects.Of("Lease", u))
	if fault != "" {
		return nil, errors.New(fault)
	}
	return &role.Lease{Holder: l.Holder, Duration: time.Duration(l.Seconds) * time.Second, Renewed: l.Renewed,
		Term: l.Transitions}, nil
}

// replicaSet is the kind of what controls the pods of a Deployment.
const replicaSet = "ReplicaSet"

// writeLease returns u, or a new Lease if u is nil, with the fields of l, renewed at now.
// Kubernetes removes the Lease together with owner, unless that is nil. Other fields stay.
func writeLease(u *unstructured.Unstructured, namespace, name string, owner *metav1.OwnerReference, l *role.Lease,
	now time.Time) (*unstructured.Unstructured, error) {
	l.Renewed = now.UTC().Format(metav1.RFC3339Micro)
	fields := map[string]any{}
	if u == nil {
		u = &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": objects.Leases.GroupVersion().String(), "kind": "Lease",
			"metadata": map[string]any{"name": name, "namespace": namespace},
		}}
	} else if err := json.Unmarshal(objects.PartOf(u, "spec"), &fields); err != nil {
		return nil, fmt.Errorf("spec: %w", err)
	}
	if fields == nil {
		fields = map[string]any{}
	}
	if was, _ := fields["holderIdentity"].(string); was != l.Holder {
		fields["acquireTime"] = l.Renewed
	}
	fields["holderIdentity"], fields["renewTime"] = l.Holder, l.Renewed
	fields["leaseDurationSeconds"] = int64(max(l.Duration/time.Second, 1))
	fields["leaseTransitions"] = l.Term
	next := &unstructured.Unstructured{Object: maps.Clone(u.Object)}
	next.Object["spec"] = fields
	if metadata, ok := u.Object["metadata"].(map[string]any); ok && owner != nil {
		next.Object["metadata"] = maps.Clone(metadata)
		before := slices.DeleteFunc(u.GetOwnerReferences(), func(r metav1.OwnerReference) bool {
			return r.Kind == replicaSet
		})
		next.SetOwnerReferences(append(before, *owner))
	}
	return next, nil
}
