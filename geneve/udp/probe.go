package udp

import (
	"sync/atomic"
	"time"
)

// TrainProbe decides whether trains arrive at the other end of one path. Kernels up to 6.8.4 drop
// trains that reach a VXLAN or Geneve link, and kernels 7.0 to 7.1.4 corrupt them with some
// drivers; single datagrams pass, and the sender is not notified.
//
// A round of probes is one datagram that travels alone and a train of two, all of a kind that the
// other end answers. If, in three rounds in a row, the single one is answered but not both of the
// train, trains are lost. If the single one is not answered, the round proves nothing: the other
// end may be down or may not answer such probes. Rounds take place only while trains are sent;
// while trains are lost, once a minute, until both probes of a train are answered.
//
// One goroutine calls Look, Void and Reset; any goroutine may call Answered and Lost.
type TrainProbe struct {
	answers atomic.Uint32 // a bit for each Probe answered in this round
	lost    atomic.Bool

	// The rest belongs to the goroutine that calls Look.
	started  bool // there has been a round
	open     bool // its outcome is not known yet
	at       time.Duration
	trains   uint64 // sent on the path when the round began
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
	probeInterval = 1500 * time.Millisecond // between rounds: two seconds if Look is called each second
	probeAnswer   = 500 * time.Millisecond  // minimum duration of a round
	probeAgain    = time.Minute             // between rounds while trains are lost
	probeFailures = 3                       // rounds after which they count as lost
)

// Look must be called once a second, with the time of any clock and the number of trains sent on
// the path, not counting probes. due: the caller must send the probes of a round. changed: Lost has
// changed.
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

// conclude ends the round if it is time, and reports whether Lost has changed.
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

// Answered records that the other end has answered a probe of this round.
func (p *TrainProbe) Answered(probe Probe) { p.answers.Or(1 << probe) }

// Void cancels a round whose train did not leave as one: its answers prove nothing.
func (p *TrainProbe) Void() { p.open = false }

// Reset forgets everything, for a new path.
func (p *TrainProbe) Reset() {
	p.started, p.open, p.failures = false, false, 0
	p.lost.Store(false)
}

// Lost reports whether trains must not be used on the path.
func (p *TrainProbe) Lost() bool { return p.lost.Load() }
