// Package ipam chooses the CIDRs and addresses under which a cluster sees remote ones that overlap
// its own, and stores each choice permanently.
//
// # Choosing
//
// A Plan comes from a configuration: the pools for remapped CIDRs, and the prefixes in use (taken).
// Taken prefixes may overlap each other; each Plan lists them again, and they are never stored. A
// Ledger lists which owner got what.
//
// A remote CIDR gets the first of these: its earlier choice; the prefix that it wishes, if that
// lies in a pool and overlaps nothing taken or given; a free block of the same length. Blocks are
// searched for as Liqo does it, so that users who leave Liqo keep their remaps: the pools in their
// order; at each halving of a pool, first the half that has something inside, or the lower one if
// both or neither have. So neighbours fill up and large blocks stay whole. If the Plan has no IPv6
// pool, an IPv6 wish that overlaps nothing is granted; otherwise the CIDR gets a block of
// fd63:756c::/32.
//
// In a local external CIDR, the next address after the last one given is chosen, wrapping around,
// so that a released address stays unused for as long as possible. The first address is never
// given, because it stands for unknown sources, nor is the broadcast address of an IPv4 network.
//
// # Remembering
//
// A Store is one JSON file. Update locks it, reads it, lets its caller choose, and returns when the
// new file is durable: written to a temporary file, synced, renamed, and the folder synced.
// Gateways of one cluster share the file, one process per peering. The locks are flock(2) on
// FILE.lock and FILE.PEER.lock in the same folder; the kernel releases them when a process dies. A
// file that does not parse, has a later version or contradicts itself is refused with the line
// number, and never written.
//
// The package uses no network, clock or log. A Plan, a Ledger and a Store may be used by one
// goroutine at a time; Stores with the same path exclude each other.
package ipam
