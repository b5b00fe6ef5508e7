package rules

import (
	"encoding/binary"
	"net/netip"
)

// A bindKind says what a nat stage decided.
type bindKind uint8

const (
	bindNone     bindKind = iota // no rule matched
	bindAddress                  // translate to addr
	bindPrefix                   // translate to addr, 1:1
	bindService                  // translate to a backend of service
	bindDrop                     // drop: the policy of a chain, or masquerade without an address
	bindNoSource                 // drop: the source is unknown to the remote cluster
)

// A binding is the translation that the first packet of a connection gets.
type binding struct {
	kind    bindKind
	addr    netip.Addr
	service *Balancer
	rule    *rule // nil: none
	// masquerade: a Host's client gets an address of the node.
	masquerade bool
}

// bind runs the nat chains of stage s, stageDNAT or stageSNAT. The first matching rule binds; since
// each stage has one kind of manipulation, no later chain can add to it.
func (r *Ruleset) bind(s stage, v *view) binding {
	if s == stageDNAT && r.host != nil {
		return r.host.bind(r, v)
	}
	if s == stageDNAT && v.in.Outside() && v.hasL4 {
		if service, ok := r.services.get(serviceAddress{v.dst, binary.BigEndian.Uint16(v.l4[2:]), v.proto}); ok {
			if v.trace != nil {
				traceService(v, service)
			}
			return binding{kind: bindService, service: service}
		}
	}
	if !r.has(s) {
		return binding{}
	}
	var found lists
	w := r.stages[s].walk(v, &found)
	for rule := w.next(); rule != nil; rule = w.next() {
		if v.trace != nil {
			traceRule(v, rule)
		}
		if !rule.matches(v) {
			continue
		}
		b := binding{rule: rule}
		switch rule.action {
		case ActionDNAT:
			b.kind, b.addr = rule.translate(v.dst)
		case ActionSNAT:
			b.kind, b.addr = rule.translate(v.src)
		case ActionMasquerade:
			b.kind, b.addr = r.masquerade(v)
		case ActionDrop:
			b.kind, b.rule = bindDrop, nil
		case ActionRefuseSource:
			b.kind = bindNoSource
		}
		if b.kind != bindNone {
			return b
		}
	}
	return binding{}
}

// translate returns the translation of a by a snat or dnat rule.
func (r *rule) translate(a netip.Addr) (bindKind, netip.Addr) {
	switch to := r.to; {
	case !to.IsValid() || to.Addr().Is4() != a.Is4():
		return bindNone, netip.Addr{}
	case to.IsSingleIP():
		return bindAddress, to.Addr()
	default:
		return bindPrefix, Combine(to, a)
	}
}

// Combine returns the address with p's network bits and a's host bits. Preconditions: equal
// families.
func Combine(p netip.Prefix, a netip.Addr) netip.Addr {
	order := binary.BigEndian
	if a.Is4() {
		to, host := p.Addr().As4(), a.As4()
		network := ^uint32(0) << (32 - p.Bits())
		order.PutUint32(to[:], order.Uint32(to[:])&network|order.Uint32(host[:])&^network)
		return netip.AddrFrom4(to)
	}
	to, host := p.Addr().As16(), a.As16()
	for i, hostBits := range [...]int{max(64-p.Bits(), 0), min(128-p.Bits(), 64)} { // of each half
		to, host := to[8*i:], host[8*i:]
		network := ^uint64(0) << hostBits
		order.PutUint64(to, order.Uint64(to)&network|order.Uint64(host)&^network)
	}
	return netip.AddrFrom16(to)
}

func (r *Ruleset) masquerade(v *view) (bindKind, netip.Addr) {
	a := r.ownAddress(v)
	if !a.IsValid() {
		return bindDrop, netip.Addr{} // nf_nat_masquerade_ipv4 drops without an address too
	}
	return bindAddress, a
}

// ownAddress returns the gateway's address, of the packet's family, on the link it leaves by; the
// zero Addr if there is none.
func (r *Ruleset) ownAddress(v *view) netip.Addr {
	own := r.gateway
	if v.out.Outside() {
		own = r.Own(v.out)
	}
	return own.Of(v.src.Is6())
}
