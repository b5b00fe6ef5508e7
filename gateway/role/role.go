package role

import (
	"fmt"
	"math"
	"time"
)

// A Role is what a gateway does.
type Role uint8

// Roles.
const (
	Alone   Role = iota // it has no replicas: it forwards
	Standby             // it has rules and connections, but sends nothing to the peer or to nodes
	Active              // it has the Lease, and forwards
	// its Lease has run out: it forwards, but starts nothing towards the peer except for a node's
	// packet
	Static
	Silent // as Standby, but data from the peer makes it Static again
	numRoles
)

func (r Role) String() string {
	return [numRoles]string{"alone", "standby", "active", "static", "silent"}[r]
}

// Forwards reports whether a gateway in this role carries packets.
func (r Role) Forwards() bool { return r == Alone || r == Active || r == Static }

// Speaks reports whether a gateway in this role may start conversations freely and write the status
// of resources.
func (r Role) Speaks() bool { return r == Alone || r == Active }

// Times are the durations of an election.
type Times struct {
	Lease    time.Duration // how long a Lease of ours is valid, counted from the request to renew it
	Patience time.Duration // how long the peer may be silent towards a Static gateway
}

// Jitter is the largest part of the time between two attempts by which a standby lengthens it, as
// in client-go's elector, so that standbys do not all try at once.
const Jitter = 1.2

// Bounds of how long another holder's Lease is believed. Without them, anybody who may write Leases
// could lock out all gateways.
const (
	minForeign = time.Second
	maxForeign = time.Minute
)

// maxTerm is the largest number that a Lease has room for. A stranger may have written it.
const maxTerm = math.MaxInt32

// CallInterval is how long a Silent gateway waits between two handshakes.
const CallInterval = time.Minute

// A Lease has the fields of a Kubernetes Lease that matter here.
type Lease struct {
	Holder   string // "": nobody
	Term     int64  // leaseTransitions: it grows with each change of the holder
	Duration time.Duration
	Renewed  string // renewTime as text, only compared for equality
}

// Signs are a gateway's other observations. The counts are totals.
type Signs struct {
	Heard  uint64 // bytes of authenticated messages from the peer
	Data   uint64 // packets in them
	Stream bool   // the other gateway is connected
}

// A Machine decides the role of one gateway. It is for one goroutine.
type Machine struct {
	self  string // identity: the holder of our Leases
	times Times

	role Role
	why  string // why it is in this role

	now   time.Duration // the latest; it never goes back
	lease Lease         // as last read or written
	since time.Duration // when lease was first seen in this state
	known bool          // lease is set
	term  int64         // of our last Lease
	ends  time.Duration // when our Lease runs out
	blind bool          // the latest attempt to read the Lease failed
	trust time.Duration // until when the Lease is believed after such a failure

	signs  Signs
	heard  time.Duration // when the peer was last heard
	called time.Duration // when the peer was last called
}

// New returns the Machine of a Standby.
func New(self string, t Times) *Machine {
	return &Machine{self: self, times: t, role: Standby, why: "it has only started"}
}

// Role returns the role, and the reason for it in words.
func (m *Machine) Role() (r Role, why string) { return m.role, m.why }

// Lease returns the Lease as last read or written, and the time since this gateway last saw it
// change. ok is false if there is none.
func (m *Machine) Lease(now time.Duration) (l Lease, age time.Duration, ok bool) {
	return m.lease, max(m.now, now) - m.since, m.known
}

// Read records the Lease that was read from the API server; nil: there is none. It returns the
// Lease to write, without Renewed; nil: another gateway has it.
func (m *Machine) Read(l *Lease, now time.Duration) (write *Lease) {
	m.tick(now)
	if l == nil {
		m.known = false
		return &Lease{Holder: m.self, Term: m.term, Duration: m.times.Lease}
	}
	if !m.known || *l != m.lease {
		m.lease, m.known, m.since = *l, true, m.now
	}
	next := &Lease{Holder: m.self, Term: l.Term, Duration: m.times.Lease}
	lasts := m.foreign(l.Duration)
	if m.blind {
		m.blind, m.trust = false, m.now+lasts/2
	}
	switch {
	case l.Holder == m.self:
		return next
	case l.Holder == "":
	case m.now-m.since < lasts || m.now < m.trust:
		m.become(Standby, fmt.Sprintf("%s has the Lease", l.Holder))
		return nil
	default:
		// It has run out. Its holder may be Static, and will see ours.
	}
	next.Term = min(max(l.Term, m.term)+1, maxTerm)
	return next
}

// Failed records that the Lease could not be read. Perhaps its holder could not renew it either. So
// once the Lease can be read again, it is believed for at least half of its duration, and an API
// server that was down for all changes no roles.
func (m *Machine) Failed() { m.blind = true }

// foreign returns how long another holder's Lease is believed after it was seen to change.
func (m *Machine) foreign(d time.Duration) time.Duration {
	if d <= 0 {
		d = m.times.Lease
	}
	return min(max(d, minForeign), maxForeign)
}

// Wrote records that the API server has accepted a Lease that Read returned. asked is the time of
// the request.
func (m *Machine) Wrote(l *Lease, asked, now time.Duration) {
	m.tick(now)
	m.lease, m.known, m.since, m.term = *l, true, m.now, l.Term
	if m.ends = asked + m.times.Lease; m.now < m.ends {
		m.become(Active, "it has the Lease")
	}
}

// Released records that the Lease was given back. The gateway is about to stop.
func (m *Machine) Released(now time.Duration) {
	m.tick(now)
	m.ends = m.now
	m.become(Standby, "it has given back its Lease")
}

// Told records what the other gateway said over the stream: that it holds the Lease with a term. A
// gateway whose own Lease has run out believes any term, because the terms of a deleted Lease start
// again.
func (m *Machine) Told(holder string, term int64, now time.Duration) {
	m.tick(now)
	if m.role != Standby && (term > m.term || m.now >= m.ends) {
		m.lease, m.known, m.since = Lease{Holder: holder, Term: term, Duration: m.times.Lease}, true, m.now
		m.become(Standby, fmt.Sprintf("%s says that it has the Lease", holder))
	}
}

// Look advances the time. It returns true when a Silent gateway must try a handshake.
func (m *Machine) Look(s Signs, now time.Duration) (call bool) {
	m.tick(now)
	data := s.Data != m.signs.Data
	if s.Heard != m.signs.Heard || data {
		m.heard = m.now
	}
	m.signs = s
	if m.role == Active && m.now >= m.ends {
		m.become(Static, "its Lease has run out, and nobody else is seen to have one")
	}
	switch {
	case m.role == Static && !s.Stream && m.now-m.heard >= m.times.Patience:
		m.called = m.now
		m.become(Silent, fmt.Sprintf(
			"its Lease has run out, there is no stream to another gateway, and the peer was silent for %v",
			m.times.Patience))
	case m.role == Silent && data:
		m.become(Static, "the peer sends to it although its Lease has run out")
	case m.role == Silent && m.now-m.called >= CallInterval:
		m.called = m.now
		return true
	}
	return false
}

// tick keeps the clock from going back.
func (m *Machine) tick(now time.Duration) { m.now = max(m.now, now) }

func (m *Machine) become(r Role, why string) { m.role, m.why = r, why }
