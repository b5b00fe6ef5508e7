// Package exports lets two gateways tell each other which Services their clusters export, by
// datagrams between the tunnel addresses.
//
//	Tell ─► list ─► parts ─► Due ─► peer ─► Receive ─► list ─► Heard
//	                          ▲               │
//	                          └─ acknowledgement
//
// An Exchange is one gateway's end. It knows neither sockets nor Kubernetes nor a clock: datagrams
// and times go in, datagrams and lists come out.
//
// A gateway always sends its whole list. So a missing export has gone, earlier lists need not be
// remembered, and silence changes nothing. A list is cut into numbered parts of at most MaxDatagram
// bytes, and each part has the hash of the whole list:
//
//	"cvex", version (1 byte), kind (1), number of this part (2), number of parts (2), hash (16), piece of the list
//
// Numbers are big-endian. When a list is whole, has this hash and can be read, the receiver
// acknowledges it by a datagram of the other kind with the same hash. Until then the sender sends
// all parts every second; afterwards it sends them every 30 s, for a peer that has restarted. If
// nothing is acknowledged for a minute, the peer does not know the protocol, and every 30 s is
// enough. An acknowledgement of another list means that the peer's list is out of date. So a late
// datagram does no lasting harm, and lists need no order. A gateway without the peer's list
// acknowledges a hash of zeros, which no list has, as often as it would send a list, so it need not
// wait for the peer's next reminder.
//
// A lie of the peer costs little: the receiver keeps the parts of only one list, of at most maxList
// bytes. A part of another list makes it start again. It refuses a list that breaks a limit as a
// whole, with a sentence that says why, and keeps the previous list. The reader of Heard must judge
// whether names and addresses are acceptable.
package exports
