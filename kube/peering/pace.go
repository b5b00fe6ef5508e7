package peering

import (
	"time"

	"golang.org/x/time/rate"
)

// statusInterval is the time between two writes of a Peering's status for changes by a node's
// agent, the owner of an exported Service or the peer, who may make them at any rate.
const statusInterval = time.Second

// A pace decides when a status is written. It belongs to one goroutine.
type pace struct {
	urgent *Status       // of the last status written or found; nil: write the next one at once
	others *rate.Limiter // of writes for all other changes
}

func newPace() pace { return pace{others: rate.NewLimiter(rate.Every(statusInterval), 1)} }

// due reports whether to write a status that differs from the stored one now. If not, ask again in
// a later round.
func (p *pace) due(next *Status, now time.Time) bool {
	if urgent := next.urgent(); p.urgent == nil || !same(p.urgent, urgent) {
		p.urgent = urgent
		return true
	}
	return p.others.AllowN(now, 1)
}

// urgent returns the part of a status that is written as soon as it changes: where the gateway is,
// the assignments of nodes, which spec applies, and whether the peer answers. No node, Service or
// peer can change it often.
func (st *Status) urgent() *Status {
	part := &Status{PublicKey: st.PublicKey, Active: st.Active, Nodes: st.Nodes}
	for _, c := range st.Conditions {
		if c != nil && c.Type == Connected {
			part.Conditions = append(part.Conditions, &Condition{Status: c.Status, Observed: c.Observed})
		}
	}
	return part
}

// thePeer is the key for limits of faults in the peer's list.
const thePeer = "the peer"
