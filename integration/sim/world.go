package sim

import (
	"bytes"
	"container/heap"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// world is the clock, the network, and what goes wrong there. Everything but the gateways runs on
// the one goroutine that calls run; their goroutines only send.
type world struct {
	start time.Time
	seed  [2]uint64 // of all chance
	legs  []*leg

	// For the goroutine that calls run.
	failure  string // the first violation
	packets  int    // inner packets that reached a pod
	sent     int    // that a pod has sent
	traffic  *traffic
	sides    [2]*side
	faults   int           // that have begun
	moved    int           // hand-overs to a gateway that took over
	dies     time.Duration // how long after that it is killed; 0: it is not
	survived int           // how often it was, with the gateway before in its place
	switches int           // how often a pod began to forward, where there are two

	losses []loss // of what gateways know

	mu     sync.Mutex
	events events // +checklocks:mu
	count  uint64 // +checklocks:mu
	// something is due earlier than what run waits for
	kick      chan struct{}
	receivers map[netip.AddrPort]func(from netip.AddrPort, data []byte) // +checklocks:mu
	carried   int                                                       // +checklocks:mu
	log       ring                                                      // +checklocks:mu
}

func newWorld(seed uint64) *world {
	return &world{
		log: ring{all: spare.records[:0]}, start: time.Now(), seed: [2]uint64{seed, 1}, kick: make(chan struct{}, 1),
		receivers: make(map[netip.AddrPort]func(netip.AddrPort, []byte)),
	}
}

// event is something to be done.
type event struct {
	due    time.Duration
	number uint64 // in the order in which they were made
	do     func()
}

// events is a heap of them.
type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].due < e[j].due || e[i].due == e[j].due && e[i].number < e[j].number
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := len(*e) - 1
	x := (*e)[last]
	(*e)[last] = event{}
	*e = (*e)[:last]
	return x
}

// now is the time since the beginning.
func (w *world) now() time.Duration { return time.Since(w.start) }

// after has do called when d has passed.
func (w *world) after(d time.Duration, do func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.afterLocked(d, do)
}

// +checklocks:w.mu
func (w *world) afterLocked(d time.Duration, do func()) {
	w.count++
	x := event{w.now() + d, w.count, do}
	heap.Push(&w.events, x)
	if w.events[0].number == x.number {
		select {
		case w.kick <- struct{}{}:
		default:
		}
	}
}

// run lets time pass until end, or until something is violated.
func (w *world) run(end time.Duration) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for w.failure == "" {
		w.mu.Lock()
		now, next := w.now(), end
		var do func()
		if len(w.events) > 0 && w.events[0].due < end {
			if next = w.events[0].due; next <= now {
				do = heap.Pop(&w.events).(event).do
			}
		}
		w.mu.Unlock()
		switch {
		case do != nil:
			do()
			continue
		case now >= end:
			return
		}
		timer.Reset(next - now)
		select {
		case <-timer.C:
		case <-w.kick:
		}
	}
}

// fail notes a violation, if it is the first.
func (w *world) fail(format string, args ...any) {
	if w.failure == "" {
		w.failure = fmt.Sprintf("%v: %s", w.now(), fmt.Sprintf(format, args...))
	}
}

// leg is one direction of the way between two machines, and how it fails. Chances are of 256.
type leg struct {
	name     [2]string // from, to
	latency  time.Duration
	garbling func(sound, garbled []byte) bool // whether one may be made of the other; nil: any may

	mu      sync.Mutex
	chance  *rand.Rand    // +checklocks:mu
	loss    int           // +checklocks:mu
	twice   int           // +checklocks:mu
	garbled int           // +checklocks:mu
	delay   time.Duration // +checklocks:mu
	jitter  time.Duration // +checklocks:mu
	down    bool          // +checklocks:mu
	mtu     int           // +checklocks:mu
}

const wireHeaders = 20 + 8 // of IPv4 and UDP

func (w *world) newLeg(from, to string, latency time.Duration) *leg {
	l := &leg{name: [2]string{from, to}, latency: latency,
		chance: rand.New(rand.NewPCG(w.seed[0], w.seed[1]+uint64(len(w.legs))))}
	w.legs = append(w.legs, l)
	return l
}

// set changes how the leg fails.
func (l *leg) set(change func(*leg)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(l)
}

// copies returns after how long, and how, a datagram arrives: not at all, once or twice.
func (l *leg) copies(data []byte) (fate string, all []delivery) {
	l.mu.Lock()
	defer l.mu.Unlock()
	hit := func(chance int) bool { return chance > 0 && l.chance.IntN(256) < chance }
	switch {
	case l.down:
		return "lost: link down", nil
	case l.mtu > 0 && len(data)+wireHeaders > l.mtu:
		return "lost: too long", nil
	case hit(l.loss):
		return "lost", nil
	}
	n := 1
	if hit(l.twice) {
		n, fate = 2, "twice"
	}
	for range n {
		d := delivery{l.latency + l.delay, data}
		if l.jitter > 0 {
			d.after += time.Duration(l.chance.Int64N(int64(l.jitter)))
		}
		if hit(l.garbled) {
			b := bytes.Clone(data)
			b[l.chance.IntN(len(b))] ^= 1 << l.chance.IntN(8) // one bit: the Internet checksum misses some pairs
			if l.garbling == nil || l.garbling(data, b) {
				d.data, fate = b, "garbled"
			}
		}
		all = append(all, d)
	}
	return fate, all
}

// delivery is one copy of a datagram on its way.
type delivery struct {
	after time.Duration
	data  []byte
}

// carry takes a datagram along a leg to who receives at an address when it arrives.
//
// Postcondition: data belongs to the world, and is not changed.
func (w *world) carry(l *leg, from, to netip.AddrPort, data []byte) {
	fate, all := l.copies(data)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.carried++
	w.log.add(record{w.now(), l, from, to, data, fate})
	for _, d := range all {
		w.afterLocked(d.after, func() {
			w.mu.Lock()
			receive := w.receivers[to]
			w.mu.Unlock()
			if receive != nil {
				receive(from, d.data)
			}
		})
	}
}

// listen has receive called with what is sent to an address; nil ends that.
func (w *world) listen(at netip.AddrPort, receive func(from netip.AddrPort, data []byte)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if receive == nil {
		delete(w.receivers, at)
		return
	}
	w.receivers[at] = receive
}

// record is what the network saw: a datagram and what became of it, or without a leg an event.
type record struct {
	at       time.Duration
	leg      *leg
	from, to netip.AddrPort
	data     []byte
	fate     string
}

// ring keeps the last records.
type ring struct {
	all  []record
	next int
}

const ringSize = 4096

func (r *ring) add(x record) {
	if len(r.all) < ringSize {
		r.all = append(r.all, x)
		return
	}
	r.all[r.next] = x
	r.next = (r.next + 1) % ringSize
}

// logEvent records an event.
func (w *world) logEvent(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.log.add(record{at: w.now(), fate: fmt.Sprintf(format, args...)})
}

// records returns what is known, oldest first.
func (w *world) records() []record {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Concat(w.log.all[w.log.next:], w.log.all[:w.log.next])
}
