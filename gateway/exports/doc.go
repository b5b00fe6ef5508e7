// Package exports tells a gateway which Services the peer's cluster exports, by datagrams between the tunnel addresses.
//
//	Tell ─► list ─► parts ─► Due ─► peer ─► Receive ─► list ─► Heard
//	                          ▲               │
//	                          └─ acknowledgement
//
// An Exchange is one gateway's end. It knows neither sockets nor Kubernetes nor a clock: datagrams and times go in, datagrams and lists come out.
//
// The list is always told as a whole. So an export that is missing has gone, nothing has to be remembered of earlier lists, and silence changes
// nothing. A list is cut into numbered parts of at most MaxDatagram bytes, and each part has the hash of the whole list:
//
//	"cvex", version (1 byte), kind (1), number of this part (2), number of parts (2), hash (16), piece of the list
//
// Numbers are big-endian. The receiver acknowledges a list that is whole, that has this hash and that it can read, by a datagram of the other kind
// with the same hash. The sender sends all parts each second until then, and every 30 s from then on, which tells a peer that has begun anew. If
// nothing is acknowledged for a minute, the peer does not know the protocol, and every 30 s is enough. An acknowledgement of another list means that
// the peer has one that is out of date. So a late datagram does no lasting harm, and no order of lists is needed. A gateway that knows no list yet
// acknowledges the hash of zeros, which no list has, as often as it would tell one: so it need not wait until the peer reminds it.
//
// What a peer says may be a lie, and costs little: the receiver keeps the parts of one list, of at most maxList bytes. A part of another list makes it
// begin again. A list that breaks a limit is refused as a whole, with a sentence that says why, and the list before it stays. Whether a name or an
// address is acceptable is for the reader of Heard to judge.
package exports
