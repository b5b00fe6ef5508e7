package control

import "time"

// Replication says how complete and how old the copies of a gateway's table are.
type Replication struct {
	Followers []Stream          `json:"followers"`        // replicas that copy from this one
	Source    *Stream           `json:"source,omitempty"` // the one that this one copies from
	Refused   map[string]uint64 `json:"refused"`          // connections that were closed, by reason
	Copies    map[string]uint64 `json:"copies"`           // full copies to followers, by why they began
}

// A Stream is between two replicas of a gateway.
type Stream struct {
	Pod        string            `json:"pod"`     // the other replica
	Address    string            `json:"address"` // of it
	Since      time.Time         `json:"since"`
	Entries    int               `json:"entries"`            // connections at the follower
	LagSeconds float64           `json:"lagSeconds"`         // the greatest age of what the follower may lack; of a source, since it was heard
	NoFullCopy bool              `json:"noFullCopy"`         // until a copy is whole
	LastCopy   *time.Time        `json:"lastCopy,omitempty"` // when a copy became whole
	CopyReason string            `json:"copyReason"`         // why the last copy began: first, overflow, configuration
	NotTaken   map[string]uint64 `json:"notTaken"`           // what the follower could not use, by reason
	Differs    string            `json:"differs,omitempty"`  // what is another one there: version, configuration
	ClockAhead float64           `json:"clockAheadSeconds"`  // of the other replica
}
