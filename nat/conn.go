package nat

import "culvert/nat/packet"

// Directions are named after tuples: a packet that matches original is rewritten to the reverse of
// reply, and vice versa.
const (
	original = 0
	reply    = 1
)

// A conn is what each packet of a tracked connection reads and writes. Its 128 bytes are two cache
// lines: one for lookup and verdict, one for counters. It holds no pointers, so the garbage
// collector skips the slab. The rest of a connection is in its coldPart and, for IPv6, in
// table.wide.
type conn struct {
	keys [2]tupleKey

	lastSeen   Time
	generation uint32 // of the snapshot that verdict, out, clamp and hits come from
	mark       uint32
	hits       [2]uint16 // the counting rules that each direction's packets hit, by number in ruleHits
	// addresses and ports are the checksum deltas of direction original; those of reply are their
	// complements.
	addresses, ports uint16
	out              [2]Link
	clamp            [2]uint16 // bound for the MSS option of SYNs; 0 = off

	packets [2]uint64 // by direction, after segmentation
	bytes   [2]uint64
	tcp     tcpState
	verdict [2]Reason // ReasonNone: forward
	state   state
	flags   connFlags
}

// A tupleKey is a tuple as stored in an entry.
type tupleKey struct {
	// addresses is Words[0] of an IPv4 tuple. For IPv6, the original's is the index in table.wide
	// of both tuples' addresses, and the reply's is the share identity of the address.
	addresses uint64
	ports     uint32
	link      Link
	protocol  uint8
	ipv6      bool
}

func newTupleKey(t *packet.Tuple) tupleKey {
	return tupleKey{addresses: t.Words[0], ports: t.Ports, link: t.Link, protocol: t.Protocol, ipv6: t.IPv6}
}

// A coldPart is the part of an entry that packets of an established connection do not touch.
type coldPart struct {
	id             uint64 // of the connection in this entry, or of the next one
	next, previous uint32 // in the list of its rank
	// wheelNext and wheelPrevious link the entries of a timer slot. In the first entry,
	// wheelPrevious is the slot with slotBit set. wheelNext also links free entries.
	wheelNext, wheelPrevious uint32
	// older and newer link the closed connections among which their holder looks for a port.
	older, newer uint32
}

// connFlags are facts about a connection. The two lowest bits are its rank.
type connFlags uint8

const (
	rankMask connFlags = 3

	// verdict, out, clamp and hits are valid for generation, direction original
	flagEvaluated0 connFlags = 1 << (iota + 1)
	flagEvaluated1           // the same for direction reply
	flagReplied              // a packet of direction reply was forwarded
	flagService              // the destination is a backend of a service
	flagPort                 // counted in its port space
	flagPortShare            // counted for its holder too
)

// A rank orders connections by which must make room for others first.
type rank uint8

const (
	rankSettled   rank = iota // never dropped early, in no list
	rankUnsettled             // no proof that its opener gets the answers: evicted first
	rankClosing
	rankHalfClosed // one end has closed and may wait for the other's answer: evicted last
	ranks
)

// live reports whether the entry is in use.
func (c *conn) live() bool { return c.generation != 0 }

func (c *conn) rank() rank { return rank(c.flags & rankMask) }

// deltas returns the checksum deltas for packets of direction d.
func (c *conn) deltas(d int) (addresses, ports uint16) {
	if d == original {
		return c.addresses, c.ports
	}
	return packet.Negate(c.addresses), packet.Negate(c.ports)
}

func (c *conn) has(f connFlags) bool { return c.flags&f != 0 }
