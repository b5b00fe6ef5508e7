package exports

import (
	"encoding/binary"
	"fmt"
	"sync"
)

// An inbox has what the peer has sent since the last call of Due. Of lists it knows the hash.
type inbox struct {
	mu           sync.Mutex
	known        bool // the peer's list, with the hash own
	own          hash
	answer       bool // the peer waits for an acknowledgement
	acknowledged []hash
	message      *message // a complete one
	fault        *string  // of the peer's list, or "" for none; nil: nothing new

	partial message // incomplete
	missing int
	size    int // of all pieces, in bytes
}

// A message makes the list with the hash target of that with the hash base.
type message struct {
	base, target hash
	pieces       [][]byte // nil: there are none
}

// Receive takes a datagram of the peer. It returns false if the datagram is useless.
func (x *Exchange) Receive(b []byte) bool {
	if len(b) < len(magic)+1 || string(b[:len(magic)]) != magic {
		return false
	}
	in := &x.inbox
	in.mu.Lock()
	defer in.mu.Unlock()
	defer signal(x.ready)
	if v := b[len(magic)]; v != version {
		in.refuse("it is told in version %d, and this gateway reads version %d; upgrade the older gateway", v, version)
		return false
	}
	if len(b) < header {
		return false
	}
	kind, rest := b[len(magic)+1], b[len(magic)+2:header]
	index, count := int(binary.BigEndian.Uint16(rest)), int(binary.BigEndian.Uint16(rest[2:]))
	base, target, piece := hash(rest[4:]), hash(rest[4+hashSize:]), b[header:]
	switch {
	case kind == kindAcknowledged && len(piece) == 0:
		if len(in.acknowledged) < burst {
			in.acknowledged = append(in.acknowledged, target)
		}
		return true
	case kind == kindPart && index < count && count <= maxParts:
		return in.part(base, target, index, count, piece)
	}
	return false
}

// part takes a part of a message. A message that makes no other list is answered, once for each
// transmission.
//
// +checklocks:in.mu
func (in *inbox) part(base, target hash, index, count int, piece []byte) bool {
	same := in.known && target == in.own
	if same || base == target || base != (hash{}) && (!in.known || base != in.own) {
		in.answer = in.answer || index == count-1
		if same {
			in.partial, in.fault = message{}, new(string)
		}
		return true
	}
	m := &in.partial
	if m.pieces == nil || m.base != base || m.target != target || len(m.pieces) != count {
		*m, in.missing, in.size = message{base, target, make([][]byte, count)}, count, 0
	}
	if m.pieces[index] != nil {
		return true // from an earlier transmission
	}
	if in.size += len(piece); in.size > MaxSize {
		in.partial, in.size = message{}, 0
		in.refuse("it has more than %d bytes", MaxSize)
		return false
	}
	m.pieces[index] = append([]byte{}, piece...)
	if in.missing--; in.missing == 0 {
		whole := *m
		in.message, in.partial = &whole, message{}
	}
	return true
}

// refuse records why the peer's list is useless.
//
// +checklocks:in.mu
func (in *inbox) refuse(format string, args ...any) {
	fault := fmt.Sprintf(format, args...)
	in.fault = &fault
}
