package health

import (
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// nodeHistory is what is remembered about a node.
type nodeHistory struct {
	began      bool
	started    time.Duration // time of the first observation
	looked     time.Duration // time of the last observation
	heard      bool          // it has sent a packet
	noReturnAt time.Duration // since when packets go to its pods and none has ever come; 0 = none go, or one came
	received   uint64        // at the last observation
	packets    uint64        // from its pods
	packetsAt  time.Duration // when they last grew
	sent       uint64        // packets to its pods until then
	offered    uint64        // packets to its pods until the last observation
	offeredAt  time.Duration // when they last grew
	sign       *Sign         // the last one
	signAt     time.Duration
	signs      int // consecutive

	noticed   *Cause        // the last observation's fault, nil if none
	noticedAt time.Duration // since when

	current    Finding       // its fault, or a note that it is well; its Cause is nil before both
	well       Finding       // the last finding without a fault
	oneWayAt   time.Duration // when OneWay or NoReturn was last logged; 0 = never
	bad        bool          // current is a fault
	faulty     time.Duration // since when
	doubtful   bool          // unknown whether it is there: it has left asks requests unanswered
	troubled   time.Duration // when it was last doubtful or at fault
	agreed     time.Duration // when ARP and packets last agreed about whether it is there
	answeredAt time.Duration // when it last owed no answer to a request
}

const (
	// signTime is how long a sign counts: as long as ARP keeps a neighbour.
	signTime = 30 * time.Second
	// mendTime is how long after a sign packets from pods prove it obsolete.
	mendTime = 2 * time.Second
	// asks is how many unanswered ARP requests make a node doubtful. geneve.Endpoint.AskAll asks
	// each second, but with more nodes than it asks in one call each node is asked more rarely.
	asks = 3
	// quietTime is how long nothing may come from a doubtful node. Then it is silent.
	quietTime = 8 * time.Second
	// oddTime is how long a doubtful node may send packets. Then it is deaf: NodeDeaf. It is longer
	// than the interval between requests to a silent node.
	oddTime = 6 * time.Second
	// oneWay is how many packets to a node without any from it, within oneWayTime, are no accident.
	oneWay     = 3
	oneWayTime = 4 * time.Second
	// oneWayLate is oneWayTime for a node from which there were packets before.
	oneWayLate = 10 * time.Second
	// oneWayStale is how long after the last packet to a node the lack of answers is no longer
	// reported: longer than between the first attempts of TCP (1, 2, 4 and 8 s; RFC 6298, Section
	// 5.5).
	oneWayStale = 20 * time.Second
)

// judge returns the node's state, and whether it has changed. deafened: this gateway loses
// datagrams, so silence proves nothing.
func (h *nodeHistory) judge(now time.Duration, n *Node, o *Observation, s *Sign, deafened bool) (Finding, bool) {
	h.remember(now, n, s, deafened)
	c, since := h.fault(now, n, o)
	if h.noticed != c {
		h.noticed, h.noticedAt = c, now
	}
	if deafened && !h.bad && slices.Contains(unheard, c) {
		return h.current, false
	}
	if o.Peer.Liqo && !h.bad && c != nil && now-min(since, h.noticedAt) < settles {
		return h.current, false
	}
	if c == nil {
		return h.faultless(now, n, o)
	}
	if h.bad && h.current.Cause == c {
		return h.current, false
	}
	if !h.bad {
		h.bad, h.faulty, h.well = true, since, h.current
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

// remember updates the times of what has happened, by which fault decides.
func (h *nodeHistory) remember(now time.Duration, n *Node, s *Sign, deafened bool) {
	if !h.began {
		h.began, h.started = true, now
	}
	if !n.ARP || n.Asked == 0 {
		h.answeredAt = now
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
		h.noReturnAt = 0
	case h.noReturnAt == 0:
		h.noReturnAt = now
	}
	if received != h.packets || h.sent > sent {
		h.packets, h.packetsAt, h.sent = received, now, sent
	}
	if sent != h.offered {
		h.offered, h.offeredAt = sent, now
	}
	if now-h.offeredAt >= oneWayStale {
		h.noReturnAt, h.packetsAt, h.sent = 0, now, sent
	}
	if !h.doubtful || !n.Known || n.Silence >= quietTime {
		h.agreed = now
	}
}

// faultless returns the state of a node that shows no fault. One that was bad is back only if it
// proves that.
func (h *nodeHistory) faultless(now time.Duration, n *Node, o *Observation) (Finding, bool) {
	wasBad := h.bad
	h.bad = false
	switch {
	case wasBad && (h.current.Cause == OneWay || h.current.Cause == NoReturn) && now-h.offeredAt >= oneWayStale:
		h.current = h.well // unknown whether it is back
		return h.current, false
	case wasBad && (n.Received > 0 || n.Answered && n.Asked == 0):
		h.heard, h.oneWayAt = h.heard || n.Received > 0, 0
		return h.become(NodeBack, n, o, seconds(now-h.faulty))
	case wasBad: // it may be well, or just stopped showing the fault
		h.bad = true
	case !h.heard && n.Received > 0:
		h.heard = true
		return h.become(FirstPacket, n, o, "")
	}
	return h.current, false
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
	silent := h.doubtful && (!n.Known || n.Silence >= quietTime)
	switch {
	case silent && nodeKnocks[n.Knock] != nil && now-h.started >= proven:
		if n.Known {
			return nodeKnocks[n.Knock], h.answeredAt
		}
		return nodeKnocks[n.Knock], h.started
	case silent && n.Known:
		return NodeSilent, h.answeredAt // it may have had nothing to send for long before
	case silent && now-h.started >= patience:
		return NeverThere, h.started
	case now-h.agreed >= oddTime:
		return NodeDeaf, h.agreed
	case owed >= oneWay && h.noReturnAt != 0 && now-h.noReturnAt >= oneWayTime && (n.Answered || !n.ARP):
		return NoReturn, h.noReturnAt
	case h.packets > 0 && owed >= oneWay && now-h.packetsAt >= oneWayLate && !h.doubtful:
		return OneWay, h.packetsAt
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
	case s.Kind == SignTarget && (n.Received == 0 || h.owed(n) >= oneWay && now-h.packetsAt >= oneWayTime &&
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
	h.current = findingOf(c, OfNode, n.Name, "{node}", n.Name, "{underlay}", n.Underlay.String(), "{address}",
		n.Address.String(),
		"{vni}", fmt.Sprint(n.VNI), "{encap}", n.Encap, "{gateway}", o.Gateway.String(), "{port}", fmt.Sprint(o.Port),
		"{asked}", fmt.Sprint(n.Asked), "{sent}", fmt.Sprint(h.owed(n)), "{time}", d, "{seen}", seen, "{by}", by,
		"{source}", source.Addr().String())
	return h.current, true
}
