package udp

import (
	"sync/atomic"
	"time"
)

// TrainProbe decides whether trains arrive at the other end of one path. Kernels up to 6.8.4 drop trains that reach a VXLAN or Geneve
// link, 7.0 to 7.1.4 spoil them with some drivers; single datagrams pass, and nothing tells the sender.
//
// A round of probes is one datagram that travels alone and a train of two, each with something in it that the other end answers. An
// answer to the single one and not both to the train's, in three rounds one after the other: trains are lost. No answer to
// the single one says nothing, the other end may be down or may not answer such probes at all. Rounds take place only while trains
// are sent, and once a minute where they are lost, until both of a train are answered.
//
// One goroutine calls Look, Void and Reset; Answered and Lost may be called by anyone.
type TrainProbe struct {
	answers atomic.Uint32 // a bit for each Probe answered in this round
	lost    atomic.Bool

	// The rest is the looking goroutine's.
	started  bool // there has been a round
	open     bool // its outcome is not known
	at       time.Duration
	trains   uint64 // sent on the path when it began
	failures int    // rounds in a row in which only the single datagram was answered
}

// Probe is one of the three datagrams of a round.
type Probe uint8

// The single datagram and the two of the train, in the order in which they are sent.
const (
	ProbeSingle Probe = iota
	ProbeFirst
	ProbeSecond
	NumProbes
)

const (
	probeInterval = 1500 * time.Millisecond // between rounds: two seconds for who looks each second
	probeAnswer   = 500 * time.Millisecond  // how long a round takes at least
	probeAgain    = time.Minute             // between rounds where trains are lost
	probeFailures = 3                       // rounds after which they are
)

// Look is to be called once a second, with the time of any clock and the number of trains that have been sent on the path, probes
// not included. due: the caller shall send the probes of a round. changed: Lost has changed.
func (p *TrainProbe) Look(now time.Duration, trains uint64) (due, changed bool) {
	changed = p.conclude(now)
	switch since := now - p.at; {
	case p.open:
	case p.lost.Load():
		due = since >= probeAgain
	case p.failures > 0:
		due = true
	default:
		due = trains != p.trains && (!p.started || since >= probeInterval)
	}
	if due {
		p.answers.Store(0)
		p.started, p.open, p.at, p.trains = true, true, now, trains
	}
	return due, changed
}

// conclude ends the round, if it is time, and reports whether Lost has changed.
func (p *TrainProbe) conclude(now time.Duration) bool {
	const train = 1<<ProbeFirst | 1<<ProbeSecond
	if !p.open {
		return false
	}
	answers := p.answers.Load()
	switch {
	case answers&train == train:
		p.open, p.failures = false, 0
		return p.lost.Swap(false)
	case now-p.at < probeAnswer:
		return false
	}
	if p.lost.Load() { // an answer may still come
		p.open = now-p.at < probeAgain
		return false
	}
	p.open = false
	if answers&(1<<ProbeSingle) == 0 {
		p.failures = 0
		return false
	}
	if p.failures++; p.failures < probeFailures {
		return false
	}
	p.failures = 0
	p.lost.Store(true)
	return true
}

// Answered notes that the other end has answered a probe of this round.
func (p *TrainProbe) Answered(probe Probe) { p.answers.Or(1 << probe) }

// Void takes back a round whose train has not left as one: its answers say nothing.
func (p *TrainProbe) Void() { p.open = false }

// Reset forgets everything: the path is another one.
func (p *TrainProbe) Reset() {
	p.started, p.open, p.failures = false, false, 0
	p.lost.Store(false)
}

// Lost reports whether trains are to be left off on the path.
func (p *TrainProbe) Lost() bool { return p.lost.Load() }
