package sockets

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"culvert/nat"
)

const (
	// A flow that has had an answer and goes on after this time is a stream, as for nf_conntrack.
	streamAfter = 2 * time.Second
	// A stream makes no room until no packet has passed for so long: nf_conntrack's time for flows that are no streams.
	streamSilence = 30 * time.Second
	// A source that makes room for itself leaves a client so long to wait for an answer: a resolver asks again then. So a packet that goes round,
	// from a Service to itself or to one of another node that leads back, ends where there is no place left.
	waitTime = 5 * time.Second
	// This part of the flows makes room at a time, so that few clients wait for a look. A source that has less of those that may make room need
	// not make it itself: many who forge their sources make equal parts small.
	yieldParts = 16
	yieldPause = 100 * time.Millisecond // between two looks, after one that has found none
)

// A standing says which flows make room.
type standing uint8

// The standings.
const (
	answered standing = iota // the endpoint has spoken last
	waiting                  // the client has
	silent                   // a stream without packets for streamSilence
	kept                     // other streams, which make no room
)

var standingNames = [kept]string{"answered", "waiting", "silent"}

// A progress is how far a flow has come. Times are since the Server began.
type progress struct {
	began    time.Duration
	passed   atomic.Int64 // when the last packet was: nanoseconds
	asked    atomic.Int64 // since when the client waits, however often it asks: nanoseconds; 0: the endpoint has spoken last
	answered atomic.Bool  // the endpoint has spoken
	stream   atomic.Bool
}

// start is when the client speaks first.
func (p *progress) start(now time.Duration) {
	p.began = now
	p.passed.Store(int64(now))
	p.ask(now)
}

// ask notes that the client speaks, before anybody can answer.
func (p *progress) ask(now time.Duration) { p.asked.CompareAndSwap(0, int64(now)) }

// reply is pass for the endpoint's packets. A first answer that comes late makes no stream, as for nf_conntrack.
func (p *progress) reply(now time.Duration) bool {
	lasting := p.pass(now)
	p.asked.Store(0)
	p.answered.Store(true)
	return lasting
}

// pass notes that a packet has left, of either, and reports whether that makes a stream of what is none.
func (p *progress) pass(now time.Duration) bool {
	p.passed.Store(int64(now))
	return now-p.began >= streamAfter && p.answered.Load() && !p.stream.Load()
}

func (p *progress) last() time.Duration { return time.Duration(p.passed.Load()) }

// standing returns what a flow is, and since when.
func (p *progress) standing(now time.Duration) (is standing, since time.Duration) {
	last, asked := p.last(), time.Duration(p.asked.Load())
	switch {
	case p.stream.Load() && now-last >= streamSilence:
		return silent, last
	case p.stream.Load():
		return kept, last
	case asked == 0:
		return answered, last
	}
	return waiting, asked
}

// flows are those of all doors, by their sources.
type flows struct {
	max     int
	streams *crowd // those that stay

	mu sync.Mutex
	// +checklocks:mu
	sources map[netip.Prefix]*family
	// +checklocks:mu
	total int
	// until when nobody is asked to make room
	// +checklocks:mu
	barren time.Duration
}

// A family is the flows of a source, and until when none of them is asked to make room.
type family struct {
	flows  map[*flow]struct{}
	barren time.Duration
}

func newFlows(n int) *flows {
	return &flows{max: n, streams: newCrowd(n), sources: map[netip.Prefix]*family{}}
}

// take adds a flow, if there is a place for it.
func (a *flows) take(f *flow) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.total >= a.max {
		return false
	}
	source := sourceOf(f.source())
	if a.sources[source] == nil {
		a.sources[source] = &family{flows: map[*flow]struct{}{}}
	}
	a.sources[source].flows[f] = struct{}{}
	a.total++
	return true
}

// settle makes a stream of a flow, unless its source has its share of them.
func (a *flows) settle(f *flow) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if own := a.sources[sourceOf(f.source())]; own != nil && !f.stream.Load() {
		if _, there := own.flows[f]; there && a.streams.take(f.source()) == nat.ReasonNone {
			f.stream.Store(true)
		}
	}
}

func (a *flows) remove(f *flow) {
	a.mu.Lock()
	defer a.mu.Unlock()
	source := sourceOf(f.source())
	own := a.sources[source]
	if delete(own.flows, f); len(own.flows) == 0 {
		delete(a.sources, source)
	}
	a.total--
	if f.stream.Load() {
		a.streams.give(f.source())
	}
}

func (a *flows) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.total
}

// A candidate is a flow that may make room, and since when it has been what it is.
type candidate struct {
	*flow
	since time.Duration
}

// find adds the flows of a family that may make room.
func (of *family) find(found *[kept][]candidate, now time.Duration) {
	for f := range of.flows {
		if x, since := f.standing(now); x < kept {
			found[x] = append(found[x], candidate{f, since})
		}
	}
}

// yielding returns flows that make room for a new one of a source in a full table, all of one standing; of these, those that have been what they
// are for longest. If there is none, it returns why.
//
// Those who wait make room or those who are answered, whichever are more: so neither a flood that is answered nor one that is not leaves the
// others no time. A source that has an equal part of these, and no small one, makes room for itself: by what is answered, else by who has waited
// for waitTime, else by what is silent.
func (a *flows) yielding(source netip.Addr, now time.Duration) ([]*flow, standing, nat.Reason) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if now < a.barren {
		return nil, kept, nat.ReasonTableFull
	}
	own := a.sources[sourceOf(source)]
	if own == nil {
		own = &family{}
	}
	if now < own.barren {
		return nil, kept, nat.ReasonConnectionShare
	}
	var all, mine [kept][]candidate
	for _, of := range a.sources {
		of.find(&all, now)
	}
	own.find(&mine, now)
	x := answered
	switch {
	case len(all[waiting]) > len(all[answered]):
		x = waiting
	case len(all[answered]) == 0:
		x = silent
	}
	switch {
	case len(all[x]) == 0:
		a.barren = now + yieldPause
		return nil, kept, nat.ReasonTableFull
	case len(mine[x])*min(yieldParts, len(a.sources)) < len(all[x]):
		return oldest(all[x], a.total/yieldParts), x, nat.ReasonNone
	}
	mine[waiting] = slices.DeleteFunc(mine[waiting], func(c candidate) bool { return now-c.since < waitTime })
	for x, some := range mine {
		if len(some) > 0 {
			return oldest(some, len(own.flows)/yieldParts), standing(x), nat.ReasonNone
		}
	}
	own.barren = now + yieldPause
	return nil, kept, nat.ReasonConnectionShare
}

// oldest returns n of all, and at least one.
func oldest(all []candidate, n int) (first []*flow) {
	slices.SortFunc(all, func(a, b candidate) int { return cmp.Compare(a.since, b.since) })
	for _, c := range all[:min(len(all), max(n, 1))] {
		first = append(first, c.flow)
	}
	return first
}

// admit finds a place for a flow, or says why there is none.
func (s *Server) admit(f *flow) nat.Reason {
	if s.all.take(f) {
		return nat.ReasonNone
	}
	yielding, standing, reason := s.all.yielding(f.source(), time.Since(s.began))
	for _, y := range yielding {
		if y.end() {
			s.stats.evicted[standing].Add(1)
		}
	}
	switch {
	case reason != nat.ReasonNone:
		return reason
	case !s.all.take(f):
		return nat.ReasonTableFull // others have been faster
	}
	return nat.ReasonNone
}
