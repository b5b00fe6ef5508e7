package nat

import (
	"encoding/binary"
	"net/netip"

	"culvert/nat/packet"
)

// maxHits is how many of the counting rules that a direction's packets hit are counted.
const maxHits = 8

// A traversal takes a packet through the hooks, in the order of the kernel's: prerouting, routing, forward, postrouting. For the first
// packet of a connection the nat chains choose the translation; later ones bring theirs along.
type traversal struct {
	from packet.Tuple // as the packet came
	to   packet.Tuple // as it goes
	in   Link
	out  Link
	// first: the nat chains run, and to is a result.
	first      bool
	dnat, snat binding
	service    *service // that the packet is addressed to
	client     pickWords
	backend    int32 // that service picks for client
	stateful   bool  // the translation needs a connection
	reason     Reason
	refusal    packet.Refusal
	effects    effects
	hits       [maxHits]*rule
	head       [4]byte // the first bytes of the transport header, at which rules with ports look whatever the protocol
	hasHead    bool

	// For the first tuple of a connection that exists, keep is where its packets go: a service's backend is not chosen anew.
	keep    packet.Tuple
	keeping bool

	trace Tracer
}

// start makes tr that of a first packet, which may be nil, with tuple from.
func (tr *traversal) start(from *packet.Tuple, p *packet.Packet, in Link, trace Tracer) {
	*tr = traversal{from: *from, in: in, first: true, trace: trace}
	tr.effects.hits = tr.hits[:0]
	if p != nil {
		tr.head, tr.hasHead = p.TransportHead()
	}
}

// run returns false if the packet is to be dropped, for reason.
func (tr *traversal) run(e *Engine, s *snapshot, now Time) bool {
	r := s.rules
	v := tr.view()
	if !tr.first {
		if !tr.filter(r, stageRaw, &v) {
			return false
		}
		tr.effects.notrack = false // dispatch has seen to it
	}
	if !tr.filter(r, stagePreDNAT, &v) {
		return false
	}
	if tr.first {
		tr.to = tr.from
		if !v.untracked && !tr.bindDestination(e, r, &v, now) {
			return false
		}
	}
	v.dst = tr.to.Destination()
	if usesPorts(tr.to.Protocol) {
		binary.BigEndian.PutUint16(v.l4[2:], tr.to.DestinationPort())
	}
	if !tr.filter(r, stagePrerouting, &v) {
		return false
	}
	hop, ok := r.route(tr.in, tr.effects.mark, v.src, v.dst)
	if tr.trace != nil {
		traceRoute(&v, &hop, tr.effects.mark, ok)
	}
	if !ok {
		return tr.refuse(s.noRoute(v.dst))
	}
	tr.out, v.out = hop.link, hop.link
	if !tr.filter(r, stageForward, &v) || !tr.filter(r, stagePreSNAT, &v) {
		return false
	}
	if tr.first && !v.untracked && !tr.bindSource(s, &v) {
		return false
	}
	v.src = tr.to.Source()
	if usesPorts(tr.to.Protocol) {
		binary.BigEndian.PutUint16(v.l4[:], tr.to.SourcePort())
	}
	return tr.filter(r, stagePostrouting, &v)
}

// view returns what rules see of the packet as it came.
func (tr *traversal) view() view {
	t := &tr.from
	v := view{src: t.Source(), dst: t.Destination(), proto: t.Protocol, in: tr.in, out: noLink, untracked: tr.effects.notrack, trace: tr.trace}
	if usesPorts(t.Protocol) {
		v.hasL4 = true
		binary.BigEndian.PutUint32(v.l4[:], t.Ports)
	} else {
		v.l4, v.hasL4 = tr.head, tr.hasHead
	}
	return v
}

// usesPorts reports whether a tuple of the protocol holds ports.
func usesPorts(protocol uint8) bool {
	switch protocol {
	case packet.TCP, packet.UDP, packet.UDPLite, packet.SCTP:
		return true
	}
	return false
}

func (tr *traversal) refuse(v Verdict) bool {
	tr.reason, tr.refusal = v.Reason, v.Refusal
	return false
}

func (tr *traversal) filter(r *ruleset, s stage, v *view) bool {
	if !r.has(s) {
		return true
	}
	switch r.filter(s, v, &tr.effects) {
	case ruleDrop:
		tr.reason = ReasonFiltered
	case ruleReject:
		tr.reason, tr.refusal = ReasonRejected, packet.NetUnreachable
	default:
		return true
	}
	if tr.trace != nil {
		traceNearest(v, tr.effects.by)
	}
	return false
}

// bindDestination runs the prerouting nat chains.
func (tr *traversal) bindDestination(e *Engine, r *ruleset, v *view, now Time) bool {
	tr.dnat = r.nat(stageDNAT, v)
	switch tr.dnat.kind {
	case bindAddress:
		tr.stateful = true
		tr.to.SetDestination(tr.dnat.addr)
	case bindPrefix:
		tr.to.SetDestination(tr.dnat.addr)
	case bindService:
		tr.stateful = true
		tr.service = tr.dnat.service
		if tr.keeping {
			tr.to.SetDestination(tr.keep.Destination())
			tr.to.SetDestinationPort(tr.keep.DestinationPort())
			return true
		}
		tr.client = tr.service.client(netip.AddrPortFrom(v.src, tr.from.SourcePort()))
		var ok bool
		if tr.backend, ok = tr.service.pick(e, &tr.client, now); !ok {
			return tr.refuse(refuse(ReasonNoBackend, packet.PortUnreachable))
		}
		b := &tr.service.config.Backends[tr.backend]
		tr.to.SetDestination(b.Address)
		tr.to.SetDestinationPort(b.Port)
	case bindDrop:
		return tr.refuse(drop(ReasonFiltered))
	}
	return true
}

// bindSource runs the postrouting nat chains. What goes back to a node after a translation of its destination gets the gateway's own
// source, so that the answer comes back too (hairpinning: RFC 4787, Section 6, REQ-9). Given tables decide alone, as a kernel's do.
func (tr *traversal) bindSource(s *snapshot, v *view) bool {
	v.rules = s.rules
	tr.snat = s.rules.nat(stageSNAT, v)
	switch tr.snat.kind {
	case bindNone:
		hairpin := s.rules.generated && (tr.dnat.kind == bindAddress || tr.dnat.kind == bindService)
		if hairpin && tr.in != Tunnel && tr.out != Tunnel && s.gateway.IsValid() && s.gateway.Is6() == tr.to.IPv6 {
			tr.stateful = true
			tr.to.SetSource(s.gateway)
		}
	case bindAddress:
		tr.stateful = tr.stateful || tr.snat.addr != v.src // a rule that binds a source to itself needs no state
		tr.to.SetSource(tr.snat.addr)
	case bindPrefix:
		tr.to.SetSource(tr.snat.addr)
	case bindDrop:
		return tr.refuse(drop(ReasonFiltered))
	case bindNoSource:
		return tr.refuse(drop(ReasonUnknownSource))
	}
	return true
}

// countBindings counts the nat rules, which see the first packet of a connection only.
func (tr *traversal) countBindings(packets, bytes uint64) {
	rules := [2]*rule{tr.dnat.rule, tr.snat.rule}
	for i, rule := range rules {
		if rule != nil {
			countRules(rules[i:i+1], false, packets, bytes)
		}
	}
}

// clampFor returns the bound for the MSS option of SYNs: the least that the rules give.
func (tr *traversal) clampFor(s *snapshot) uint16 {
	bound := tr.effects.mss
	if tr.effects.routeMSS {
		limit := uint16(s.mtu - 40)
		if tr.from.IPv6 {
			limit = uint16(s.mtu - 60)
		}
		if bound == 0 || limit < bound {
			bound = limit
		}
	}
	return bound
}
