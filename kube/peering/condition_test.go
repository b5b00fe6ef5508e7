package peering

import (
	"testing"
	"time"

	"culvert/kube"
)

// TestStandbyReady: one complete copy is enough, however many pods copy.
func TestStandbyReady(t *testing.T) {
	for _, tt := range []struct {
		all                     []Standby
		status, reason, message string
	}{
		{nil, "False", "NoStandby",
			"no other pod of the gateway copies its connections; where one runs, look whether a NetworkPolicy keeps TCP 51841 between the pods away"},
		{[]Standby{{Pod: "b"}}, "False", "NoFullCopy", "pod b has not yet a copy of all connections"},
		{[]Standby{{Pod: "b"}, {Pod: "c", Whole: true}}, "True", "FullCopy", "pod c has a copy of all connections"},
		{[]Standby{{Pod: "b", Whole: true, Lacks: []string{"3 not taken, no-room: x", "1 not taken, unbound: y"}},
			{Pod: "c"}}, "False", "NotTaken",
			"the copy of pod b lacks something: 3 not taken, no-room: x; 1 not taken, unbound: y"},
		{[]Standby{{Pod: "b", Whole: true, Lacks: []string{"3 not taken, no-room: x"}}, {Pod: "c", Whole: true}},
			"True", "FullCopy", "pod c has a copy of all connections"},
	} {
		if c := standbyReady(tt.all); c.Type != StandbyReady || c.Status != tt.status || c.Reason != tt.reason ||
			c.Message != tt.message {
			t.Errorf("%v: %+v", tt.all, c)
		}
	}
}

// TestRoundTrip: a new round-trip time is written only now and then, but at once if the one before
// included the wait for a handshake.
func TestRoundTrip(t *testing.T) {
	now := time.Unix(1e9, 0)
	s := &GatewaySource{now: func() time.Time { return now }}
	for _, step := range []struct {
		after, latency time.Duration
		want           string
	}{
		{0, 1147 * time.Millisecond, "1147.0ms"},
		{time.Second, 900 * time.Microsecond, "900µs"},
		{time.Second, 2 * time.Millisecond, "900µs"},
		{rttInterval, 2 * time.Millisecond, "2.0ms"},
	} {
		now = now.Add(step.after)
		if got := s.roundTrip(&kube.Check{State: kube.CheckConnected, Latency: step.latency}); got != step.want {
			t.Errorf("after %v, %v: %s, want %s", step.after, step.latency, got, step.want)
		}
	}
}

// TestOnePodAgain: a gateway that had several pods, and has one now, no longer says that a standby
// is missing.
func TestOnePodAgain(t *testing.T) {
	s := &GatewaySource{now: time.Now}
	other := &Condition{Type: Connected, Status: "True"}
	all := s.standby(&Plan{}, []*Condition{other}, nil, false)
	if len(all) != 2 || all[1].Reason != "NoStandby" || message(&Status{Conditions: all}) == "" {
		t.Fatalf("%+v", all)
	}
	if all = s.standby(&Plan{}, all, nil, true); len(all) != 1 || all[0] != other ||
		message(&Status{Conditions: all}) != "" {
		t.Errorf("%+v", all)
	}
}

// TestMessage: the most urgent fault is the message. One Service that is not exported is its
// owner's matter. While the peer's key is missing, nodes' faults are told too, and a narrow path is
// told when all else is well.
func TestMessage(t *testing.T) {
	key, lost := &Condition{Type: Connected, Status: "False", Reason: noPeerKey, Message: "no key"},
		&Condition{Type: Connected, Status: "False", Reason: "PeerSilent", Message: "lost"}
	well, narrow := &Condition{Type: Connected, Status: "True"}, &Condition{Type: Connected, Status: "True",
		Message: "narrow"}
	nodes, copied := &Condition{Type: NodesReady, Status: "False", Message: "nodes"}, &Condition{Type: StandbyReady,
		Status: "True", Message: "has a copy"}
	refused, full := &Condition{Type: Exported, Status: "False", Reason: "Refused", Message: "headless"},
		&Condition{Type: Exported, Status: "False", Reason: "ExternalCIDRFull", Message: "full"}
	imported, unwanted := &Condition{Type: Imported, Status: "False", Reason: "Refused", Message: "no right"},
		&Condition{Type: Imported, Status: "False", Reason: notWanted, Message: "x"}
	for _, c := range []struct {
		all  []*Condition
		want string
	}{
		{[]*Condition{well, copied, unwanted}, ""},
		{[]*Condition{key}, "no key"},
		{[]*Condition{key, nodes, full}, "no key; nodes"},
		{[]*Condition{key, full}, "no key"},
		{[]*Condition{lost, nodes}, "lost"},
		{[]*Condition{well, refused}, ""},
		{[]*Condition{well, refused, imported}, "no right"},
		{[]*Condition{well, full, imported}, "full"},
		{[]*Condition{narrow, copied, refused}, "narrow"},
		{[]*Condition{narrow, nodes}, "nodes"},
	} {
		if got := message(&Status{Conditions: c.all}); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
