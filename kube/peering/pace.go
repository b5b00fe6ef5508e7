package peering

import (
	"strings"
	"time"

	"golang.org/x/time/rate"
)

// statusInterval is the time between two writes of a Peering's status for what a node's agent, the owner of an exported Service or the peer changes, any
// of whom may do so at any rate.
const statusInterval = time.Second

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

// thePeer is the key of all that the peer tells. Other keys are what faults begin with, such as "TunnelNode worker1", and for the Peering its fields.
const thePeer = "the peer"

// tells reports whether a fault is told, in the log and by an Event. One that was told stays so until it has gone.
func (s *GatewaySource) tells(of, fault string) bool {
	return s.said[fault] || s.limits.Allow(of, s.now())
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
