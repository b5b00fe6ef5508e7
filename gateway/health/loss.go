package health

import (
	"fmt"
	"time"
)

const (
	// Of so many requests, a fifth lost is no chance.
	lossRequests = 20
	lossShare    = 5
	// deafTime is for how long nothing may come from a node that answers no ARP or neighbour discovery.
	deafTime = 8 * time.Second
)

// lossy reports whether more requests are lost than a good path loses. Where all are, it
// is another fault.
func lossy(requests, lost int) bool {
	return requests >= lossRequests && lost*lossShare >= requests && lost < requests
}

// calm is for how long there has to be no other trouble: longer than the requests go back
// that are looked at.
const calm = 40 * time.Second

// losses notes what is lost on the way to the peer and to nodes that are well otherwise.
func (j *Judge) losses(now time.Duration, o *Observation) (said []Finding) {
	see := func(c *Cause, kind Kind, of string, lost, requests int, blanks ...string) {
		if f, ok := j.notices.see(now, c, kind, of, of, 1, append(blanks, "{lost}", fmt.Sprint(lost), "{of}", fmt.Sprint(requests))...); ok {
			said = append(said, f)
		}
	}
	if p := &o.Peer; j.peer.pinged == now && now-j.peer.troubled > calm && lossy(p.Pings.Requests, p.Pings.Lost) {
		see(PeerLoss, OfPeer, p.Name, p.Pings.Lost, p.Pings.Requests, "{endpoint}", p.Endpoint.String())
	}
	for i := range o.Nodes {
		n := &o.Nodes[i]
		if h := j.nodes[n.Name]; now-h.troubled > calm && lossy(n.Requests, n.Lost) {
			see(NodeLoss, OfNode, n.Name, n.Lost, n.Requests, "{node}", n.Name, "{underlay}", n.Underlay.String(), "{by}", askedBy(n.Address))
		}
	}
	return said
}
