package health

import (
	"slices"
	"strings"
	"time"
)

// A Judge finds out what is the case. It is for use by one goroutine.
type Judge struct {
	peer    peerHistory
	nodes   map[string]*nodeHistory
	paths   paths
	trains  trains
	crowds  crowds
	notices notices
}

// NewJudge returns a Judge that knows nothing yet.
func NewJudge() *Judge {
	return &Judge{nodes: make(map[string]*nodeHistory), paths: make(paths), trains: make(trains), crowds: crowds{before: make(map[string]Socket), never: true}, notices: newNotices()}
}

// patience is for how long the peer or a node may keep quiet before that is a fault. It
// is three attempts of WireGuard, and the time that a node takes to start.
const patience = 12 * time.Second

// proven is for how long they may where a kernel says that they are not there: as long as
// Linux looks for a neighbour.
const proven = 3 * time.Second

// Look returns what has changed since the last observation, as it is to be logged. now
// does not run backwards.
func (j *Judge) Look(now time.Duration, o *Observation) (changes []Finding) {
	if f, changed := j.peer.look(now, &o.Peer); changed {
		changes = append(changes, f)
	}
	changes = append(changes, j.crowded(now, o)...)
	signs := o.bySubject()
	for i := range o.Nodes {
		n := &o.Nodes[i]
		h := j.nodes[n.Name]
		if h == nil {
			h = &nodeHistory{}
			j.nodes[n.Name] = h
		}
		h.looked = now
		if f, changed := h.look(now, n, o, signs[n.Name], j.crowds.deafened(now)); changed {
			changes = append(changes, f)
		}
	}
	if len(j.nodes) > len(o.Nodes) {
		for name, h := range j.nodes {
			if h.looked != now {
				delete(j.nodes, name)
			}
		}
	}
	changes = append(changes, j.paths.look(o)...)
	changes = append(changes, j.trains.look(o)...)
	changes = append(changes, j.notices.look(now, o, signs[""])...)
	return append(changes, j.losses(now, o)...)
}

// Findings returns what is the case: of the peer, of each node by name, of what is
// dropped and who is strange, in the last minute.
func (j *Judge) Findings(now time.Duration) (all []Finding) {
	if j.peer.now.Cause != nil {
		all = append(all, j.peer.now)
	}
	first := len(all)
	for _, h := range j.nodes {
		if h.now.Cause != nil {
			all = append(all, h.now)
		}
	}
	slices.SortFunc(all[first:], func(a, b Finding) int { return strings.Compare(a.Of, b.Of) })
	all = append(all, j.paths.findings()...)
	all = append(all, j.trains.findings()...)
	return append(all, j.notices.live(now)...)
}

// bySubject returns the first sign of each node; "" has those of strangers.
func (o *Observation) bySubject() map[string]*Sign {
	if len(o.Signs) == 0 {
		return nil
	}
	signs := make(map[string]*Sign)
	for i := range o.Signs {
		s := &o.Signs[i]
		if s.Node == "" && s.Kind == SignUnknownNode {
			s.Node = o.suspect(s)
		}
		if signs[s.Node] == nil {
			signs[s.Node] = s
		}
	}
	return signs
}

// suspect returns the node that a datagram of none is likely to come from: the one with
// its address, else the silent one with its VNI.
func (o *Observation) suspect(s *Sign) (name string) {
	for i := range o.Nodes {
		switch n := &o.Nodes[i]; {
		case n.Underlay == s.Source.Addr():
			return n.Name
		case n.VNI == s.VNI && n.Received == 0:
			name = n.Name
		}
	}
	return name
}

// maxDoubtful bounds how many nodes are knocked at.
const maxDoubtful = 8

// Doubtful returns of whom the next observation is to have a Knock: the peer, and nodes.
func (j *Judge) Doubtful() (peer bool, nodes []string) {
	for name, h := range j.nodes {
		if h.doubtful {
			nodes = append(nodes, name)
		}
	}
	slices.Sort(nodes) // the same ones again: an answer takes time
	return j.peer.waiting || j.peer.missed >= missedPings, nodes[:min(len(nodes), maxDoubtful)]
}
