package health

import (
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// nodeHistory is what is remembered of a node.
type nodeHistory struct {
	began    bool
	started  time.Duration
	looked   time.Duration // last
	heard    bool          // it has sent a packet
	sentAt   time.Duration // since when it has not answered what was sent to it; 0 = nothing was
	received uint64        // by the last look
	packets  uint64        // from its pods
	passed   time.Duration // when they last grew
	sent     uint64        // to them, by then
	sign     *Sign         // the last one
	signAt   time.Duration
	signs    int // in a row

	now      Finding
	bad      bool
	faulty   time.Duration // since when
	doubtful bool          // nobody knows whether it is there
	troubled time.Duration // when it last was that, or at fault
	agreed   time.Duration // when ARP and packets last said the same of it
}

const (
	// signTime is for how long a sign counts: as long as ARP has patience with a neighbour.
	signTime = 30 * time.Second
	// mendTime is for how long after a sign packets of pods show that it is out of date.
	mendTime = 2 * time.Second
	// asks is how many ARP requests stay without answer before the node counts as silent.
	asks = 3
	// oneWay is how many packets to a node without any from it, in oneWayTime, are no chance.
	oneWay     = 3
	oneWayTime = 4 * time.Second
	// oddTime is for how long a node may send and answer no request: longer than between two
	// requests to one that does not answer.
	oddTime = 6 * time.Second
	// oneWayLate is for how long, where there were packets from it before.
	oneWayLate = 10 * time.Second
)

// look returns the node's state, and whether it is another than before. While too much comes to
// this gateway, what it does not hear proves nothing: it is deafened.
func (h *nodeHistory) look(now time.Duration, n *Node, o *Observation, s *Sign, deafened bool) (Finding, bool) {
	if !h.began {
		h.began, h.started = true, now
	}
	if h.doubtful = n.ARP && n.Asked >= asks; h.doubtful || h.bad || deafened {
		h.troubled = now
	}
	h.received = n.Received
	received, sent := n.pods()
	switch {
	case s != nil:
		if h.sign == nil || h.sign.Kind != s.Kind {
			h.signs = 0
		}
		h.sign, h.signAt, h.signs = s, now, h.signs+1
	case h.sign != nil && h.sign.Kind == SignSender && h.doubtful: // it knows our address, and does not ask again
	case now-h.signAt > signTime, received > h.packets && now-h.signAt >= mendTime:
		h.sign = nil
	}
	switch {
	case sent == 0 || received > 0:
		h.sentAt = 0
	case h.sentAt == 0:
		h.sentAt = now
	}
	if received != h.packets || h.sent > sent {
		h.packets, h.passed, h.sent = received, now, sent
	}
	if !h.doubtful || !n.Known || n.Silence >= deafTime {
		h.agreed = now
	}
	c, since := h.fault(now, n, o)
	if deafened && !h.bad && slices.Contains(unheard, c) {
		return h.now, false
	}
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

// pods returns how many packets came from pods, and how many were for them.
func (n *Node) pods() (received, sent uint64) {
	return n.Received - min(n.LocalReceived, n.Received), n.Sent - min(n.LocalSent, n.Sent)
}

// owed returns how many packets were sent to pods since the last one from them.
func (h *nodeHistory) owed(n *Node) uint64 {
	_, sent := n.pods()
	return sent - min(h.sent, sent)
}

// nodeKnocks says what silence is not.
var nodeKnocks = map[Knock]*Cause{KnockRefused: NodeRefuses, KnockNobody: NodeNobody, KnockNoRoute: NodeUnroutable}

// fault returns what is wrong, nil if nothing is known to be, and since when it is.
func (h *nodeHistory) fault(now time.Duration, n *Node, o *Observation) (c *Cause, since time.Duration) {
	if c := h.shown(now, n, o); c != nil {
		return c, h.signAt
	}
	owed := h.owed(n)
	silent := h.doubtful && (!n.Known || n.Silence >= deafTime)
	switch {
	case silent && nodeKnocks[n.Knock] != nil && now-h.started >= proven:
		return nodeKnocks[n.Knock], h.started
	case silent && n.Known:
		return NodeSilent, now - n.Silence
	case silent && now-h.started >= patience:
		return NeverThere, h.started
	case now-h.agreed >= oddTime:
		return NodeDeaf, h.agreed
	case owed >= oneWay && h.sentAt != 0 && now-h.sentAt >= oneWayTime && (n.Answered || !n.ARP):
		return NoReturn, h.sentAt
	case h.packets > 0 && owed >= oneWay && now-h.passed >= oneWayLate && !h.doubtful:
		return OneWay, h.passed
	}
	return nil, 0
}

// shown returns what the node's datagrams show to be wrong, nil if nothing.
func (h *nodeHistory) shown(now time.Duration, n *Node, o *Observation) *Cause {
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
	// It may ask for others, too, unless it owes packets.
	case s.Kind == SignTarget && (n.Received == 0 || h.owed(n) >= oneWay && now-h.passed >= oneWayTime && now-h.signAt < oneWayTime):
		return WrongGateway
	}
	return nil
}

// askedBy is how one asks who has a.
func askedBy(a netip.Addr) string {
	if a.Is6() {
		return "neighbour discovery"
	}
	return "ARP"
}

func (h *nodeHistory) become(c *Cause, n *Node, o *Observation, d string) (Finding, bool) {
	seen, source, by := "", netip.AddrPort{}, askedBy(n.Address)
	if s := h.sign; s != nil {
		source = s.Source
		if seen = fmt.Sprint(s.VNI); s.Address.IsValid() {
			seen = s.Address.String()
		}
		if c == NoVia {
			by = askedBy(s.Address)
		}
	}
	h.now = find(c, OfNode, n.Name, "{node}", n.Name, "{underlay}", n.Underlay.String(), "{address}", n.Address.String(),
		"{vni}", fmt.Sprint(n.VNI), "{encap}", n.Encap, "{gateway}", o.Gateway.String(), "{port}", fmt.Sprint(o.Port),
		"{asked}", fmt.Sprint(n.Asked), "{sent}", fmt.Sprint(h.owed(n)), "{time}", d, "{seen}", seen, "{by}", by, "{source}", source.Addr().String())
	return h.now, true
}
