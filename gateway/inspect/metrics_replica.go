package inspect

import (
	"maps"
	"slices"

	"culvert/gateway/control"
	"culvert/gateway/prometheus"
	"culvert/gateway/role"
)

// replica reports the election of the gateway that forwards.
func (p *page) replica(r control.Replica) {
	p.Family(prometheus.Gauge, "role", "1 for the role that the gateway has among its replicas.", "role")
	for _, name := range []role.Role{role.Standby, role.Active, role.Static, role.Silent} {
		p.Add(prometheus.Bit[r.Role == name.String()], name.String())
	}
	p.One(prometheus.Counter, "role_changes_total", "Changes of the role.", float64(r.Changes))
	p.Family(prometheus.Gauge, "lease_holder",
		"1 for the pod that has the Lease, as this gateway has read it last; absent if none has.", "pod")
	if r.Holder != "" {
		p.Add(1, r.Holder)
	}
	p.One(prometheus.Gauge, "lease_term", "How often the holder of the Lease has changed.", float64(r.Term))
	if r.LeaseSeconds != nil {
		p.One(prometheus.Gauge, "lease_age_seconds", "Since the Lease was seen to be renewed.", *r.LeaseSeconds)
	}
	failing := 0.0
	if r.FailingSeconds != nil {
		failing = *r.FailingSeconds
	}
	p.One(prometheus.Gauge, "lease_failing_seconds", "For how long the Lease could not be read or renewed; 0 = it can.",
		failing)
}

// replication reports how complete and how old the copies of the table are.
func (p *page) replication(r control.Replication) {
	p.Family(prometheus.Gauge, "replica_entries", "Connections at a replica that copies this gateway's table.", "pod")
	for _, f := range r.Followers {
		p.Add(float64(f.Entries), f.Pod)
	}
	p.Family(prometheus.Gauge, "replica_lag_seconds",
		"The greatest age of what a replica may lack of this gateway's table.", "pod")
	for _, f := range r.Followers {
		p.Add(f.LagSeconds, f.Pod)
	}
	p.Family(prometheus.Gauge, "replica_full_copy", "1 if a replica has a full copy of this gateway's table.", "pod")
	for _, f := range r.Followers {
		p.Add(prometheus.Bit[!f.NoFullCopy], f.Pod)
	}
	p.Family(prometheus.Gauge, "replica_not_taken",
		"What a replica could not use of this gateway's table, of the last full copy and since, by reason.",
		"pod", "reason")
	for _, f := range r.Followers {
		for _, reason := range slices.Sorted(maps.Keys(f.NotTaken)) {
			p.Add(float64(f.NotTaken[reason]), f.Pod, reason)
		}
	}
	followed := 0.0
	if r.Source != nil && !r.Source.NoFullCopy {
		followed = 1
	}
	p.One(prometheus.Gauge, "replica_follows",
		"1 if this gateway has a full copy of another replica's table, and follows its changes.", followed)
	p.Family(prometheus.Counter, "replica_copies_total", "Full copies of this gateway's table that have begun, by why.",
		"reason")
	for _, reason := range slices.Sorted(maps.Keys(r.Copies)) {
		p.Add(float64(r.Copies[reason]), reason)
	}
	p.Family(prometheus.Counter, "replica_refused_total",
		"Connections to the port for replicas that were closed, by reason.", "reason")
	for _, reason := range slices.Sorted(maps.Keys(r.Refused)) {
		p.Add(float64(r.Refused[reason]), reason)
	}
}
