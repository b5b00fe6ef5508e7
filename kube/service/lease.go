package service

import (
	"maps"
	"slices"
	"strings"
	"time"
)

// Constants for Leases.
const (
	leasePrefix   = "culvert-node-" // before the node's name
	leaseDuration = 8 * time.Second
	leaseRenewal  = 3 * time.Second
	leaseRetry    = 500 * time.Millisecond
	leasePatience = 2 * time.Second // for one write

	// leaseGap is the longest normal time between two renewals of this node's Lease; after a longer
	// gap, the API server may have been away for others too.
	leaseGap = leaseRenewal + leasePatience
)

// A leaseTracker knows which nodes are alive, by their Leases. It uses only this node's clock, so
// clock differences do not matter.
//
// The watch shows renewals of this node and of others in one order. So another node's Lease has
// ended when the watch shows a renewal of this node's Lease that was requested after that end.
// While the API server is away, or the watch lags behind, no Lease ends. A node cut off alone
// continues as before, beside the node that replaces it.
type leaseTracker struct {
	self   string
	asked  map[string]time.Time // requested renewals of this node's Lease that the watch has not shown yet
	since  time.Time            // from here on, this node's renewals had no gap
	last   time.Time            // when the last renewal shown by the watch was requested; zero: none
	others map[string]*term
}

// A term is the state of another node's Lease.
type term struct {
	renewed string // renewTime, as written by that node
	ends    time.Time
}

func newLeaseTracker(self string) *leaseTracker {
	return &leaseTracker{self: self, asked: map[string]time.Time{}, others: map[string]*term{}}
}

// ask records that this node's Lease is to be renewed at now.
func (t *leaseTracker) ask(renewed string, now time.Time) {
	maps.DeleteFunc(t.asked, func(_ string, at time.Time) bool { return now.Sub(at) > leaseDuration })
	t.asked[renewed] = now
}

// saw records a node's Lease as shown by the watch, and reports whether the set of live nodes may
// have changed. A released Lease is held by nobody.
func (t *leaseTracker) saw(node, renewed string, held bool, now time.Time) (news bool) {
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

// end returns when a Lease ends.
func (t *leaseTracker) end(x *term) time.Time {
	if grace := t.since.Add(leaseDuration); grace.After(x.ends) {
		return grace
	}
	return x.ends
}

// alive returns the nodes whose Leases have not ended, in order; none before this node's own is
// known.
func (t *leaseTracker) alive() []string {
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

// due returns when to renew this node's Lease after its renewal at last: earlier if that would show
// whether another one has ended.
func (t *leaseTracker) due(last time.Time) time.Time {
	due := last.Add(leaseRenewal)
	for _, x := range t.others {
		if end := t.end(x); t.last.Before(end) && end.Before(due) && end.After(last) {
			due = end
		}
	}
	return due
}

func leaseNode(name string) (node string, ok bool) { return strings.CutPrefix(name, leasePrefix) }
