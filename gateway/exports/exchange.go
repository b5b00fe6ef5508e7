package exports

import (
	"bytes"
	"encoding/binary"
	"slices"
	"sync"
	"time"
)

// UDPPort is the port at the tunnel addresses through which gateways tell each other their exports.
const UDPPort = 12346

// MaxDatagram is the largest datagram in bytes, without the headers of UDP and IP.
const MaxDatagram = 1200

const (
	version = 2
	magic   = "cvex"
	header  = len(magic) + 1 + 1 + 2 + 2 + 2*hashSize

	kindPart         = 0
	kindAcknowledged = 1

	leastPart = 500                                // bytes of the smallest parts, which fit through every tunnel
	maxParts  = 1 + (MaxSize-1)/(leastPart-header) // of a whole list in the smallest parts
	burst     = 8                                  // parts that are sent at once
	pause     = 25 * time.Millisecond              // between two bursts: a peer takes 400 datagrams a second
	breath    = 100 * time.Millisecond             // between two messages
	again     = 300 * time.Millisecond             // until a difference is sent again
	anew      = time.Second                        // until a whole list is sent again, and between two questions
	remind    = 30 * time.Second                   // between two messages to a peer that has the list
	patience  = time.Minute                        // after this time, a peer that acknowledges nothing gets as few
	maxTries  = 10                                 // of a message in several parts when the list has changed
	maxSteps  = 1000                               // changes of the list that are remembered
	hashSize  = 16
)

// A hash stands for a whole list; that of zeros for none.
type hash [hashSize]byte

// An Exchange is one gateway's end. Its methods may be called by several goroutines. Receive waits
// for no other method.
type Exchange struct {
	largest int // datagram, in bytes
	heard   chan struct{}
	ready   chan struct{}

	inbox inbox

	mu      sync.Mutex
	telling telling // +checklocks:mu
	hearing hearing // +checklocks:mu
	asking  asking  // +checklocks:mu
}

// telling is the list for the peer.
type telling struct {
	list *list               // nil: no list is known yet, and none is sent
	told map[string]*Service // by key

	// The peer has acknowledged the list with the hash root if has is true; lacks is true if it has
	// acknowledged one of which nothing is known. steps are the changes since root.
	root       hash
	has, lacks bool
	steps      []step
	keys       int // of all steps

	// parts is the message that the peer has not acknowledged, which makes the list with the hash
	// target; nil: there is none. One of several parts stays the same for maxTries, so that the
	// peer can complete it.
	parts  [][]byte
	target hash
	sent   int // of the parts
	tries  int
	began  time.Time
	whole  bool

	acknowledged bool      // the peer has this list
	since        time.Time // when a list was first sent that is not acknowledged; zero: there is none
	due          time.Time
}

// A step is the keys of the records that a call of Tell has changed, and the hash then.
type step struct {
	hash hash
	keys []string
}

// hearing is the peer's list.
type hearing struct {
	list  *list      // nil: none is known
	read  []*Service // nil: not read since it has changed
	fault string
}

// asking says when to ask a reachable peer for its list, as long as none is known.
type asking struct {
	reached    bool
	since, due time.Time
}

// New returns the end of a gateway whose tunnel carries datagrams of at most size bytes.
func New(size int) *Exchange {
	return &Exchange{largest: max(leastPart, min(size, MaxDatagram)), heard: make(chan struct{}, 1),
		ready: make(chan struct{}, 1)}
}

// Tell sets the list for the peer. A Service that was in the list before, at the same address, has
// not changed. Preconditions: the list keeps the limits, Check of each Service returns nil, and no
// two have the same name and type.
func (x *Exchange) Tell(all []*Service) {
	x.mu.Lock()
	defer x.mu.Unlock()
	t := &x.telling
	if t.list == nil {
		t.list, t.told = newList(), map[string]*Service{}
		t.root = t.list.hash
		signal(x.ready)
	}
	var changes []change
	told := make(map[string]*Service, len(all))
	for _, s := range all {
		key := s.key()
		told[key] = s
		if t.told[key] != s {
			changes = append(changes, t.list.differences(key, s.records())...)
		}
	}
	for key := range t.told {
		if told[key] == nil {
			changes = append(changes, t.list.differences(key, nil)...)
		}
	}
	if t.told = told; len(changes) == 0 {
		return
	}
	made := step{keys: make([]string, len(changes))}
	for i, c := range changes {
		t.list.set(c)
		made.keys[i] = c.key
	}
	made.hash = t.list.hash
	t.steps = append(t.steps, made)
	if t.keys += len(changes); t.keys > MaxEndpoints || len(t.steps) > maxSteps {
		t.forget()
	}
	if t.acknowledged {
		t.parts, t.acknowledged, t.due = nil, false, time.Time{}
	}
	signal(x.ready)
}

// forget forgets which lists the peer may have.
func (t *telling) forget() { t.root, t.steps, t.keys, t.has = t.list.hash, nil, 0, false }

// differences returns the changes that make the records of a Service those of all.
func (l *list) differences(key string, all map[string]string) (changes []change) {
	for k, content := range all {
		if was, there := l.at(k); !there || was != content {
			changes = append(changes, change{key: k, content: content})
		}
	}
	if e := l.services[key]; e != nil {
		for rest := range e.records {
			if _, there := all[key+rest]; !there {
				changes = append(changes, change{key: key + rest, gone: true})
			}
		}
	}
	return changes
}

func head(kind byte, index, count int, base, target hash) []byte {
	b := append([]byte(magic), version, kind)
	b = binary.BigEndian.AppendUint16(b, uint16(index))
	b = binary.BigEndian.AppendUint16(b, uint16(count))
	return append(append(b, base[:]...), target[:]...)
}

// Due handles what Receive has taken. It returns the datagrams that are due, and when to call it
// again, unless Ready says so earlier; the zero Time means never.
func (x *Exchange) Due(now time.Time) (datagrams [][]byte, next time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	acknowledged, answer := x.open()
	t := &x.telling
	for _, h := range acknowledged {
		t.acknowledge(h, now)
	}
	if t.list != nil {
		datagrams, next = t.transmit(now, x.largest), t.due
	}
	if ask := x.ask(now); ask || answer {
		own := hash{}
		if x.hearing.list != nil {
			own = x.hearing.list.hash
		}
		datagrams = append(slices.Clip(datagrams), head(kindAcknowledged, 0, 0, hash{}, own))
	}
	if a := x.asking.due; x.asking.reached && x.hearing.list == nil && (next.IsZero() || a.Before(next)) {
		next = a
	}
	return datagrams, next
}

// open takes what is in the inbox.
//
// +checklocks:x.mu
func (x *Exchange) open() (acknowledged []hash, answer bool) {
	in := &x.inbox
	in.mu.Lock()
	acknowledged, answer = in.acknowledged, in.answer
	m, fault := in.message, in.fault
	in.acknowledged, in.answer, in.message, in.fault = nil, false, nil, nil
	in.mu.Unlock()
	if fault != nil {
		x.refuse(*fault)
	}
	if m == nil {
		return acknowledged, answer
	}
	if err := x.hear(m); err != nil {
		x.refuse(err.Error())
		return acknowledged, answer
	}
	if l := x.hearing.list; l != nil {
		in.mu.Lock()
		in.known, in.own = true, l.hash
		in.mu.Unlock()
	}
	return acknowledged, true
}

// hear makes the peer's list the one that a message describes, if the message is about this one.
//
// +checklocks:x.mu
func (x *Exchange) hear(m *message) error {
	in := &x.hearing
	l := in.list
	if m.base == (hash{}) {
		l = newList()
	} else if l == nil || l.hash != m.base {
		return nil
	}
	all, err := decode(bytes.Join(m.pieces, nil))
	if err != nil {
		return err
	}
	if err := l.apply(all, m.target); err != nil {
		return err
	}
	in.list, in.read, in.fault = l, nil, ""
	signal(x.heard)
	return nil
}

// ask reports whether to ask the peer for its list now.
//
// +checklocks:x.mu
func (x *Exchange) ask(now time.Time) bool {
	a := &x.asking
	if x.hearing.list != nil || !a.reached || now.Before(a.due) {
		return false
	}
	if a.since.IsZero() {
		a.since = now
	}
	if a.due = now.Add(anew); now.Sub(a.since) >= patience {
		a.due = now.Add(remind)
	}
	return true
}

// transmit returns the next parts, and sets when it is due again.
func (t *telling) transmit(now time.Time, largest int) (datagrams [][]byte) {
	if now.Before(t.due) {
		return nil
	}
	if t.parts == nil || t.sent == len(t.parts) {
		if wait := t.began.Add(breath); now.Before(wait) {
			t.due = wait
			return nil
		}
		old := t.target != t.list.hash && (len(t.parts) == 1 || t.tries == maxTries)
		if t.parts == nil || old {
			t.message(largest)
			t.tries = 0
		}
		t.sent, t.began = 0, now
		t.tries++
		if t.since.IsZero() && !t.acknowledged {
			t.since = now
		}
	}
	end := min(t.sent+burst, len(t.parts))
	datagrams, t.sent = t.parts[t.sent:end], end
	switch {
	case end < len(t.parts):
		t.due = now.Add(pause)
	case t.acknowledged, now.Sub(t.since) >= patience:
		t.due = now.Add(remind)
	case t.whole:
		t.due = now.Add(anew)
	default:
		t.due = now.Add(again)
	}
	return datagrams
}

// message makes the message that the peer needs. If nothing is known of its list, that is an empty
// difference, which makes it say which one it has.
func (t *telling) message(largest int) {
	base := t.list.hash
	var all []change
	if t.whole = t.lacks; t.lacks {
		base, all = hash{}, t.list.changes()
		t.forget()
	} else if t.has {
		base = t.root
		for _, key := range t.changed() {
			content, there := t.list.at(key)
			all = append(all, change{key, content, !there})
		}
	}
	t.target = t.list.hash
	pieces := slices.Collect(slices.Chunk(encode(all), largest-header))
	if len(pieces) == 0 {
		pieces = [][]byte{nil}
	}
	t.parts = make([][]byte, len(pieces))
	for i, piece := range pieces {
		t.parts[i] = append(head(kindPart, i, len(pieces), base, t.target), piece...)
	}
}

// changed returns the keys of the records that have changed since root.
func (t *telling) changed() (all []string) {
	for _, s := range t.steps {
		all = append(all, s.keys...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// acknowledge records that the peer has the list with hash h.
func (t *telling) acknowledge(h hash, now time.Time) {
	if t.list == nil {
		return
	}
	done := t.parts != nil && h == t.target
	switch i := t.stepOf(h); {
	case h == t.list.hash:
		t.forget()
		if t.has, t.lacks = true, false; !t.acknowledged || done {
			t.parts, t.acknowledged, t.since, t.due = nil, true, time.Time{}, now.Add(remind)
		}
	case i >= 0:
		if t.has && i == 0 && !done {
			return // the message in flight begins there
		}
		for _, s := range t.steps[:i] {
			t.keys -= len(s.keys)
		}
		t.root, t.steps = h, t.steps[i:]
		t.has, t.lacks, t.parts, t.acknowledged, t.since, t.due = true, false, nil, false, time.Time{}, time.Time{}
	case !t.lacks || t.parts == nil || done: // else the whole list is on its way
		t.lacks, t.has, t.parts, t.acknowledged, t.due = true, false, nil, false, time.Time{}
	}
}

// stepOf returns how many steps lead from root to the list with a hash; -1: none is known.
func (t *telling) stepOf(h hash) int {
	for i, s := range slices.Backward(t.steps) {
		if s.hash == h {
			return i + 1
		}
	}
	if t.root == h {
		return 0
	}
	return -1
}

// Reached says that packets pass again. The peer may have restarted, so it is asked at once which
// list it has; and if this gateway lacks the peer's list, it asks for it.
func (x *Exchange) Reached() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.telling.acknowledged, x.telling.since, x.telling.due = false, time.Time{}, time.Time{}
	x.asking = asking{reached: true}
	signal(x.ready)
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
// is false until there is a list. The caller must not change it. A Service that has not changed is
// at the same address as before.
func (x *Exchange) Heard() (all []*Service, fault string, known bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	in := &x.hearing
	if in.list != nil && in.read == nil {
		in.read = in.list.read()
	}
	return in.read, in.fault, in.list != nil
}

// Forget forgets the peer's list, so that the peer is asked for it again.
func (x *Exchange) Forget() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.hearing = hearing{}
	x.inbox.mu.Lock()
	defer x.inbox.mu.Unlock()
	x.inbox.known, x.inbox.message = false, nil
}

// Changed receives a value after the result of Heard has changed, and Ready when Due is to be
// called.
func (x *Exchange) Changed() <-chan struct{} { return x.heard }
func (x *Exchange) Ready() <-chan struct{}   { return x.ready }

// refuse records why the peer's list is useless; "": it is not.
//
// +checklocks:x.mu
func (x *Exchange) refuse(why string) {
	if why != x.hearing.fault {
		x.hearing.fault = why
		signal(x.heard)
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
