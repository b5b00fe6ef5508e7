// Package rules compiles a gateway's desired state, resources by key, into an immutable ruleset,
// and evaluates it for a packet. It knows no connections and no clock, and keeps nothing of a
// packet.
//
// # From resources to a Ruleset
//
//	Resource  tables, policy tables, a device, a service, a shorthand           rule.go, policy.go, resource.go
//	Config    how two clusters see each other; generates resources              config.go, validate.go, generate.go
//	Set       resources by key, changed in Drafts                               set.go, draft.go
//	piece     what one resource compiles to                                     builder.go, match.go, balancer.go
//	Ruleset   what a commit publishes: immutable, shares everything unchanged   ruleset.go, index.go, policy.go
//	Affected  which addresses, links and marks a commit could affect            affected.go
//
// Each resource compiles alone, and a fault belongs to its key. A commit removes the old piece's
// rules and routes from persistent indexes and adds the new ones. An unchanged resource causes no
// change. The order of puts does not matter: chains of one stage run by priority, order of their
// resource and key. Rules and routes that name a device or neighbour are compiled again when it
// appears, disappears or moves.
//
// The uncommitted changes of each source of resources are a Draft of their own; a commit publishes
// one Draft. Replace makes the Draft of a Config, whose kinds of resources nobody else may put.
//
// # A packet's path
//
// A Traversal takes one packet through a Ruleset: Raw and Input run the hooks outside the
// forwarding path; otherwise Enter, then SendTo if a service needs a backend, then Leave. It says
// where the packet goes and with which addresses, which rules it hit, and which marks they set. A
// Tracer is told every rule, service and route that is consulted, and its origin.
//
// # Concurrency
//
// A Set and its Drafts belong to one goroutine at a time. A Ruleset is immutable except for its
// counters, which are atomic. A Traversal belongs to one goroutine; it neither allocates nor locks.
package rules
