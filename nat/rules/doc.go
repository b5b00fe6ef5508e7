// Package rules is the desired state of a gateway: what is to become of packets, put together piece by piece and compiled. It knows no
// connections and no clock, and keeps nothing of a packet.
//
// # From resources to a Ruleset
//
//	Resource  tables, policy tables, a device, a service, or what stands for such          rule.go, policy.go, resource.go, shorthands.go
//	Config    what two clusters are to each other; generates resources                     config.go, validate.go, generate.go
//	Set       resources by key, changed in Drafts                                          set.go, draft.go
//	piece     what one resource compiles to                                                builder.go, match.go, balancer.go
//	Ruleset   what a commit publishes: immutable, shares all that has not changed          ruleset.go, index.go, policy.go, cowmap.go
//	Affected  which addresses, links and marks a commit could matter to                    affected.go
//
// A resource compiles alone, and a fault belongs to its key. A commit takes the old piece's rules and routes out of persistent indexes
// and puts the new ones in. A resource that is as it was is no change. The order of puts does not matter: chains of one stage run by
// priority, order of their resource and key. Rules and routes that name a device or neighbour which comes, goes or moves compile anew.
//
// What each source of resources has put and not committed is a Draft of its own; a commit publishes one of them. Replace makes the Draft
// of a Config, whose kinds of resources nobody else may put.
//
// # A packet's way
//
// A Traversal takes one packet through a Ruleset: Raw and Input for the hooks that belong to no way through, else Enter, a backend where a
// service is met, and Leave. It says where the packet goes and as what, which rules it hit, and what they mark. A Tracer hears of every
// rule, service and route that is looked at, and where it comes from.
//
// # Concurrency
//
// A Set and its Drafts belong to one goroutine at a time. A Ruleset is immutable but for its counters, which are atomic. A Traversal
// belongs to one goroutine; it neither allocates nor locks.
package rules
