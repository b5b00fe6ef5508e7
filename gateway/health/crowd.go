package health

import (
	"fmt"
	"time"
)

// Of sockets to which more comes than they hold.
var (
	NodeCrowd = cause("node-overflow", Warning, "{lost} of {of} datagrams to the nodes' port were lost in a second: the receive buffer of UDP {listen} was full; {node} sent most",
		"find who floods there (culvert connections), or give the gateway more CPU; other nodes that seem silent meanwhile may be well")
	PeerCrowd = cause("peer-overflow", Warning, "{lost} of {of} datagrams from the peer or strangers were lost in a second: the receive buffer of UDP {listen} was full",
		"find who floods there, or give the gateway more CPU")
)

// A Socket is one of the gateway's for datagrams. Its counters are totals since the start.
type Socket struct {
	Name      string // geneve, wireguard, wireguard6
	Port      uint16
	Received  uint64 // datagrams, a merged train counting once, as in Overflows
	Overflows uint64 // that the kernel dropped because the receive buffer was full; wraps at 2^32
}

// crowds remember how many datagrams the sockets had, and when too many came for one.
type crowds struct {
	before map[string]Socket
	nodes  time.Duration // when too many of nodes came
	never  bool          // no such time yet
}

// crowdLoss is how many lost datagrams in a look are no burst of a TCP sender that looks
// for its rate.
const crowdLoss = 1000

// crowded notes the sockets of which a fifth of the datagrams were lost since the last look.
func (j *Judge) crowded(now time.Duration, o *Observation) (said []Finding) {
	for _, s := range o.Sockets {
		before, known := j.crowds.before[s.Name]
		j.crowds.before[s.Name] = s
		lost, of := uint64(uint32(s.Overflows-before.Overflows)), s.Received-min(before.Received, s.Received)
		if of += lost; !known || lost < crowdLoss || lost*lossShare < of {
			continue
		}
		c, kind, name := PeerCrowd, OfPeer, o.Peer.Name
		if s.Name == "geneve" {
			j.crowds.nodes, j.crowds.never = now, false
			c, kind, name = NodeCrowd, OfNode, j.loudest(o)
			if name == "" {
				kind, name = OfAddress, "strangers"
			}
		}
		f, say := j.notices.see(now, c, kind, name, s.Name, lost, "{lost}", fmt.Sprint(lost), "{of}", fmt.Sprint(of), "{listen}", fmt.Sprint(s.Port), "{node}", name)
		if say {
			said = append(said, f)
		}
	}
	return said
}

// loudest returns the node that sent most since the last look.
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

// unheard are what a gateway finds that hears less than is said.
var unheard = []*Cause{NodeSilent, NeverThere, NodeDeaf, NoReturn, OneWay}

// deafened reports whether what nodes sent of late may have been lost here.
func (c *crowds) deafened(now time.Duration) bool { return !c.never && now-c.nodes <= patience }
