package health

import (
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// nodeHistory is what is remembered about a node.
type nodeHistory struct {
	began    bool
	started  time.Duration
	looked   time.Duration // time of the last observation
	heard    bool          // it has sent a packet
	sentAt   time.Duration // since when packets to it have had no answer; 0 = none were sent
	received uint64        // at the last observation
	packets  uint64        // from its pods
	passed   time.Duration // time of their last growth
	sent     uint64        // packets to them until then
	offered  uint64        // packets to them until the last observation
	asking   time.Duration // time of its last growth
	sign     *Sign         // the last one
	signAt   time.Duration
	signs    int // consecutive

	noticed   *Cause        // the last observation's fault, nil if none
	noticedAt time.Duration // since when

	now      Finding
	well     Finding       // the last finding without a fault
	oneWayAt time.Duration // when unanswered packets were last logged; 0 = never
	bad      bool
	faulty   time.Duration // since when
	doubtful bool          // unknown whether it is there
	troubled time.Duration // when it was last doubtful or at fault
	agreed   time.Duration // when ARP and packets last agreed about it
	unasked  time.Duration // when there was last no request without an answer
}

const (
	// signTime is how long a sign counts: as long as ARP keeps a neighbour.
	signTime = 30 * time.Second
	// mendTime is how long after a sign packets from pods prove it obsolete.
	mendTime = 2 * time.Second
	// asks is how many unanswered ARP requests make a node count as silent.
	asks = 3
	// oneWay is how many packets to a node without any from it, within oneWayTime, are no accident.
	oneWay     = 3
	oneWayTime = 4 * time.Second
	// oddTime is how long a node may send without answering requests: longer than the interval
	// between requests to a silent node.
	oddTime = 6 * time.Second
	// oneWayLate is the same if there were packets from it before.
	oneWayLate = 10 * time.Second
	// oneWayStale is how long after the last packet to a node the lack of answers is no longer
	// reported: longer than between the first attempts of TCP (1, 2, 4 and 8 s; RFC 6298, Section
	// 5.5).
	oneWayStale = 20 * time.Second
)

// judge returns the node's state, and whether it has changed. deafened: this gateway loses
// datagrams, so silence proves nothing.
func (h *nodeHistory) judge(now time.Duration, n *Node, o *Observation, s *Sign, deafened bool) (Finding, bool) {
	if !h.began {
		h.began, h.started = true, now
	}
	if !n.ARP || n.Asked == 0 {
		h.unasked = now
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
	if sent != h.offered {
		h.offered, h.asking = sent, now
	}
	if now-h.asking >= oneWayStale {
		h.sentAt, h.passed, h.sent = 0, now, sent
	}
	if !h.doubtful || !n.Known || n.Silence >= deafTime {
		h.agreed = now
	}
	c, since := h.fault(now, n, o)
	if h.noticed != c {
		h.noticed, h.noticedAt = c, now
	}
	if deafened && !h.bad && slices.Contains(unheard, c) {
		return h.now, false
	}
	if o.Peer.Liqo && !h.bad && c != nil && now-min(since, h.noticedAt) < settles {
		return h.now, false
	}
	if c == nil {
		wasBad := h.bad
		h.bad = false
		switch {
		case wasBad && (h.now.Cause == OneWay || h.now.Cause == NoReturn) && now-h.asking >= oneWayStale:
			h.now = h.well // unknown whether it is back
			return h.now, false
		case wasBad && (n.Received > 0 || n.Answered && n.Asked == 0):
			h.heard, h.oneWayAt = h.heard || n.Received > 0, 0
			return h.become(NodeBack, n, o, seconds(now-h.faulty))
		case wasBad: // it may be well, or just stopped showing the fault
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
		h.bad, h.faulty, h.well = true, since, h.now
	}
	f, changed := h.become(c, n, o, seconds(now-since))
	if c == OneWay || c == NoReturn {
		// A sender of occasional one-way packets is logged occasionally.
		if h.oneWayAt != 0 && now-h.oneWayAt < repeat {
			return f, false
		}
		h.oneWayAt = now
	}
	return f, changed
}

// pods returns the numbers of packets from pods, and to them.
func (n *Node) pods() (received, sent uint64) {
	return n.Received - min(n.LocalReceived, n.Received), n.Sent - min(n.LocalSent, n.Sent)
}

// owed returns how many packets have been sent to pods since the last one from them.
func (h *nodeHistory) owed(n *Node) uint64 {
	_, sent := n.pods()
	return sent - min(h.sent, sent)
}

// nodeKnocks maps the answers to a Knock to causes of silence.
var nodeKnocks = map[Knock]*Cause{KnockRefused: NodeRefuses, KnockNobody: NodeNobody, KnockNoRoute: NodeUnroutable}

// fault returns the node's fault, nil if none is known, and since when it exists.
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
		return NodeSilent, h.unasked // it may have had nothing to send for long before
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

// shown returns the fault shown by the node's datagrams, nil if none.
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
	// A node sends ARP requests from any of its addresses (arp_announce in Linux), but answers for
	// the right one.
	case s.Kind == SignSender && h.doubtful:
		return WrongAddress
	case s.Kind == SignTarget && o.Remote != nil && o.Remote(s.Address):
		return NoVia
	// It may ask for other addresses too, unless it owes packets.
	case s.Kind == SignTarget && (n.Received == 0 || h.owed(n) >= oneWay && now-h.passed >= oneWayTime &&
		now-h.signAt < oneWayTime):
		return WrongGateway
	}
	return nil
}

// askedBy names the protocol that asks for a's link-layer address.
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
	h.now = find(c, OfNode, n.Name, "{node}", n.Name, "{underlay}", n.Underlay.String(), "{address}",
		n.Address.String(),
		"{vni}", fmt.Sprint(n.VNI), "{encap}", n.Encap, "{gateway}", o.Gateway.String(), "{port}", fmt.Sprint(o.Port),
		"{asked}", fmt.Sprint(n.Asked), "{sent}", fmt.Sprint(h.owed(n)), "{time}", d, "{seen}", seen, "{by}", by,
		"{source}", source.Addr().String())
	return h.now, true
}
