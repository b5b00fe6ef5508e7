package rules

import (
	"encoding/binary"
	"net/netip"

	"culvert/nat/packet"
)

// maxHits is how many of the counting rules hit by a direction's packets are counted.
const maxHits = 8

// A Traversal takes a packet through the hooks in the kernel's order: prerouting, routing, forward,
// postrouting. For the first packet of a connection the nat chains choose the translation; later
// packets bring it along.
type Traversal struct {
	From    packet.Tuple // as the packet came
	To      packet.Tuple // after translation
	In      Link
	Out     Link
	Outcome Outcome
	// Service is the destination of the first packet of a connection, and Backend the index passed
	// to SendTo. The choice of a backend depends on Client.
	Service  *Balancer
	Client   Client
	Backend  int32
	Stateful bool // the translation needs a connection
	// Masqueraded: a Host replaced the client's address by one of its own.
	Masqueraded bool
	Effects

	first      bool // the nat chains run, and To is their result
	dnat, snat binding
	room       [maxHits]*rule // backing array of Effects.hits
	view       view
	head       [4]byte // the first bytes of the transport header, which rules read as ports for any protocol
	hasHead    bool

	// For the original direction of an existing connection, keep is its translation: no new backend
	// is chosen.
	keep    packet.Tuple
	keeping bool
	home    Link // by which the direction has left so far; 0: not known
	// For an existing connection. Outlives: it keeps its translation if the service is gone. Stays:
	// it keeps home if no route is left.
	Outlives, Stays bool

	trace Tracer
}

// An Outcome is the result of rules and routes for a packet.
type Outcome uint8

// The outcomes.
const (
	Passed         Outcome = iota
	Filtered               // dropped by a rule or a chain's policy, or there is no address to masquerade with
	Rejected               // dropped by a rule, and the sender is notified
	NoRoute                // no route matches
	NoBackend              // its service has no backend
	UnknownSource          // the remote cluster could not answer it, and there is no other source
	NoLocalBackend         // its service has no backend on this node
	Unserved               // it is for an address of services or of the node itself, without a service
	// NotAdmitted is never the result of a Traversal, but may replace one: nothing is exported at
	// the destination.
	NotAdmitted
)

// Start begins with the first packet of a connection with tuple from. Without a packet, rules see a
// transport header only as far as the tuple has it.
func (tr *Traversal) Start(from *packet.Tuple, p *packet.Packet, in Link, trace Tracer) {
	*tr = Traversal{From: *from, In: in, first: true, trace: trace}
	tr.hits = tr.room[:0]
	if p != nil {
		tr.head, tr.hasHead = p.TransportHead()
	}
}

// Follow continues, after Start, as a later packet of a connection with this mark, whose
// translation is known. It has left by home so far, 0 if that is not known.
func (tr *Traversal) Follow(to packet.Tuple, mark uint32, home Link) {
	tr.first, tr.To, tr.ConnMark, tr.home = false, to, mark, home
}

// Keep continues, after Start, as the first packet of an existing connection with this mark. A
// service keeps to, the connection's translation. It has left by home so far, 0 if that is not
// known.
func (tr *Traversal) Keep(to packet.Tuple, mark uint32, home Link) {
	tr.keep, tr.keeping, tr.ConnMark, tr.home = to, true, mark, home
}

// Raw runs the filters before connection tracking. It returns false if they drop the packet.
func (tr *Traversal) Raw(r *Ruleset) bool {
	if !r.has(stageRaw) {
		return true
	}
	tr.fillView()
	return tr.filter(r, stageRaw)
}

// Input runs the filters for packets to the gateway itself. It returns false if they drop the
// packet.
func (tr *Traversal) Input(r *Ruleset) bool {
	tr.fillView()
	tr.view.untracked = true
	return tr.filter(r, stagePreDNAT) && tr.filter(r, stagePrerouting) && tr.filter(r, stageInput)
}

// Output runs the filters for packets that the gateway itself makes and that leave by out. It
// returns false if they drop the packet.
func (tr *Traversal) Output(r *Ruleset, out Link) bool {
	tr.fillView()
	tr.view.in, tr.view.out, tr.view.untracked = noLink, out, true
	return tr.filter(r, stageOutput) && tr.filter(r, stagePreSNAT) && tr.filter(r, stagePostrouting)
}

// Enter takes the packet to where a service needs a backend. It returns false if the packet is to
// be dropped, for Outcome. For the first packet of a connection, Raw must have run.
func (tr *Traversal) Enter(r *Ruleset) bool {
	tr.fillView()
	if !tr.first {
		if !tr.filter(r, stageRaw) {
			return false
		}
		tr.NoTrack = false // the connection lookup has handled it
	}
	if !tr.filter(r, stagePreDNAT) {
		return false
	}
	if tr.first {
		tr.To = tr.From
		return tr.view.untracked || tr.bindDestination(r)
	}
	return true
}

// Chooses reports whether SendTo must be called with a backend of Service.
func (tr *Traversal) Chooses() bool { return tr.Service != nil && !tr.keeping }

// SendTo sends the packet to a backend of Service.
func (tr *Traversal) SendTo(backend int32) {
	tr.Backend = backend
	b := &tr.Service.Service.Backends[backend]
	tr.To.SetDestination(b.Address)
	tr.To.SetDestinationPort(b.Port)
}

// Leave takes the packet to where it leaves. It returns false if the packet is to be dropped, for
// Outcome.
func (tr *Traversal) Leave(r *Ruleset) bool {
	v := &tr.view
	v.dst = tr.To.Destination()
	if usesPorts(tr.To.Protocol) {
		binary.BigEndian.PutUint16(v.l4[2:], tr.To.DestinationPort())
	}
	if !tr.filter(r, stagePrerouting) {
		return false
	}
	hop, ok := r.route(tr.In, tr.mark, v.src, v.dst)
	if (ok && hop.rule.keep || !ok && tr.Stays) && tr.home != 0 && tr.In.Outside() && !tr.home.Outside() &&
		r.HasLink(tr.home) {
		hop.link, ok = tr.home, true
	}
	if tr.trace != nil {
		traceRoute(v, &hop, tr.mark, ok)
	}
	if !ok {
		return tr.end(NoRoute)
	}
	tr.Out, v.out = hop.link, hop.link
	if !tr.filter(r, stageForward) || !tr.filter(r, stagePreSNAT) {
		return false
	}
	if tr.first && !v.untracked && !tr.bindSource(r) {
		return false
	}
	v.src = tr.To.Source()
	if usesPorts(tr.To.Protocol) {
		binary.BigEndian.PutUint16(v.l4[:], tr.To.SourcePort())
	}
	return tr.filter(r, stagePostrouting)
}

// fillView fills view with what rules see of the packet as it arrived.
func (tr *Traversal) fillView() {
	t := &tr.From
	tr.view = view{src: t.Source(), dst: t.Destination(), proto: t.Protocol, in: tr.In, out: noLink,
		untracked: tr.NoTrack, trace: tr.trace}
	if v := &tr.view; usesPorts(t.Protocol) {
		v.hasL4 = true
		binary.BigEndian.PutUint32(v.l4[:], t.Ports)
	} else {
		v.l4, v.hasL4 = tr.head, tr.hasHead
	}
}

// usesPorts reports whether tuples of the protocol have ports.
func usesPorts(protocol uint8) bool {
	switch protocol {
	case packet.TCP, packet.UDP, packet.UDPLite, packet.SCTP:
		return true
	}
	return false
}

func (tr *Traversal) end(o Outcome) bool {
	tr.Outcome = o
	return false
}

func (tr *Traversal) filter(r *Ruleset, s stage) bool {
	if !r.has(s) {
		return true
	}
	switch r.filter(s, &tr.view, &tr.Effects) {
	case ruleDrop:
		tr.Outcome = Filtered
	case ruleReject:
		tr.Outcome = Rejected
	default:
		return true
	}
	if tr.trace != nil {
		traceNearest(&tr.view, tr.by)
	}
	return false
}

// bindDestination runs the prerouting nat chains.
func (tr *Traversal) bindDestination(r *Ruleset) bool {
	v := &tr.view
	tr.dnat = r.bind(stageDNAT, v)
	switch tr.dnat.kind {
	case bindAddress:
		tr.Stateful = true
		tr.To.SetDestination(tr.dnat.addr)
	case bindPrefix:
		tr.To.SetDestination(tr.dnat.addr)
	case bindService:
		tr.Stateful = true
		tr.Service = tr.dnat.service
		if tr.keeping {
			tr.To.SetDestination(tr.keep.Destination())
			tr.To.SetDestinationPort(tr.keep.DestinationPort())
			return true
		}
		if tr.Service.total == 0 {
			if tr.Service.elsewhere {
				return tr.end(NoLocalBackend)
			}
			return tr.end(NoBackend)
		}
		tr.Client = tr.Service.Client(netip.AddrPortFrom(v.src, tr.From.SourcePort()))
	case bindDrop:
		return tr.end(Filtered)
	case bindNone:
		if h := r.host; h != nil {
			if h.unserved(v) {
				return tr.end(Unserved)
			}
			tr.NoTrack = true
		} else if tr.Outlives {
			tr.Stateful = true
			tr.To.SetDestination(tr.keep.Destination())
			tr.To.SetDestinationPort(tr.keep.DestinationPort())
		}
	}
	return true
}

// bindSource runs the postrouting nat chains. A packet that returns to a node after its destination
// was translated gets the gateway's own source, so that the answer returns too (hairpinning: RFC
// 4787, Section 6, REQ-9). Configured tables decide this themselves, as in a kernel.
func (tr *Traversal) bindSource(r *Ruleset) bool {
	v := &tr.view
	v.rules = r
	tr.snat = r.bind(stageSNAT, v)
	switch tr.snat.kind {
	case bindNone:
		if r.host != nil {
			return tr.masquerade(r.host)
		}
		hairpin := r.generated && (tr.dnat.kind == bindAddress || tr.dnat.kind == bindService || tr.Outlives)
		if own := r.ownAddress(v); hairpin && !tr.In.Outside() && !tr.Out.Outside() && own.IsValid() {
			tr.Stateful = true
			tr.To.SetSource(own)
		}
	case bindAddress:
		tr.Stateful = tr.Stateful || tr.snat.addr != v.src // a rule that keeps the source as it is needs no state
		tr.To.SetSource(tr.snat.addr)
	case bindPrefix:
		tr.To.SetSource(tr.snat.addr)
	case bindDrop:
		return tr.end(Filtered)
	case bindNoSource:
		return tr.end(UnknownSource)
	}
	return true
}

// masquerade gives the client of a Host's service an address of the node if necessary.
func (tr *Traversal) masquerade(h *hostFacts) bool {
	v := &tr.view
	if tr.dnat.kind != bindService || !tr.dnat.masquerade && !h.unanswerable(v.src, v.dst) {
		return true
	}
	own := h.Masquerade.Of(v.src.Is6())
	if !own.IsValid() {
		return tr.end(Filtered)
	}
	tr.Masqueraded = true
	tr.To.SetSource(own)
	return true
}

// ProxyProtocol reports whether the server of a new TCP connection gets a PROXY protocol header
// before the client's data.
func (tr *Traversal) ProxyProtocol() bool {
	b := &tr.dnat
	return b.kind == bindService && b.service.Service.ProxyProtocol || b.rule != nil && b.rule.proxyProtocol
}

// ShiftsStream reports whether one end of a TCP connection is a server for which ProxyProtocol is
// true.
func (tr *Traversal) ShiftsStream() bool {
	return tr.ProxyProtocol() || tr.snat.rule != nil && tr.snat.rule.proxyProtocol
}

// ClientSource returns the client's address as the server's cluster knows it: as it arrived, or
// translated if its whole CIDR is remapped.
func (tr *Traversal) ClientSource() netip.Addr {
	if tr.snat.kind == bindPrefix {
		return tr.To.Source()
	}
	return tr.From.Source()
}

// Bound reports whether a rule or a service has decided the destination.
func (tr *Traversal) Bound() bool { return tr.dnat.kind != bindNone }

// SharesSource reports whether others may have the packet's source too: a rule binds to a single
// address, or the source is the gateway's own.
func (tr *Traversal) SharesSource() bool {
	return tr.Masqueraded || tr.snat.kind == bindAddress || tr.snat.kind == bindNone &&
		tr.To.Source() != tr.From.Source()
}

// KeepsAddresses reports whether a traversal that ended early was on the path given to Keep: each
// address is the one before or after translation.
func (tr *Traversal) KeepsAddresses() bool {
	if tr.dnat.kind == bindNone && tr.snat.kind == bindNone {
		return true
	}
	source, destination := tr.To.Source(), tr.To.Destination()
	return (source == tr.From.Source() || source == tr.keep.Source()) &&
		(destination == tr.From.Destination() || destination == tr.keep.Destination())
}

// MaxSegment returns the bound for the MSS option of SYNs, the lowest that the rules set, if routes
// have this MTU; 0 is none.
func (tr *Traversal) MaxSegment(mtu int) uint16 {
	bound := tr.mss
	if tr.routeMSS {
		limit := uint16(mtu - 40)
		if tr.From.IPv6 {
			limit = uint16(mtu - 60)
		}
		if bound == 0 || limit < bound {
			bound = limit
		}
	}
	return bound
}
