// Package ipam chooses by which CIDRs and addresses a cluster sees what overlaps with its
// own, and remembers each choice for ever.
//
// # Choosing
//
// A Plan is what a configuration says: the pools that remapped CIDRs may come from, and
// what is taken already. Taken prefixes may overlap each other; they are given anew with
// each Plan and never stored. A Ledger is what was given to whom.
//
// A remote CIDR gets, in this order: what it was given before; what it wishes, if that
// lies in a pool and overlaps nothing taken or given; a free block of the same length. The
// block is searched as Liqo searches it, so that who leaves Liqo keeps his remaps: the
// pools in their order, and from a pool downwards at each halving first the half that has
// something inside, the lower one if both have or neither has. So neighbours fill up and
// large blocks stay whole. A family without a pool (IPv6, unless the Plan has one) has no
// blocks: a wish that overlaps nothing is granted, any other is refused.
//
// An address of a local external CIDR is the next one after the last that was given,
// around the end, so that a released address rests for as long as possible. The first
// address is never given, since it stands for unknown sources, and neither is the
// broadcast address of an IPv4 network.
//
// # Remembering
//
// A Store is one JSON file. Update locks it, reads it, lets its caller choose, and returns
// after the new file is durable: written beside, synced, renamed, the folder synced.
// Gateways of one cluster share the file, one process per peering. The locks are flock(2)
// on files beside it, FILE.lock and FILE.PEER.lock; the kernel frees them when a process
// dies. A file that does not parse, is of a later version or contradicts itself is refused
// with its line, and never written.
//
// The package knows no network, no clock and no log. A Plan, a Ledger and a Store may be
// used by one goroutine at a time; Stores of one path exclude each other.
package ipam
