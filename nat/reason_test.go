package nat_test

import (
	"testing"

	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/packet"
)

// reasonOf returns the reason for which Process drops a packet that Parse rejects.
var reasonOf = map[packet.Fault]nat.Reason{packet.Malformed: nat.ReasonMalformed,
	packet.SourceRoute: nat.ReasonSourceRoute}

func TestFaultsAreReasons(t *testing.T) {
	dropped(t, engine(t), node1, []byte{0x45}, start, nat.ReasonMalformed)
	route := nattest.IP{Source: "10.200.1.5", Destination: "10.71.3.9", Options: []byte{131, 7, 4, 1, 2, 3, 4, 0},
		Body: nattest.UDP{}}
	dropped(t, engine(t), node1, route.Bytes(), start, nat.ReasonSourceRoute)
	if v := engine(t).Process(&packet.Packet{}, node1, start); v.Action != nat.Drop || v.Reason != nat.ReasonMalformed {
		t.Errorf("never parsed: %v %v", v.Action, v.Reason)
	}
}

func TestReasonNames(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range nat.Reasons() {
		if r.String() == "" || r.String() == "unknown" || seen[r.String()] {
			t.Errorf("reason %d is called %q", r, r)
		}
		seen[r.String()] = true
	}
}
