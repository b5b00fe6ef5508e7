// Package pathmtu finds the path MTU of one leg: from the gateway to a node or to the peer, and
// back. It implements Packetization Layer Path MTU Discovery for Datagram Transports (RFC 8899),
// with padded echo requests as probes. It works on paths where larger packets vanish without an
// ICMP message.
//
// A Search is optimistic: it assumes that the configured size passes, and confirms that while the
// leg is in use. When a probe is lost, probes of many sizes at once search for the edge of a black
// hole (RFC 8899, Section 4.3). A path that merely loses packets has no edge: two adjacent sizes
// pass about equally often.
//
//	settled ── probe lost ──► doubting ── edge found and proved ──► settled, smaller
//	   ▲                         │
//	   ├──── probe answered ─────┘
//	   └──── size found ──── rising ◄── raiseInterval over ── settled, smaller than configured
//
// The names in RFC 8899, in brackets, for those used here: Floor (MIN_PLPMTU), the configured size
// (MAX_PLPMTU), edgeProof (MAX_PROBES), answerTime (PROBE_TIMER), confirmInterval
// (CONFIRMATION_TIMER), raiseInterval (PMTU_RAISE_TIMER).
//
// A Search knows neither sockets nor clocks. It is not for concurrent use.
package pathmtu
