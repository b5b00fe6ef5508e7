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

// writeStatus writes the Peering's status if it differs from the stored one and is due. After a conflict the new version comes by the watch, and the
// next round writes.
func (s *GatewaySource) writeStatus(ctx context.Context, u *unstructured.Unstructured, plan *Plan) error {
	part, err := kube.PartOf(u, "status")
	if err != nil {
		return err
	}
	var have Status
	if json.Unmarshal(part, &have) == nil && same(&have, &plan.Status) {
		s.pace.urgent = have.urgent()
		return nil
	}
	if !s.pace.due(&plan.Status, s.now()) {
		return nil
	}
	next := with(u, "status", &plan.Status)
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	_, err = s.client.Resource(paths[KindPeering]).Namespace(s.self.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if apierrors.IsConflict(err) {
		s.pace.urgent = nil
	}
	if !apierrors.IsNotFound(err) {
		s.causes.Log(ctx, "update", "peerings/status", err)
	}
	return err
}

// same reports whether two statuses are equivalent. The API server may leave out empty fields.
func same(a, b *Status) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && string(x) == string(y)
}

// last writes the final status: the gateway has stopped.
func (s *GatewaySource) last(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lastTimeout)
	defer cancel()
	s.mu.Lock()
	plan, u, last := s.state.Plan(), s.u, s.ready && s.ended
	s.mu.Unlock()
	if !last || u == nil || plan.Current == nil || plan.Ousted || plan.Current.Status.Active == nil || plan.Current.Status.Active.Pod != s.self.Pod {
		return // another one is active
	}
	plan.Status.Conditions = s.set(plan, plan.Status.Conditions,
		&Condition{Type: Connected, Status: "False", Reason: "GatewayStopped", Message: "the gateway's pod has ended"})
	plan.Status.Message, plan.Status.RTT = message(&plan.Status), ""
	s.pace.urgent = nil // there is no later round
	s.writeStatus(ctx, u, plan)
}
