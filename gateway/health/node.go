package health

import (
	"fmt"
	"net/netip"
	"time"
)

// nodeHistory is what is remembered of a node.
type nodeHistory struct {
	began   bool
	started time.Duration
	looked  time.Duration // last
	heard   bool          // it has sent a packet
	sentAt  time.Duration // since when it has not answered what was sent to it; 0 = nothing was
	sign    *Sign         // the last one
	signAt  time.Duration
	signs   int // in a row

	now      Finding
	bad      bool
	faulty   time.Duration // since when
	doubtful bool          // nobody knows whether it is there
}

const (
	// signTime is for how long a sign counts: as long as ARP has patience with a neighbour.
	signTime = 30 * time.Second
	// asks is how many ARP requests stay without answer before the node counts as silent.
	asks = 3
	// oneWay is how many packets to a node without any from it, in oneWayTime, are no chance.
	oneWay     = 3
	oneWayTime = 4 * time.Second
)

// look returns the node's state, and whether it is another than before.
func (h *nodeHistory) look(now time.Duration, n *Node, o *Observation, s *Sign) (Finding, bool) {
	if !h.began {
		h.began, h.started = true, now
	}
	h.doubtful = n.ARP && n.Asked >= asks
	switch {
	case s != nil:
		if h.sign == nil || h.sign.Kind != s.Kind {
			h.signs = 0
		}
		h.sign, h.signAt, h.signs = s, now, h.signs+1
	case h.sign != nil && h.sign.Kind == SignSender && h.doubtful: // it knows our address, and does not ask again
	case now-h.signAt > signTime:
		h.sign = nil
	}
	switch {
	case n.Sent == 0 || n.Received > 0:
		h.sentAt = 0
	case h.sentAt == 0:
		h.sentAt = now
	}
	c, since := h.fault(now, n, o)
	if c == nil {
		wasBad := h.bad
		h.bad = false
		switch {
		case wasBad && (n.Received > 0 || n.Answered && n.Asked == 0):
			h.heard = h.heard || n.Received > 0
			return h.become(NodeBack, n, o, seconds(now-h.faulty))
		case wasBad: // it may be well, or has only ceased to show
			h.bad = true
		case !h.heard && n.Received > 0:
			h.heard = true
			return h.become(FirstPacket, n, o, "")
		}
		return h.now, false
	}
	if h.bad && h.now.Cause == c {
		return h.now, false
	}
	if !h.bad {
		h.bad, h.faulty = true, since
	}
	return h.become(c, n, o, seconds(now-since))
}

// nodeKnocks says what silence is not.
var nodeKnocks = map[Knock]*Cause{KnockRefused: NodeRefuses, KnockNobody: NodeNobody, KnockNoRoute: NodeUnroutable}

// fault returns what is wrong, nil if nothing is known to be, and since when it is.
func (h *nodeHistory) fault(now time.Duration, n *Node, o *Observation) (c *Cause, since time.Duration) {
	if c := h.shown(n, o); c != nil {
		return c, h.signAt
	}
	silent := h.doubtful && (!n.Known || n.Silence >= deafTime)
	switch {
	case silent && nodeKnocks[n.Knock] != nil && now-h.started >= proven:
		return nodeKnocks[n.Knock], h.started
	case silent && n.Known:
		return NodeSilent, now - n.Silence
	case silent && now-h.started >= patience:
		return NeverThere, h.started
	case n.Sent >= oneWay && h.sentAt != 0 && now-h.sentAt >= oneWayTime && (n.Answered || !n.ARP):
		return NoReturn, h.sentAt
	}
	return nil, 0
}

// shown returns what the node's datagrams show to be wrong, nil if nothing.
func (h *nodeHistory) shown(n *Node, o *Observation) *Cause {
	if h.sign == nil || h.signs < often && h.sign.Kind != SignSender {
		return nil
	}
	switch s := h.sign; {
	case s.Kind == SignUnknownNode && s.Source.Addr() == n.Underlay:
		return WrongVNI
	case s.Kind == SignUnknownNode:
		return WrongUnderlay
	case s.Kind == SignEncap:
		return WrongEncap
	case s.Kind == SignInner:
		return WrongInner
	// A node asks by ARP from any of its addresses (arp_announce of Linux). But it answers for the right one.
	case s.Kind == SignSender && h.doubtful:
		return WrongAddress
	case s.Kind == SignTarget && o.Remote != nil && o.Remote(s.Address):
		return NoVia
	case s.Kind == SignTarget && n.Received == 0:
		return WrongGateway
	}
	return nil
}

func (h *nodeHistory) become(c *Cause, n *Node, o *Observation, d string) (Finding, bool) {
	seen, source := "", netip.AddrPort{}
	if s := h.sign; s != nil {
		source = s.Source
		if seen = fmt.Sprint(s.VNI); s.Address.IsValid() {
			seen = s.Address.String()
		}
	}
	h.now = find(c, OfNode, n.Name, "{node}", n.Name, "{underlay}", n.Underlay.String(), "{address}", n.Address.String(),
		"{vni}", fmt.Sprint(n.VNI), "{encap}", n.Encap, "{gateway}", o.Gateway.String(), "{port}", fmt.Sprint(o.Port),
		"{asked}", fmt.Sprint(n.Asked), "{sent}", fmt.Sprint(n.Sent), "{time}", d, "{seen}", seen, "{source}", source.Addr().String())
	return h.now, true
}
