// Package health diagnoses a gateway: for the peer, each node and each ongoing kind of loss, it
// states the problem, the cause and the remedy.
//
// A Judge examines an Observation once a second. It remembers earlier ones and returns a Finding
// for each change. A Finding is a Cause from causes.go with its placeholders filled in; log and
// status show the same text.
//
// Nothing here reads a clock, opens a socket or writes a log, and nothing is on the packet path:
// observations consist of counters that exist anyway, and of one example a second for each drop
// reason.
package health
