// Package role decides which of several gateways of one peering forwards. It knows neither clocks
// nor sockets: a Machine gets as arguments what was read and written, what the peer sends, and the
// time.
//
// One gateway should hold the Lease, by the protocol of client-go's leader election. The others are
// standbys. A gateway that cannot renew its Lease goes on, because it cannot tell whether the API
// server is down for all or only out of its own reach:
//
//	           writes the Lease               its Lease runs out
//	Standby ─────────────────────► Active ─────────────────────────► Static
//	   ▲                             ▲  ▲      writes the Lease      │   │ ▲
//	   │                             │  └────────────────────────────┘   │ │ data from the peer
//	   │                             │ writes the Lease   no stream, and ▼ │
//	   │                             └───────────────────────────────── Silent
//	   └── from each: another gateway is seen to have the Lease          nothing from the peer
//
// All times are of one monotonic clock. If the clock stands still while the machine sleeps, a
// gateway believes for one more attempt that it has the Lease; if the clock jumps ahead, the
// gateway is Static until its next attempt. Times of other clocks, such as a Lease's renewTime, are
// only compared for equality.
package role
