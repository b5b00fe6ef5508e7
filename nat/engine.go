package nat

import (
	"errors"
	"math"
	"net/netip"
	"sync"

	"culvert/nat/packet"
	"culvert/nat/rules"
	"culvert/nat/siphash"
)

// An Engine translates and filters the packets of one gateway. Its methods may be called from
// several goroutines. It is built for two, one per direction, which share one lock for tens of
// nanoseconds per packet.
type Engine struct {
	hashKey siphash.Key // for port and backend choice; as long-lived as the saved state

	apply sync.Mutex // taken before mu
	// +checklocks:apply
	set *rules.Set
	// +checklocks:apply
	put *rules.Draft // of Put and Delete, for the next CommitRules
	// +checklocks:apply
	prepared *Prepared // the last result of Prepare, until committed; nil: none

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
	floor     Time         // no connection counts as idle since earlier
	lost      func(fragment []byte, in Link, why Reason)
	scratch   decision
	made      packet.Packet // scratch of LetsOut, for packets that the gateway itself sends
}

// New returns an Engine with configuration c, or all faults of c. key seeds the choice of ports and
// backends: an Engine with the same key gives a packet in mid-stream the ports that its predecessor
// gave the connection.
func New(key [16]byte, c *Config) (*Engine, error) {
	set := rules.NewSet()
	e := &Engine{hashKey: siphash.NewKey(key), set: set, put: set.Draft(), snapshot: &snapshot{}, hits: newRuleHits(),
		floor: math.MinInt64}
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

// Check returns all faults for which New and Prepare would refuse c.
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
	all      bool      // it affects all connections, even if no rule changed
}

// Prepare compiles c for Commit or, if c has faults, returns them all. Packets do not notice. An
// earlier Prepared that was not committed becomes invalid.
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

// unprepare discards an uncommitted Prepared.
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

// Commit replaces the configuration by p, the last one prepared. Connections survive unless
// something they need is gone.
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

// publish commits draft and makes its rules, as part of s, visible to packets. all: every
// connection is affected.
//
// +checklocks:e.apply
func (e *Engine) publish(s *snapshot, draft *rules.Draft, all bool) {
	var affected *rules.Affected
	if s.rules, affected = e.set.Commit(draft); all {
		affected = &rules.Affected{All: true}
	}
	s.restricts = s.rules.Restricts()
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.hits.lists) > hitEpoch {
		e.hits, affected = newRuleHits(), &rules.Affected{All: true}
	}
	s.generation = e.snapshot.generation + 1
	e.history.add(s.generation, affected)
	e.snapshot = s
	e.round.extend(e.table.high)
}

// Put makes r the resource of key from the next CommitRules on, beside the resources of the Config.
// If r is wrong, the error names the field, and key keeps its resource. Tables may name devices and
// neighbours before they exist.
func (e *Engine) Put(key rules.Key, r rules.Resource) error {
	e.apply.Lock()
	defer e.apply.Unlock()
	return e.put.Put(key, r)
}

// Delete removes the resource that Put gave key, from the next CommitRules on.
func (e *Engine) Delete(key rules.Key) {
	e.apply.Lock()
	defer e.apply.Unlock()
	e.put.Delete(key)
}

// CommitRules publishes all puts and deletes since the last call. It does not touch connections
// that they do not affect.
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

// Amend replaces services of the Config that have the same name, address, port and protocol, or
// returns all faults and changes nothing. Unless the Config is a Host's, their backends must be
// pods of the local cluster. An earlier Prepared that was not committed becomes invalid.
func (e *Engine) Amend(services []rules.Service) error {
	e.apply.Lock()
	defer e.apply.Unlock()
	e.unprepare()
	next := *e.current()
	var pod func(netip.Addr) bool
	if !next.rules.IsHost() {
		pod = next.pods.Contains
	}
	draft, err := e.set.Amend(services, pod)
	if err != nil {
		return err
	}
	e.publish(&next, draft, false)
	return nil
}

// Stats are the counters of an Engine. In packets after segmentation, each direction's ledger is
// Received = Forwarded + Delivered + Held + Σ Dropped. The table's is Connections = Created +
// Restored − Expired − Evicted − EarlyDropped − Deleted.
type Stats struct {
	Outbound, Inbound Direction
	Connections       int // in the table
	Unreplied         int // of them
	MaxConnections    int
	Ports             int  // ports and identifiers in use to tell connections of a shared source apart
	BusiestPorts      int  // of these, towards the remote address and port with the most
	BusiestPortsMax   int  // the limit of BusiestPorts
	Pressed           bool // the table is so full that unsettled connections live shortUnsettled
	Created           uint64
	Restored          uint64 // by Restore
	Expired           uint64 // timed out
	Evicted           uint64 // no longer admitted by the configuration
	EarlyDropped      uint64 // evicted for others
	Deleted           uint64 // by DeleteConnections, or by a Mirror
	Uncounted         uint64 // packets for which not all rules could be counted
	Datagrams         int    // in fragments and incomplete
	DatagramsReplaced uint64 // incomplete ones evicted for others
	Clients           int    // remembered clients of services with affinity
	MaxClients        int
	ClientsReplaced   uint64 // forgotten early, for others of the service
	ClientsRefused    uint64 // not remembered, because their /64 or the service was at its share
	ErrorsLimited     uint64 // errors that rate limits suppressed
}

// A Direction counts the packets from inside links (outbound) or from outside ones (inbound).
type Direction struct {
	Received, Forwarded, Delivered uint64
	Held                           uint64 // fragments waiting now for their first fragment
	Answered                       uint64 // errors made by AppendError
	Untracked, Asymmetric          uint64 // of the forwarded packets
	Dropped                        [reasons]uint64
}

// Stats returns the counters.
func (e *Engine) Stats() Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	st := e.stats
	st.Connections, st.MaxConnections, st.Pressed = e.table.used, e.snapshot.maxEntries, e.pressed()
	st.Unreplied = e.table.unreplied
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

// DroppedInAll returns how many packets were dropped, for all reasons.
func (d *Direction) DroppedInAll() (n uint64) {
	for _, of := range d.Dropped {
		n += of
	}
	return n
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

// Process decides what happens to the packet p, filled by Parse, that arrived on link in at time
// now. If the verdict is Forward, the bytes of p have been rewritten, and a Cutter makes of them
// what goes out on Verdict.Out; otherwise they are unchanged. now must not run backwards by more
// than the skew between two callers.
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

// packetBudget is how many expired connections a packet cleans up.
const packetBudget = 4
