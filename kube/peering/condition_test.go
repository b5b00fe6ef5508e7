package peering

import "testing"

// TestStandbyReady: one whole copy is enough, whoever else copies.
func TestStandbyReady(t *testing.T) {
	for _, tt := range []struct {
		all                     []Standby
		status, reason, message string
	}{
		{nil, "False", "NoStandby", "no other pod of the gateway copies its connections; where one runs, look whether a NetworkPolicy keeps TCP 51841 between the pods away"},
		{[]Standby{{Pod: "b"}}, "False", "NoFullCopy", "pod b has not yet a copy of all connections"},
		{[]Standby{{Pod: "b"}, {Pod: "c", Whole: true}}, "True", "FullCopy", "pod c has a copy of all connections"},
	} {
		if c := standbyReady(tt.all); c.Type != StandbyReady || c.Status != tt.status || c.Reason != tt.reason || c.Message != tt.message {
			t.Errorf("%v: %+v", tt.all, c)
		}
	}
}
