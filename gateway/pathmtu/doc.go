// Package pathmtu finds how large packets may be on one leg of a packet's way: from the gateway to a node or to the peer, and back. It
// is Packetization Layer Path MTU Discovery for Datagram Transports (RFC 8899), with padded echo requests as probes. What is larger than
// the path carries vanishes there, and no ICMP message needs to come back.
//
// A Search is optimistic: it takes for granted that the configured size passes, and confirms that while the leg is in use. When a probe
// is lost, probes of many sizes at once look for the edge of a black hole (RFC 8899, Section 4.3). A path that merely loses packets has no
// edge: of two sizes next to each other one gets through about as often as the other.
//
//	settled ── probe lost ──► doubting ── edge found and proved ──► settled, smaller
//	   ▲                         │
//	   ├──── probe answered ─────┘
//	   └──── size found ──── rising ◄── raiseInterval over ── settled, smaller than configured
//
// RFC 8899 names, in brackets, what is here: Floor (MIN_PLPMTU), the configured size (MAX_PLPMTU), edgeProof (MAX_PROBES),
// answerTime (PROBE_TIMER), confirmInterval (CONFIRMATION_TIMER), raiseInterval (PMTU_RAISE_TIMER).
//
// A Search knows neither sockets nor clocks. It is not for concurrent use.
package pathmtu
