package nat

import "culvert/nat/packet"

// The directions of a connection are those of its tuples: a packet that matches that of original is rewritten to the reverse of that
// of reply, and the other way round.
const (
	original = 0
	reply    = 1
)

// A conn is what each packet of a tracked connection reads and writes. Its 128 bytes are two cache lines: what finds it and decides, what
// counts. It holds no pointers, so that the garbage collector skips the slab. What else there is to a connection is its coldPart and, for
// IPv6, its addresses.
type conn struct {
	keys [2]tupleKey

	lastSeen   Time
	generation uint32 // of the snapshot that verdict, out, clamp and hits come from
	mark       uint32
	hits       [2]uint16 // the counting rules that each direction's packets hit, by number in ruleHits
	// addresses and ports are the deltas of direction original; those of reply are their complements.
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

// A tupleKey is a tuple as an entry holds it.
type tupleKey struct {
	// addresses are those of an IPv4 tuple, its Words[0]. Of an IPv6 connection, that of original is where table.wide has the addresses of
	// both tuples, that of reply is the identity of the address that shares count it for.
	addresses uint64
	ports     uint32
	link      Link
	protocol  uint8
	ipv6      bool
}

func newTupleKey(t *packet.Tuple) tupleKey {
	return tupleKey{addresses: t.Words[0], ports: t.Ports, link: t.Link, protocol: t.Protocol, ipv6: t.IPv6}
}

// A coldPart is the part of an entry that packets of an established connection leave alone.
type coldPart struct {
	id             uint64 // names the connection that has the entry, or else the next one
	next, previous uint32 // in the list of its rank
	// wheelNext and wheelPrevious are neighbours in the list of a timer slot. For the first of the list, wheelPrevious is the slot with
	// slotBit set. wheelNext also links free entries.
	wheelNext, wheelPrevious uint32
}

// connFlags are facts about a connection. The two lowest bits are its rank.
type connFlags uint8

const (
	rankMask connFlags = 3

	flagEvaluated0 connFlags = 1 << (iota + 1) // verdict and the rest are those of generation, direction original
	flagEvaluated1                             // direction reply
	flagReplied                                // a packet of direction reply was forwarded
	flagService                                // the destination is a backend of a service
	flagPort                                   // its port is counted among those of its port space
	flagPortShare                              // and among those of its holder
)

// A rank says in which order connections make room for others.
type rank uint8

const (
	rankSettled   rank = iota // never dropped early, in no list
	rankUnreplied             // the first to go
	rankClosing
	ranks
)

// live reports whether the entry is in use.
func (c *conn) live() bool { return c.generation != 0 }

func (c *conn) rank() rank { return rank(c.flags & rankMask) }

// deltas returns what to add to sums for packets of direction d.
func (c *conn) deltas(d int) (addresses, ports uint16) {
	if d == original {
		return c.addresses, c.ports
	}
	return packet.Negate(c.addresses), packet.Negate(c.ports)
}

func (c *conn) has(f connFlags) bool { return c.flags&f != 0 }
