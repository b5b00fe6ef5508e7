package rules

import (
	"encoding/binary"
	"net/netip"

	"culvert/nat/packet"
)

// maxHits is how many of the counting rules that a direction's packets hit are counted.
const maxHits = 8

// A Traversal takes a packet through the hooks, in the order of the kernel's: prerouting, routing, forward, postrouting. For the first
// packet of a connection the nat chains choose the translation; later ones bring theirs along.
type Traversal struct {
	From    packet.Tuple // as the packet came
	To      packet.Tuple // as it goes
	In      Link
	Out     Link
	Outcome Outcome
	// Service is what the first packet of a connection is addressed to, and Backend the place of the backend that SendTo was told. Client
	// is what the choice of one depends on.
	Service  *Balancer
	Client   Client
	Backend  int32
	Stateful bool // the translation needs a connection
	// Masqueraded: a Host has given the client an address of its own.
	Masqueraded bool
	Effects

	first      bool // the nat chains run, and To is a result
	dnat, snat binding
	room       [maxHits]*rule // of Effects.hits
	view       view
	head       [4]byte // the first bytes of the transport header, at which rules with ports look whatever the protocol
	hasHead    bool

	// For the first tuple of a connection that exists, keep is where its packets go: a service's backend is not chosen anew.
	keep    packet.Tuple
	keeping bool

	trace Tracer
}

// An Outcome is what rules and routes make of a packet.
type Outcome uint8

// The outcomes.
const (
	Passed         Outcome = iota
	Filtered               // a rule or the policy of a chain drops it, or there is nothing to masquerade as
	Rejected               // a rule drops it and tells the sender
	NoRoute                // no route leads on
	NoBackend              // the service that it is addressed to has none
	UnknownSource          // the remote cluster could not answer, and there is no other source for it
	NoLocalBackend         // the service that it is addressed to has none on this node
	Unserved               // it is for an address of services or of the node itself, and no service has it
)

// Start makes tr that of the first packet of a connection with tuple from. Without a packet, rules see no transport header but the
// tuple's.
func (tr *Traversal) Start(from *packet.Tuple, p *packet.Packet, in Link, trace Tracer) {
	*tr = Traversal{From: *from, In: in, first: true, trace: trace}
	tr.hits = tr.room[:0]
	if p != nil {
		tr.head, tr.hasHead = p.TransportHead()
	}
}

// Follow makes tr, which was started, that of a later packet of a connection with a mark: its translation is known.
func (tr *Traversal) Follow(to packet.Tuple, mark uint32) {
	tr.first, tr.To, tr.ConnMark = false, to, mark
}

// Keep makes tr, which was started, that of the first packet of a connection that exists and has a mark. A service keeps to, which is where
// the connection's packets go.
func (tr *Traversal) Keep(to packet.Tuple, mark uint32) {
	tr.keep, tr.keeping, tr.ConnMark = to, true, mark
}

// Raw runs the filters before connection tracking. It returns false if they drop the packet.
func (tr *Traversal) Raw(r *Ruleset) bool {
	if !r.has(stageRaw) {
		return true
	}
	tr.look()
	return tr.filter(r, stageRaw)
}

// Input runs the filters for packets to the gateway itself. It returns false if they drop the packet.
func (tr *Traversal) Input(r *Ruleset) bool {
	tr.look()
	tr.view.untracked = true
	return tr.filter(r, stagePreDNAT) && tr.filter(r, stagePrerouting) && tr.filter(r, stageInput)
}

// Output runs the filters for packets that the gateway itself makes and that leave by out. It returns false if they drop the packet.
func (tr *Traversal) Output(r *Ruleset, out Link) bool {
	tr.look()
	tr.view.in, tr.view.out, tr.view.untracked = noLink, out, true
	return tr.filter(r, stageOutput) && tr.filter(r, stagePreSNAT) && tr.filter(r, stagePostrouting)
}

// Enter takes the packet up to where a service has a backend chosen. It returns false if the packet is to be dropped, for Outcome. Raw has
// run before for the first packet of a connection.
func (tr *Traversal) Enter(r *Ruleset) bool {
	tr.look()
	if !tr.first {
		if !tr.filter(r, stageRaw) {
			return false
		}
		tr.NoTrack = false // who looked up the connection has seen to it
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

// Chooses reports whether SendTo must be told a backend of Service.
func (tr *Traversal) Chooses() bool { return tr.Service != nil && !tr.keeping }

// SendTo gives the packet to a backend of Service.
func (tr *Traversal) SendTo(backend int32) {
	tr.Backend = backend
	b := &tr.Service.Service.Backends[backend]
	tr.To.SetDestination(b.Address)
	tr.To.SetDestinationPort(b.Port)
}

// Leave takes the packet on to where it leaves. It returns false if the packet is to be dropped, for Outcome.
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

// look fills view with what rules see of the packet as it came.
func (tr *Traversal) look() {
	t := &tr.From
	tr.view = view{src: t.Source(), dst: t.Destination(), proto: t.Protocol, in: tr.In, out: noLink, untracked: tr.NoTrack, trace: tr.trace}
	if v := &tr.view; usesPorts(t.Protocol) {
		v.hasL4 = true
		binary.BigEndian.PutUint32(v.l4[:], t.Ports)
	} else {
		v.l4, v.hasL4 = tr.head, tr.hasHead
	}
}

// usesPorts reports whether a tuple of the protocol holds ports.
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
		}
	}
	return true
}

// bindSource runs the postrouting nat chains. What goes back to a node after a translation of its destination gets the gateway's own
// source, so that the answer comes back too (hairpinning: RFC 4787, Section 6, REQ-9). Given tables decide alone, as a kernel's do.
func (tr *Traversal) bindSource(r *Ruleset) bool {
	v := &tr.view
	v.rules = r
	tr.snat = r.bind(stageSNAT, v)
	switch tr.snat.kind {
	case bindNone:
		if r.host != nil {
			return tr.masquerade(r.host)
		}
		hairpin := r.generated && (tr.dnat.kind == bindAddress || tr.dnat.kind == bindService)
		if own := r.ownAddress(v); hairpin && !tr.In.Outside() && !tr.Out.Outside() && own.IsValid() {
			tr.Stateful = true
			tr.To.SetSource(own)
		}
	case bindAddress:
		tr.Stateful = tr.Stateful || tr.snat.addr != v.src // a rule that binds a source to itself needs no state
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

// masquerade gives the client of a Host's service an address of the node, if it needs one.
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

// ProxyProtocol reports whether the server of a new TCP connection gets a PROXY protocol header in front of what its client sends.
func (tr *Traversal) ProxyProtocol() bool {
	b := &tr.dnat
	return b.kind == bindService && b.service.Service.ProxyProtocol || b.rule != nil && b.rule.proxyProtocol
}

// ShiftsStream reports whether one of the ends of a TCP connection is a server of which ProxyProtocol is true.
func (tr *Traversal) ShiftsStream() bool {
	return tr.ProxyProtocol() || tr.snat.rule != nil && tr.snat.rule.proxyProtocol
}

// ClientSource returns the address by which the server's cluster knows the client: as it came, or where its whole CIDR is remapped, as it
// goes.
func (tr *Traversal) ClientSource() netip.Addr {
	if tr.snat.kind == bindPrefix {
		return tr.To.Source()
	}
	return tr.From.Source()
}

// Bound reports whether a rule or a service has decided about the destination.
func (tr *Traversal) Bound() bool { return tr.dnat.kind != bindNone }

// SharesSource reports whether others may have got the packet's source as well: a rule binds to a single address, or the source is the
// gateway's own.
func (tr *Traversal) SharesSource() bool {
	return tr.Masqueraded || tr.snat.kind == bindAddress || tr.snat.kind == bindNone && tr.To.Source() != tr.From.Source()
}

// KeepsAddresses reports whether a traversal that ended early was on the way to where Keep says: each address is that before or after
// translation.
func (tr *Traversal) KeepsAddresses() bool {
	if tr.dnat.kind == bindNone && tr.snat.kind == bindNone {
		return true
	}
	source, destination := tr.To.Source(), tr.To.Destination()
	return (source == tr.From.Source() || source == tr.keep.Source()) &&
		(destination == tr.From.Destination() || destination == tr.keep.Destination())
}

// MaxSegment returns the bound for the MSS option of SYNs, the least that the rules give, where routes have an MTU; 0 is none.
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
