package health

import (
	"fmt"
	"time"
)

const (
	// Of so many requests, a fifth lost is no chance.
	lossRequests = 20
	lossShare    = 5
	// deafTime is for how long nothing may come through a tunnel with a session, and
	// deafRequests how many requests may go without answer in it.
	deafTime     = 10 * time.Second
	deafRequests = 6
)

// lossy reports whether more requests are lost than a good path loses. Where all are, it
// is another fault.
func lossy(requests, lost int) bool {
	return requests >= lossRequests && lost*lossShare >= requests && lost < requests
}

// passage is what is remembered of what comes through the tunnel.
type passage struct {
	packets   uint64
	at        time.Duration // when they last grew
	handshake int64
	session   time.Duration // when it began
	pings     uint64
}

// losses notes what is lost on the way to the peer and to nodes.
func (n *notices) losses(now time.Duration, o *Observation, say func(Finding, bool)) {
	p, last := &o.Peer, n.passage
	if p.ReceivedPackets != last.packets {
		n.passage.packets, n.passage.at = p.ReceivedPackets, now
	}
	if first := last.handshake == 0; p.Handshake != 0 && first {
		n.passage.session = now
	}
	n.passage.handshake, n.passage.pings = p.Handshake, p.Pings.Sent
	quiet := now - max(n.passage.at, n.passage.session)
	lost, of := p.Pings.Lost, p.Pings.Requests
	switch {
	case p.Handshake == 0 || p.Pings.Sent == last.pings: // nobody asks
	case lossy(of, lost):
		say(n.see(now, PeerLoss, OfPeer, p.Name, p.Name, 1, "{endpoint}", p.Endpoint.String(), "{lost}", fmt.Sprint(lost), "{of}", fmt.Sprint(of)))
	case of >= deafRequests && lost == of && p.Pings.Missed == 0 && quiet >= deafTime: // one that has answered, its state is about
		say(n.see(now, DataLost, OfPeer, p.Name, p.Name, 1, "{endpoint}", p.Endpoint.String(), "{time}", seconds(quiet),
			"{of}", fmt.Sprint(of), "{port}", fmt.Sprint(p.Endpoint.Port())))
	}
	for i := range o.Nodes {
		if d := &o.Nodes[i]; d.Asked < asks && lossy(d.Requests, d.Lost) {
			say(n.see(now, NodeLoss, OfNode, d.Name, d.Name, 1, "{node}", d.Name, "{underlay}", d.Underlay.String(), "{lost}", fmt.Sprint(d.Lost), "{of}", fmt.Sprint(d.Requests)))
		}
	}
}
