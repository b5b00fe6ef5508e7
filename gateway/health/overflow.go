package health

import (
	"fmt"
	"time"
)

// About sockets that receive more than they can buffer.
var (
	NodeCrowd = cause("node-overflow", Warning,
		"{lost} of {of} datagrams to the nodes' port were lost in a second: the receive buffer of UDP {listen} was full; {node} sent most",
		"find who floods there (culvert connections), or give the gateway more CPU; other nodes that seem silent meanwhile may be well")
	PeerCrowd = cause("peer-overflow", Warning,
		"{lost} of {of} datagrams from the peer or strangers were lost in a second: the receive buffer of UDP {listen} was full",
		"find who floods there, or give the gateway more CPU")
)

// A Socket is one of the gateway's UDP sockets. Its counters are totals since the start.
type Socket struct {
	Name      string // geneve, wireguard, wireguard6
	From      string // who sends to it: nodes, the peer
	Port      uint16
	Received  uint64 // datagrams, a merged train counting once, as in Overflows
	Bytes     uint64 // in these datagrams
	Waits     bool   // a datagram waits in it, and the kernel does not count Overflows
	Overflows uint64 // that the kernel dropped because the receive buffer was full; wraps at 2^32
}

// overflows remembers the sockets' counters, and when a socket last overflowed.
type overflows struct {
	before map[string]Socket
	nodes  time.Duration // when the nodes' socket last overflowed
	never  bool          // it never has
}

// overflowLoss is the number of datagrams lost between two observations above which it is not just
// a burst of a TCP sender probing for its rate.
const overflowLoss = 1000

// judgeSockets reports the sockets that lost a fifth of their datagrams since the last observation.
func (j *Judge) judgeSockets(now time.Duration, o *Observation) (said []Finding) {
	for _, s := range o.Sockets {
		before, known := j.overflows.before[s.Name]
		j.overflows.before[s.Name] = s
		lost, of := uint64(uint32(s.Overflows-before.Overflows)), s.Received-min(before.Received, s.Received)
		if of += lost; !known || lost < overflowLoss || lost*lossShare < of {
			continue
		}
		c, kind, name := PeerCrowd, OfPeer, o.Peer.Name
		if s.Name == "geneve" {
			j.overflows.nodes, j.overflows.never = now, false
			c, kind, name = NodeCrowd, OfNode, j.loudest(o)
			if name == "" {
				kind, name = OfAddress, "strangers"
			}
		}
		f, say := j.notices.see(now, c, kind, name, s.Name, lost, "{lost}", fmt.Sprint(lost), "{of}", fmt.Sprint(of),
			"{listen}", fmt.Sprint(s.Port), "{node}", name)
		if say {
			said = append(said, f)
		}
	}
	return said
}

// loudest returns the node that sent most since the last observation.
func (j *Judge) loudest(o *Observation) (name string) {
	most := uint64(0)
	for i := range o.Nodes {
		n := &o.Nodes[i]
		if h := j.nodes[n.Name]; h != nil && n.Received > h.received && n.Received-h.received >= most {
			name, most = n.Name, n.Received-h.received
		}
	}
	return name
}

// unheard are the causes that a gateway may wrongly find when it loses datagrams.
var unheard = []*Cause{NodeSilent, NeverThere, NodeDeaf, NoReturn, OneWay}

// deafened reports whether recent datagrams from nodes may have been lost here.
func (c *overflows) deafened(now time.Duration) bool { return !c.never && now-c.nodes <= patience }
