package election

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"culvert/gateway/role"
	"culvert/kube/objects"
)

// A Replica copies the table of one gateway at a time, and lets others copy its own.
type Replica interface {
	Table
	// Follow copies the table of the gateway at an address from now on.
	Follow(at netip.AddrPort)
	// Whole waits for a complete copy of the followed gateway's table. It fails early if that
	// gateway has no table, or an older one.
	Whole(context.Context) error
	// Followed reports whether another gateway copies the table.
	Followed() bool
	// Visit sends a notice to the gateway at an address. If that gateway does not forward, it
	// copies this one's table from then on.
	Visit(ctx context.Context, at netip.AddrPort, notice []byte) error
}

const (
	// copyLook is how often a standby looks up the address of the pod that it copies.
	copyLook = time.Second
	// aloneLook is how often an active gateway that has found no other pod looks for one. A pod
	// that starts does not wait for that: it looks up this one.
	aloneLook = 5 * time.Second
	// catchUpTime limits how long a gateway that has just started copies another pod's table before
	// it may forward. A container that was killed and restarted in its pod may still have the
	// Lease.
	catchUpTime = 3 * time.Second
)

// CatchUp makes r copy the table of another pod, if there is one with a table. Call it before
// Drive. learned reports whether the gateway has its rules: without them nothing can be restored.
func (e *Elector) CatchUp(ctx context.Context, r Replica, learned func() bool) {
	ctx, cancel := context.WithTimeout(ctx, catchUpTime)
	defer cancel()
	tick := time.NewTicker(copyLook / 20)
	defer tick.Stop()
	for {
		if learned() {
			at, err := e.source(ctx)
			if at.IsValid() {
				r.Follow(at)
				r.Whole(ctx)
			}
			if err == nil {
				return
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Copy makes r copy from the pod that has the Lease while this pod is a standby, until ctx ends. If
// this gateway is active and nobody copies from it, Copy tells another pod that this one has the
// Lease. The other pod may forward too, because it was cut off when this one took the Lease, or may
// be unable to look up this one's address.
func (e *Elector) Copy(ctx context.Context, r Replica, learned func() bool) {
	tick := time.NewTicker(copyLook)
	defer tick.Stop()
	var next time.Time // while this gateway is active
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		is := e.Role()
		if !learned() || is != role.Standby && (is != role.Active || r.Followed() || time.Now().Before(next)) {
			continue
		}
		at, err := e.source(ctx)
		switch claim := e.Claim(); {
		case !at.IsValid():
			if err == nil {
				next = time.Now().Add(aloneLook - copyLook/2)
			}
		case is == role.Standby:
			r.Follow(at)
		case claim != nil:
			r.Visit(ctx, at, claim) // a pod that does not answer presumably forwards nothing
		}
	}
}

// source returns the address of the pod to copy from: the holder of the Lease or, if that is this
// pod or nobody, any other. The zero AddrPort means none. It fails if the API server does not
// answer within copyLook. It also learns what else the list of pods tells.
func (e *Elector) source(ctx context.Context) (at netip.AddrPort, err error) {
	ctx, cancel := context.WithTimeout(ctx, copyLook)
	defer cancel()
	holder := e.State().Holder // before the list, which may lack the pod of a later holder
	all, err := e.Client.Resource(objects.Pods).Namespace(e.Namespace).List(ctx,
		metav1.ListOptions{LabelSelector: e.Label.Selector})
	if err != nil {
		return at, err // attempts log that the API server is away
	}
	holderPod, _, _ := strings.Cut(holder, "_") // client-go's electors add "_" and a random number
	alone, here := true, false
	var owner *metav1.OwnerReference
	for i := range all.Items {
		pod := &all.Items[i]
		if pod.GetName() == e.Pod {
			owner = metav1.GetControllerOf(pod)
		}
		read, _ := objects.ReadPod(objects.Of("Pod", pod))
		if pod.GetName() == e.Pod || read.Ended() { // another pod may have the address of one that has ended
			continue
		}
		alone = alone && pod.GetDeletionTimestamp() != nil
		holds := pod.GetName() == holderPod
		address, err := netip.ParseAddr(read.Status.PodIP)
		if err == nil && (holds || !here) {
			at = netip.AddrPortFrom(address, e.ReplicaPort)
		}
		here = here || holds
	}
	here = here || holder == "" || holder == e.Pod || e.exists(ctx, holderPod)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.alone = alone
	if owner != nil {
		e.owner = &metav1.OwnerReference{APIVersion: owner.APIVersion, Kind: owner.Kind, Name: owner.Name,
			UID: owner.UID}
	}
	if e.role == role.Standby {
		e.find(holder, here || !e.sibling(holder))
	}
	return at, nil
}

// exists reports whether a pod may exist, whatever its labels are: who debugs a pod takes them
// away.
func (e *Elector) exists(ctx context.Context, name string) bool {
	of := metav1.ListOptions{FieldSelector: "metadata.name=" + name}
	all, err := e.Client.Resource(objects.Pods).Namespace(e.Namespace).List(ctx, of)
	return err != nil || slices.ContainsFunc(all.Items, func(pod unstructured.Unstructured) bool {
		read, _ := objects.ReadPod(objects.Of("Pod", &pod))
		return pod.GetName() == name && !read.Ended()
	})
}

// sibling reports whether a holder of the Lease is, or was, a pod of the same Deployment as this
// one. Of other holders, this gateway does not know how long they live.
//
// +checklocks:e.mu
func (e *Elector) sibling(holder string) bool {
	if e.owner == nil || e.owner.Kind != replicaSet {
		return false
	}
	dash := strings.LastIndexByte(e.owner.Name, '-') // between the Deployment's name and a hash
	return strings.HasPrefix(holder, e.owner.Name[:dash+1])
}

// find records whether the pod that holds the Lease exists. If it does not, this gateway does not
// wait until its Lease has run out.
//
// +checklocks:e.mu
func (e *Elector) find(holder string, exists bool) {
	switch {
	case exists:
		e.gone = ""
	case e.gone != holder:
		e.gone = holder
		e.Log.WithField("pod", holder).Info("the pod that has the Lease no longer exists; another one takes it")
		signal(e.poke)
	}
}
