package nat

import "culvert/nat/rules"

// concerns reports whether a commit could change something about a connection. What has no route is always asked for one again.
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
		if len(a.Links) > 0 { // asked for each connection, an empty map takes its time
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

// historyLength is how many commits a connection may miss before it is looked at whatever they concern. It is a power of two.
const historyLength = 64

// A history holds what the last commits concern, by generation.
type history struct {
	commits [historyLength]*rules.Affected
	// since is what the commits after generation from concern together. Most connections have missed several, and none of them matters to
	// most: that takes one question.
	since rules.Affected
	from  uint32
}

// note adds what the commit of a generation concerns.
func (h *history) note(generation uint32, a *rules.Affected) {
	h.commits[generation%historyLength] = a
	h.since.Add(a)
}

// settle notes that all connections are of a generation.
func (h *history) settle(generation uint32) {
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
