package nat

import (
	"encoding/binary"
	"io"
	"slices"

	"culvert/nat/packet"
)

// A Feed sends an Engine's connections and clients of services to another process, which has a
// Mirror: first everything that Records would save, then each one that starts, changes its state,
// or ends.
//
// It keeps changes as one bit for each table entry. So it sends several changes of a connection as
// one, and does not send a connection that starts and ends between two passes. Up to feedRoom ended
// connections and clients wait; beyond that, the Feed starts again with a full copy. So packets
// never wait for a Feed, and a Feed that nobody reads costs 2 bits for each entry and 2 MiB.
//
// Packets of an established connection do not concern a Feed, because ages do not advance in a
// Mirror.
type Feed struct {
	e *Engine
	blockWriter
	written [2]uint64 // connections and clients since the copy began
	since   Time      // if not 0: connections without a packet since then are skipped
	work    int       // since the last pause, in skipped entries
	over    bool      // the pass has read everything that it has to read
	buffer  []byte    // of Write
	// Read but not yet written, in this order.
	begins bool // a copy begins
	ended  []gone
	ready  []connRecord
	known  []clientRecord
	ends   bool // the copy is whole
	// Memory for the lists above.
	endedRoom [listBudget]gone
	readyRoom [listBudget]connRecord
	knownRoom [listBudget]clientRecord

	// The rest is guarded by the Engine's lock.
	copies               uint64 // that have begun
	connections, clients markedEntries
	gone                 []gone // a ring
	first, length        int
	lost                 bool // a full copy must start
	copying              bool
}

// feedRoom is how many ended connections and clients wait for a Feed.
const feedRoom = 1 << 15

// A gone is an ended connection, by its original tuple, or a forgotten client, whose address is in
// the tuple.
type gone struct {
	tuple   packet.Tuple
	service serviceIdentity
	client  bool
}

// Feed starts a Feed with a full copy. name names a Link; connections on links with the name "" are
// left out. Close stops it. One goroutine at a time may call its methods.
func (e *Engine) Feed(name func(Link) string) *Feed {
	e.mu.Lock()
	defer e.mu.Unlock()
	f := e.newFeed(name)
	f.gone, f.lost = make([]gone, feedRoom), true
	e.table.feeds, e.clients.feeds = append(e.table.feeds, f), append(e.clients.feeds, f)
	return f
}

// newFeed returns a Feed that gets no changes.
//
// Preconditions: e.mu is held.
// +checklocks:e.mu
func (e *Engine) newFeed(name func(Link) string) *Feed {
	f := &Feed{e: e, blockWriter: blockWriter{name: name}}
	for range e.table.chunks {
		f.connections.grow()
	}
	for range e.clients.made {
		f.clients.grow()
	}
	return f
}

// Close ends f.
func (f *Feed) Close() {
	e := f.e
	e.mu.Lock()
	defer e.mu.Unlock()
	e.table.feeds = slices.DeleteFunc(e.table.feeds, func(o *Feed) bool { return o == f })
	e.clients.feeds = slices.DeleteFunc(e.clients.feeds, func(o *Feed) bool { return o == f })
}

// Copy makes the Feed start again with a full copy.
func (f *Feed) Copy() {
	f.e.mu.Lock()
	defer f.e.mu.Unlock()
	f.lost = true
}

// A FeedState is the progress of a Feed.
type FeedState struct {
	// full copies that have started: the first by Feed, others by Copy or because ended connections
	// had no room
	Copies  uint64
	Copying bool // the copy is not yet whole
	Lost    bool // the next block begins another copy
}

// State returns the progress of f.
func (f *Feed) State() FeedState {
	f.e.mu.Lock()
	defer f.e.mu.Unlock()
	return FeedState{f.copies, f.copying, f.lost}
}

// end records that a connection or a client has ended. Preconditions: the Engine's lock is held.
func (f *Feed) end(g *gone) {
	switch {
	case f.lost:
	case f.length == len(f.gone):
		f.lost = true
	default:
		f.gone[(f.first+f.length)%len(f.gone)] = *g
		f.length++
	}
}

const (
	// RecordWrite is the most that Write writes at a time, in bytes.
	RecordWrite = 16 * RecordBlock
	// recordBurst is how much work is done between two pauses, about half a millisecond of a
	// processor. Its unit is skipping one idle entry, in memory that is read ahead. Judging or
	// saving an entry, or saving a client, costs as much as skipping recordWork of them.
	recordBurst = 1024 * recordWork
	recordWork  = 16
)

// Write writes a pass to w, if there is anything to send. Ages are as of now. It calls pause like
// Next. It returns the error of w.
func (f *Feed) Write(w io.Writer, now Time, pause func()) error {
	for more := true; more; {
		b := slices.Grow(f.buffer[:0], RecordWrite)
		for more && len(b) < RecordWrite {
			b, more = f.Next(b, now, pause)
		}
		if f.buffer = b; len(b) == 0 {
			break
		}
		if _, err := w.Write(b); err != nil {
			return err
		}
	}
	return nil
}

// Next appends the next block to dst, if there is anything to send. more is false at the end of a
// pass: then all changes from before the pass have been sent. It calls pause whenever it has worked
// long enough that packets should have their turn; they wait while it reads listBudget table
// entries at a time.
func (f *Feed) Next(dst []byte, now Time, pause func()) (all []byte, more bool) {
	f.begin(dst)
	wrote := false
	for {
		for f.due() {
			written, fits := f.addNext()
			if !fits {
				return f.finish(f.e.rounds()), true
			}
			wrote = wrote || written
		}
		if f.over {
			f.over = false
			break
		}
		if f.work >= recordBurst {
			f.work = 0
			pause()
		}
		f.over = !f.read(now)
	}
	if !wrote {
		return dst, false
	}
	return f.finish(f.e.rounds()), false
}

// due reports whether something is read and not yet written.
func (f *Feed) due() bool {
	return f.begins || f.ends || len(f.ended)+len(f.ready)+len(f.known) > 0
}

// addNext adds the next item that is due to the block.
func (f *Feed) addNext() (written, fits bool) {
	switch {
	case f.begins:
		if written, fits = f.add(func(b []byte) []byte {
			return binary.AppendUvarint(append(b, itemCopy),
				f.copies)
		}); fits {
			f.begins, f.written = false, [2]uint64{}
		}
	case len(f.ended) > 0:
		if written, fits = f.add(func(b []byte) []byte { return f.appendGone(b, &f.ended[0]) }); fits {
			f.ended = f.ended[1:]
		}
	case len(f.ready) > 0:
		if written, fits = f.add(func(b []byte) []byte { return f.appendConnection(b, &f.ready[0]) }); fits {
			f.ready = f.ready[1:]
			f.count(0, written)
		}
	case len(f.known) > 0:
		if written, fits = f.add(func(b []byte) []byte { return f.appendClient(b, &f.known[0]) }); fits {
			f.known = f.known[1:]
			f.count(1, written)
		}
	default:
		if written, fits = f.add(func(b []byte) []byte { return appendEnd(b, f.written) }); fits {
			f.ends = false
		}
	}
	return written, fits
}

func (f *Feed) count(kind int, written bool) {
	if written {
		f.written[kind]++
	}
}

// read reads some changes to send. It returns false at the end of a pass. It reads ends before
// connections that have started since, because those may have the same tuple.
func (f *Feed) read(now Time) (more bool) {
	e := f.e
	e.mu.Lock()
	defer e.mu.Unlock()
	f.work += listBudget
	if f.lost {
		f.restart()
	}
	f.ended = f.endedRoom[:0]
	for n := min(f.length, listBudget); n > 0; n-- {
		f.ended = append(f.ended, f.gone[f.first])
		f.gone[f.first] = gone{}
		f.first = (f.first + 1) % len(f.gone)
		f.length--
	}
	if f.length > 0 || f.readConnections(now) || f.readClients(now) {
		return true
	}
	f.ends, f.copying = f.copying, false
	return false
}

// restart begins a full copy.
//
// Preconditions: f.e.mu is held.
// +checklocks:f.e.mu
func (f *Feed) restart() {
	f.connections.all()
	f.clients.all()
	clear(f.gone)
	f.first, f.length = 0, 0
	f.copies++
	f.lost, f.copying, f.begins = false, true, true
}

// Preconditions: f.e.mu is held.
// +checklocks:f.e.mu
func (f *Feed) readConnections(now Time) (more bool) {
	tb := &f.e.table
	f.ready = f.readyRoom[:0]
	return f.connections.some(func(number uint32) bool {
		if number == 0 || number >= tb.high {
			return false
		}
		c := tb.at(number)
		if !c.live() || f.since != 0 && c.lastSeen < f.since || !f.e.alive(c, now) {
			return false
		}
		f.work += recordWork
		x, ok := f.e.record(c, number, now)
		if ok {
			f.ready = append(f.ready, x)
		}
		return ok
	})
}

// Preconditions: f.e.mu is held.
// +checklocks:f.e.mu
func (f *Feed) readClients(now Time) (more bool) {
	t := &f.e.clients
	f.known = f.knownRoom[:0]
	return f.clients.some(func(number uint32) bool {
		f.work += recordWork
		if number == 0 || number >= t.high {
			return false
		}
		x, ok := t.record(number, now)
		if ok {
			f.known = append(f.known, x)
		}
		return ok
	})
}

// appendGone appends an ended connection or client.
func (f *Feed) appendGone(b []byte, g *gone) []byte {
	n := len(b)
	if g.client {
		b, number := f.appendService(b, g.service)
		if number == 0 {
			return b
		}
		b = binary.AppendUvarint(append(b, itemGoneClient), number)
		return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(b, g.tuple.Words[0]), g.tuple.Words[1])
	}
	b, from := f.appendLink(b, g.tuple.Link)
	if from == 0 {
		return b[:n]
	}
	family := byte(0)
	if g.tuple.IPv6 {
		family = recordIPv6
	}
	b = binary.AppendUvarint(append(b, itemGone, family, g.tuple.Protocol), from)
	for _, word := range g.tuple.Words[:words(g.tuple.IPv6)] {
		b = binary.LittleEndian.AppendUint64(b, word)
	}
	return binary.LittleEndian.AppendUint32(b, g.tuple.Ports)
}
