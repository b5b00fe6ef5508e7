package inspect

import (
	"strings"
	"testing"

	"culvert/gateway/control"
)

// TestReplicaMetrics: the page tells who forwards, how old the Lease is, and how whole the copies
// of the table are; without followers, source or Lease, nothing stands for one.
func TestReplicaMetrics(t *testing.T) {
	seconds := 1.5
	lone := []string{`culvert_role{role="standby"} 1`, `culvert_role{role="active"} 0`,
		"culvert_lease_failing_seconds 0", "culvert_replica_follows 0"}
	for name, r := range map[string]struct {
		role         control.Replica
		copies       control.Replication
		want, absent []string
	}{
		"alone": {control.Replica{Role: "standby"}, control.Replication{}, lone, []string{"culvert_lease_holder{",
			"culvert_lease_age_seconds ", "culvert_replica_entries{"}},
		"in a copy": {control.Replica{Role: "standby"}, control.Replication{Source: &control.Stream{NoFullCopy: true}},
			lone, nil},
		"with all": {
			control.Replica{Role: "active", Changes: 3, Holder: "rome-b", Term: 7, LeaseSeconds: &seconds,
				FailingSeconds: &seconds},
			control.Replication{
				Followers: []control.Stream{{Pod: "rome-a", Entries: 9, LagSeconds: 0.25,
					NotTaken: map[string]uint64{"no-room": 2, "unbound": 1}}, {Pod: "rome-c", NoFullCopy: true}},
				Source: &control.Stream{}, Copies: map[string]uint64{"first": 4},
				Refused: map[string]uint64{"full": 5},
			},
			[]string{`culvert_role{role="active"} 1`, "culvert_role_changes_total 3",
				`culvert_lease_holder{pod="rome-b"} 1`, "culvert_lease_term 7", "culvert_lease_age_seconds 1.5",
				"culvert_lease_failing_seconds 1.5", `culvert_replica_entries{pod="rome-a"} 9`,
				`culvert_replica_lag_seconds{pod="rome-a"} 0.25`, `culvert_replica_full_copy{pod="rome-a"} 1`,
				`culvert_replica_full_copy{pod="rome-c"} 0`,
				`culvert_replica_not_taken{pod="rome-a",reason="no-room"} 2`, "culvert_replica_follows 1",
				`culvert_replica_copies_total{reason="first"} 4`, `culvert_replica_refused_total{reason="full"} 5`},
			[]string{`role="standby"} 1`},
		},
	} {
		p := new(page)
		p.replica(r.role)
		p.replication(r.copies)
		text := p.Text.String()
		for _, w := range r.want {
			if !strings.Contains(text, "\n"+w+"\n") {
				t.Errorf("%s: no %s in\n%s", name, w, text)
			}
		}
		for _, w := range r.absent {
			if strings.Contains(text, "\n"+w) {
				t.Errorf("%s: %s in\n%s", name, w, text)
			}
		}
	}
}
