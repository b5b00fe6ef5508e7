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
	// A client is left so long to wait for an answer: a resolver asks again then. So a packet that goes round, from a Service to itself or to
	// one of another node that leads back, ends where there is no place left.
	waitTime   = 5 * time.Second
	yieldParts = 16                     // this part of the flows that were looked at makes room at a time, so that few clients wait for a look
	yieldPause = 100 * time.Millisecond // between two looks, after one that has found none
)

// A standing says which flows make room first.
type standing uint8

// The standings, in that order.
const (
	answered standing = iota // the endpoint has spoken last
	waiting                  // the client has, waitTime ago
	silent                   // a stream without packets for streamSilence
	kept                     // others, which make no room
)

var standingNames = [kept]string{"answered", "waiting", "silent"}

// A progress is how far a flow has come. Times are since the Server began.
type progress struct {
	began    time.Duration
	passed   atomic.Int64 // when the last packet was: nanoseconds
	waits    atomic.Bool  // the client has spoken last
	answered atomic.Bool  // the endpoint has spoken
	stream   atomic.Bool
}

func (p *progress) start(now time.Duration) {
	p.began = now
	p.passed.Store(int64(now))
}

// ask notes that the client speaks, before anybody can answer.
func (p *progress) ask() { p.waits.Store(true) }

// reply notes that the endpoint has spoken. A first answer that comes late makes no stream, as for nf_conntrack.
func (p *progress) reply(now time.Duration) {
	p.pass(now)
	p.waits.Store(false)
	p.answered.Store(true)
}

// pass notes that a packet has left, of either.
func (p *progress) pass(now time.Duration) {
	p.passed.Store(int64(now))
	if now-p.began >= streamAfter && p.answered.Load() {
		p.stream.Store(true)
	}
}

func (p *progress) last() time.Duration { return time.Duration(p.passed.Load()) }

func (p *progress) standing(now time.Duration) standing {
	quiet := now - p.last()
	switch {
	case p.stream.Load() && quiet >= streamSilence:
		return silent
	case p.stream.Load():
		return kept
	case !p.waits.Load():
		return answered
	case quiet >= waitTime:
		return waiting
	}
	return kept
}

// flows are those of all doors, by their sources.
type flows struct {
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

func (a *flows) add(f *flow) {
	a.mu.Lock()
	defer a.mu.Unlock()
	source := sourceOf(f.source())
	if a.sources[source] == nil {
		a.sources[source] = &family{flows: map[*flow]struct{}{}}
	}
	a.sources[source].flows[f] = struct{}{}
	a.total++
}

func (a *flows) remove(f *flow) {
	a.mu.Lock()
	defer a.mu.Unlock()
	source := sourceOf(f.source())
	of := a.sources[source]
	if delete(of.flows, f); len(of.flows) == 0 {
		delete(a.sources, source)
	}
	a.total--
}

// yielding returns flows that make room for a new one of a source, all of one standing, the first that there is; of these, those that have been
// without a packet for longest. A source that has its share, or more than an equal part of a full table, makes room for itself.
func (a *flows) yielding(source netip.Addr, reason nat.Reason, now time.Duration) ([]*flow, standing) {
	a.mu.Lock()
	defer a.mu.Unlock()
	asked, barren := a.sources, &a.barren
	key := sourceOf(source)
	own := a.sources[key]
	switch {
	case own == nil && reason == nat.ReasonConnectionShare:
		return nil, kept // they have ended meanwhile
	case own != nil && (reason == nat.ReasonConnectionShare || len(own.flows)*len(a.sources) > a.total):
		asked, barren = map[netip.Prefix]*family{key: own}, &own.barren
	}
	if now < *barren {
		return nil, kept
	}
	type candidate struct {
		*flow
		last time.Duration
	}
	var found [kept][]candidate
	looked := 0
	for _, of := range asked {
		looked += len(of.flows)
		for f := range of.flows {
			if x := f.standing(now); x < kept {
				found[x] = append(found[x], candidate{f, f.last()})
			}
		}
	}
	for x, all := range found {
		if len(all) == 0 {
			continue
		}
		slices.SortFunc(all, func(a, b candidate) int { return cmp.Compare(a.last, b.last) })
		var first []*flow
		for _, c := range all[:min(len(all), max(looked/yieldParts, 1))] {
			first = append(first, c.flow)
		}
		return first, standing(x)
	}
	*barren = now + yieldPause
	return nil, kept
}

// makeRoom ends flows for a new one of a source that has found no place, for that reason.
func (s *Server) makeRoom(source netip.Addr, reason nat.Reason) {
	all, standing := s.all.yielding(source, reason, time.Since(s.began))
	for _, f := range all {
		if f.end() {
			s.stats.evicted[standing].Add(1)
		}
	}
}
