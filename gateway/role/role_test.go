package role

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

const second = time.Second

var times = Times{Lease: 15 * second, Patience: 10 * second}

// A stage drives one Machine through a story.
type stage struct {
	t     *testing.T
	m     *Machine
	lease *Lease // at the API server
	n     int    // of renewals
	signs Signs
}

func newStage(t *testing.T) *stage { return &stage{t: t, m: New("a", times)} }

// attempt is one attempt to have the Lease, at a time.
func (s *stage) attempt(at time.Duration) {
	if w := s.m.Read(s.lease, at); w != nil {
		s.n++
		w.Renewed = fmt.Sprint("a", s.n)
		s.lease = w
		s.m.Wrote(w, at, at)
	}
}

// other is a renewal by somebody else.
func (s *stage) other(holder string, term int64, d time.Duration) {
	s.n++
	s.lease = &Lease{holder, term, d, fmt.Sprint(holder, s.n)}
}

func (s *stage) look(at time.Duration) bool { return s.m.Look(s.signs, at) }

func (s *stage) want(r Role, what string) {
	s.t.Helper()
	if is, why := s.m.Role(); is != r {
		s.t.Errorf("%s: %v (%s), want %v", what, is, why, r)
	}
}

// TestStories: what follows from what.
func TestStories(t *testing.T) {
	for _, tt := range []struct {
		name string
		run  func(*stage)
	}{
		{"no Lease yet", func(s *stage) {
			s.want(Standby, "at first")
			s.attempt(0)
			s.want(Active, "after its first attempt")
		}},
		{"a container restarts in a living pod", func(s *stage) {
			s.other("a", 4, 15*second)
			s.attempt(0)
			s.want(Active, "at once")
			if s.lease.Term != 4 {
				s.t.Errorf("term %d, want that from before", s.lease.Term)
			}
		}},
		{"another one has it, and dies", func(s *stage) {
			s.other("b", 4, 15*second)
			s.attempt(0)
			s.want(Standby, "beside b")
			s.attempt(14 * second)
			s.want(Standby, "b may live")
			s.attempt(15 * second)
			s.want(Active, "b has not renewed for 15 s")
			if s.lease.Term != 5 {
				s.t.Errorf("term %d, want 5", s.lease.Term)
			}
		}},
		{"another one renews", func(s *stage) {
			for at := time.Duration(0); at < time.Hour; at += 10 * second {
				s.other("b", 4, 15*second)
				s.attempt(at)
				s.want(Standby, "b renews")
			}
		}},
		{"released", func(s *stage) {
			s.other("b", 4, 15*second)
			s.attempt(0)
			s.other("", 4, second)
			s.attempt(second)
			s.want(Active, "nobody has it")
			s.m.Released(2 * second)
			s.want(Standby, "given back")
		}},
		{"the API server is away, the peer sends", func(s *stage) {
			s.attempt(0)
			for at := second; at < time.Hour; at += second {
				s.signs.Heard += 100
				if call := s.look(at); call {
					s.t.Fatal("a gateway that hears its peer calls it")
				}
				if at < 15*second {
					s.want(Active, "its Lease is valid")
				} else {
					s.want(Static, "its Lease has run out")
				}
			}
			s.attempt(time.Hour)
			s.want(Active, "the API server is back")
		}},
		{"the API server is away, the peer is silent, the stream is there", func(s *stage) {
			s.attempt(0)
			s.signs.Stream = true
			s.look(time.Hour)
			s.want(Static, "the standby would say it")
			s.m.Told("b", 1, time.Hour+1)
			s.want(Standby, "the standby says it")
			s.look(2 * time.Hour)
			s.want(Standby, "for good")
		}},
		{"an old term over the stream", func(s *stage) {
			s.other("b", 7, second)
			s.attempt(0)
			s.attempt(2 * second)
			s.want(Active, "term 8")
			s.m.Told("b", 7, 3*second)
			s.want(Active, "told of an older Lease")
			s.m.Told("b", 9, 3*second)
			s.want(Standby, "told of a newer one")
		}},
		{"terms that begin anew over the stream, because the Lease was deleted", func(s *stage) {
			s.other("b", 7, second)
			s.attempt(0)
			s.attempt(2 * second)
			s.m.Told("b", 0, 16*second)
			s.want(Active, "its own Lease is valid")
			s.m.Told("b", 0, 17*second)
			s.want(Standby, "its own Lease has run out")
		}},
		{"cut off from all but the peer, which follows another one", func(s *stage) {
			s.attempt(0)
			s.signs.Heard++
			s.look(18 * second)
			s.want(Static, "heard a moment ago")
			s.look(27 * second)
			s.want(Static, "heard 9 s ago")
			s.look(28 * second)
			s.want(Silent, "heard 10 s ago")
			calls := 0
			for at := 28 * second; at <= 28*second+10*time.Minute; at += second / 4 {
				if s.look(at) {
					calls++
				}
			}
			if calls != 10 {
				s.t.Errorf("%d calls in ten minutes, want 10", calls)
			}
			s.signs.Heard++ // an answer to a handshake
			s.look(time.Hour)
			s.want(Silent, "an answer is no data")
			s.signs.Data++
			s.look(time.Hour + second)
			s.want(Static, "the peer sends to it")
			s.other("b", 2, 15*second)
			s.attempt(time.Hour + 2*second)
			s.want(Standby, "it sees another one")
			s.signs.Data++
			s.look(time.Hour + 3*second)
			s.want(Standby, "data for a standby")
		}},
		{"the API server was away for all, and is back", func(s *stage) {
			s.other("b", 4, 15*second)
			s.attempt(0)
			s.m.Failed()
			s.attempt(60 * second)
			s.want(Standby, "b has not had the time to renew its Lease")
			s.attempt(67 * second)
			s.want(Standby, "7 s later")
			s.m.Failed()
			s.attempt(67400 * time.Millisecond)
			s.attempt(74 * second)
			s.want(Standby, "it was away once more")
			s.attempt(75 * second)
			s.want(Active, "b has had 7.5 s")
		}},
		{"a Lease that runs out while it is written", func(s *stage) {
			w := s.m.Read(nil, 0)
			s.m.Wrote(w, 0, 15*second)
			s.want(Standby, "the answer came too late")
			s.lease = w
			s.attempt(15 * second)
			s.want(Active, "its own Lease")
		}},
		{"the clock jumps ahead", func(s *stage) {
			s.attempt(0)
			s.look(24 * time.Hour)
			s.want(Silent, "as after a day without an API server")
			s.attempt(24*time.Hour + second)
			s.want(Active, "nobody has taken it meanwhile")
		}},
		{"the clock goes back", func(s *stage) {
			s.attempt(time.Hour)
			s.look(0)
			s.want(Active, "an hour before")
			s.look(time.Hour + 14*second)
			s.want(Active, "14 s later")
		}},
		{"the clock stands still while another one takes over", func(s *stage) {
			s.attempt(0)
			s.other("b", 1, 15*second)
			s.look(second)
			s.want(Active, "it cannot know")
			s.attempt(2 * second)
			s.want(Standby, "with its next attempt")
		}},
		{"a kernel-based gateway has the Lease", func(s *stage) {
			s.other("gw-milan-7c9f_8b7ad2f4-6f0f-4c3e-9d1e-0f7f4a6b1c11", 2, 15*second)
			s.attempt(0)
			s.want(Standby, "its identity is no pod's name")
			s.attempt(16 * second)
			s.want(Active, "it has gone")
		}},
		{"a stranger's Lease for a century", func(s *stage) {
			s.other("x", math.MaxInt32, 100*365*24*time.Hour)
			s.attempt(0)
			s.want(Standby, "it is a holder as any")
			s.attempt(59 * second)
			s.want(Standby, "59 s")
			s.attempt(60 * second)
			s.want(Active, "no Lease is believed for longer than a minute")
			if s.lease.Term != math.MaxInt32 {
				s.t.Errorf("term %d", s.lease.Term)
			}
		}},
		{"a Lease without a duration", func(s *stage) {
			s.other("x", 0, 0)
			s.attempt(0)
			s.attempt(14 * second)
			s.want(Standby, "ours counts")
			s.attempt(15 * second)
			s.want(Active, "15 s")
		}},
		{"a Lease of nobody's for no time", func(s *stage) {
			s.other("x", -1, -second)
			s.attempt(0)
			s.want(Standby, "x")
			s.attempt(15 * second)
			s.want(Active, "15 s")
		}},
		{"somebody deletes the Lease", func(s *stage) {
			s.attempt(0)
			s.lease = nil
			s.attempt(2 * second)
			s.want(Active, "it writes another one")
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newStage(t)
			s.t = t
			tt.run(s)
		})
	}
}

// TestRoles: what each role may do.
func TestRoles(t *testing.T) {
	for r, want := range map[Role][2]bool{Alone: {true, true}, Standby: {}, Active: {true, true}, Static: {true, false},
		Silent: {}} {
		if got := [2]bool{r.Forwards(), r.Speaks()}; got != want {
			t.Errorf("%v: forwards and speaks %v, want %v", r, got, want)
		}
	}
}

// A model is an API server, a peer and several gateways under one clock.
type model struct {
	rng     *rand.Rand
	now     time.Duration
	lease   *Lease
	version int
	all     []*replica
	at      *replica // whom the peer sends to
}

type replica struct {
	name    string
	m       *Machine
	cut     bool          // from the API server
	due     time.Duration // of its next attempt
	pending []write
	signs   Signs
}

// A write is under way to the API server, or its answer from there.
type write struct {
	lease   *Lease
	version int
	asked   time.Duration
	arrives time.Duration
	done    bool
}

const (
	step  = 50 * time.Millisecond
	retry = 2 * second
)

func (r *replica) start(m *model) {
	r.m, r.pending, r.due, r.signs = New(r.name, times), nil, m.now, Signs{}
}

// pass lets a step of time pass.
func (m *model) pass() {
	m.now += step
	for _, r := range m.all {
		for len(r.pending) > 0 && r.pending[0].arrives <= m.now {
			w := r.pending[0]
			r.pending = r.pending[1:]
			switch {
			case w.done:
				r.m.Wrote(w.lease, w.asked, m.now)
			case r.cut || w.version != m.version: // lost, or a conflict
			default:
				m.version++
				w.lease.Renewed = fmt.Sprint(m.version)
				m.lease = w.lease
				w.done, w.arrives = true, m.now+time.Duration(m.rng.Int64N(int64(second)))
				r.pending = append(r.pending, w)
			}
		}
		if m.now >= r.due {
			r.due = m.now + retry + time.Duration(m.rng.Float64()*Jitter*float64(retry))
			if r.cut {
				r.m.Failed()
			}
			if !r.cut && len(r.pending) == 0 {
				if w := r.m.Read(m.lease, m.now); w != nil {
					r.pending = append(r.pending, write{lease: w, version: m.version, asked: m.now,
						arrives: m.now + time.Duration(m.rng.Int64N(int64(second)))})
				}
			}
		}
		r.m.Look(r.signs, m.now)
		if role, _ := r.m.Role(); role == Active {
			m.at = r // the peer follows who calls it
		}
	}
	if m.at != nil {
		m.at.signs.Heard++
		if role, _ := m.at.m.Role(); role.Forwards() {
			m.at.signs.Data++
		}
	}
}

func (m *model) in(r Role) (n int) {
	for _, x := range m.all {
		if is, _ := x.m.Role(); is == r {
			n++
		}
	}
	return n
}

// run lets gateways be cut off and restarted at random, and returns what was violated.
func run(seed uint64) error {
	m := &model{rng: rand.New(rand.NewPCG(seed, 27))}
	for i := range 2 + int(seed%2) {
		r := &replica{name: fmt.Sprint("pod", i)}
		m.all = append(m.all, r)
		r.start(m)
	}
	for m.now < 10*time.Minute {
		if m.rng.IntN(200) == 0 {
			r := m.all[m.rng.IntN(len(m.all))]
			switch m.rng.IntN(3) {
			case 0:
				r.start(m)
			default:
				r.cut = !r.cut
			}
		}
		m.pass()
		if m.in(Active) > 1 {
			return fmt.Errorf("at %v two gateways have the Lease", m.now)
		}
	}
	for _, r := range m.all {
		r.cut = false
	}
	// A Lease that a gateway that is no more has written, and two attempts of another one, each
	// with a request and its answer.
	healed := m.now + times.Lease + 2*(22*retry/10+2*second)
	for m.now < healed {
		m.pass()
		if m.in(Active) > 1 {
			return fmt.Errorf("at %v two gateways have the Lease", m.now)
		}
	}
	if active, static, silent := m.in(Active), m.in(Static), m.in(Silent); active != 1 || static+silent > 0 {
		return fmt.Errorf("%v after all is well %d are active, %d static, %d silent", m.now, active, static, silent)
	}
	return nil
}

// TestRandom: whatever is cut off and restarted, no two gateways have the Lease, and one has it
// when all is well again.
func TestRandom(t *testing.T) {
	for seed := range uint64(300) {
		if err := run(seed); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
	}
}

// FuzzMachine: no order of events makes a Machine forward while it sees another holder, or panic.
func FuzzMachine(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 255, 128})
	f.Fuzz(func(t *testing.T, events []byte) {
		m, now := New("a", times), time.Duration(0)
		var write *Lease
		for i, b := range events {
			now += time.Duration(int8(b)) * second / 4
			switch b % 8 {
			case 7:
				m.Failed()
			case 0:
				write = m.Read(nil, now)
			case 1:
				write = m.Read(&Lease{Holder: "a", Term: int64(b), Renewed: fmt.Sprint(i)}, now)
			case 2:
				write = m.Read(&Lease{Holder: "b", Term: int64(b), Duration: time.Duration(b) * second,
					Renewed: fmt.Sprint(i)}, now)
				if r, _ := m.Role(); r != Standby || write != nil {
					t.Fatalf("event %d: %v beside another holder, writes %v", i, r, write)
				}
			case 3:
				if write != nil {
					m.Wrote(write, now, now)
					write = nil
				}
			case 4:
				m.Told("b", int64(b), now)
			case 5:
				m.Look(Signs{Heard: uint64(b), Data: uint64(b / 3), Stream: b > 128}, now)
			case 6:
				m.Released(now)
			}
			if r, why := m.Role(); r == Alone || why == "" {
				t.Fatalf("event %d: %v, %q", i, r, why)
			}
		}
	})
}
