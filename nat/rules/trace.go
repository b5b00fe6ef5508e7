package rules

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
)

// A Tracer is told the steps of a packet, in order. All other packets wait meanwhile, so it should
// only record the step and return. It must not call the Engine that decides about the packet.
type Tracer interface {
	Trace(Step)
	LinkName(Link) string
}

// A Step is one thing that was consulted about a packet.
type Step struct {
	Kind   StepKind
	Name   string // of a check, or as Kind says
	Origin Origin // the zero Origin: not part of the desired state
	Passed bool   // the check allows the packet; the connection, rule or route matches it
	Detail string // what happens next, or why it does not match
	// Source and Destination are what a rule, route or service sees of the packet, which
	// translations change on its path. The ports are 0 if it has none.
	Source, Destination netip.AddrPort
}

// A StepKind says what was consulted.
type StepKind uint8

// The kinds of steps.
const (
	StepCheck      StepKind = iota
	StepConnection          // Name is its ID
	StepRule                // table/chain/rule, or table/chain for the policy of a chain
	StepService             // the name of the service to which the packet is addressed
	StepRoute               // table/number of the policy rule that leads on; "" if none does
	// the rule that would accept the packet with the fewest changes; follows the rule that did not
	StepNearest
)

var stepNames = [...]string{"check", "connection", "rule", "service", "route", "nearest"}

// String returns the kind's name.
func (k StepKind) String() string {
	if int(k) < len(stepNames) {
		return stepNames[k]
	}
	return "unknown"
}

// An Origin is the part of the desired state that a rule or route comes from.
type Origin struct {
	Key
	Field string // such as "tables[0].chains[1].rules[2]"; "" for all of a resource that only stands for rules
}

// String returns the key and the field.
func (o Origin) String() string {
	if o.Field == "" {
		return o.Key.String()
	}
	return o.Key.String() + " " + o.Field
}

// step returns a step with what rules see of the packet.
func (v *view) step(kind StepKind, name string, passed bool, detail string) Step {
	var source, destination uint16
	if v.hasL4 && usesPorts(v.proto) {
		source, destination = binary.BigEndian.Uint16(v.l4[:]), binary.BigEndian.Uint16(v.l4[2:])
	}
	return Step{
		Kind: kind, Name: name, Passed: passed, Detail: detail,
		Source: netip.AddrPortFrom(v.src, source), Destination: netip.AddrPortFrom(v.dst, destination),
	}
}

func traceRule(v *view, r *rule) {
	detail := r.actionText()
	if missing := r.missing(v); missing != nil {
		detail = "only for " + strings.Join(missing, ", ")
	}
	s := v.step(StepRule, r.path(), r.matches(v), detail)
	s.Origin = r.origin()
	v.trace.Trace(s)
}

func traceService(v *view, service *Balancer) {
	s := v.step(StepService, service.Service.Name, true, "")
	s.Origin.Key = service.origin.key
	v.trace.Trace(s)
}

func traceRoute(v *view, hop *nextHop, mark uint32, ok bool) {
	s := v.step(StepRoute, "", ok, fmt.Sprintf("nowhere, with mark %d", mark))
	if ok {
		s.Name, s.Detail = hop.rule.path(), fmt.Sprintf("to %s, with mark %d", v.trace.LinkName(hop.link), mark)
		if hop.via.IsValid() {
			s.Detail = fmt.Sprintf("to %s via %s, with mark %d", v.trace.LinkName(hop.link), hop.via, mark)
		}
		s.Origin = Origin{Key: hop.rule.origin.key}
		if hop.rule.table >= 0 {
			s.Origin.Field = fmt.Sprintf("routing[%d].rules[%d]", hop.rule.table, hop.rule.at)
		}
	}
	v.trace.Trace(s)
}

// traceNearest traces the rule that would have accepted the packet, with the fewest changes, before
// rule or policy by dropped or rejected it, if there is one.
func traceNearest(v *view, by *rule) {
	var nearest *rule
	var least []string
	for i := range by.chain.rules[:by.number] {
		r := &by.chain.rules[i]
		if r.action != ActionAccept {
			continue
		}
		if missing := r.missing(v); nearest == nil || len(missing) < len(least) {
			nearest, least = r, missing
		}
	}
	if nearest == nil {
		return
	}
	s := v.step(StepNearest, nearest.path(), false, "only for "+strings.Join(least, ", "))
	s.Origin = nearest.origin()
	v.trace.Trace(s)
}

// origin returns where a rule comes from.
func (r *rule) origin() Origin {
	o := Origin{Key: r.chain.origin.key}
	switch c := r.chain; {
	case c.table < 0:
	case r.policy:
		o.Field = fmt.Sprintf("tables[%d].chains[%d].policy", c.table, c.at)
	default:
		o.Field = fmt.Sprintf("tables[%d].chains[%d].rules[%d]", c.table, c.at, r.number)
	}
	return o
}

// missing returns what rule r requires and v lacks, nil if the rule matches.
func (r *rule) missing(v *view) (all []string) {
	if r.family&familiesOf(v.src) == 0 {
		all = append(all, "the other address family")
	}
	for i := range r.tests {
		if c := &r.tests[i]; !c.holds(v) {
			all = append(all, c.text(v.trace.LinkName))
		}
	}
	return all
}
