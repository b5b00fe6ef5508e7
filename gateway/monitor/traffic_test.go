package monitor

import (
	"testing"
	"time"

	"culvert/nat"
)

// TestGrown: what a counter grew last at is said to the second, and nothing of one that never grew.
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
	w.peer.sent.look(0, 30*time.Second) // another node has the link
	if age := w.peer.sent.since(31 * time.Second); age != nil {
		t.Errorf("%v of another node", *age)
	}
}
