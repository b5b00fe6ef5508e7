package nat

import "slices"

// An end is why a connection ended.
type end uint8

const (
	endExpired end = iota
	endEvicted
	endEarlyDropped
	endDeleted
)

// endNames are the label values of the metrics.
var endNames = []string{"expired", "evicted", "early-dropped", "deleted"}

// end removes a connection, and counts why.
func (e *Engine) end(c *conn, number uint32, why end, now Time) {
	switch why {
	case endExpired:
		e.stats.Expired++
	case endEvicted:
		e.stats.Evicted++
	case endEarlyDropped:
		e.stats.EarlyDropped++
	case endDeleted:
		e.stats.Deleted++
	}
	if e.watchers != nil {
		e.notify(c, number, endNames[why], now)
	}
	e.table.remove(c, number)
}

// A ConnEvent is the start or the end of a connection.
type ConnEvent struct {
	At    Time
	Ended string // why: expired, evicted, early-dropped or deleted; "" = it is new
	ConnInfo
}

// A ConnWatch buffers the events of connections that its filter selects until Take; it has bounded
// room.
type ConnWatch struct {
	engine *Engine
	filter ConnFilter

	// The rest is guarded by the Engine's lock.
	events []ConnEvent // a ring
	first  int
	length int
	lost   uint64
}

// Watch starts buffering events, at most room of them. Close stops it.
func (e *Engine) Watch(f ConnFilter, room int) *ConnWatch {
	w := &ConnWatch{engine: e, filter: f, events: make([]ConnEvent, room)}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.watchers = append(e.watchers, w)
	return w
}

// Close ends w.
func (w *ConnWatch) Close() {
	e := w.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.watchers = slices.DeleteFunc(e.watchers, func(o *ConnWatch) bool { return o == w }); len(e.watchers) == 0 {
		e.watchers = nil
	}
}

// Take appends the oldest events to list, at most listBudget of them, and returns how many were
// lost since the last call.
func (w *ConnWatch) Take(list []ConnEvent) (all []ConnEvent, lost uint64) {
	w.engine.mu.Lock()
	defer w.engine.mu.Unlock()
	for n := min(w.length, listBudget); n > 0; n-- {
		list = append(list, w.events[w.first])
		w.first = (w.first + 1) % len(w.events)
		w.length--
	}
	lost, w.lost = w.lost, 0
	return list, lost
}

// notify buffers an event for each watcher that selects it.
func (e *Engine) notify(c *conn, number uint32, ended string, now Time) {
	for _, w := range e.watchers {
		switch {
		case !w.filter.selects(&e.table, c):
		case w.length == len(w.events):
			w.lost++
		default:
			w.events[(w.first+w.length)%len(w.events)] = ConnEvent{now, ended, e.info(c, number, now)}
			w.length++
		}
	}
}
