package nat

import (
	"errors"
	"net/netip"
	"sync/atomic"
)

// A stage is where on a packet's way a group of chains runs: a hook, divided where a translation changes what filters see.
type stage uint8

// The stages, in the order in which a packet meets them.
const (
	stageRaw         stage = iota // prerouting filters before the connection is known; notrack counts here only
	stagePreDNAT                  // prerouting filters that see the destination as it came
	stageDNAT                     // prerouting nat chains: the first packet of a connection
	stagePrerouting               // prerouting filters that see the translated destination; their mark decides routing
	stageInput                    // input filters: packets for the gateway's own addresses
	stageForward                  // forward filters: destination translated, source not yet
	stagePreSNAT                  // postrouting filters that see the source as it came
	stageSNAT                     // postrouting nat chains: the first packet of a connection
	stagePostrouting              // postrouting filters that see the translated source
	stages
)

// A ruleset is a compiled set of tables, policy tables and services. It is immutable but for its counters, and safe for
// concurrent use; no evaluation allocates or locks.
type ruleset struct {
	rules    []rule // by stage, then in the order of evaluation
	sections [stages]section
	counters map[string]*counter // by path of the rule
	services serviceSet
	policy   policy
	own      [2]masquerade
	// generated: the tables come from the other fields of the Config, so that what a kernel's rules could not do is allowed too.
	generated bool
	notracks  bool // a rule of stageRaw says notrack
}

// A masquerade holds the gateway's address by family on the way to one side: [0] the tunnel, [1] the nodes.
type masquerade struct{ v4, v6 netip.Addr }

// A section is the part of a ruleset's rules that belongs to one stage.
type section struct {
	first, end int32
	index      *ruleIndex // nil: few enough to look at each
}

// A rule is a compiled Rule, or the policy of a chain that drops.
type rule struct {
	path     string // table/chain/rule
	tests    []comparison
	family   Family
	action   RuleAction
	policy   bool
	counted  bool
	value    uint32
	to       netip.Prefix
	chainEnd int32 // the number of the first rule after the chain
	counter  *counter
}

// A counter counts the packets that a rule matched. It fills a cache line, because neighbours count different directions of
// traffic on different CPUs.
type counter struct {
	packets, bytes atomic.Uint64
	_              [48]byte
}

func (r *rule) matches(v *view) bool {
	if !r.family.sees(v.src) {
		return false
	}
	for i := range r.tests {
		if !r.tests[i].holds(v) {
			return false
		}
	}
	return true
}

// has reports whether any chain runs at s.
func (r *ruleset) has(s stage) bool { return r.sections[s].end > r.sections[s].first }

// A ruleVerdict is what filter chains decide about a packet.
type ruleVerdict uint8

const (
	ruleAccept ruleVerdict = iota
	ruleDrop
	ruleReject
)

// effects are what rules do besides deciding, collected over all stages of one direction of a connection.
type effects struct {
	mark        uint32 // the packet's
	connMark    uint32 // the connection's
	connMarkSet bool   // a rule has set connMark
	notrack     bool
	// SYN segments get their MSS lowered to mss, if that is not 0, and to what the route's MTU allows, if routeMSS. Rules do not
	// look at the SYN flag, so that the effects hold for every packet of the direction.
	mss      uint16
	routeMSS bool
	// hits are the counting rules that matched, appended up to the capacity that the caller provides.
	hits     []int32
	overflow bool  // there were more
	by       int32 // the rule that dropped or rejected; -1: the policy of a chain
}

// filter runs the filter chains of stage s.
func (r *ruleset) filter(s stage, v *view, e *effects) ruleVerdict {
	sec := &r.sections[s]
	if sec.first == sec.end {
		return ruleAccept
	}
	var w walk
	w.start(sec, v)
	for n := w.next(sec.first); n >= 0; {
		rule := &r.rules[n]
		next := n + 1
		if rule.matches(v) {
			if rule.counted {
				e.hit(n)
			}
			switch rule.action {
			case ActionAccept:
				next = rule.chainEnd
			case ActionDrop, ActionReject:
				e.by = n
				if rule.policy {
					e.by = -1
				}
				if rule.action == ActionReject {
					return ruleReject
				}
				return ruleDrop
			default:
				e.apply(rule, s, v)
			}
		}
		n = w.next(next)
	}
	return ruleAccept
}

func (e *effects) hit(n int32) {
	if len(e.hits) == cap(e.hits) {
		e.overflow = true
		return
	}
	e.hits = append(e.hits, n)
}

// apply performs an action that decides nothing.
func (e *effects) apply(r *rule, s stage, v *view) {
	connection := s != stageRaw && !v.untracked && !e.notrack
	switch r.action {
	case ActionCTMark:
		if connection {
			e.connMark, e.connMarkSet = r.value, true
		}
	case ActionMetaMarkFromCT:
		if connection {
			e.mark = e.connMark
		}
	case ActionSetMark:
		e.mark = r.value
	case ActionClampMSS:
		switch {
		case v.proto != protocolTCP:
		case r.value == 0:
			e.routeMSS = true
		case e.mss == 0 || r.value < uint32(e.mss):
			e.mss = uint16(r.value)
		}
	case ActionNoTrack:
		e.notrack = e.notrack || s == stageRaw
	}
}

// count adds packets and their bytes to the rules that effects.hits named.
func (r *ruleset) count(hits []int32, syn bool, packets, bytes uint64) {
	for _, n := range hits {
		if rule := &r.rules[n]; syn || rule.action != ActionClampMSS {
			rule.counter.packets.Add(packets)
			rule.counter.bytes.Add(bytes)
		}
	}
}

// ruleName returns table/chain/rule of a rule number.
func (r *ruleset) ruleName(n int32) string { return r.rules[n].path }

// A bindKind says what a nat stage decided.
type bindKind uint8

const (
	bindNone     bindKind = iota // no rule matched
	bindAddress                  // translate to addr
	bindPrefix                   // translate to addr, 1:1
	bindService                  // translate to a backend of services[service]
	bindDrop                     // drop: the policy of a chain, or masquerade without an address
	bindNoSource                 // drop: the source is unknown to the remote cluster
)

// A binding is the translation that the first packet of a connection gets.
type binding struct {
	kind    bindKind
	addr    netip.Addr
	service int32
	rule    int32 // -1: none
}

// nat runs the nat chains of stage s, stageDNAT or stageSNAT. The first rule that matches binds; as each stage has one kind of
// manipulation, no later chain can add to it.
func (r *ruleset) nat(s stage, v *view) binding {
	if s == stageDNAT && v.in == Tunnel && v.hasL4 {
		if n, ok := r.services.find(v); ok {
			return binding{kind: bindService, service: n, rule: -1}
		}
	}
	sec := &r.sections[s]
	var w walk
	w.start(sec, v)
	for n := w.next(sec.first); n >= 0; n = w.next(n + 1) {
		rule := &r.rules[n]
		if !rule.matches(v) {
			continue
		}
		b := binding{rule: n}
		switch rule.action {
		case ActionDNAT:
			b.kind, b.addr = rule.translate(v.dst)
		case ActionSNAT:
			b.kind, b.addr = rule.translate(v.src)
		case ActionMasquerade:
			b.kind, b.addr = r.masquerade(v)
		case ActionDrop:
			b.kind, b.rule = bindDrop, -1
		case actionRefuseSource:
			b.kind = bindNoSource
		}
		if b.kind != bindNone {
			return b
		}
	}
	return binding{rule: -1}
}

// translate returns what becomes of a under a snat or dnat rule.
func (r *rule) translate(a netip.Addr) (bindKind, netip.Addr) {
	switch to := r.to; {
	case !to.IsValid() || to.Addr().Is4() != a.Is4():
		return bindNone, netip.Addr{}
	case to.IsSingleIP():
		return bindAddress, to.Addr()
	default:
		return bindPrefix, combine(to, a)
	}
}

// combine returns the address with p's network bits and a's host bits. Preconditions: equal families.
func combine(p netip.Prefix, a netip.Addr) netip.Addr {
	to, host := p.Addr().As16(), a.As16()
	at := p.Bits()
	if a.Is4() {
		at += 96
	}
	for i := range to {
		switch n := at - 8*i; {
		case n <= 0:
			to[i] = host[i]
		case n < 8:
			mask := byte(0xff) << (8 - n)
			to[i] = to[i]&mask | host[i]&^mask
		}
	}
	if a.Is4() {
		return netip.AddrFrom16(to).Unmap()
	}
	return netip.AddrFrom16(to)
}

func (r *ruleset) masquerade(v *view) (bindKind, netip.Addr) {
	side := &r.own[0]
	if v.out != Tunnel {
		side = &r.own[1]
	}
	a := side.v6
	if v.src.Is4() {
		a = side.v4
	}
	if !a.IsValid() {
		return bindDrop, netip.Addr{} // nf_nat_masquerade_ipv4 drops without an address too
	}
	return bindAddress, a
}

// newRuleset compiles the tables, routing and services of c, or returns everything that is wrong with them. Rules that previous,
// which may be nil, has under the same table, chain and name keep their counters.
func newRuleset(c *Config, previous *ruleset) (*ruleset, error) {
	generated := c.Firewall == nil
	devices, err := c.devices()
	b := builder{devices: devices, generated: generated, faults: []error{err}}
	b.add(c.Tables())
	r := &ruleset{own: c.masquerades(), generated: generated}
	b.finish(r, previous)
	r.policy, err = newPolicy(c.PolicyTables(), devices, c.neighbours())
	b.faults = append(b.faults, err)
	r.services = newServices(c.Services)
	if err := errors.Join(b.faults...); err != nil {
		return nil, err
	}
	return r, nil
}
