package nat

import (
	"sync"

	"culvert/nat/packet"
)

// An Engine translates and filters the packets of one gateway. Its methods may be called from several goroutines; it is built for
// two, one per direction, that share one lock for the tens of nanoseconds that a packet needs it.
type Engine struct {
	hashKey hashKey // of port and backend choice; constant for the life of the saved state

	apply sync.Mutex // taken before mu
	// +checklocks:apply
	set *Set
	// +checklocks:apply
	prepared *Prepared // what set holds beside what is committed; nil: nothing that may be committed

	mu        sync.Mutex
	snapshot  *snapshot
	history   history
	hits      ruleHits
	table     table
	round     round
	fragments fragmentTable
	clients   affinityTable
	paths     pathTable
	limit     limiter
	stats     Stats
	scratch   traversal
}

// New returns an Engine that works by c, or every fault of c. key keys the choice of ports and backends: an Engine with the same key
// gives a packet in mid-stream the ports that an earlier one gave its connection.
func New(key [16]byte, c *Config) (*Engine, error) {
	e := &Engine{hashKey: newHashKey(key), set: newSet(), snapshot: &snapshot{}, hits: newRuleHits()}
	e.table.init()
	e.paths.init()
	e.limit.init()
	if err := e.Apply(c); err != nil {
		return nil, err
	}
	return e, nil
}

// Check returns every fault for which New and Prepare would refuse c.
func Check(c *Config) error {
	if err := c.validate(); err != nil {
		return err
	}
	return newSet().replace(c)
}

// Prepared is a Config that an Engine has compiled.
type Prepared struct {
	snapshot *snapshot // without rules
	all      bool      // it concerns all connections, whatever rules have changed
}

// Prepare compiles c for Commit or, if c has faults, returns them all. It changes nothing that packets meet. What was prepared before and
// not committed is forgotten.
func (e *Engine) Prepare(c *Config) (*Prepared, error) {
	e.apply.Lock()
	defer e.apply.Unlock()
	return e.prepare(c)
}

// +checklocks:e.apply
func (e *Engine) prepare(c *Config) (*Prepared, error) {
	e.prepared = nil
	if err := c.validate(); err != nil {
		return nil, err
	}
	if err := e.set.replace(c); err != nil {
		return nil, err
	}
	e.mu.Lock()
	previous := e.snapshot
	e.mu.Unlock()
	e.prepared = &Prepared{}
	e.prepared.snapshot, e.prepared.all = compile(c, previous)
	return e.prepared, nil
}

// Commit puts p, which was prepared last, in place of the configuration. Connections survive unless what they need is gone.
func (e *Engine) Commit(p *Prepared) {
	e.apply.Lock()
	defer e.apply.Unlock()
	e.commit(p)
}

// +checklocks:e.apply
func (e *Engine) commit(p *Prepared) {
	if p != e.prepared {
		panic("nat: commit of what was not prepared last")
	}
	e.prepared = nil
	s := p.snapshot
	var affected *Affected
	if s.rules, affected = e.set.Commit(); p.all {
		affected = newAffected(true)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.hits.lists) > hitEpoch {
		e.hits, affected = newRuleHits(), newAffected(true)
	}
	e.history[s.generation%historyLength] = affected
	e.snapshot = s
	e.round.extend(e.table.high)
}

// Apply is Prepare and then Commit.
func (e *Engine) Apply(c *Config) error {
	e.apply.Lock()
	defer e.apply.Unlock()
	p, err := e.prepare(c)
	if err != nil {
		return err
	}
	e.commit(p)
	return nil
}

// Stats are the counters of an Engine. The ledger of each direction is Received = Forwarded + Delivered + Held + Σ Dropped, in packets
// after segmentation; of the table it is Connections = Created − Expired − Evicted − EarlyDropped.
type Stats struct {
	Outbound, Inbound Direction
	Connections       int // in the table
	Unreplied         int // of them
	MaxConnections    int
	Created           uint64
	Expired           uint64 // their time had come
	Evicted           uint64 // their configuration had gone
	EarlyDropped      uint64 // made room for others
	Uncounted         uint64 // packets that not all of their rules counted
	Datagrams         int    // in fragments, of which parts are missing
	DatagramsReplaced uint64 // incomplete ones that made room for others
	Clients           int    // of services with affinity that are remembered
	MaxClients        int
	ClientsReplaced   uint64 // forgotten before their time, for others of the service
	ClientsRefused    uint64 // not remembered, because their /64 or the service had its share
	ErrorsLimited     uint64 // errors that the rate limits kept from being sent
}

// A Direction counts the packets from the nodes (outbound) or from the tunnel (inbound).
type Direction struct {
	Received, Forwarded, Delivered uint64
	Held                           uint64 // fragments that wait for their first one at this moment
	Answered                       uint64 // errors made by AppendError
	Untracked, Asymmetric          uint64 // of the forwarded
	Dropped                        [reasons]uint64
}

// Stats returns the counters.
func (e *Engine) Stats() Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	st := e.stats
	st.Connections, st.MaxConnections = e.table.used, e.snapshot.maxEntries
	st.Unreplied = e.table.lists[rankUnreplied].length
	st.Datagrams = e.fragments.partial.length
	st.ErrorsLimited = e.limit.refused
	st.Clients, st.MaxClients = e.clients.used, e.snapshot.maxEntries/affinityRatio
	return st
}

func (s *Stats) of(in Port) *Direction {
	if in == Tunnel {
		return &s.Inbound
	}
	return &s.Outbound
}

func (d *Direction) count(v *Verdict) {
	n := uint64(v.Packets)
	d.Received += n
	switch v.Action {
	case Forward:
		d.Forwarded += n
		if v.Untracked {
			d.Untracked += n
		}
		if v.Asymmetric {
			d.Asymmetric += n
		}
	case Deliver:
		d.Delivered += n
	case Hold:
		d.Held += n
	case Drop:
		d.Dropped[v.Reason] += n
	}
}

// Process decides what becomes of the packet p, filled by Parse, that came in at port in at time now. If the verdict is
// Forward, the bytes of p have been rewritten and a Cutter makes of them what goes out at Verdict.Out; otherwise they are as they
// came. now must not run backwards by more than the skew between two callers.
func (e *Engine) Process(p *packet.Packet, in Port, now Time) Verdict {
	var v Verdict
	e.mu.Lock()
	e.process(p, in, now, &v)
	e.stats.of(in).count(&v)
	e.mu.Unlock()
	return v
}

func (e *Engine) process(p *packet.Packet, in Port, now Time, v *Verdict) {
	switch p.Fault() {
	case packet.Malformed:
		*v = drop(ReasonMalformed)
		return
	case packet.SourceRoute:
		*v = drop(ReasonSourceRoute)
		return
	}
	e.expire(now, packetBudget)
	var t packet.Tuple
	p.Tuple(&t, in)
	if p.IsFragment() {
		*v = e.fragment(p, &t, in, now)
		return
	}
	e.dispatch(p, &t, in, now, v)
}

// packetBudget is how many expired connections a packet looks after.
const packetBudget = 4

// dispatch finds the connection of a whole packet, or of a fragment whose ports are known, or makes one.
func (e *Engine) dispatch(p *packet.Packet, t *packet.Tuple, in Port, now Time, v *Verdict) {
	if p.Forwardable() && !e.notracked(p, t, in) {
		if p.IsICMPError() {
			*v = e.icmpError(p, t, in, now)
			return
		}
		if h, ok := e.find(t, now); ok && e.established(h, p, in, now, v) {
			return
		}
	}
	*v = e.first(p, t, in, now)
}

// notracked reports whether the rules keep the packet from connections, or drop it before them.
func (e *Engine) notracked(p *packet.Packet, t *packet.Tuple, in Port) bool {
	r := e.snapshot.rules
	if r.notracks == 0 {
		return false
	}
	tr := &e.scratch
	*tr = traversal{from: *t, in: in, first: true}
	tr.see(p)
	return !tr.raw(r) || tr.effects.notrack
}
