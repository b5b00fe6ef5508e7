// Package control inspects and controls a running gateway: HTTP and JSON on its Unix socket, mode
// 0600. culvert's commands are clients of it, and other programs can be too:
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
//	GET    /debug/pprof/…             the profiles of runtime/pprof, for go tool pprof
//
// Filters and options are query parameters, named like the commands' flags. Lists are NDJSON, and
// complete if the last chunk has arrived. An answer whose status is not 200 is an Error. Numbers of
// packets and bytes are totals since the gateway started. Fields may be added; under /v1 none is
// renamed, removed or given another meaning.
//
// # Bounds
//
// The gateway accepts a limited number of connections and closes further ones. Each makes one
// request. Forwarding always has priority: lists read the table in slices, and a client that reads
// too slowly is told how many events it has missed.
//
// The package knows the gateway only as a Source. It imports nothing from culvert.
package control
