// Package control is how a running gateway is looked at and told what to do: HTTP and JSON
// on a Unix socket of its own, mode 0600. culvert's commands are clients of it, and so can
// be any other program:
//
//	curl --unix-socket /run/culvert/rome-milan.sock http://gateway/v1/status
//
// # Requests
//
//	GET    /v1/status                 Status
//	GET    /v1/version                Version
//	GET    /v1/doctor                 a list of Conditions
//	GET    /v1/connections            a Connection per line, those that a Filter selects
//	GET    /v1/connections/events     an Event per line, until the client goes
//	DELETE /v1/connections            Deleted; takes a Filter that is not empty, or all=true
//	GET    /v1/rules                  a Rule per line, in the order of evaluation
//	GET    /v1/routes                 a Route per line, in the order of evaluation
//	GET    /v1/trace                  a Trace per line; see TraceOptions
//	POST   /v1/reload                 Reloaded; dryRun=true changes nothing
//	POST   /v1/takeover               the connection becomes the conversation of package handover
//	POST   /v1/capture                pcapng, until the request's body ends; see CaptureOptions
//	GET    /debug/flight              a Go execution trace of the last seconds, when a batch of packets takes longer than over=5ms
//	GET    /debug/pprof/…             package net/http/pprof, such as for go tool pprof
//
// Filters and options are parameters of the query, named like the flags of the commands.
// What is said per line is NDJSON, and whole if its last chunk has come. An answer whose
// status is not 200 is an Error. Numbers of packets and bytes are totals since the gateway
// started. Fields may be added; under /v1 none is renamed, removed or given another meaning.
//
// # Bounds
//
// The gateway takes a few connections at a time and closes those beyond. Each asks one
// thing. Whatever is asked, packets go first: lists are read in slices of the table, and
// who reads slower than things happen is told how many it has missed.
//
// The package knows of the gateway only what Source has. It imports nothing of culvert.
package control
