package sockets

import (
	"net/netip"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"culvert/geneve/share"
	"culvert/nat"
)

const (
	// A flow that was answered and is still active after this time is a stream, as in nf_conntrack.
	streamAfter = 2 * time.Second
	// A stream is evicted only after this long without a packet: nf_conntrack's timeout for flows
	// that are not streams.
	streamSilence = 30 * time.Second
	// A source that evicts its own flows lets a client wait this long for an answer, after which a
	// resolver asks again. So a packet that loops, from a Service to itself or to another node's
	// that leads back, stops when the table is full.
	waitTime = 5 * time.Second
	// 1/yieldParts of the flows are evicted at a time, so that few clients wait for a search. A
	// source with a smaller part of the evictable flows keeps its own, because a flood of forged
	// sources makes every fair share tiny.
	yieldParts = 16
	yieldPause = 100 * time.Millisecond // between two searches, after one that has found nothing
)

// A flowState says which flows are evicted first.
type flowState uint8

// The states.
const (
	answered flowState = iota // the endpoint spoke last
	waiting                   // the client spoke last
	silent                    // a stream without packets for streamSilence
	kept                      // other streams, which are never evicted
)

var flowStateNames = [kept]string{"answered", "waiting", "silent"}

// A progress is the history of a flow. Times are since the Server began.
type progress struct {
	began  time.Duration
	passed atomic.Int64 // time of the last packet, in nanoseconds
	// since when the client has been waiting, however often it asks, in nanoseconds; 0: the
	// endpoint spoke last
	asked    atomic.Int64
	answered atomic.Bool // the endpoint has spoken
	stream   atomic.Bool
}

// start records the client's first packet.
func (p *progress) start(now time.Duration) {
	p.began = now
	p.passed.Store(int64(now))
	p.ask(now)
}

// ask records that the client speaks, before anybody can answer.
func (p *progress) ask(now time.Duration) { p.asked.CompareAndSwap(0, int64(now)) }

// reply is pass for the endpoint's packets. A late first answer does not make a stream, as in
// nf_conntrack.
func (p *progress) reply(now time.Duration) bool {
	lasting := p.pass(now)
	p.asked.Store(0)
	p.answered.Store(true)
	return lasting
}

// pass records a packet in either direction, and reports whether it makes the flow a stream.
func (p *progress) pass(now time.Duration) bool {
	p.passed.Store(int64(now))
	return now-p.began >= streamAfter && p.answered.Load() && !p.stream.Load()
}

func (p *progress) last() time.Duration { return time.Duration(p.passed.Load()) }

// flowState returns a flow's state, and since when it has it.
func (p *progress) flowState(now time.Duration) (is flowState, since time.Duration) {
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

// flows are the flows of all sockets, by source.
type flows struct {
	max     int
	streams *connLimiter // those that stay

	mu sync.Mutex
	// +checklocks:mu
	sources map[netip.Prefix]*sourceFlows
	// +checklocks:mu
	total int
	// no search for evictable flows before this time +checklocks:mu
	barren time.Duration
}

// A sourceFlows is the flows of a source, and until when none of them is searched.
type sourceFlows struct {
	flows  map[*flow]struct{}
	barren time.Duration
}

func newFlows(n int) *flows {
	return &flows{max: n, streams: newConnLimiter(n), sources: map[netip.Prefix]*sourceFlows{}}
}

// take adds a flow if there is room.
func (a *flows) take(f *flow) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.total >= a.max {
		return false
	}
	source := share.Source(f.source())
	if a.sources[source] == nil {
		a.sources[source] = &sourceFlows{flows: map[*flow]struct{}{}}
	}
	a.sources[source].flows[f] = struct{}{}
	a.total++
	return true
}

// makeStream makes a flow a stream, unless its source is at its share of them.
func (a *flows) makeStream(f *flow) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if own := a.sources[share.Source(f.source())]; own != nil && !f.stream.Load() {
		if _, there := own.flows[f]; there && a.streams.take(f.source()) == nat.ReasonNone {
			f.stream.Store(true)
		}
	}
}

func (a *flows) remove(f *flow) {
	a.mu.Lock()
	defer a.mu.Unlock()
	source := share.Source(f.source())
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

// A candidate is an evictable flow, and since when it has its state.
type candidate struct {
	*flow
	since time.Duration
}

// find adds a source's evictable flows.
func (of *sourceFlows) find(found *[kept][]candidate, now time.Duration) {
	for f := range of.flows {
		if x, since := f.flowState(now); x < kept {
			found[x] = append(found[x], candidate{f, since})
		}
	}
}

// yielding returns the flows to evict for a new one of a source in a full table. They have one
// state and have had it for longest. If there are none, it returns why.
//
// Flows are evicted from the larger of two groups: waiting or answered flows. So no flood, answered
// or not, leaves other flows without time. A source that has its equal part of this group, and that
// part is not small, evicts its own flows: answered ones, else those that have waited for waitTime,
// else silent streams.
func (a *flows) yielding(source netip.Addr, now time.Duration) ([]*flow, flowState, nat.Reason) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if now < a.barren {
		return nil, kept, nat.ReasonTableFull
	}
	own := a.sources[share.Source(source)]
	if own == nil {
		own = &sourceFlows{}
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
			return oldest(some, len(own.flows)/yieldParts), flowState(x), nat.ReasonNone
		}
	}
	own.barren = now + yieldPause
	return nil, kept, nat.ReasonConnectionShare
}

// oldest returns the n oldest of all, at least one.
func oldest(all []candidate, n int) (first []*flow) {
	sort.Slice(all, func(i, j int) bool { return all[i].since < all[j].since })
	for _, c := range all[:min(len(all), max(n, 1))] {
		first = append(first, c.flow)
	}
	return first
}

// admit makes room for a flow, or says why there is none.
func (s *Server) admit(f *flow) nat.Reason {
	if s.all.take(f) {
		return nat.ReasonNone
	}
	yielding, flowState, reason := s.all.yielding(f.source(), time.Since(s.began))
	for _, y := range yielding {
		if y.end() {
			s.stats.evicted[flowState].Add(1)
		}
	}
	switch {
	case reason != nat.ReasonNone:
		return reason
	case !s.all.take(f):
		return nat.ReasonTableFull // others were faster
	}
	return nat.ReasonNone
}
