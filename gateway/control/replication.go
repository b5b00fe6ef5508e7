package control

import (
	"fmt"
	"slices"
	"time"
)

// Replication says how complete and how old the copies of a gateway's table are.
type Replication struct {
	Followers []Stream          `json:"followers"`        // replicas that copy from this one
	Source    *Stream           `json:"source,omitempty"` // the replica from which this one copies
	Refused   map[string]uint64 `json:"refused"`          // connections that were closed, by reason
	Copies    map[string]uint64 `json:"copies"`           // full copies to followers, by reason
}

// A Stream connects two replicas of a gateway.
type Stream struct {
	Pod     string    `json:"pod"`     // the other replica
	Address string    `json:"address"` // of it
	Since   time.Time `json:"since"`
	Entries int       `json:"entries"` // connections at the follower
	// the greatest age of what the follower may lack; of a source, since it was heard
	LagSeconds float64    `json:"lagSeconds"`
	NoFullCopy bool       `json:"noFullCopy"`         // no copy is whole yet
	LastCopy   *time.Time `json:"lastCopy,omitempty"` // when a copy became whole
	CopyReason string     `json:"copyReason"`         // why the last copy began: first, overflow, configuration
	// what the follower could not use since the last copy began, by reason
	NotTaken   map[string]uint64 `json:"notTaken"`
	Differs    string            `json:"differs,omitempty"` // what differs there: version, configuration
	ClockAhead float64           `json:"clockAheadSeconds"` // of the other replica
}

// remedies say what each reason of Stream.NotTaken means, and what to do.
var remedies = []struct{ why, remedy string }{
	{"damaged-block", "they came broken: another copy follows in minutes"},
	{"foreign-block", "they are of another version: run one version in both pods"},
	{"message", "they are of another version: run one version in both pods"},
	{"no-room", "the standby's table is full: give it more memory"},
	{"unbound", "the standby's configuration excludes them: give both pods the same"},
	{"unknown-link", "the standby lacks their node: see its `culvert status`"},
}

// Lacks returns, for each reason, a sentence without a period that says how much the follower could
// not use and what to do; nil if it could use everything.
func (s *Stream) Lacks() (all []string) {
	for why, n := range s.NotTaken {
		text := fmt.Sprintf("%d not taken, %s", n, why)
		for _, r := range remedies {
			if r.why == why {
				text += ": " + r.remedy
			}
		}
		all = append(all, text)
	}
	slices.Sort(all)
	return all
}
