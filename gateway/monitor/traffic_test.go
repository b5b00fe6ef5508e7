package monitor

import (
	"testing"
	"time"

	"culvert/nat"
)

// TestGrown: the time at which a counter last grew is known to the second; for one that never grew
// there is none.
func TestGrown(t *testing.T) {
	w := new(Monitor)
	stats := new(nat.Stats)
	for second := range 30 {
		if second < 10 {
			stats.Outbound.Forwarded += 5
		}
		w.peer.sent.look(stats.Outbound.Forwarded, time.Duration(second)*time.Second)
	}
	if age := w.peer.sent.since(29 * time.Second); age == nil || *age != 20 {
		t.Errorf("%v, want 20 s", age)
	}
	if age := w.peer.received.since(29 * time.Second); age != nil {
		t.Errorf("%v of what never came", *age)
	}
	w.peer.sent.look(0, 30*time.Second) // another node uses the link
	if age := w.peer.sent.since(31 * time.Second); age != nil {
		t.Errorf("%v of another node", *age)
	}
}
