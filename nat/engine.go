package nat

import (
	"errors"
	"sync"

	"culvert/nat/packet"
	"culvert/nat/rules"
	"culvert/nat/siphash"
)

// An Engine translates and filters the packets of one gateway. Its methods may be called from several goroutines; it is built for
// two, one per direction, that share one lock for the tens of nanoseconds that a packet needs it.
type Engine struct {
	hashKey siphash.Key // of port and backend choice; constant for the life of the saved state

	apply sync.Mutex // taken before mu
	// +checklocks:apply
	set *rules.Set
	// +checklocks:apply
	put *rules.Draft // of Put and Delete, for the next CommitRules
	// +checklocks:apply
	prepared *Prepared // what may be committed; nil: nothing

	mu        sync.Mutex
	snapshot  *snapshot
	history   history
	hits      ruleHits
	table     table
	round     round
	fragments fragmentTable
	clients   affinityTable
	paths     pathTable
	narrow    narrowLinks
	limit     limiter
	stats     Stats
	watchers  []*ConnWatch // nil = nobody
	lost      func(fragment []byte, in Link, why Reason)
	scratch   decision
	made      packet.Packet // by the gateway itself: scratch of LetsOut
}

// New returns an Engine that works by c, or every fault of c. key keys the choice of ports and backends: an Engine with the same key
// gives a packet in mid-stream the ports that an earlier one gave its connection.
func New(key [16]byte, c *Config) (*Engine, error) {
	set := rules.NewSet()
	e := &Engine{hashKey: siphash.NewKey(key), set: set, put: set.Draft(), snapshot: &snapshot{}, hits: newRuleHits()}
	e.table.init()
	e.clients.init()
	e.table.given, e.table.shares.flat = c.given(), c.Host != nil
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
	_, err := rules.NewSet().Replace(&c.Config)
	return err
}

// Prepared is a Config that an Engine has compiled.
type Prepared struct {
	rules    *rules.Draft
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
	e.unprepare()
	if err := c.validate(); err != nil {
		return nil, err
	}
	if c.given() != e.table.given {
		return nil, errors.New("nat: config: Host.Ports: connections have some of them; restart")
	}
	draft, err := e.set.Replace(&c.Config)
	if err != nil {
		return nil, err
	}
	e.prepared = &Prepared{rules: draft}
	e.prepared.snapshot, e.prepared.all = compile(c, e.current())
	return e.prepared, nil
}

// unprepare discards what was prepared and not committed.
//
// +checklocks:e.apply
func (e *Engine) unprepare() {
	if e.prepared != nil {
		e.prepared.rules.Discard()
		e.prepared = nil
	}
}

func (e *Engine) current() *snapshot {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.snapshot
}

// Commit puts p, which was prepared last, in place of the configuration. Connections survive unless what they need is gone.
func (e *Engine) Commit(p *Prepared) {
	e.apply.Lock()
	defer e.apply.Unlock()
	e.adopt(p)
}

// +checklocks:e.apply
func (e *Engine) adopt(p *Prepared) {
	if p != e.prepared {
		panic("nat: commit of what was not prepared last")
	}
	e.prepared = nil
	e.publish(p.snapshot, p.rules, p.all)
}

// publish commits draft and lets packets meet them as part of s. all: that concerns all connections.
//
// +checklocks:e.apply
func (e *Engine) publish(s *snapshot, draft *rules.Draft, all bool) {
	var affected *rules.Affected
	if s.rules, affected = e.set.Commit(draft); all {
		affected = &rules.Affected{All: true}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.hits.lists) > hitEpoch {
		e.hits, affected = newRuleHits(), &rules.Affected{All: true}
	}
	s.generation = e.snapshot.generation + 1
	e.history.note(s.generation, affected)
	e.snapshot = s
	e.round.extend(e.table.high)
}

// Put makes r the resource of key in what the next CommitRules publishes, beside those that the Config stands for. If something is wrong
// with r, the error says so by field, and key keeps what it had. Tables may name devices and neighbours before they exist.
func (e *Engine) Put(key rules.Key, r rules.Resource) error {
	e.apply.Lock()
	defer e.apply.Unlock()
	return e.put.Put(key, r)
}

// Delete removes the resource of key, if Put has made one, from what the next CommitRules publishes.
func (e *Engine) Delete(key rules.Key) {
	e.apply.Lock()
	defer e.apply.Unlock()
	e.put.Delete(key)
}

// CommitRules publishes what was put and deleted since the last time. Connections that this does not concern are not looked at.
func (e *Engine) CommitRules() {
	e.apply.Lock()
	defer e.apply.Unlock()
	if e.put.Empty() {
		return
	}
	next := *e.current()
	e.publish(&next, e.put, false)
	e.put = e.set.Draft()
}

// Apply is Prepare and then Commit.
func (e *Engine) Apply(c *Config) error {
	e.apply.Lock()
	defer e.apply.Unlock()
	p, err := e.prepare(c)
	if err != nil {
		return err
	}
	e.adopt(p)
	return nil
}

// Amend puts services in place of those of the same name, address, port and protocol that the Config of a Host has, or returns all that is
// wrong with them and changes nothing. What was prepared before and not committed is forgotten.
func (e *Engine) Amend(services []rules.Service) error {
	e.apply.Lock()
	defer e.apply.Unlock()
	e.unprepare()
	draft, err := e.set.Amend(services)
	if err != nil {
		return err
	}
	next := *e.current()
	e.publish(&next, draft, false)
	return nil
}

// Stats are the counters of an Engine. The ledger of each direction is Received = Forwarded + Delivered + Held + Σ Dropped, in packets
// after segmentation; of the table it is Connections = Created + Restored − Expired − Evicted − EarlyDropped − Deleted.
type Stats struct {
	Outbound, Inbound Direction
	Connections       int // in the table
	Unreplied         int // of them
	MaxConnections    int
	Ports             int  // and identifiers that keep connections with the same source apart
	BusiestPorts      int  // of them, towards the remote address and port that has most
	BusiestPortsMax   int  // that may be towards that one
	Pressed           bool // the table is so full that unreplied connections live shortUnreplied
	Created           uint64
	Restored          uint64 // by Restore
	Expired           uint64 // their time had come
	Evicted           uint64 // their configuration had gone
	EarlyDropped      uint64 // made room for others
	Deleted           uint64 // by Delete
	Uncounted         uint64 // packets that not all of their rules counted
	Datagrams         int    // in fragments, of which parts are missing
	DatagramsReplaced uint64 // incomplete ones that made room for others
	Clients           int    // of services with affinity that are remembered
	MaxClients        int
	ClientsReplaced   uint64 // forgotten before their time, for others of the service
	ClientsRefused    uint64 // not remembered, because their /64 or the service had its share
	ErrorsLimited     uint64 // errors that the rate limits kept from being sent
}

// A Direction counts the packets from inside links (outbound) or from outside ones (inbound).
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
	st.Connections, st.MaxConnections, st.Pressed = e.table.used, e.snapshot.maxEntries, e.pressed()
	st.Unreplied = e.table.lists[rankUnreplied].length
	st.Ports, st.BusiestPorts, st.BusiestPortsMax = e.table.ports.all, e.table.ports.used, e.table.ports.most
	st.Datagrams = e.fragments.partial.length
	st.ErrorsLimited = e.limit.refused
	st.Clients, st.MaxClients = e.clients.used, e.snapshot.maxEntries/affinityRatio
	return st
}

func (s *Stats) of(in Link) *Direction {
	if in.Outside() {
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

// Process decides what becomes of the packet p, filled by Parse, that came in at link in at time now. If the verdict is
// Forward, the bytes of p have been rewritten and a Cutter makes of them what goes out at Verdict.Out; otherwise they are as they
// came. now must not run backwards by more than the skew between two callers.
func (e *Engine) Process(p *packet.Packet, in Link, now Time) (v Verdict) {
	d := &e.scratch
	e.mu.Lock()
	e.decide(d, p, in, now)
	e.commit(d, p, now)
	e.expire(now, packetBudget)
	v = d.verdict
	e.mu.Unlock()
	return v
}

// packetBudget is how many expired connections a packet looks after.
const packetBudget = 4
