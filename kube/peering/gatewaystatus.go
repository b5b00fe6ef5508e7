package peering

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"culvert/kube"
	"culvert/kube/objects"
)

// roundTrip returns the round-trip time, but a new one only every rttInterval.
func (s *GatewaySource) roundTrip(c *kube.Check) string {
	if c.State != kube.CheckConnected || c.Latency == 0 {
		s.rtt = 0
		return ""
	}
	waited := c.Latency < s.rtt/10 // the first ping waited for the handshake
	if s.rtt == 0 || waited || s.now().Sub(s.rttAt) >= rttInterval && (c.Latency > s.rtt*5/4 || c.Latency < s.rtt*3/4) {
		s.rtt, s.rttAt = c.Latency, s.now()
	}
	if s.rtt < time.Millisecond {
		return fmt.Sprintf("%dµs", s.rtt.Microseconds())
	}
	return fmt.Sprintf("%.1fms", float64(s.rtt.Microseconds())/1000)
}

// writeLater has a plan's status written.
func (s *GatewaySource) writeLater(u *unstructured.Unstructured, plan *Plan) {
	plan.Status.Message = message(&plan.Status)
	s.loop.Teller.Status(func(ctx context.Context) { s.writeStatus(ctx, u, &plan.Status) })
}

// writeStatus writes the Peering's status if it differs from the stored one and is due. After a
// conflict the new version comes by the watch, and the next round writes.
func (s *GatewaySource) writeStatus(ctx context.Context, u *unstructured.Unstructured, next *Status) error {
	if u == s.stale {
		return nil // the next round has the version that was written
	}
	var have Status
	readable, want := json.Unmarshal(objects.PartOf(u, "status"), &have) == nil, *next
	if s.pruned && have.Accepted == nil {
		want.Accepted = nil // alone no reason to write; the CRD may be newer at the next one
	}
	if s.pruned && have.PodsSeenAs == "" {
		want.PodsSeenAs = ""
	}
	if readable && same(&have, &want) {
		s.pace.urgent = have.urgent()
		return nil
	}
	if !s.pace.due(next, s.now()) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	client := s.loop.Client.Resource(objects.Peerings).Namespace(s.self.Namespace)
	written, err := client.UpdateStatus(ctx, with(u, "status", next), metav1.UpdateOptions{})
	if apierrors.IsConflict(err) {
		s.pace.urgent = nil
	}
	if err == nil && written.GetResourceVersion() != u.GetResourceVersion() {
		s.stale = u
	}
	if err == nil {
		stored := &PeeringOf(written).Status
		s.pruned = stored.Accepted == nil || stored.PodsSeenAs != next.PodsSeenAs
	}
	if !apierrors.IsNotFound(err) {
		s.loop.Causes.Log(ctx, "update", "peerings/status", err)
	}
	return err
}

// same reports whether two statuses are equivalent. The API server may leave out empty fields.
func same(a, b *Status) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && string(x) == string(y)
}

// last writes the final status: the gateway has stopped, or another one has displaced it.
func (s *GatewaySource) last(ctx context.Context, why error) {
	ctx, cancel := context.WithTimeout(ctx, lastTimeout)
	defer cancel()
	for range 2 {
		s.mu.Lock()
		plan, u, ends := s.state.Plan(), s.u, s.ready && s.ended
		s.mu.Unlock()
		switch {
		case u == nil || plan.Current == nil:
			return
		case why != nil && plan.Ousted && plan.Again:
			plan.Status.Conditions = s.set(plan, plan.Status.Conditions, displaced(s.self.Pod, plan.Status.Active.Pod))
		case why != nil || plan.Ousted || !ends || plan.Current.Status.Active == nil ||
			plan.Current.Status.Active.Pod != s.self.Pod:
			return // another one is active
		default:
			plan.Status.Conditions = s.set(plan, plan.Status.Conditions,
				&Condition{Type: Connected, Status: "False", Reason: "GatewayStopped",
					Message: "the gateway's pod has ended"})
			plan.Status.RTT = ""
		}
		s.keepAccepted(plan)
		plan.Status.Message = message(&plan.Status)
		s.pace.urgent, s.stale = nil, nil // there is no later round
		if !apierrors.IsConflict(s.writeStatus(ctx, u, &plan.Status)) {
			return
		}
		client := s.loop.Client.Resource(objects.Peerings).Namespace(s.self.Namespace)
		l, err := client.List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + s.self.Name}) // it may not get
		if err != nil || len(l.Items) != 1 {
			return
		}
		s.mu.Lock()
		s.u = &l.Items[0]
		s.state.put(PeeringOf(s.u))
		s.mu.Unlock()
	}
}
