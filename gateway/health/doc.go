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
//
// # A node that falls silent
//
//	geneve.Endpoint.AskAll     asks nodes by ARP, counts requests without an answer           geneve/requests.go
//	Monitor.Look               copies what was counted of each node into an Observation       gateway/monitor
//	Judge.Look                 passes each Node to its history                                judge.go
//	nodeHistory.fault          after asks requests and quietTime without a frame: NodeSilent  node.go
//	findingOf                  fills in the Cause's text                                      causes.go
//	Judge.Findings             what status shows                                              judge.go
//
// In a Peering, the doc of package kube/peering goes on from there.
//
// gateway/sweep.go calls AskAll and Monitor.Look each second. While a node is doubtful, the Monitor
// also sends it a Knock. The next Observation has the result, which may name the cause.
package health
