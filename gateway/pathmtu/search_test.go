package pathmtu

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// A wire is a path and its end.
type wire struct {
	there, back int           // MTU of each direction; 0 = no limit
	short       bool          // the end gives shortened answers
	deaf        bool          // the end answers ARP only
	own         int           // MTU of the end, which fragments larger answers; 0 = none
	answers     bool          // the end answers
	limit       int           // answers a second that the end gives; 0 = any number
	loss        float64       // of each packet
	lossGrows   bool          // with its size: loss then applies to 1340 bytes
	delay       time.Duration // of each answer
	unused      bool
	returned    bool // something else has come from the end, for the first time after a while
}

// A sight is what a Search showed to a test.
type sight struct {
	at time.Duration
	Result
}

const tick = 1050 * time.Millisecond

// drive runs a Search for a while over a wire that changes. It returns each change of the Search's
// result, and the number of probes.
func drive(ceiling int, arp bool, lasts time.Duration, seed uint64, change func(now time.Duration, w *wire)) (
	seen []sight, s *Search, probes, bytes int) {
	random := rand.New(rand.NewPCG(seed, 1))
	w := &wire{answers: true}
	s = New(ceiling, arp)
	type answer struct {
		at           time.Duration
		nonce        uint64
		number, size int
		fragment     bool
	}
	var under []answer
	lost := func(size int) bool {
		loss := w.loss
		if w.lossGrows {
			loss *= float64(size) / 1340
		}
		return random.Float64() < loss
	}
	tokens := 0.0
	for now := time.Duration(0); now < lasts; now += tick {
		change(now, w)
		if w.returned {
			s.Returned()
			w.returned = false
		}
		for _, a := range under {
			if a.at <= now {
				s.Answered(a.nonce, a.number, a.size, a.fragment)
			}
		}
		kept := under[:0]
		for _, a := range under {
			if a.at > now {
				kept = append(kept, a)
			}
		}
		under = kept
		if w.limit > 0 {
			tokens = min(tokens+float64(w.limit)*tick.Seconds(), float64(w.limit))
		}
		nonce := random.Uint64() | 1
		sent, changed := s.Look(now, nonce, !w.unused)
		if changed {
			seen = append(seen, sight{now, s.Result})
		}
		for i, p := range sent {
			probes, bytes = probes+1, bytes+p.Size
			if w.there > 0 && p.Size > w.there || lost(p.Size) || !w.answers {
				continue
			}
			if p.Kind == ARP {
				s.AnsweredARP(i)
				continue
			}
			if w.deaf {
				continue
			}
			if w.limit > 0 {
				if tokens < 1 {
					continue
				}
				tokens--
			}
			size, fragment := p.Size, false
			if p.Kind == ShortEcho && w.short {
				size = 44
			}
			if w.own > 0 && size > w.own {
				size, fragment = 20+(w.own-20)&^7, true
			}
			if w.back > 0 && size > w.back || lost(size) {
				continue
			}
			under = append(under, answer{now + w.delay + time.Millisecond, nonce, i, size, fragment})
		}
	}
	return seen, s, probes, bytes
}

const hole = 1246

// TestHoleIsFound: a path that begins to drop large packets is found within 10 s, as exactly as is
// worthwhile, with its direction if the other end shows it.
func TestHoleIsFound(t *testing.T) {
	ends := []struct {
		name        string
		short, arp  bool
		there, back Way // results for a hole on the way there, and for one on the way back
	}{{"pings", false, false, Either, Either}, {"culvert", true, false, There, Back}, {"ARP", false, true, There, Back}}
	for _, end := range ends {
		for _, tt := range []struct {
			name        string
			there, back int
			want        Way
		}{{"there", hole, 0, end.there}, {"back", 0, hole, end.back}, {"both ways", hole, hole, end.there}} {
			for _, ceiling := range []int{1340, 1400, 8950} {
				for _, begins := range []time.Duration{0, 60 * time.Second, 61 * time.Second, 62 * time.Second} {
					t.Run(fmt.Sprintf("%s/%s/%d/%v", end.name, tt.name, ceiling, begins), func(t *testing.T) {
						seen, s, _, _ := drive(ceiling, end.arp, begins+10*time.Second, 1,
							func(now time.Duration, w *wire) {
								w.short = end.short
								if now >= begins {
									w.there, w.back = tt.there, tt.back
								}
							})
						if s.Size > hole || s.Size < hole-step || !s.Known || s.Way != tt.want {
							t.Errorf("after 10 s: %+v, want %d to %d, way %q; seen %v", s.Result, hole-step, hole,
								tt.want, seen)
						}
						for _, x := range seen {
							if x.Size < hole-step {
								t.Errorf("%v: %d for a while", x.at, x.Size)
							}
						}
					})
				}
			}
		}
	}
}

// TestARPAlone: if an end answers no echo requests, the way there is measured; later answers count.
func TestARPAlone(t *testing.T) {
	_, s, _, _ := drive(1340, true, time.Hour, 1, func(_ time.Duration, w *wire) { w.deaf, w.back = true, 800 })
	if want := (Result{Size: 1340, Known: true, OneWay: true}); s.Result != want {
		t.Errorf("a hole on the way back: %+v, want %+v", s.Result, want)
	}
	_, s, _, _ = drive(1340, true, 70*time.Second, 1, func(now time.Duration, w *wire) {
		if w.deaf = true; now > time.Minute {
			w.there = hole
		}
	})
	if s.Size > hole || s.Size < hole-step || s.Way != There || !s.OneWay {
		t.Errorf("a hole on the way there: %+v", s.Result)
	}
	_, s, _, _ = drive(1340, true, 2*time.Minute, 1, func(now time.Duration, w *wire) {
		w.deaf, w.back = now < time.Minute, hole
	})
	if s.Size > hole || s.Size < hole-step || s.Way != Back || s.OneWay {
		t.Errorf("it has begun to answer: %+v", s.Result)
	}
}

// TestHoleOfAnySize: the largest size that passes is found, whatever it is.
func TestHoleOfAnySize(t *testing.T) {
	for limit := Floor; limit < 1340; limit++ {
		_, s, _, _ := drive(1340, false, 10*time.Second, 1, func(_ time.Duration, w *wire) { w.back = limit })
		if s.Size > limit || s.Size < limit-step {
			t.Fatalf("%d passes, found %d", limit, s.Size)
		}
	}
	for _, limit := range []int{Small, 300, Floor - 1} {
		_, s, _, _ := drive(1340, false, time.Minute, 1, func(_ time.Duration, w *wire) { w.back = limit })
		if s.Size != Floor {
			t.Fatalf("%d passes, found %d, want the floor", limit, s.Size)
		}
	}
}

// TestNoHole: other faults than a black hole lower nothing.
func TestNoHole(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(now time.Duration, w *wire)
		known  bool
	}{
		{"a path that carries all", func(time.Duration, *wire) {}, true},
		{"nobody answers", func(_ time.Duration, w *wire) { w.answers = false }, false},
		{"nobody answers any more", func(now time.Duration, w *wire) { w.answers = now < time.Minute }, true},
		{"the path is cut now and then", func(now time.Duration, w *wire) { w.answers = now/(10*time.Second)%2 == 0 },
			true},
		{"answers take 3 s", func(_ time.Duration, w *wire) { w.delay = 3 * time.Second }, true},
		{"answers take 1.5 s", func(_ time.Duration, w *wire) { w.delay = 1500 * time.Millisecond }, true},
		{"two answers a second", func(_ time.Duration, w *wire) { w.limit = 2 }, true},
		{"one answer a second", func(_ time.Duration, w *wire) { w.limit = 1 }, true},
		{"the other end has a smaller MTU", func(_ time.Duration, w *wire) { w.own = 1280 }, true},
		{"the other end has a larger MTU", func(_ time.Duration, w *wire) { w.own = 1400 }, true},
		{"nobody uses it", func(_ time.Duration, w *wire) { w.unused, w.there = true, 800 }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			seen, s, _, _ := drive(1340, false, time.Hour, 1, tt.change)
			if s.Size != 1340 || s.Known != tt.known {
				t.Errorf("found %+v; %v", s.Result, seen)
			}
		})
	}
}

// TestLossIsNoHole: loss of packets of any size, slight or nearly total as in a flood, does not
// lower a path's MTU. A full queue of bytes accepts small packets more often than large ones.
func TestLossIsNoHole(t *testing.T) {
	for _, loss := range []float64{0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9} {
		for _, arp := range []bool{false, true} {
			for _, bytes := range []bool{false, true} {
				for seed := range uint64(10) {
					seen, _, _, _ := drive(1340, arp, time.Hour, seed, func(_ time.Duration, w *wire) {
						w.loss, w.lossGrows = loss, bytes
					})
					for _, x := range seen {
						if x.Size < 1340 {
							t.Errorf("loss %v, ARP %v, of bytes %v, seed %d: %d at %v", loss, arp, bytes, seed,
								x.Size, x.at)
						}
					}
				}
			}
		}
	}
}

// TestHoleWithLoss: loss hides no hole.
func TestHoleWithLoss(t *testing.T) {
	for _, tt := range []struct {
		loss float64
		time time.Duration
	}{{0.05, 20 * time.Second}, {0.2, time.Minute}, {0.4, 5 * time.Minute}} {
		for seed := range uint64(50) {
			_, s, _, _ := drive(1340, false, tt.time, seed, func(_ time.Duration, w *wire) {
				w.loss, w.there = tt.loss, hole
			})
			if s.Size > hole || s.Size < hole-step {
				t.Errorf("loss %v, seed %d: %+v after %v", tt.loss, seed, s.Result, tt.time)
			}
		}
	}
}

// TestHoleWidthChanges: a path that becomes even narrower while it is measured is measured again.
func TestHoleWidthChanges(t *testing.T) {
	for changes := range 10 * time.Second / tick {
		_, s, _, _ := drive(1340, false, 30*time.Second, 1, func(now time.Duration, w *wire) {
			if w.there = hole; now >= changes*tick {
				w.there = 900
			}
		})
		if s.Size > 900 || s.Size < 900-step {
			t.Errorf("narrower after %v: %+v", changes*tick, s.Result)
		}
	}
}

// TestPathRises: a path that carries everything again is found within seconds, one that carries
// more within raiseInterval. One that keeps falling is probed less often.
func TestPathRises(t *testing.T) {
	at := func(seen []sight, size int, from time.Duration) time.Duration {
		for _, x := range seen {
			if x.Size == size && x.at >= from {
				return x.at
			}
		}
		return -1
	}
	seen, s, _, _ := drive(1340, false, 5*time.Minute, 1, func(now time.Duration, w *wire) {
		if w.there = 0; now < 2*time.Minute {
			w.there = hole
		}
	})
	if up := at(seen, 1340, 2*time.Minute); up < 0 || up > 2*time.Minute+8*time.Second {
		t.Errorf("whole again at %v; %v", up, seen)
	}
	if s.Size != 1340 {
		t.Errorf("in the end %+v", s.Result)
	}
	_, s, _, _ = drive(1340, false, 5*time.Minute, 1, func(now time.Duration, w *wire) {
		if w.there = hole; now > 2*time.Minute {
			w.there = 1290
		}
	})
	if s.Size > 1290 || s.Size < 1290-step {
		t.Errorf("a path that rises in part: %+v", s.Result)
	}
	seen, _, _, _ = drive(1340, true, 5*time.Minute, 1, func(now time.Duration, w *wire) { // its end answers ARP only
		if w.deaf, w.there = true, 0; now < 2*time.Minute {
			w.there = hole
		}
	})
	if up := at(seen, 1340, 2*time.Minute); up < 0 || up > 2*time.Minute+8*time.Second {
		t.Errorf("whole again by ARP at %v; %v", up, seen)
	}
	seen, _, _, _ = drive(1340, false, 2*time.Hour, 1, func(now time.Duration, w *wire) {
		if w.there = 0; now/(30*time.Second)%2 == 0 {
			w.there = hole
		}
	})
	if len(seen) > 60 {
		t.Errorf("a path that rises and falls each minute has changed %d times in two hours", len(seen))
	}
}

// TestProbesAreFew limits the cost of probing.
func TestProbesAreFew(t *testing.T) {
	for _, tt := range []struct {
		name         string
		change       func(time.Duration, *wire)
		probes, size int // limits a second
	}{
		{"a path that carries all", func(time.Duration, *wire) {}, 1, 750},
		{"a narrow path", func(_ time.Duration, w *wire) { w.there = hole }, 2, 1500},
		{"a dead end", func(_ time.Duration, w *wire) { w.answers = false }, 1, 100},
		{"an end that answers small ones alone", func(_ time.Duration, w *wire) { w.there = Small }, 2, 1500},
		{"an idle path", func(_ time.Duration, w *wire) { w.unused = true }, 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			const lasts = time.Hour
			_, _, probes, bytes := drive(1340, false, lasts, 1, tt.change)
			if most := tt.probes * int(lasts.Seconds()); probes > most {
				t.Errorf("%d probes, want at most %d", probes, most)
			}
			if most := tt.size * int(lasts.Seconds()); bytes > most {
				t.Errorf("%d bytes, want at most %d", bytes, most)
			}
		})
	}
}

// TestForgedAnswers: a sender that has not seen a probe cannot answer it, and no answer makes a
// path larger than configured or smaller than Floor.
func TestForgedAnswers(t *testing.T) {
	s := New(1340, false)
	if s.Answered(0, 0, 1340, false) {
		t.Error("an answer before there is a probe")
	}
	probes, _ := s.Look(0, 77, true)
	for _, a := range []struct {
		nonce        uint64
		number, size int
		want         bool
	}{{0, 0, 1340, false}, {78, 0, 1340, false}, {77, len(probes), 1340, false}, {77, 65535, 1340, false},
		{77, 0, 1339, true}, {77, 0, 20, true}} {
		if got := s.Answered(a.nonce, a.number, a.size, false); got != a.want {
			t.Errorf("%+v: %v", a, got)
		}
	}
	if s.Look(tick, 79, true); s.Known {
		t.Error("an answer that is shorter than its probe counts")
	}
	random := rand.New(rand.NewPCG(1, 1))
	for i := range 20000 {
		s.Look(time.Duration(i+2)*tick, uint64(i+100), true)
		for range random.IntN(30) {
			s.Answered(uint64(i+100-random.IntN(3)), random.IntN(30), random.IntN(70000), random.IntN(5) == 0)
		}
		if s.Size < Floor || s.Size > 1340 || s.target() < Floor {
			t.Fatalf("%+v", s)
		}
	}
}

// TestHoleAfterOutage: when an end comes back after any time, perhaps by another path, a hole is
// found as fast as ever.
func TestHoleAfterOutage(t *testing.T) {
	for away := 1; away < 40; away++ {
		back := 20*time.Second + time.Duration(away)*tick
		seen, _, _, _ := drive(1340, true, back+10*time.Second, 1, func(now time.Duration, w *wire) {
			was := w.answers
			if w.answers = now < 20*time.Second || now >= back; w.answers && !was {
				w.there, w.returned = hole, true
			}
		})
		if len(seen) == 0 || seen[len(seen)-1].Size > hole || seen[len(seen)-1].Size < hole-step {
			t.Errorf("away for %v: %+v", time.Duration(away)*tick, seen)
		}
	}
}
