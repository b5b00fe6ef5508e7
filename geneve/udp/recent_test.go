package udp

import "testing"

// TestRecent: what was lost is counted among the last requests, and a request that waits for its answer is not lost.
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
	for _, tt := range []struct {
		name     string
		steps    []func(*Recent)
		lost, of int
	}{
		{"nothing", nil, 0, 0},
		{"an answer to nothing", []func(*Recent){answer(0)}, 0, 0},
		{"one that waits", []func(*Recent){request(1)}, 0, 0},
		{"one that is answered", []func(*Recent){ping(1)}, 0, 1},
		{"one lost, one that waits", []func(*Recent){request(2)}, 1, 1},
		{"one late, one that waits", []func(*Recent){request(2), answer(1)}, 0, 1},
		{"one answered twice", []func(*Recent){ping(1), answer(0)}, 0, 1},
		{"too late", []func(*Recent){request(1), ping(32), answer(32)}, 0, 32},
		{"an answer from before", []func(*Recent){ping(1), answer(1), answer(-1)}, 0, 1},
		{"half of them", []func(*Recent){ping(16), request(16), ping(1)}, 16, 32},
		{"all of many, one that waits", []func(*Recent){request(1000)}, 31, 31},
		{"old losses are forgotten", []func(*Recent){request(100), ping(32)}, 0, 32},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var r Recent
			for _, step := range tt.steps {
				step(&r)
			}
			if lost, of := r.Lost(); lost != tt.lost || of != tt.of {
				t.Errorf("%d of %d lost, want %d of %d", lost, of, tt.lost, tt.of)
			}
		})
	}
}
