//go:build !nokube

package main

import (
	"context"
	"net/netip"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"culvert/gateway"
	"culvert/gateway/replica"
	"culvert/gateway/role"
)

const (
	// copyLook is how often a standby looks up the address of the pod that it copies.
	copyLook = time.Second
	// catchUpTime limits how long a gateway that has just started copies another pod's table before it may forward. A container that was killed and
	// restarted in its pod may still have the Lease.
	catchUpTime = 3 * time.Second
)

var podResource = schema.GroupVersionResource{Version: "v1", Resource: "pods"}

// replicate has the table of g copied to the other pods, and theirs to g, until ctx ends. It returns when g has the table of another pod, if there is one.
func (e *electing) replicate(ctx context.Context, g *gateway.Gateway) (*replica.Replica, error) {
	r, err := g.Replicate(gateway.ReplicateOptions{Name: e.Pod, Listen: ":" + strconv.Itoa(gateway.ReplicaPort), Heard: e.Heard})
	if err != nil {
		return nil, err
	}
	e.catchUp(ctx, r)
	e.tasks.Go(func() { e.follow(ctx, r) })
	return r, nil
}

// catchUp copies the table of another pod, if there is one that has it.
func (e *electing) catchUp(ctx context.Context, r *replica.Replica) {
	ctx, cancel := context.WithTimeout(ctx, catchUpTime)
	defer cancel()
	for tick := time.NewTicker(copyLook / 20); !e.learned(); {
		select {
		case <-ctx.Done():
			tick.Stop()
			return // without rules nothing can be restored
		case <-tick.C:
		}
	}
	if at := e.source(ctx); at.IsValid() {
		r.Follow(at)
		r.Whole(ctx)
	}
}

// follow makes a standby copy the pod that has the Lease. An active gateway that nobody copies tells another pod that it has the Lease: that one may
// forward too, and have been cut off when this one took it.
func (e *electing) follow(ctx context.Context, r *replica.Replica) {
	tick := time.NewTicker(copyLook)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		is := e.Role()
		if !e.learned() || is != role.Standby && (is != role.Active || r.Followed()) {
			continue
		}
		switch at, claim := e.source(ctx), e.Claim(); {
		case !at.IsValid():
		case is == role.Standby:
			r.Follow(at)
		case claim != nil:
			r.Visit(ctx, at, claim) // one that does not answer forwards nothing, as far as can be told from here
		}
	}
}

// source returns where the pod is whose table is to be copied: the one that has the Lease or, where that is this one or nobody, any other. The zero AddrPort
// is none.
func (e *electing) source(ctx context.Context) (at netip.AddrPort) {
	ctx, cancel := context.WithTimeout(ctx, copyLook)
	defer cancel()
	all, err := e.Client.Resource(podResource).Namespace(e.Namespace).List(ctx, metav1.ListOptions{LabelSelector: e.Label.Selector})
	if err != nil {
		return at // the election says that the API server is away
	}
	holder := e.State().Holder
	for i := range all.Items {
		pod := &all.Items[i]
		ip, _, _ := unstructured.NestedString(pod.Object, "status", "podIP")
		address, err := netip.ParseAddr(ip)
		if err != nil || pod.GetName() == e.Pod {
			continue
		}
		if at = netip.AddrPortFrom(address, gateway.ReplicaPort); pod.GetName() == holder {
			break
		}
	}
	return at
}
