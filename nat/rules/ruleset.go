package rules

import (
	"cmp"
	"math"
	"net/netip"

	"culvert/nat/packet"
)

// A stage is a point on a packet's path at which a group of chains runs: a hook, split where a
// translation changes what filters see.
type stage uint8

// The stages, in the order in which a packet meets them.
const (
	stageRaw         stage = iota // prerouting filters before connection tracking; notrack works only here
	stagePreDNAT                  // prerouting filters that see the original destination
	stageDNAT                     // prerouting nat chains: the first packet of a connection
	stagePrerouting               // prerouting filters that see the translated destination; their mark affects routing
	stageInput                    // input filters: packets for the gateway's own addresses
	stageOutput                   // output filters: packets that the gateway itself makes
	stageForward                  // forward filters: destination translated, source not yet
	stagePreSNAT                  // postrouting filters that see the original source
	stageSNAT                     // postrouting nat chains: the first packet of a connection
	stagePostrouting              // postrouting filters that see the translated source
	stages
)

// A Ruleset is what a Set has committed: compiled tables, policy tables and services. It is
// immutable except for its counters, shares unchanged parts with its predecessor, and is safe for
// concurrent use; evaluation neither allocates nor locks.
type Ruleset struct {
	stages   [stages]stageRules
	links    byLink[linkFacts]
	services cowMap[serviceAddress, *Balancer]
	policy   policy
	notracks int // rules of stageRaw with notrack
	network
}

// NoTracks reports whether some rule exempts packets from connection tracking.
func (r *Ruleset) NoTracks() bool { return r.notracks > 0 }

// FiltersOutput reports whether a filter applies to packets made by the gateway itself.
func (r *Ruleset) FiltersOutput() bool {
	return r.has(stageOutput) || r.has(stagePreSNAT) || r.has(stagePostrouting)
}

// Generated reports whether the tables were generated from the Config, so that they may do what a
// kernel's rules could not.
func (r *Ruleset) Generated() bool { return r.generated }

// A network is what rules need to know about the gateway.
type network struct {
	gateway Pair // its address on inside links
	// generated: the tables were generated from the other fields of the Config, so that they may do
	// what a kernel's rules could not.
	generated bool
	host      *hostFacts // nil for a gateway
	first     Link       // the node by which hosts outside the cluster are reached by default
	admission *admission // what others may open connections to; nil: everything
}

// A chain is a compiled Chain. Its rules follow those of all earlier chains.
type chain struct {
	stage    stage
	priority int32
	origin   *origin
	number   int32  // in the resource
	table    int32  // index in Resource.Tables; -1: the resource stands for it
	at       int32  // index in the table
	in, name string // the table's name and its own
	rank     uint64 // orders chains by priority and order as far as these fit: a shortcut for compare
	rules    []rule
}

// rankOfChain never gives a later chain a lower rank than an earlier one.
func rankOfChain(priority int32, order int64) uint64 {
	return uint64(uint32(priority)^1<<31)<<32 | uint64(max(0, min(order, math.MaxUint32)))
}

// compare orders the chains of one stage.
func (c *chain) compare(o *chain) int {
	switch {
	case c == o:
		return 0
	case c.rank != o.rank:
		return cmp.Compare(c.rank, o.rank)
	case c.priority != o.priority:
		return cmp.Compare(c.priority, o.priority)
	case c.origin != o.origin:
		return c.origin.compare(o.origin)
	}
	return cmp.Compare(c.number, o.number)
}

// A rule is a compiled Rule, or a chain's drop policy.
type rule struct {
	rank    uint64 // of the chain
	chain   *chain
	tests   []comparison
	number  int32 // in the chain
	family  families
	policy  bool
	counted bool
	// proxyProtocol is that of the Rule.
	proxyProtocol bool
	action        Action
	value         uint32
	name          string
	to            netip.Prefix
	counter       *Counter // nil: a policy
}

// path names the rule: table/chain/rule.
func (r *rule) path() string {
	if r.policy {
		return r.chain.in + "/" + r.chain.name
	}
	return r.chain.in + "/" + r.chain.name + "/" + r.name
}

func (r *rule) before(o *rule) bool {
	if r.rank != o.rank {
		return r.rank < o.rank
	}
	return compareRules(r, o) < 0
}

func compareRules(r, o *rule) int {
	if r.chain == o.chain {
		return cmp.Compare(r.number, o.number)
	}
	return r.chain.compare(o.chain)
}

// synOnly reports whether the rule counts SYN segments only.
func (r *rule) synOnly() bool { return r.action == ActionClampMSS }

func (r *rule) matches(v *view) bool {
	if r.family&familiesOf(v.src) == 0 {
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
func (r *Ruleset) has(s stage) bool { return r.stages[s].n > 0 }

// A ruleVerdict is the decision of filter chains about a packet.
type ruleVerdict uint8

const (
	ruleAccept ruleVerdict = iota
	ruleDrop
	ruleReject
)

// Effects are what rules do besides deciding, collected over all stages for one direction of a
// connection.
type Effects struct {
	ConnMark uint32 // the connection's
	NoTrack  bool   // create no connection
	mark     uint32 // the packet's
	// SYN segments get their MSS lowered to mss, unless it is 0, and to what the route's MTU
	// allows, if routeMSS. Rules do not match the SYN flag, so the effects hold for every packet of
	// the direction.
	mss      uint16
	routeMSS bool
	// hits are the counting rules that matched, up to the capacity provided by the caller.
	hits     []*rule
	overflow bool  // there were more
	by       *rule // the rule or policy that dropped or rejected
}

// filter runs the filter chains of stage s.
func (r *Ruleset) filter(s stage, v *view, e *Effects) ruleVerdict {
	if !r.has(s) {
		return ruleAccept
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
		if rule.counted {
			e.hit(rule)
		}
		switch rule.action {
		case ActionAccept:
			// inline: as a method of w it would move found to the heap
			if w.list = rule.chain.after(w.list); w.many != nil {
				w.many.leave(rule.chain)
			}
		case ActionDrop:
			e.by = rule
			return ruleDrop
		case ActionReject:
			e.by = rule
			return ruleReject
		default:
			e.apply(rule, s, v)
		}
	}
	return ruleAccept
}

func (e *Effects) hit(r *rule) {
	if len(e.hits) == cap(e.hits) {
		e.overflow = true
		return
	}
	e.hits = append(e.hits, r)
}

// apply performs an action that is not a verdict.
func (e *Effects) apply(r *rule, s stage, v *view) {
	connection := s != stageRaw && !v.untracked && !e.NoTrack
	switch r.action {
	case ActionCTMark:
		if connection {
			e.ConnMark = r.value
		}
	case ActionMetaMarkFromCT:
		if connection {
			e.mark = e.ConnMark
		}
	case ActionSetMark:
		e.mark = r.value
	case ActionClampMSS:
		switch {
		case v.proto != packet.TCP:
		case r.value == 0:
			e.routeMSS = true
		case e.mss == 0 || r.value < uint32(e.mss):
			e.mss = uint16(r.value)
		}
	case ActionNoTrack:
		e.NoTrack = e.NoTrack || s == stageRaw
	}
}
