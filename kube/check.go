package kube

import "time"

// A Check is the result of the connection check: the peer answers, has been silent for too long, or
// is not known yet.
type Check struct {
	State   CheckState
	Latency time.Duration
	At      time.Time // time of the latency
}

// CheckState is the state of the connection check.
type CheckState uint8

// The states. If the check is off, the peer counts as connected, as in Liqo.
const (
	CheckPending CheckState = iota
	CheckConnected
	CheckLost
)
