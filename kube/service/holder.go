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
	return s.client.Resource(objects.Leases).Namespace(s.namespace)
}

// followLeases follows the Leases of all nodes until ctx ends.
func (s *Source) followLeases(ctx context.Context) {
	(&kube.Followed{Client: s.leases(), Resource: objects.Leases.Resource, Labels: leaseLabel + "=" + leaseApp,
		Into: leaseSink{s}}).Follow(ctx, s.causes)
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
		s.causes.Log(ctx, "patch", objects.Leases.Resource, err)
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

// A leaseSink takes the Leases.
type leaseSink struct{ *Source }

func (k leaseSink) Add(u *unstructured.Unstructured)         { k.putLeases(false, u) }
func (k leaseSink) Delete(u *unstructured.Unstructured)      { k.removeLease(u.GetName()) }
func (k leaseSink) Replace(all []*unstructured.Unstructured) { k.putLeases(true, all...) }

// putLeases records Leases; whole: they are all that exist.
func (s *Source) putLeases(whole bool, list ...*unstructured.Unstructured) {
	s.mu.Lock()
	defer s.mu.Unlock()
	nodes, news := map[string]bool{}, whole
	for _, u := range list {
		l, ok := readLease(u)
		if !ok {
			continue
		}
		news = s.tracker.saw(l.node, l.renewed, l.held, time.Now()) || news
		if l.node != s.self {
			s.wakeIf(s.state.SetUnable(l.node, l.unable))
		}
		nodes[l.node] = true
	}
	if whole {
		s.tracker.keep(nodes)
		s.state.keepUnable(nodes)
	}
	if news {
		s.judge()
	}
}

func (s *Source) removeLease(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if node, ok := leaseNode(name); ok {
		s.tracker.saw(node, "", false, time.Now())
		if node != s.self {
			s.state.SetUnable(node, nil)
		}
	}
	s.judge()
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

// judge moves addresses if nodes have come or gone.
//
// +checklocks:s.mu
func (s *Source) judge() { s.wakeIf(s.state.SetAlive(s.tracker.alive())) }
