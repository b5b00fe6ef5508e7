package nat

import "culvert/nat/rules"

// concerns reports whether a commit could change something about a connection. A connection without
// a route is always concerned.
func concerns(a *rules.Affected, tb *table, c *conn) bool {
	if a.All || c.verdict[original] == ReasonNoRoute || c.verdict[reply] == ReasonNoRoute {
		return true
	}
	if len(a.Marks) > 0 {
		if _, ok := a.Marks[c.mark]; ok {
			return true
		}
	}
	for d := range c.keys {
		t := tb.tuple(c, d)
		if len(a.Links) > 0 { // an empty map is slow to ask, and this runs for each connection
			if _, ok := a.Links[t.Link]; ok {
				return true
			}
			if _, ok := a.Links[c.out[d]]; ok {
				return true
			}
		}
		if a.Contains(t.Source()) || a.Contains(t.Destination()) {
			return true
		}
	}
	return false
}

// historyLength is how many commits a connection may miss before it is revalidated regardless of
// what they changed. It is a power of two.
const historyLength = 64

// A history keeps what the last commits changed, by generation.
type history struct {
	commits [historyLength]*rules.Affected
	// since merges the changes of all commits after generation from. Most connections have missed
	// several commits and none of them matters to most connections, so one question answers for
	// all.
	since rules.Affected
	from  uint32
}

// add records what the commit of a generation changed.
func (h *history) add(generation uint32, a *rules.Affected) {
	h.commits[generation%historyLength] = a
	h.since.Add(a)
}

// reset records that all connections are of this generation.
func (h *history) reset(generation uint32) {
	if h.from != generation {
		h.since, h.from = rules.Affected{}, generation
	}
}

// concerns reports whether a commit since the connection's generation concerns it.
func (h *history) concerns(tb *table, c *conn, generation uint32) bool {
	missed := generation - c.generation
	if missed > historyLength {
		return true
	}
	if missed > 1 && missed <= generation-h.from && !concerns(&h.since, tb, c) {
		return false
	}
	for g := generation; g != c.generation; g-- {
		if concerns(h.commits[g%historyLength], tb, c) {
			return true
		}
	}
	return false
}
