package exports

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// UDPPort is the port at the tunnel addresses through which gateways tell each other their exports.
const UDPPort = 12346

// MaxDatagram is the largest datagram in bytes, without the headers of UDP and IP.
const MaxDatagram = 1200

const (
	version = 1
	magic   = "cvex"
	header  = len(magic) + 1 + 1 + 2 + 2 + hashSize

	kindPart         = 0
	kindAcknowledged = 1

	leastPart = 500 // bytes of the smallest parts, which fit through every tunnel

	again  = time.Second      // between two transmissions of a list that the peer may not have
	remind = 30 * time.Second // between two transmissions of a list that the peer has
	// after this time, a peer that acknowledges nothing gets the list only as often as one that has
	// it
	patience = time.Minute
)

const hashSize = 16

type hash [hashSize]byte

func hashOf(list []byte) hash {
	sum := sha256.Sum256(list)
	return hash(sum[:])
}

// An Exchange is one gateway's end. Its methods may be called by several goroutines.
type Exchange struct {
	largest int // datagram, in bytes
	heard   chan struct{}

	mu      sync.Mutex
	telling telling // +checklocks:mu
	hearing hearing // +checklocks:mu
	asking  asking  // +checklocks:mu
}

// telling is the list for the peer.
type telling struct {
	hash         hash
	parts        [][]byte // nil: no list is known yet, and none is sent
	acknowledged bool
	since        time.Time // when the list was first sent; zero: not yet
	due          time.Time
}

// hearing is the peer's list.
type hearing struct {
	known bool
	hash  hash
	list  []Export
	fault string

	partial hash     // of the list to which pieces belong
	pieces  [][]byte // nil: there are none
	missing int
	size    int // of all pieces, in bytes
}

// asking says when to ask a reachable peer for its list, as long as none is known.
type asking struct {
	reached    bool
	since, due time.Time
}

// New returns the end of a gateway whose tunnel carries datagrams of at most size bytes.
func New(size int) *Exchange {
	return &Exchange{largest: max(leastPart, min(size, MaxDatagram)), heard: make(chan struct{}, 1)}
}

// Tell sets the list for the peer. Preconditions: it has at most MaxPorts ports, and each export
// has one.
func (x *Exchange) Tell(all []Export) {
	list := encode(all)
	h := hashOf(list)
	x.mu.Lock()
	defer x.mu.Unlock()
	t := &x.telling
	if t.parts != nil && t.hash == h {
		return
	}
	pieces := slices.Collect(slices.Chunk(list, x.largest-header))
	*t = telling{hash: h, parts: make([][]byte, len(pieces))}
	for i, piece := range pieces {
		t.parts[i] = append(head(kindPart, i, len(pieces), h), piece...)
	}
}

func head(kind byte, index, count int, h hash) []byte {
	b := append([]byte(magic), version, kind)
	b = binary.BigEndian.AppendUint16(b, uint16(index))
	b = binary.BigEndian.AppendUint16(b, uint16(count))
	return append(b, h[:]...)
}

// Due returns the datagrams that are due, and when to call it again, unless Tell or Reached is
// called earlier; the zero Time means never.
func (x *Exchange) Due(now time.Time) (datagrams [][]byte, next time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	t, a := &x.telling, &x.asking
	if t.parts != nil && !now.Before(t.due) {
		datagrams = t.parts
		if t.since.IsZero() {
			t.since = now
		}
		if t.due = now.Add(again); t.acknowledged || now.Sub(t.since) >= patience {
			t.due = now.Add(remind)
		}
	}
	if x.hearing.known || !a.reached {
		return datagrams, t.due
	}
	if !now.Before(a.due) {
		datagrams = append(slices.Clip(datagrams), head(kindAcknowledged, 0, 0, hash{}))
		if a.since.IsZero() {
			a.since = now
		}
		if a.due = now.Add(again); now.Sub(a.since) >= patience {
			a.due = now.Add(remind)
		}
	}
	if t.parts != nil && t.due.Before(a.due) {
		return datagrams, t.due
	}
	return datagrams, a.due
}

// Reached says that packets pass again. The peer may have restarted, so the list is sent at once;
// and if this gateway lacks the peer's list, it asks for it.
func (x *Exchange) Reached() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.telling.acknowledged, x.telling.since, x.telling.due = false, time.Time{}, time.Time{}
	x.asking = asking{reached: true}
}

// Unanswered returns how long the list has been sent without an acknowledgement; 0 if it has not
// been sent, or the peer has it.
func (x *Exchange) Unanswered(now time.Time) time.Duration {
	x.mu.Lock()
	defer x.mu.Unlock()
	if t := &x.telling; !t.acknowledged && !t.since.IsZero() {
		return now.Sub(t.since)
	}
	return 0
}

// Heard returns the peer's last valid list, and why a later one was refused; "" if none was. known
// is false until there is a list.
func (x *Exchange) Heard() (list []Export, fault string, known bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.hearing.list, x.hearing.fault, x.hearing.known
}

// Forget forgets the peer's list, so that the peer is asked for it again.
func (x *Exchange) Forget() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.hearing = hearing{}
}

// Changed receives a value after the result of Heard has changed.
func (x *Exchange) Changed() <-chan struct{} { return x.heard }

// Receive handles a datagram of the peer. It returns the answer, or nil; ok is false if the
// datagram is useless.
func (x *Exchange) Receive(b []byte) (answer []byte, ok bool) {
	if len(b) < len(magic)+1 || string(b[:len(magic)]) != magic {
		return nil, false
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if v := b[len(magic)]; v != version {
		x.refuse(fmt.Errorf("it is told in version %d, and this gateway reads version %d; upgrade the older gateway", v,
			version))
		return nil, false
	}
	if len(b) < header {
		return nil, false
	}
	kind, rest := b[len(magic)+1], b[len(magic)+2:header]
	index, count := int(binary.BigEndian.Uint16(rest)), int(binary.BigEndian.Uint16(rest[2:]))
	h, piece := hash(rest[4:]), b[header:]
	switch kind {
	case kindPart:
		return x.part(h, index, count, piece)
	case kindAcknowledged:
		return nil, len(piece) == 0 && x.acknowledge(h)
	}
	return nil, false
}

// acknowledge records that the peer has the list with hash h.
//
// +checklocks:x.mu
func (x *Exchange) acknowledge(h hash) bool {
	t := &x.telling
	if t.parts == nil {
		return false
	}
	if was := t.acknowledged; h != t.hash && was { // the peer has an earlier list again
		t.acknowledged, t.since, t.due = false, time.Time{}, time.Time{}
	} else if h == t.hash && !was {
		t.acknowledged = true
		if !t.due.IsZero() {
			t.due = t.due.Add(remind - again)
		}
	}
	return true
}

// part handles a part of a list. If the list is known, its last part is answered, once for each
// transmission.
//
// +checklocks:x.mu
func (x *Exchange) part(h hash, index, count int, piece []byte) (answer []byte, ok bool) {
	in := &x.hearing
	if index >= count || count > maxParts || len(piece) == 0 {
		return nil, false
	}
	if in.known && in.hash == h {
		in.forget()
		x.refuse(nil)
		if index == count-1 {
			answer = head(kindAcknowledged, 0, 0, h)
		}
		return answer, true
	}
	if in.pieces == nil || in.partial != h || len(in.pieces) != count {
		in.forget()
		in.partial, in.pieces, in.missing = h, make([][]byte, count), count
	}
	if in.pieces[index] != nil {
		return nil, true // from an earlier transmission
	}
	if in.size += len(piece); in.size > maxList {
		in.forget()
		x.refuse(fmt.Errorf("it has more than %d bytes", maxList))
		return nil, false
	}
	in.pieces[index] = bytes.Clone(piece)
	if in.missing--; in.missing > 0 {
		return nil, true
	}
	list := bytes.Join(in.pieces, nil)
	in.forget()
	all, err := decode(list)
	if err == nil && hashOf(list) != h {
		err = errors.New("it has another hash than it says")
	}
	x.refuse(err)
	if err != nil {
		return nil, false
	}
	in.known, in.hash, in.list = true, h, all
	x.signal()
	return head(kindAcknowledged, 0, 0, h), true
}

func (in *hearing) forget() { in.partial, in.pieces, in.missing, in.size = hash{}, nil, 0, 0 }

// refuse records why the peer's list is useless; nil: it is not.
//
// +checklocks:x.mu
func (x *Exchange) refuse(why error) {
	fault := ""
	if why != nil {
		fault = why.Error()
	}
	if fault != x.hearing.fault {
		x.hearing.fault = fault
		x.signal()
	}
}

func (x *Exchange) signal() {
	select {
	case x.heard <- struct{}{}:
	default:
	}
}
