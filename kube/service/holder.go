package service

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"culvert/kube"
)

var leases = schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}

// The label by which Leases of nodes are found.
const (
	leaseLabel = "app"
	leaseApp   = "culvert-node"
)

func (s *Source) leases() dynamic.ResourceInterface {
	return s.client.Resource(leases).Namespace(s.namespace)
}

// follow follows the Leases of all nodes until ctx ends.
func (s *Source) followLeases(ctx context.Context) {
	(&kube.Followed{Client: s.leases(), Resource: leases.Resource, Labels: leaseLabel + "=" + leaseApp, Into: leaseSink{s}}).Follow(ctx, s.causes)
}

// annotationUnable is that of a Lease for addresses that its node cannot answer for: CIDRs.
const annotationUnable = "culvert/unable"

// hold holds this node's Lease from when it serves until ctx ends, and releases it. What it says of addresses is written at once.
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
		s.tenure.ask(stamp, asked)
		s.mu.Unlock()
		err := s.renew(ctx, s.self, stamp)
		s.causes.Note(ctx, "patch", leases.Resource, err)
		s.mu.Lock()
		wait := time.Until(s.tenure.due(asked))
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

// renew writes that holder holds this node's Lease.
func (s *Source) renew(ctx context.Context, holder, stamp string) error {
	ctx, cancel := context.WithTimeout(ctx, leasePatience)
	defer cancel()
	name := leasePrefix + s.self
	spec := map[string]any{"holderIdentity": holder, "leaseDurationSeconds": int64(leaseDuration / time.Second), "renewTime": stamp}
	s.mu.Lock()
	var unable any // null removes it
	if len(s.unable) > 0 {
		unable = writeCIDRs(s.unable)
	}
	s.mu.Unlock()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{annotationUnable: unable}}, "spec": spec})
	if err != nil {
		return err
	}
	if _, err = s.leases().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}); !apierrors.IsNotFound(err) {
		return err
	}
	meta := map[string]any{"name": name, "labels": map[string]any{leaseLabel: leaseApp}}
	if unable != nil {
		meta["annotations"] = map[string]any{annotationUnable: unable}
	}
	s.mu.Lock()
	if n := s.state.node; n != nil && n.uid != "" { // the Lease goes with the Node
		meta["ownerReferences"] = []any{map[string]any{"apiVersion": "v1", "kind": "Node", "name": s.self, "uid": n.uid}}
	}
	s.mu.Unlock()
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": leases.GroupVersion().String(), "kind": KindLease, "metadata": meta, "spec": spec}}
	_, err = s.leases().Create(ctx, u, metav1.CreateOptions{})
	return err
}

// release lets other nodes know that this one announces nothing any more.
func (s *Source) release() {
	err := s.renew(context.Background(), "", time.Now().UTC().Format(metav1.RFC3339Micro))
	if err != nil {
		s.log.WithError(err).Warn("the Lease is not released: addresses move to other nodes when it ends")
	}
}

// A leaseSink takes the Leases that a reflector reads.
type leaseSink struct{ *Source }

func (k leaseSink) Add(o any) error {
	k.putLeases(false, o)
	return nil
}

func (k leaseSink) Update(o any) error { return k.Add(o) }

func (k leaseSink) Delete(o any) error {
	if u, ok := o.(*unstructured.Unstructured); ok {
		k.removeLease(u.GetName())
	}
	return nil
}

func (k leaseSink) Replace(all []any, _ string) error {
	k.putLeases(true, all...)
	return nil
}

func (k leaseSink) Resync() error { return nil }

// putLeases takes Leases, which may be all that there are.
func (s *Source) putLeases(whole bool, list ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	nodes, news := map[string]bool{}, whole
	for _, o := range list {
		l, ok := readLease(o)
		if !ok {
			continue
		}
		news = s.tenure.saw(l.node, l.renewed, l.held, time.Now()) || news
		if l.node != s.self {
			s.note(s.state.SetUnable(l.node, l.unable))
		}
		nodes[l.node] = true
	}
	if whole {
		s.tenure.keep(nodes)
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
		s.tenure.saw(node, "", false, time.Now())
		if node != s.self {
			s.state.SetUnable(node, nil)
		}
	}
	s.judge()
}

// A lease is what a Lease says of the node that it is of.
type lease struct {
	node, renewed string
	held          bool
	unable        []netip.Prefix
}

// readLease returns false for what cannot be read.
func readLease(o any) (l lease, ok bool) {
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return l, false
	}
	var spec struct {
		HolderIdentity string `json:"holderIdentity"`
		RenewTime      string `json:"renewTime"`
	}
	node, ok := leaseNode(u.GetName())
	part, err := kube.PartOf(u, "spec")
	if err = errors.Join(err, json.Unmarshal(part, &spec)); err != nil || !ok {
		return l, false
	}
	return lease{node, spec.RenewTime, spec.HolderIdentity == node, readCIDRs(u.GetAnnotations()[annotationUnable])}, true
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

// readCIDRs leaves out what is nothing of the kind, and what is too much.
func readCIDRs(s string) (all []netip.Prefix) {
	for part := range strings.SplitSeq(s, ",") {
		if p, err := netip.ParsePrefix(part); err == nil && len(all) < 2*maxUnable {
			all = append(all, p)
		}
	}
	return all
}

// judge has addresses move where nodes have come or gone.
//
// +checklocks:s.mu
func (s *Source) judge() { s.note(s.state.SetAlive(s.tenure.alive())) }
