package peering

import (
	"strings"
	"time"

	"golang.org/x/time/rate"
)

// A node's agent, the owner of an exported Service and the peer may change what they say at any rate.
const (
	statusInterval = time.Second // between two writes of a Peering's status that such changes cause
	// An object, or the peer, causes so many Events and log lines at once, and one more in each interval.
	faultsAtOnce  = 20
	faultInterval = time.Minute
)

// A pace decides when a status is written. It belongs to one goroutine.
type pace struct {
	urgent *Status       // of the last status that was written or found; nil: write the next one at once
	others *rate.Limiter // of writes for all other changes
}

func newPace() pace { return pace{others: rate.NewLimiter(rate.Every(statusInterval), 1)} }

// due reports whether a status that differs from the stored one is to be written now. If not, ask again in a later round.
func (p *pace) due(next *Status, now time.Time) bool {
	if urgent := next.urgent(); p.urgent == nil || !same(p.urgent, urgent) {
		p.urgent = urgent
		return true
	}
	return p.others.AllowN(now, 1)
}

// urgent returns the part of a status that is written as soon as it changes: where the gateway is, what nodes are assigned, which spec it obeys, and
// whether the peer answers. No node, Service or peer can change it often.
func (st *Status) urgent() *Status {
	part := &Status{PublicKey: st.PublicKey, Active: st.Active, Nodes: st.Nodes}
	for _, c := range st.Conditions {
		if c != nil && c.Type == Connected {
			part.Conditions = append(part.Conditions, &Condition{Status: c.Status, Observed: c.Observed})
		}
	}
	return part
}

// faultLimits limit how many faults are told of each object and of the peer, so that none of them hides the faults of another. The keys are what faults
// begin with, such as "TunnelNode worker1", and for the Peering its fields; or thePeer.
type faultLimits map[string]*rate.Limiter

const thePeer = "the peer"

// allow reports whether a new fault may be told now.
func (f faultLimits) allow(of string, now time.Time) bool {
	if f[of] == nil {
		for other, limit := range f {
			if limit.TokensAt(now) == faultsAtOnce { // as good as a new one
				delete(f, other)
			}
		}
		f[of] = rate.NewLimiter(rate.Every(faultInterval), faultsAtOnce)
	}
	return f[of].AllowN(now, 1)
}

// tells reports whether a fault is told, in the log and by an Event. One that was told stays so until it has gone.
func (s *GatewaySource) tells(of, fault string) bool {
	return s.said[fault] || s.limits.allow(of, s.now())
}

// allowed returns the faults of objects that are told.
func (s *GatewaySource) allowed(faults []string) (told []string) {
	for _, text := range faults {
		if of, _, _ := strings.Cut(text, ": "); s.tells(of, text) {
			told = append(told, text)
		}
	}
	return told
}
