package udp

import "testing"

// TestRecent: what was lost is counted among the last requests, and a request that waits for its
// answer is not lost.
func TestRecent(t *testing.T) {
	request := func(n int) func(*Recent) {
		return func(r *Recent) {
			for range n {
				r.Request()
			}
		}
	}
	answer := func(followed int) func(*Recent) { return func(r *Recent) { r.Answer(followed) } }
	ping := func(n int) func(*Recent) {
		return func(r *Recent) {
			for range n {
				r.Request()
				r.Answer(0)
			}
		}
	}
	forget := func(but int) func(*Recent) { return func(r *Recent) { r.Forget(but) } }
	for _, tt := range []struct {
		name        string
		steps       []func(*Recent)
		lost, of    int
		missed, all uint64
	}{
		{"nothing", nil, 0, 0, 0, 0},
		{"an answer to nothing", []func(*Recent){answer(0)}, 0, 0, 0, 0},
		{"one that waits", []func(*Recent){request(1)}, 0, 0, 0, 1},
		{"one that is answered", []func(*Recent){ping(1)}, 0, 1, 0, 1},
		{"one lost, one that waits", []func(*Recent){request(2)}, 1, 1, 1, 2},
		{"one late, one that waits", []func(*Recent){request(2), answer(1)}, 0, 1, 1, 2},
		{"one answered twice", []func(*Recent){ping(1), answer(0)}, 0, 1, 0, 1},
		{"too late", []func(*Recent){request(1), ping(32), answer(32)}, 0, 32, 1, 33},
		{"an answer from before", []func(*Recent){ping(1), answer(1), answer(-1)}, 0, 1, 0, 1},
		{"half of them", []func(*Recent){ping(16), request(16), ping(1)}, 16, 32, 16, 33},
		{"all of many, one that waits", []func(*Recent){request(1000)}, 31, 31, 999, 1000},
		{"old losses are forgotten", []func(*Recent){request(100), ping(32)}, 0, 32, 100, 132},
		{"who was away has lost nothing", []func(*Recent){ping(5), request(9), forget(1), answer(0)}, 0, 1, 8, 14},
		{"another peer has nothing of the last one's", []func(*Recent){ping(5), request(9), forget(0), ping(3)},
			0, 3, 8, 17},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var r Recent
			for _, step := range tt.steps {
				step(&r)
			}
			if lost, of := r.Lost(); lost != tt.lost || of != tt.of {
				t.Errorf("%d of %d lost, want %d of %d", lost, of, tt.lost, tt.of)
			}
			if all, missed := r.Totals(); missed != tt.missed || all != tt.all {
				t.Errorf("in all %d of %d lost, want %d of %d", missed, all, tt.missed, tt.all)
			}
		})
	}
}
