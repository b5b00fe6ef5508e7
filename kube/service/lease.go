package service

import (
	"maps"
	"slices"
	"strings"
	"time"
)

// Of Leases.
const (
	leasePrefix   = "culvert-node-" // in front of the node's name
	leaseDuration = 8 * time.Second
	leaseRenewal  = 3 * time.Second
	leaseRetry    = 500 * time.Millisecond
	leasePatience = 2 * time.Second // for one write

	// leaseGap is the longest time between two renewals of this node's that says nothing: longer, and the API server may have been away
	// for others too.
	leaseGap = leaseRenewal + leasePatience
)

// A tenure says which nodes are alive, by their Leases. Times are this node's own: what other clocks say does not matter.
//
// The watch shows renewals of this node among those of others, in one order. So a Lease has ended when the watch shows one of this node's
// that was asked for after its end: while the API server is away, or the watch lags behind, nobody's does. Whoever is alone in that stays
// as it was, beside the node that takes its place.
type tenure struct {
	self   string
	asked  map[string]time.Time // this node's renewals that the watch is to show, by what they say
	since  time.Time            // this node's renewals have followed each other closely from here on
	last   time.Time            // when the last one was asked for that the watch has shown; zero: none
	others map[string]*term
}

// A term is what a Lease of another node says.
type term struct {
	renewed string // renewTime, as that node writes it
	ends    time.Time
}

func newTenure(self string) *tenure {
	return &tenure{self: self, asked: map[string]time.Time{}, others: map[string]*term{}}
}

// ask notes that this node's Lease is to be renewed at now.
func (t *tenure) ask(renewed string, now time.Time) {
	maps.DeleteFunc(t.asked, func(_ string, at time.Time) bool { return now.Sub(at) > leaseDuration })
	t.asked[renewed] = now
}

// saw takes a node's Lease as the watch shows it, and reports whether other nodes may be alive than before. One that has been released is held by
// nobody.
func (t *tenure) saw(node, renewed string, held bool, now time.Time) (news bool) {
	if node == t.self {
		at, own := t.asked[renewed]
		if !own || !held || !at.After(t.last) {
			return false
		}
		if at.Sub(t.last) > leaseGap {
			t.since = at
		}
		t.last = at
		return true
	}
	x := t.others[node]
	if !held {
		delete(t.others, node)
		return x != nil
	}
	news = x == nil || !t.last.Before(t.end(x)) // most are renewed in time, and there are many
	if x == nil {
		x = &term{}
		t.others[node] = x
	}
	if x.renewed != renewed {
		x.renewed, x.ends = renewed, now.Add(leaseDuration)
	}
	return news
}

// keep forgets all other nodes but some, whose Leases are all that there are.
func (t *tenure) keep(nodes map[string]bool) {
	maps.DeleteFunc(t.others, func(node string, _ *term) bool { return !nodes[node] })
}

// end returns when a Lease ends.
func (t *tenure) end(x *term) time.Time {
	if grace := t.since.Add(leaseDuration); grace.After(x.ends) {
		return grace
	}
	return x.ends
}

// alive returns the nodes whose Leases have not ended, in order; none before this node's own is known.
func (t *tenure) alive() []string {
	if t.last.IsZero() {
		return nil
	}
	all := []string{t.self}
	for node, x := range t.others {
		if t.last.Before(t.end(x)) {
			all = append(all, node)
		}
	}
	slices.Sort(all)
	return all
}

// due returns when this node's Lease is to be renewed that was renewed at last: earlier where that shows whether another one has ended.
func (t *tenure) due(last time.Time) time.Time {
	due := last.Add(leaseRenewal)
	for _, x := range t.others {
		if end := t.end(x); t.last.Before(end) && end.Before(due) && end.After(last) {
			due = end
		}
	}
	return due
}

func leaseNode(name string) (node string, ok bool) { return strings.CutPrefix(name, leasePrefix) }
