package udp

import (
	"testing"
	"time"
)

// TestTrainProbe looks once a second at a path of which each step says how many trains are sent and
// which probes are answered. In the results, P is a round begun, x trains found lost, o trains
// found to arrive.
func TestTrainProbe(t *testing.T) {
	const (
		none   = 0
		single = 1 << ProbeSingle
		first  = 1 << ProbeFirst
		second = 1 << ProbeSecond
		all    = single | first | second
	)
	type span struct {
		seconds int
		trains  uint64 // sent per second
		answers uint32 // to each round
	}
	for _, tt := range []struct {
		name string
		path []span
		want string // a letter per second
	}{
		{"idle", []span{{6, 0, all}}, "......"},
		{"all well", []span{{7, 5, all}}, "P.P.P.P"},
		{"all well, then idle", []span{{3, 5, all}, {3, 0, all}}, "P.P..."},
		{"nobody answers", []span{{7, 5, none}}, "P.P.P.P"},
		{"trains lost", []span{{6, 5, single}}, "PPPx.."},
		{"the second of each train spoilt", []span{{4, 5, single | first}}, "PPPx"},
		{"the first of each train spoilt", []span{{4, 5, single | second}}, "PPPx"},
		{"sender backs off", []span{{1, 1, single}, {5, 0, single}}, "PPPx.."},
		{"two losses by chance", []span{{2, 5, single}, {3, 5, all}, {2, 5, single}, {1, 5, all}}, "PPP.P.PP"},
		{"single lost by chance", []span{{3, 5, first | second}}, "P.P"},
		{"not answered in between", []span{{2, 5, single}, {1, 5, none}, {5, 5, single}}, "PPP.PPPx"},
		{"repaired", []span{{4, 5, single}, {58, 5, all}, {1, 5, all}, {5, 5, all}}, "PPPx" + dots(58) + "PoP.P."},
		{"repaired while idle", []span{{62, 1, single}, {3, 0, all}}, "PPPx" + dots(58) + "Po."},
		{"down while lost, up again", []span{{62, 1, single}, {60, 0, none}, {3, 0, all}},
			"PPPx" + dots(58) + "P" + dots(59) + "Po."},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var p TrainProbe
			var trains uint64
			now := 5 * time.Hour
			got := ""
			lost := false
			for _, s := range tt.path {
				for range s.seconds {
					trains += s.trains
					due, changed := p.Look(now, trains)
					letter := "."
					switch {
					case changed && due && p.Lost():
						letter = "X"
					case changed && p.Lost():
						letter = "x"
					case changed:
						letter = "o"
					case due:
						letter = "P"
					}
					if changed {
						lost = !lost
					}
					if p.Lost() != lost {
						t.Fatalf("after %q: Lost is %v, changes say %v", got, p.Lost(), lost)
					}
					got += letter
					for probe := range NumProbes {
						if due && s.answers&(1<<probe) != 0 {
							p.Answered(probe)
						}
					}
					now += time.Second
				}
			}
			if got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

func dots(n int) (s string) {
	for range n {
		s += "."
	}
	return s
}

// TestTrainProbeLateAnswers has answers come after half a second, and after the round has been
// given up.
func TestTrainProbeLateAnswers(t *testing.T) {
	var p TrainProbe
	look := func(now time.Duration, trains uint64, wantDue, wantChanged bool) {
		t.Helper()
		if due, changed := p.Look(now, trains); due != wantDue || changed != wantChanged {
			t.Fatalf("at %v: due %v, changed %v", now, due, changed)
		}
	}
	answer := func(probes ...Probe) {
		for _, probe := range probes {
			p.Answered(probe)
		}
	}
	look(0, 1, true, false)
	answer(ProbeSingle)
	look(400*time.Millisecond, 2, false, false) // too soon to say
	answer(ProbeFirst, ProbeSecond)
	look(time.Second, 3, false, false)
	for at := 2; at < 5; at++ {
		look(time.Duration(at)*time.Second, uint64(at+2), true, false)
		answer(ProbeSingle)
	}
	look(5*time.Second, 7, false, true)
	// The path is slow: while trains are off, an answer counts whenever it comes.
	look(64*time.Second, 8, true, false)
	answer(ProbeSingle)
	look(65*time.Second, 8, false, false)
	answer(ProbeFirst, ProbeSecond)
	look(66*time.Second, 8, false, true)
}

// TestTrainProbeVoid: a round that did not leave as it should says nothing.
func TestTrainProbeVoid(t *testing.T) {
	var p TrainProbe
	for at := range 10 {
		due, changed := p.Look(time.Duration(at)*2*time.Second, uint64(at+1))
		if !due || changed {
			t.Fatalf("look %d: due %v, changed %v", at, due, changed)
		}
		p.Void()
		p.Answered(ProbeSingle)
	}
}
