// Package pathmtu finds how large packets may be on one leg of a packet's way: from the gateway to a node or to the peer, and back. It
// is Packetization Layer Path MTU Discovery for Datagram Transports (RFC 8899), with padded echo requests as probes. What is larger than
// the path carries vanishes there, and no ICMP message needs to come back.
//
// A Search is optimistic: it takes for granted that the configured size passes, and confirms that while the leg is in use. Three probes
// that are lost while a small one is answered are a black hole (RFC 8899, Section 4.3). Which size passes is found meanwhile, by probes of
// many sizes at once.
//
//	settled ── probe lost ──► doubting ── lost three times, size found ──► settled, smaller
//	   ▲                         │
//	   ├──── probe answered ─────┘
//	   └──── size found ──── rising ◄── raiseInterval over ── settled, smaller than configured
//
// RFC 8899 names, in brackets, what is here: Floor (MIN_PLPMTU), the configured size (MAX_PLPMTU), lossesForBlackHole (MAX_PROBES),
// answerTime (PROBE_TIMER), confirmInterval (CONFIRMATION_TIMER), raiseInterval (PMTU_RAISE_TIMER).
//
// A Search knows neither sockets nor clocks. It is not for concurrent use.
package pathmtu
