package replica

import (
	"context"
	"maps"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"culvert/gateway/control"
	"culvert/gateway/wgkey"
	"culvert/nat"
)

// Options configure a Replica. Several goroutines may call the functions.
type Options struct {
	Log     *logrus.Entry
	Key     wgkey.Key // the gateway's private key
	Name    string    // of this replica among those of the gateway: its pod's
	Version string    // of the program
	Engine  *nat.Engine
	Now     func() nat.Time
	// LinkName and Link name and find links, as for nat.Records.
	LinkName func(nat.Link) string
	Link     func(name string) (nat.Link, bool)
	Config   func() string // identity of the configuration
	Facts    func() []byte // what a successor must know besides connections; changes are sent within a second
	Took     func([]byte)  // takes the Facts of the source, before its blocks
	Heard    func([]byte)  // takes a notice; must not block; nil: notices are ignored
	Dial     Dial          // nil: by TCP
	// Restored returns, like AsOf, the time of the table that Engine has from the state folder.
	// nil: it has none.
	Restored func() time.Time
}

// Dial connects to a source.
type Dial func(ctx context.Context, at netip.AddrPort) (net.Conn, error)

// A Replica is one of the processes that have a gateway's table: a source for its followers, and at
// times a follower of another replica.
type Replica struct {
	Options
	keys      identities
	quit      context.CancelFunc
	restoring sync.Mutex // held while records of a source may be restored
	done      context.Context
	work      sync.WaitGroup

	mu       sync.Mutex
	leads    bool              // +checklocks:mu
	complete bool              // its table has been whole at some time; +checklocks:mu
	asOf     time.Time         // when it was last whole, if it is not now; +checklocks:mu
	links    []*link           // followers; +checklocks:mu
	refused  map[string]uint64 // +checklocks:mu
	copies   map[string]uint64 // full copies sent to followers, by reason; +checklocks:mu
	source   *following        // nil = none; +checklocks:mu
	target   netip.AddrPort    // +checklocks:mu
	bare     error             // why the target has nothing to copy: ErrNoTable or ErrOlder; +checklocks:mu
	retarget chan struct{}     // closed when target changes; +checklocks:mu
}

// maxFollowers exceeds what a rolling update of two replicas needs.
const maxFollowers = 4

// New returns a Replica that follows nobody. Close ends it.
func New(o Options) *Replica {
	r := &Replica{Options: o, keys: newIdentities(o.Key), refused: map[string]uint64{}, copies: map[string]uint64{},
		retarget: make(chan struct{})}
	if r.Dial == nil {
		r.Dial = dialTCP
	}
	r.done, r.quit = context.WithCancel(context.Background())
	r.work.Go(r.follow)
	return r
}

func dialTCP(ctx context.Context, at netip.AddrPort) (net.Conn, error) {
	d := net.Dialer{Timeout: greetTime}
	return d.DialContext(ctx, "tcp", at.String())
}

// Lead says that this replica forwards: from now on its table is the gateway's. It follows nobody
// until Rest. When Lead returns, no records of a source are restored any more. Options.Heard must
// not call it.
//
// A replica that has neither led nor received a whole copy serves no followers, because they would
// lose what they have. Nor does a replica that follows another one.
func (r *Replica) Lead() {
	r.mu.Lock()
	r.leads, r.complete = true, true
	r.aim(netip.AddrPort{})
	r.mu.Unlock()
	r.restoring.Lock() // earlier holders are done, and later ones see that there is no source to follow
	defer r.restoring.Unlock()
}

// Rest says that this replica no longer forwards.
func (r *Replica) Rest() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leads, r.asOf = false, time.Now()
}

// AsOf returns when the table last equalled that of the leading replica: now, if this replica
// leads. The zero Time means never.
func (r *Replica) AsOf() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.currentAsOf()
}

// +checklocks:r.mu
func (r *Replica) currentAsOf() time.Time {
	switch {
	case r.leads:
		return time.Now()
	case !r.complete && r.Restored != nil:
		return r.Restored()
	case r.source != nil:
		return r.source.asOf(r.asOf)
	}
	return r.asOf
}

// Close ends all streams.
func (r *Replica) Close() {
	r.mu.Lock()
	r.quit() // from here on Serve starts nothing that Wait could miss
	r.mu.Unlock()
	r.work.Wait()
}

// begin starts work, for whose end Close waits. It returns false if Close has been called.
func (r *Replica) begin(work func()) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done.Err() != nil {
		return false
	}
	r.work.Go(work)
	return true
}

// Followed reports whether another replica copies the table.
func (r *Replica) Followed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.links) > 0
}

// Tell sends a notice of at most MaxNotice bytes to every connected replica, after what Flush has
// flushed, and returns the number of replicas.
func (r *Replica) Tell(message []byte) (n int) {
	if len(message) > MaxNotice {
		return 0
	}
	r.mu.Lock()
	var wires []*wire
	for _, l := range r.links {
		wires = append(wires, l.wire)
	}
	if r.source != nil {
		wires = append(wires, r.source.wire)
	}
	r.mu.Unlock()
	for _, w := range wires {
		if w.send(kindNotice, message) == nil {
			n++
		}
	}
	return n
}

// Status returns how complete and how old the copies are.
func (r *Replica) Status() control.Replication {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := control.Replication{Followers: []control.Stream{}, Refused: maps.Clone(r.refused),
		Copies: maps.Clone(r.copies)}
	for _, l := range r.links {
		s.Followers = append(s.Followers, l.describe(r.Now()))
	}
	if r.source != nil {
		l := r.source.describe()
		s.Source = &l
	}
	return s
}

func (r *Replica) refuse(reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refused[reason]++
}

func (r *Replica) hello() hello {
	h := hello{Version: r.Version, Config: r.Config(), Name: r.Name, Clock: time.Now()}
	r.mu.Lock()
	defer r.mu.Unlock()
	if h.NoTable = !r.complete; !r.leads {
		h.Age = time.Since(r.currentAsOf())
	}
	return h
}

// differs says what differs at the other end.
func (r *Replica) differs(other *hello) string {
	switch own := r.Config(); {
	case other.Version != r.Version && other.Config != own:
		return "version and configuration"
	case other.Version != r.Version:
		return "version"
	case other.Config != own:
		return "configuration"
	}
	return ""
}
