package health

import (
	"slices"
	"sort"
	"time"
)

// A Judge finds problems. It is for use by one goroutine.
type Judge struct {
	peer      peerHistory
	nodes     map[string]*nodeHistory
	paths     paths
	trains    trains
	overflows overflows
	load      Load
	notices   notices
	liqo      bool // from the last observation, as peering
	peering   bool
}

// NewJudge returns a Judge without history.
func NewJudge() *Judge {
	return &Judge{nodes: make(map[string]*nodeHistory), paths: make(paths), trains: make(trains),
		overflows: overflows{before: make(map[string]Socket), never: true}, notices: newNotices()}
}

// patience is how long the peer or a node may be silent before that is a fault. It is three
// attempts of WireGuard, and the time that a node takes to start.
const patience = 12 * time.Second

// proven is the same if a kernel reports that the host is unreachable: as long as Linux looks for a
// neighbour.
const proven = 3 * time.Second

// Look returns the changes since the last observation, for the log. now must not run backwards.
func (j *Judge) Look(now time.Duration, o *Observation) (changes []Finding) {
	j.liqo, j.peering = o.Peer.Liqo, o.Peer.Peering
	if f, changed := j.peer.judge(now, &o.Peer); changed {
		changes = append(changes, f)
	}
	changes = append(changes, j.judgeSockets(now, o)...)
	signs := o.bySubject()
	for i := range o.Nodes {
		n := &o.Nodes[i]
		h := j.nodes[n.Name]
		if h == nil {
			h = &nodeHistory{}
			j.nodes[n.Name] = h
		}
		h.looked = now
		if f, changed := h.judge(now, n, o, signs[n.Name], j.overflows.deafened(now)); changed {
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
	changes = append(changes, j.paths.judge(o)...)
	changes = append(changes, j.trains.judge(o)...)
	changes = append(changes, j.load.Look(now, &o.CPU, func() []Socket { return o.Sockets }, OfPeer, o.Peer.Name)...)
	changes = append(changes, j.notices.judge(now, o, signs[""])...)
	return j.inWords(append(changes, j.losses(now, o)...))
}

// inWords gives findings the wording for the gateway's environment.
func (j *Judge) inWords(all []Finding) []Finding {
	for i := range all {
		switch {
		case j.liqo:
			all[i] = all[i].WithoutFile()
		case j.peering:
			all[i] = all[i].InPeering()
		}
	}
	return all
}

// Findings returns the current findings: about the peer, each node by name, and drops and unknown
// senders of the last minute.
func (j *Judge) Findings(now time.Duration) (all []Finding) {
	if j.peer.current.Cause != nil {
		all = append(all, j.peer.current)
	}
	first := len(all)
	for _, h := range j.nodes {
		if h.current.Cause != nil {
			all = append(all, h.current)
		}
	}
	nodes := all[first:]
	sort.Slice(nodes, func(i, j int) bool { return nodes[i].Of < nodes[j].Of })
	all = append(all, j.paths.findings()...)
	all = append(all, j.trains.findings()...)
	if f := j.load.Finding(); f.Cause != nil {
		all = append(all, f)
	}
	return j.inWords(append(all, j.notices.live(now)...))
}

// bySubject returns the first sign of each node; "" has those of unknown senders.
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

// suspect returns the node that probably sent a datagram of no known node: the one with its
// address, else the silent one with its VNI.
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

// maxDoubtful bounds how many nodes are probed with a Knock.
const maxDoubtful = 8

// Doubtful returns which ends need a Knock in the next observation: the peer, and nodes.
func (j *Judge) Doubtful() (peer bool, nodes []string) {
	for name, h := range j.nodes {
		if h.doubtful {
			nodes = append(nodes, name)
		}
	}
	slices.Sort(nodes) // always the same ones, because an answer takes time
	return j.peer.waiting || j.peer.missed >= missedPings, nodes[:min(len(nodes), maxDoubtful)]
}
