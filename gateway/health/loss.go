package health

import (
	"fmt"
	"time"
)

const (
	// Of this many requests, a fifth lost is no accident.
	lossRequests = 20
	lossShare    = 5
)

// lossy reports whether more requests are lost than on a good path. If all are lost, that is
// another fault.
func lossy(requests, lost int) bool {
	return requests >= lossRequests && lost*lossShare >= requests && lost < requests
}

// calm is how long there must be no other problem: longer than the requests under examination go
// back.
const calm = 40 * time.Second

// losses reports loss on the path to the peer, or to nodes, that have no other problem.
func (j *Judge) losses(now time.Duration, o *Observation) (said []Finding) {
	see := func(c *Cause, kind Kind, of string, lost, requests int, blanks ...string) {
		if f, ok := j.notices.see(now, c, kind, of, of, 1, append(blanks, "{lost}", fmt.Sprint(lost), "{of}",
			fmt.Sprint(requests))...); ok {
			said = append(said, f)
		}
	}
	if p := &o.Peer; j.peer.pinged == now && now-j.peer.troubled > calm && lossy(p.Pings.Requests, p.Pings.Lost) {
		see(PeerLoss, OfPeer, p.Name, p.Pings.Lost, p.Pings.Requests, "{endpoint}", p.Endpoint.String())
	}
	for i := range o.Nodes {
		n := &o.Nodes[i]
		if h := j.nodes[n.Name]; now-h.troubled > calm && lossy(n.Requests, n.Lost) {
			see(NodeLoss, OfNode, n.Name, n.Lost, n.Requests, "{node}", n.Name, "{underlay}", n.Underlay.String(),
				"{by}", askedBy(n.Address))
		}
	}
	return said
}
