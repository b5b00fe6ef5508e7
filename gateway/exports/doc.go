// Package exports lets two gateways tell each other which Services their clusters export, by
// datagrams between the tunnel addresses.
//
//	Tell ─► list ─► message ─► parts ─► Due ─► peer ─► Receive ─► message ─► Due ─► list ─► Heard
//	                                     ▲                                    │
//	                                     └───────── acknowledgement ──────────┘
//
// An Exchange is one gateway's end. It knows neither sockets nor Kubernetes nor a clock: datagrams
// and times go in, datagrams and lists come out. Receive is for the goroutine that packets wait
// for, and does little; Due does the rest.
//
// A list is a set of records with keys: one for each Service, one for the ports of each Group, one
// for each Endpoint. Its hash is the exclusive or of the hashes of its records, so that a change
// costs what the record does. A message makes one list of another: it has the hashes of both, the
// base and the target, and between them the records to put and to remove. A base of zeros is no
// list: then the message has all records. A message is cut into numbered parts of at most
// MaxDatagram bytes:
//
//	"cvex", version (1 byte), kind (1), number of this part (2), number of parts (2), base (16), target (16), piece
//
// A piece has records in the order of their keys. Numbers are big-endian:
//
//	length that the key shares with the one before (1), length of the rest (1), rest,
//	1 + length of the content, or 0 to remove the record (varint), content
//
// The keys and contents are in list.go. Contents in JSON may have other fields in later versions.
//
// The receiver acknowledges the list that it has, by a datagram of the other kind with its hash,
// whenever a message is complete or of no use to it; zeros mean none. So the sender knows which
// list the peer has: it remembers the records that have changed since then, and tells these. To a
// peer with a list that it does not remember it tells all. If it knows nothing of the peer's list,
// as at the start, it sends an empty message from its list to the same, which the peer must answer.
// Such messages are also its reminders, every 30 s. A message is sent again until it is
// acknowledged, and one of several parts stays the same, so that the peer can complete it; what
// changes meanwhile is in the next one. So a late
// datagram does no lasting harm, and silence changes nothing. If nothing is acknowledged for a
// minute, the peer does not know the protocol, and every 30 s is enough.
//
// A lie of the peer costs little: the receiver keeps the parts of one message of at most MaxSize
// bytes, and a complete one. A part of another message makes it start again. It refuses a message
// that breaks a limit as a whole, with a sentence that says why, and keeps the previous list. The
// reader of Heard must judge whether names and addresses are acceptable.
package exports
