package geneve

import (
	"time"

	"culvert/geneve/udp"
)

// discover handles an ICMPv6 message of the kinds that a link sends by itself, received in a frame
// of tunnel t.
func (n *neighbours) discover(t *tunnel, to mac, from speaker, b []byte, now time.Duration) Reason {
	if b[6] != protoICMPv6 || b[ipv6Len] != ndSolicitation && b[ipv6Len] != ndAdvertisement || !t.Local.V6.IsValid() {
		return NeighbourDiscovery // it looks for routers or joins groups; there are none
	}
	m, ok := parseND(b)
	group := to&macGroup != 0
	switch probe, probed := t.probeOf(to); {
	case !ok, m.link != 0 && m.link != from.mac(), m.source == t.Local.V6:
		return BadND
	case group && (!m.destination.IsMulticast() || to != groupMAC(m.destination)):
		return BadND
	case m.kind == ndAdvertisement && m.target == t.Local.V6: // another station has our address
		return BadND
	case probed && m.kind == ndSolicitation:
		return NeighbourDiscovery // the peer checks whether the sender of a probe is still there
	case !group && !probed && to != t.self:
		return OtherMAC
	case m.kind == ndAdvertisement:
		return n.advertised(t, from, &m, probe, probed, now)
	}
	return n.solicited(t, from, &m, now)
}

// advertised handles a neighbour advertisement: the answer to a probe or a solicitation, or an
// unsolicited one.
func (n *neighbours) advertised(t *tunnel, from speaker, m *nd, probe udp.Probe, probed bool,
	now time.Duration) Reason {
	if m.target != t.Peer.V6 {
		return n.otherND(t, m)
	}
	if probed {
		t.answered(probe)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if is := t.neighbour.load().mac(); is != 0 && is != from.mac() && m.flags&ndOverride == 0 && !probed {
		// RFC 4861, Section 7.2.5: without the Override flag it does not replace the address, but
		// makes it doubtful.
		n.ask(t, now)
	} else {
		n.told(t, from, true, probed, now)
	}
	n.e.ndReceived.Add(1)
	return Accepted
}

// solicited handles a neighbour solicitation.
func (n *neighbours) solicited(t *tunnel, from speaker, m *nd, now time.Duration) Reason {
	n.mu.Lock()
	defer n.mu.Unlock()
	if m.source == t.Peer.V6 {
		n.told(t, from, false, false, now)
	}
	if m.target != t.Local.V6 {
		return n.otherND(t, m)
	}
	if !t.neighbour.mayAnswer(now) {
		return NDRate
	}
	if m.source != t.Peer.V6 && !linkLocals.Contains(m.source) { // kernels use the link's own address when they forward
		n.e.signND(Accepted, t, m)
	}
	answer := nd{kind: ndAdvertisement, flags: ndRouter | ndSolicited | ndOverride, source: t.Local.V6,
		destination: m.source, target: t.Local.V6, link: t.self}
	if m.source.IsUnspecified() {
		// RFC 4861, Section 7.2.4: a sender without an address gets the answer by multicast.
		answer.flags &^= ndSolicited
		answer.destination = allNodes
		from = newSpeaker(from.encap(), groupMAC(allNodes))
	}
	n.sendND(t, from, &answer)
	n.e.ndReceived.Add(1)
	return Accepted
}

// otherND returns the reason for a message about another address than ours. A link that comes up
// checks its own addresses for duplicates.
func (n *neighbours) otherND(t *tunnel, m *nd) Reason {
	if m.source.IsUnspecified() || linkLocals.Contains(m.target) {
		return NeighbourDiscovery
	}
	n.e.signND(OtherND, t, m)
	return OtherND
}
