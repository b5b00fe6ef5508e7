// Package role decides which of several gateways of one peering forwards. It knows neither clocks nor sockets: what was read and written, what the
// peer sends and how late it is are arguments of a Machine.
//
// One gateway is meant to have the Lease, by the protocol of client-go's leader election. The others are standbys. A gateway that cannot renew its
// Lease goes on, because it cannot tell an API server that is away from one that it alone cannot reach:
//
//	           writes the Lease               its Lease runs out
//	Standby ─────────────────────► Active ─────────────────────────► Static
//	   ▲                             ▲  ▲      writes the Lease      │   │ ▲
//	   │                             │  └────────────────────────────┘   │ │ data from the peer
//	   │                             │ writes the Lease   no stream, and ▼ │
//	   │                             └───────────────────────────────── Silent
//	   └── from each: another gateway is seen to have the Lease          nothing from the peer
//
// All times are of one monotonic clock. A clock that stands still while the machine sleeps makes a gateway believe for one more attempt that it has
// the Lease; one that jumps ahead makes it Static until its next attempt. What other clocks say, such as a Lease's renewTime, is compared for
// equality alone.
package role
