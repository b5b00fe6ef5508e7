package election

import (
	"context"
	"net/netip"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"culvert/gateway/role"
)

// A Replica copies the table of one gateway at a time, and has its own copied.
type Replica interface {
	Table
	// Follow copies the table of the gateway at an address from now on.
	Follow(at netip.AddrPort)
	// Whole waits until a full copy of the gateway that is followed is whole. It fails early if that one has nothing to copy, or only what is older.
	Whole(context.Context) error
	// Followed reports whether another gateway copies the table.
	Followed() bool
	// Visit tells the gateway at an address a notice. If that one does not forward, it copies this one's table from then on.
	Visit(ctx context.Context, at netip.AddrPort, notice []byte) error
}

const (
	// copyLook is how often a standby looks up the address of the pod that it copies.
	copyLook = time.Second
	// catchUpTime limits how long a gateway that has just started copies another pod's table before it may forward. A container that was killed and
	// restarted in its pod may still have the Lease.
	catchUpTime = 3 * time.Second
)

// CatchUp has r copy the table of another pod, if there is one that has it. It belongs before Drive. learned reports whether the gateway has its rules:
// without them nothing can be restored.
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

// Copy has r copy the pod that has the Lease while this one is a standby, until ctx ends. An active gateway that nobody copies tells another pod that it
// has the Lease. That one may forward too, because it was cut off when this one took the Lease, or may be unable to look up this one's address.
func (e *Elector) Copy(ctx context.Context, r Replica, learned func() bool) {
	tick := time.NewTicker(copyLook)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		is := e.Role()
		if !learned() || is != role.Standby && (is != role.Active || r.Followed()) {
			continue
		}
		at, _ := e.source(ctx)
		switch claim := e.Claim(); {
		case !at.IsValid():
		case is == role.Standby:
			r.Follow(at)
		case claim != nil:
			r.Visit(ctx, at, claim) // one that does not answer forwards nothing, as far as can be told from here
		}
	}
}

// source returns where the pod is whose table is to be copied: the one that has the Lease or, where that is this one or nobody, any other. The zero AddrPort
// is none. It fails if the API server does not answer within copyLook.
func (e *Elector) source(ctx context.Context) (at netip.AddrPort, err error) {
	ctx, cancel := context.WithTimeout(ctx, copyLook)
	defer cancel()
	all, err := e.Client.Resource(pods).Namespace(e.Namespace).List(ctx, metav1.ListOptions{LabelSelector: e.Label.Selector})
	if err != nil {
		return at, err // attempts log that the API server is away
	}
	holder := e.State().Holder
	for i := range all.Items {
		pod := &all.Items[i]
		ip, _, _ := unstructured.NestedString(pod.Object, "status", "podIP")
		phase, _, _ := unstructured.NestedString(pod.Object, "status", "phase")
		address, err := netip.ParseAddr(ip)
		if err != nil || pod.GetName() == e.Pod || phase == "Failed" || phase == "Succeeded" { // another pod may have the address of one that has ended
			continue
		}
		if at = netip.AddrPortFrom(address, e.ReplicaPort); pod.GetName() == holder {
			break
		}
	}
	return at, nil
}
