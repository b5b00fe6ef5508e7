package service

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// TestLeaseTracker: a Lease has ended when this node's own, renewed later, is seen.
func TestLeaseTracker(t *testing.T) {
	start := time.Now()
	at := func(s float64) time.Time { return start.Add(time.Duration(s * float64(time.Second))) }
	type step func(*leaseTracker) (news bool)
	own := func(s float64) step { // renewed and seen at once
		return func(x *leaseTracker) bool {
			x.ask(fmt.Sprint(s), at(s))
			return x.saw("n1", fmt.Sprint(s), true, at(s))
		}
	}
	asked := func(s float64) step { return func(x *leaseTracker) bool { x.ask(fmt.Sprint(s), at(s)); return false } }
	shown := func(s, now float64) step {
		return func(x *leaseTracker) bool { return x.saw("n1", fmt.Sprint(s), true, at(now)) }
	}
	other := func(stamp, s float64) step {
		return func(x *leaseTracker) bool { return x.saw("n2", fmt.Sprint(stamp), true, at(s)) }
	}
	released := func(s float64) step { return func(x *leaseTracker) bool { return x.saw("n2", "r", false, at(s)) } }
	one, two := []string{"n1"}, []string{"n1", "n2"}
	for _, test := range []struct {
		name  string
		steps []step
		want  []string
	}{
		{"nothing is known", nil, nil},
		{"others alone", []step{other(0, 0)}, nil},
		{"a run before", []step{shown(-5, 0)}, nil},
		{"asked and not seen", []step{asked(0), other(0, 0)}, nil},
		{"alone", []step{own(0)}, one},
		{"two", []step{own(0), other(0, 1)}, two},
		{"one that was there before", []step{other(-100, 0), own(0)}, two},
		{"that one is not renewed", []step{other(-100, 0), own(0), own(3), own(6), own(8)}, one},
		{"renewed", []step{own(0), other(0, 1), own(3), other(2, 4), own(6), own(9), own(11.9)}, two},
		{"not renewed", []step{own(0), other(0, 1), own(3), other(2, 4), own(6), own(9), own(12)}, one},
		{"seen again without renewal", []step{own(0), other(0, 1), own(3), own(6), other(0, 7), own(9)}, one},
		{"back", []step{own(0), other(0, 1), own(3), own(6), own(9), other(9, 10)}, two},
		{"released", []step{own(0), other(0, 1), released(2)}, one},
		{"the API server is away", []step{own(0), other(0, 1), asked(3), asked(4), asked(60)}, two},
		{"it is back, and this node is first", []step{own(0), other(0, 1), asked(3), own(60)}, two},
		{"it is back for long", []step{own(0), other(0, 1), asked(3), own(60), own(63), own(66), own(67.9)}, two},
		{"it is back, and the other does not come", []step{own(0), other(0, 1), asked(3), own(60), own(63), own(66),
			own(68)}, one},
		{"renewals are seen in another order", []step{own(0), other(0, 1), own(3), own(6), asked(8), asked(9),
			shown(9, 9), shown(8, 9)}, one},
	} {
		x, before := newLeaseTracker("n1"), []string(nil)
		for i, s := range test.steps {
			news := s(x)
			if now := x.alive(); !news && !slices.Equal(now, before) {
				t.Errorf("%s: step %d is no news, and of %v it makes %v", test.name, i, before, now)
			} else {
				before = now
			}
		}
		if got := x.alive(); !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}

	x := newLeaseTracker("n1")
	own(0)(x)
	if due := x.due(at(0)); due != at(3) {
		t.Errorf("renewed again after %v", due.Sub(at(0)))
	}
	other(0, 1)(x)
	own(3)(x)
	own(6)(x)
	if due := x.due(at(6)); due != at(9) {
		t.Errorf("with a Lease that ends as the next is due, renewed at %v", due.Sub(at(0)))
	}
	own(8)(x)
	if due := x.due(at(8)); due != at(9) {
		t.Errorf("a Lease that ends at 9 s is looked at after %v", due.Sub(at(0)))
	}
	own(9)(x)
	if due := x.due(at(9)); due != at(12) {
		t.Errorf("after that, renewed at %v", due.Sub(at(0)))
	}
	other(9, 9)(x)
	if other(9.5, 9.5)(x) {
		t.Error("a renewal in time is news")
	}
	x.saw("n2", "", false, at(10))
	if got := x.alive(); !slices.Equal(got, one) {
		t.Errorf("a Lease that is not there any more: %v", got)
	}
}
