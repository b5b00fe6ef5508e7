package wg

import (
	"testing"
	"time"
)

// TestPings: each answer is matched to its ping, and a ping without an answer is lost when the next
// one is sent.
func TestPings(t *testing.T) {
	d := new(Device)
	now := time.Hour
	var numbers []uint16
	ping := func(n int) {
		for range n {
			now += time.Second
			numbers = append(numbers, d.pings.request(now))
		}
	}
	answer := func(back int, after time.Duration) {
		d.pings.answer(numbers[len(numbers)-1-back], now+after)
	}
	want := func(what string, want Pings) {
		t.Helper()
		if got := d.Pings(); got != want {
			t.Errorf("%s: %+v, want %+v", what, got, want)
		}
	}
	want("before the first", Pings{})
	ping(5)
	want("a peer that answers none", Pings{Sent: 5, Requests: 4, Lost: 4, AllMissed: 4})
	answer(0, 3*time.Millisecond)
	want("an answer", Pings{RTT: 3 * time.Millisecond, Sent: 5, Requests: 5, Lost: 4, AllMissed: 4})
	answer(1, 4*time.Millisecond)
	want("a late one", Pings{RTT: 3 * time.Millisecond, Sent: 5, Requests: 5, Lost: 3, AllMissed: 4})
	ping(3)
	want("three without answer", Pings{RTT: 3 * time.Millisecond, Sent: 8, Requests: 7, Lost: 5, Missed: 3,
		AllMissed: 6})
	ping(1)
	want("four", Pings{Sent: 9, Requests: 8, Lost: 6, Missed: 4, AllMissed: 7})
	for range 200 { // more than there are numbers
		ping(1)
		answer(0, 5*time.Millisecond)
	}
	want("long after", Pings{RTT: 5 * time.Millisecond, Sent: 209, Requests: 32, AllMissed: 8})
	answer(40, 0)
	want("far too late", Pings{RTT: 5 * time.Millisecond, Sent: 209, Requests: 32, AllMissed: 8})
	d.pings.reset()
	want("of another peer", Pings{Sent: 209, AllMissed: 8})
}
