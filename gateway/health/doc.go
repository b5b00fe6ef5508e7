// Package health says how a gateway does: for the peer, each node and each kind of loss
// that goes on, what is the case, why, and what to do.
//
// A Judge looks at an Observation once a second. It remembers what it saw before, so that
// it can tell a change from a state, and returns a Finding for each change. A Finding is
// one Cause of the table in causes.go with its blanks filled in: what the log says is
// what a status shows.
//
// Nothing here reads a clock, opens a socket or writes a log, and nothing is on the
// packet path: observations are made of counters that are there anyway, and of one example
// a second for each reason to drop a packet.
package health
