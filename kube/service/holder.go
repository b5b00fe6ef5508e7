package service

import (
	"context"
	"encoding/json"
	"net/netip"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"culvert/kube"
	"culvert/kube/objects"
)

// The label that selects nodes' Leases.
const (
	leaseLabel = "app"
	leaseApp   = "culvert-node"
)

func (s *Source) leases() dynamic.ResourceInterface {
	return s.loop.Client.Resource(objects.Leases).Namespace(s.namespace)
}

// annotationUnable lists, on a Lease, the CIDRs that its node cannot announce.
const annotationUnable = "culvert/unable"

// hold holds this node's Lease from when it serves until ctx ends, and releases it. Changes of
// unable are written at once.
func (s *Source) hold(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-s.serving:
	}
	defer s.release()
	for {
		asked := time.Now()
		stamp := asked.UTC().Format(metav1.RFC3339Micro)
		s.mu.Lock()
		s.tracker.ask(stamp, asked)
		s.mu.Unlock()
		err := s.renew(ctx, s.self, stamp)
		s.loop.Causes.Log(ctx, "patch", objects.Leases.Resource, err)
		s.mu.Lock()
		wait := time.Until(s.tracker.due(asked))
		s.mu.Unlock()
		if err != nil {
			wait = leaseRetry
		}
		select {
		case <-ctx.Done():
			return
		case <-s.ableness:
		case <-time.After(max(wait, time.Millisecond)):
		}
	}
}

// renew writes the Lease with this holder and time.
func (s *Source) renew(ctx context.Context, holder, stamp string) error {
	ctx, cancel := context.WithTimeout(ctx, leasePatience)
	defer cancel()
	name := leasePrefix + s.self
	spec := map[string]any{"holderIdentity": holder, "leaseDurationSeconds": int64(leaseDuration / time.Second),
		"renewTime": stamp}
	s.mu.Lock()
	var unable any // null removes it
	if len(s.unable) > 0 {
		unable = writeCIDRs(s.unable)
	}
	s.mu.Unlock()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{
		annotationUnable: unable}}, "spec": spec})
	if err != nil {
		return err
	}
	if _, err = s.leases().Patch(ctx, name, types.MergePatchType, patch,
		metav1.PatchOptions{}); !apierrors.IsNotFound(err) {
		return err
	}
	meta := map[string]any{"name": name, "labels": map[string]any{leaseLabel: leaseApp}}
	if unable != nil {
		meta["annotations"] = map[string]any{annotationUnable: unable}
	}
	s.mu.Lock()
	if n := s.state.node; n != nil && n.uid != "" { // the Lease is deleted with the Node
		meta["ownerReferences"] = []any{map[string]any{"apiVersion": "v1", "kind": "Node", "name": s.self,
			"uid": n.uid}}
	}
	s.mu.Unlock()
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": objects.Leases.GroupVersion().String(),
		"kind": KindLease, "metadata": meta, "spec": spec}}
	_, err = s.leases().Create(ctx, u, metav1.CreateOptions{})
	return err
}

// release tells other nodes that this one no longer announces anything.
func (s *Source) release() {
	if s.handed.Load() {
		return
	}
	err := s.renew(context.Background(), "", time.Now().UTC().Format(metav1.RFC3339Micro))
	if err != nil {
		s.log.WithError(err).Warn("the Lease is not released: addresses move to other nodes when it ends")
	}
}

// leaseSet are the Leases of all nodes.
//
// +checklocksignore: a Loop holds mu
func (s *Source) leaseSet() kube.Set {
	put := func(l lease) {
		s.moved = s.tracker.saw(l.node, l.renewed, l.held, time.Now()) || s.moved
		if l.node != s.self {
			s.changed = s.state.SetUnable(l.node, l.unable) || s.changed
		}
	}
	return kube.Set{Name: KindLease, Resource: objects.Leases, Namespace: s.namespace,
		Labels: leaseLabel + "=" + leaseApp,
		Read: func(u *unstructured.Unstructured) func(string) {
			if l, ok := readLease(u); ok {
				return func(string) { put(l) }
			}
			return nil
		},
		Drop: func(_, name string) { put(lease{node: strings.TrimPrefix(name, leasePrefix)}) },
	}
}

// A lease is the content of a node's Lease.
type lease struct {
	node, renewed string
	held          bool
	unable        []netip.Prefix
}

// readLease returns false for an invalid one.
func readLease(u *unstructured.Unstructured) (l lease, ok bool) {
	spec, fault := objects.ReadLease(objects.Of(KindLease, u))
	node, ok := leaseNode(u.GetName())
	if fault != "" || !ok {
		return l, false
	}
	return lease{node, spec.Renewed, spec.Holder == node, readCIDRs(u.GetAnnotations()[annotationUnable])}, true
}

func writeCIDRs(all []netip.Prefix) string {
	var b strings.Builder
	for i, p := range all {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(p.String())
	}
	return b.String()
}

// readCIDRs skips invalid entries, and those beyond the limit.
func readCIDRs(s string) (all []netip.Prefix) {
	for part := range strings.SplitSeq(s, ",") {
		if p, err := netip.ParsePrefix(part); err == nil && len(all) < 2*maxUnable {
			all = append(all, p)
		}
	}
	return all
}
