package kube

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/time/rate"
)

// A Fault is what is wrong with an object, for as long as it is.
type Fault struct {
	Event
	Of      string // whose limit counts; "": the object's
	LogOnly bool   // the Event has no object yet
}

// A Teller says what is wrong, in the log and by Events, and writes status. Goroutines of its own
// write, so that a slow API server does not delay the goroutine that applies configuration. Only
// that goroutine calls Tell, Wait and Status.
type Teller struct {
	reporter Reporter
	log      *logrus.Entry
	wake     chan struct{}              // there are Events
	status   chan func(context.Context) // the newest write

	said    map[string]bool // faults that were told and still exist
	waiting []string        // last logged
	limits  FaultLimits

	mu     sync.Mutex
	events []Event // to write; +checklocks:mu
}

// NewTeller returns a Teller that has said nothing.
func NewTeller(r Reporter, log *logrus.Entry) *Teller {
	return &Teller{reporter: r, log: log, wake: make(chan struct{}, 1), status: make(chan func(context.Context), 1)}
}

// Tell logs new faults and has Events written about them. all are the faults that exist now. A
// fault that its limit does not allow yet is new at the next call, too; more reports whether there
// is one.
func (t *Teller) Tell(all []Fault) (more bool) {
	said, now := make(map[string]bool, len(all)), time.Now()
	for i := range all {
		f := &all[i]
		object := f.Key().String()
		of := cmp.Or(f.Of, object)
		key := of + " " + f.Message
		if !t.said[key] && !said[key] {
			if !t.limits.Allow(of, now) {
				more = true
				continue
			}
			t.log.WithFields(logrus.Fields{"resource": object, "cause": f.Message}).Warn("cannot apply a resource")
			if !f.LogOnly {
				t.Say(f.Event)
			}
		}
		said[key] = true
	}
	t.said = said
	return more
}

// Wait logs what is missing, once.
func (t *Teller) Wait(all ...string) {
	for _, w := range all {
		if w != "" && !slices.Contains(t.waiting, w) {
			t.log.WithField("for", w).Info("waiting")
		}
	}
	t.waiting = slices.Clone(all)
}

// Status has a status written, in place of one that is not written yet. Whether that succeeds is
// not known: the caller passes the next status soon, and write finds out whether there is anything
// to do.
func (t *Teller) Status(write func(context.Context)) {
	select {
	case <-t.status:
	default:
	}
	t.status <- write
}

// maxEvents caps the Events that wait for the API server; all are in the log.
const maxEvents = 1024

// Say has an Event written, whether or not it was written before.
func (t *Teller) Say(e Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.events) < maxEvents {
		t.events = append(t.events, e)
	}
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// next removes the Event to write next from the queue, and all if another process speaks.
func (t *Teller) next(speaks bool) (e Event, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !speaks || len(t.events) == 0 {
		t.events = nil
		return e, false
	}
	e, t.events = t.events[0], t.events[1:]
	return e, true
}

// writeRetry is the pause after an Event that could not be written.
const writeRetry = time.Second

// Run writes until ctx ends; then it may be called again. While speaks, if it is not nil, returns
// false, Run writes nothing, because another process says the same.
func (t *Teller) Run(ctx context.Context, speaks func() bool) {
	if speaks == nil {
		speaks = func() bool { return true }
	}
	var tasks sync.WaitGroup
	defer tasks.Wait()
	tasks.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case write := <-t.status:
				if speaks() {
					write(ctx)
				}
			}
		}
	})
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.wake:
		}
		for e, ok := t.next(speaks()); ok; e, ok = t.next(speaks()) {
			if t.reporter.write(ctx, &e, time.Now()) == nil {
				continue
			}
			t.Say(e) // others first: this one may always fail
			select {
			case <-ctx.Done():
				return
			case <-time.After(writeRetry):
			}
		}
	}
}

// Flush writes the Events that Run has left, until one cannot be written.
func (t *Teller) Flush(ctx context.Context) {
	for e, ok := t.next(true); ok && t.reporter.write(ctx, &e, time.Now()) == nil; e, ok = t.next(true) {
	}
}

// The owner of an object may change it at any rate, and each change may bring a new fault.
const (
	FaultsAtOnce  = 20          // faults of one object that are reported at once
	FaultInterval = time.Minute // between two further ones
)

// FaultLimits limit how many faults are reported, in the log and by Events: FaultsAtOnce for each
// object and one more in each FaultInterval, so that no object hides the faults of another. The
// keys name objects. A limit that was not used for limitsAge is as good as a new one.
type FaultLimits struct {
	used, before map[string]*rate.Limiter // since a time, and in the limitsAge before it
	since        time.Time
}

const limitsAge = FaultsAtOnce * FaultInterval

// Allow reports whether a new fault of an object may be reported now.
func (f *FaultLimits) Allow(of string, now time.Time) bool {
	if f.used == nil || now.Sub(f.since) >= limitsAge {
		f.before, f.used = f.used, map[string]*rate.Limiter{}
		if now.Sub(f.since) >= 2*limitsAge {
			f.before = nil
		}
		f.since = now
	}
	limit := f.used[of]
	if limit == nil {
		if limit = f.before[of]; limit == nil {
			limit = rate.NewLimiter(rate.Every(FaultInterval), FaultsAtOnce)
		}
		f.used[of] = limit
	}
	return limit.AllowN(now, 1)
}
