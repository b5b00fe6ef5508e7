package replica

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"culvert/gateway/wgkey"
	"culvert/nat"
)

// Options are what a Replica is about. Functions may be called by several goroutines.
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
	Facts    func() []byte // what a successor has to know besides connections; a change is sent within a second
	Took     func([]byte)  // takes the Facts of the source, before its blocks
	Heard    func([]byte)  // takes a notice; must not block; nil: notices are ignored
	// Dial connects to a source; nil: by TCP.
	Dial func(ctx context.Context, at netip.AddrPort) (net.Conn, error)
}

// A Replica is one of the processes that have a gateway's table: a source for those that follow it, and at times the follower of another.
type Replica struct {
	Options
	keys identities
	quit context.CancelFunc
	done context.Context
	work sync.WaitGroup

	mu       sync.Mutex
	links    []*link           // followers; +checklocks:mu
	refused  map[string]uint64 // +checklocks:mu
	copies   map[string]uint64 // full copies that followers were sent, by why; +checklocks:mu
	source   *following        // nil = none; +checklocks:mu
	target   netip.AddrPort    // +checklocks:mu
	retarget chan struct{}     // closed when target changes; +checklocks:mu
}

// maxFollowers is more than a rolling update of two replicas has.
const maxFollowers = 4

// New returns a Replica that follows nobody. Close ends it.
func New(o Options) *Replica {
	r := &Replica{Options: o, keys: newIdentities(o.Key), refused: map[string]uint64{}, copies: map[string]uint64{}, retarget: make(chan struct{})}
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

// Close ends all streams.
func (r *Replica) Close() {
	r.quit()
	r.work.Wait()
}

// Tell sends a notice of at most MaxNotice bytes to every replica that is connected, behind what Flush has flushed, and returns to how many.
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

// Status says how complete and how old the copies are.
type Status struct {
	Followers []Link            `json:"followers"`        // that copy from this replica
	Source    *Link             `json:"source,omitempty"` // that this replica copies from; nil = none
	Refused   map[string]uint64 `json:"refused"`          // connections that were closed, by reason
	Copies    map[string]uint64 `json:"copies"`           // full copies to followers, by reason
}

// A Link is one stream.
type Link struct {
	Name       string            `json:"name"`
	Peer       string            `json:"peer"` // address
	Since      time.Time         `json:"since"`
	Entries    int               `json:"entries"`    // connections at the follower
	Lag        time.Duration     `json:"lagNs"`      // an upper bound for the age of changes that the follower lacks; of a source, since it was heard
	NoFullCopy bool              `json:"noFullCopy"` // until a copy is whole
	LastCopy   time.Time         `json:"lastCopy"`   // when a copy became whole; zero = never
	CopyReason string            `json:"copyReason"` // why the last copy began
	NotTaken   map[string]uint64 `json:"notTaken"`   // what the follower could not use, by reason
	Differs    string            `json:"differs"`    // what is another one at the other end: version, configuration; "" = nothing
	Clock      time.Duration     `json:"clockNs"`    // by how much the other end's clock is ahead
}

// Status returns how complete and how old the copies are.
func (r *Replica) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := Status{Refused: clone(r.refused), Copies: clone(r.copies)}
	for _, l := range r.links {
		s.Followers = append(s.Followers, l.describe(r.Now()))
	}
	if r.source != nil {
		l := r.source.describe()
		s.Source = &l
	}
	return s
}

func clone(m map[string]uint64) map[string]uint64 {
	c := make(map[string]uint64, len(m))
	for k, v := range m {
		c[k] = v
	}
	return c
}

func (r *Replica) refuse(reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refused[reason]++
}

func (r *Replica) hello() hello {
	return hello{Version: r.Version, Config: r.Config(), Name: r.Name, Clock: time.Now()}
}

// differs says what is another one at the other end.
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
