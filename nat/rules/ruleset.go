package rules

import (
	"cmp"
	"math"
	"net/netip"

	"culvert/nat/packet"
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
	stageOutput                   // output filters: packets that the gateway itself makes
	stageForward                  // forward filters: destination translated, source not yet
	stagePreSNAT                  // postrouting filters that see the source as it came
	stageSNAT                     // postrouting nat chains: the first packet of a connection
	stagePostrouting              // postrouting filters that see the translated source
	stages
)

// A Ruleset is what a Set has committed: tables, policy tables and services, compiled. It is immutable but for its counters, shares
// with its predecessor what has not changed, and is safe for concurrent use; no evaluation allocates or locks.
type Ruleset struct {
	stages   [stages]stageRules
	links    byLink[linkFacts]
	services cowMap[serviceAddress, *Balancer]
	policy   policy
	notracks int // rules of stageRaw that say notrack
	network
}

// NoTracks reports whether rules keep packets from connections.
func (r *Ruleset) NoTracks() bool { return r.notracks > 0 }

// FiltersOutput reports whether there is a filter that what the gateway itself makes could meet.
func (r *Ruleset) FiltersOutput() bool {
	return r.has(stageOutput) || r.has(stagePreSNAT) || r.has(stagePostrouting)
}

// Generated reports whether the tables follow from the Config, so that what a kernel's rules could not do is allowed too.
func (r *Ruleset) Generated() bool { return r.generated }

// A network is what rules need to know about the gateway itself.
type network struct {
	gateway Pair // its address on inside links
	// generated: the tables come from the other fields of the Config, so that what a kernel's rules could not do is allowed too.
	generated bool
	host      *hostFacts // nil: of a gateway
	first     Link       // the node that hosts outside of the cluster are reached through unless something else is said
}

// A chain is a compiled Chain. Its rules come behind those of all chains that are before it.
type chain struct {
	stage    stage
	priority int32
	origin   *origin
	number   int32  // in the resource
	table    int32  // among Resource.Tables; -1: the resource stands for it
	at       int32  // in its table
	in, name string // of its table, and its own
	rank     uint64 // orders chains by priority and order, as far as these fit: a quick answer in most cases
	rules    []rule
}

// rankOfChain never puts a chain that runs later before an earlier one.
func rankOfChain(priority int32, order int64) uint64 {
	return uint64(uint32(priority)^1<<31)<<32 | uint64(max(0, min(order, math.MaxUint32)))
}

// compare tells which chain of one stage runs first.
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

// A rule is a compiled Rule, or the policy of a chain that drops.
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

// A ruleVerdict is what filter chains decide about a packet.
type ruleVerdict uint8

const (
	ruleAccept ruleVerdict = iota
	ruleDrop
	ruleReject
)

// Effects are what rules do besides deciding, collected over all stages of one direction of a connection.
type Effects struct {
	ConnMark uint32 // the connection's
	NoTrack  bool   // no connection is to be kept
	mark     uint32 // the packet's
	// SYN segments get their MSS lowered to mss, if that is not 0, and to what the route's MTU allows, if routeMSS. Rules do not
	// look at the SYN flag, so that the effects hold for every packet of the direction.
	mss      uint16
	routeMSS bool
	// hits are the counting rules that matched, appended up to the capacity that the caller provides.
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
			if w.list = rule.chain.after(w.list); w.many != nil { // here, as a method of w would move found to the heap
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

// apply performs an action that decides nothing.
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
