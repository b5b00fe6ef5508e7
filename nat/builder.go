package nat

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// maxRules caps a ruleset.
const maxRules = 1 << 20

// A builder collects the chains of tables, and everything that is wrong with them.
type builder struct {
	devices   map[string]Port
	generated bool // the tables are our own: rules that share a name share a counter
	chains    []compiledChain
	rules     int
	faults    []error
}

// A compiledChain is a chain on its way into a ruleset.
type compiledChain struct {
	stage    stage
	priority int32
	rules    []rule
}

func (b *builder) fault(path, format string, args ...any) {
	b.faults = append(b.faults, fmt.Errorf("nat: %s: %w", path, fmt.Errorf(format, args...)))
}

func (b *builder) add(tables []Table) {
	names := map[string]bool{}
	for _, t := range tables {
		path := "table " + t.Name
		if names[t.Name] {
			b.fault(path, "there is another table of this name")
		}
		names[t.Name] = true
		switch t.Family {
		case FamilyINET, FamilyIPv4, FamilyIPv6:
		case "ARP", "BRIDGE", "NETDEV":
			b.fault(path, "family %s sees frames, and a gateway passes on packets only", t.Family)
			continue
		default:
			b.fault(path, "unknown family %q", t.Family)
			continue
		}
		b.addTable(t, path)
	}
}

func (b *builder) addTable(t Table, path string) {
	names := map[string]bool{}
	for _, c := range t.Chains {
		path := path + " chain " + c.Name
		if names[c.Name] {
			b.fault(path, "there is another chain of this name")
		}
		names[c.Name] = true
		s, err := stageOf(&c)
		if err != nil {
			b.fault(path, "%w", err)
			continue
		}
		if b.rules += len(c.Rules) + 1; b.rules > maxRules {
			b.fault(path, "more than %d rules", maxRules)
			return
		}
		b.addChain(&t, &c, s, path)
	}
}

// stageOf returns where a chain runs, or why it cannot.
func stageOf(c *Chain) (stage, error) {
	switch c.Type {
	case ChainFilter, ChainNAT:
	case "route":
		return 0, errors.New("type route re-routes packets that the host itself sends, and a gateway forwards")
	default:
		return 0, fmt.Errorf("unknown type %q", c.Type)
	}
	nat := c.Type == ChainNAT
	if nat && c.Priority <= PriorityConntrack {
		return 0, fmt.Errorf("type nat at priority %d, where no connection is known yet", c.Priority)
	}
	switch c.Hook {
	case HookPrerouting:
		switch {
		case nat:
			return stageDNAT, nil
		case c.Priority < PriorityConntrack:
			return stageRaw, nil
		case c.Priority < PriorityDNAT:
			return stagePreDNAT, nil
		}
		return stagePrerouting, nil
	case HookPostrouting:
		switch {
		case nat:
			return stageSNAT, nil
		case c.Priority < PrioritySNAT:
			return stagePreSNAT, nil
		}
		return stagePostrouting, nil
	case HookInput, HookOutput:
		if nat {
			return 0, fmt.Errorf("type nat at hook %s translates the gateway's own traffic, which is never translated", c.Hook)
		}
		if c.Hook == HookInput {
			return stageInput, nil
		}
		return stages, nil
	case HookForward:
		if nat {
			return 0, errors.New("type nat has no hook forward")
		}
		return stageForward, nil
	case "ingress":
		return 0, errors.New("hook ingress belongs to a device driver; packets of a gateway's tunnels first meet hook prerouting")
	}
	return 0, fmt.Errorf("unknown hook %q", c.Hook)
}

func (b *builder) addChain(t *Table, c *Chain, s stage, path string) {
	chain := compiledChain{stage: s, priority: c.Priority, rules: make([]rule, 0, len(c.Rules)+1)}
	names := make(map[string]bool, len(c.Rules))
	for i := range c.Rules {
		r := &c.Rules[i]
		at := path + " rule " + r.Name
		if r.Name == "" {
			at = fmt.Sprintf("%s rule %d", path, i+1)
			b.fault(at, "a rule needs a name")
		} else if names[r.Name] && !b.generated {
			b.fault(at, "there is another rule of this name")
		}
		names[r.Name] = true
		compiled := rule{
			path:    t.Name + "/" + c.Name + "/" + r.Name,
			family:  t.Family,
			action:  r.Action,
			counted: !r.NoCounter,
			value:   r.Value,
		}
		tcp := false
		for _, m := range r.Match {
			tests, err := compileMatch(m, t.Family, b.devices)
			if err != nil {
				b.fault(at, "%w", err)
			}
			compiled.tests = append(compiled.tests, tests...)
			tcp = tcp || m.Proto == "tcp"
		}
		if err := compiled.complete(t, c, r, tcp); err != nil {
			b.fault(at, "%w", err)
		}
		chain.rules = append(chain.rules, compiled)
	}
	switch c.Policy {
	case PolicyAccept, "":
	case PolicyDrop:
		if s == stages {
			b.fault(path, "policy drop at hook output, where nothing passes")
		}
		chain.rules = append(chain.rules, rule{
			path: t.Name + "/" + c.Name, family: t.Family, action: ActionDrop, policy: true,
		})
	default:
		b.fault(path, "unknown policy %q", c.Policy)
	}
	b.chains = append(b.chains, chain)
}

// complete fills in what depends on the action, or says why the rule cannot be.
func (r *rule) complete(t *Table, c *Chain, from *Rule, tcp bool) error {
	translation := false
	switch r.action {
	case ActionDNAT, ActionSNAT, ActionMasquerade, actionRefuseSource:
		translation = true
	case ActionAccept, ActionDrop, ActionReject, ActionCTMark, ActionMetaMarkFromCT, ActionSetMark, ActionClampMSS, ActionNoTrack:
	default:
		return fmt.Errorf("unknown action %q", r.action)
	}
	if translation != (c.Type == ChainNAT) {
		return fmt.Errorf("action %s in a chain of type %s", r.action, c.Type)
	}
	if c.Hook == HookOutput && r.action != ActionNoTrack {
		return fmt.Errorf("action %s at hook output, where nothing passes", r.action)
	}
	if (r.action == ActionDNAT) != (c.Hook == HookPrerouting) && translation {
		return fmt.Errorf("action %s at hook %s", r.action, c.Hook)
	}
	switch r.action {
	case ActionDNAT, ActionSNAT:
		return r.parseTo(t.Family, from.To)
	case ActionReject:
		if c.Hook == HookPostrouting {
			return errors.New("action reject at hook postrouting")
		}
	case ActionClampMSS:
		if !tcp {
			return errors.New("action tcpmssclamp needs a match of proto tcp")
		}
		if r.value > 0xffff {
			return fmt.Errorf("value %d is no MSS", r.value)
		}
		if r.value == 0 && (c.Hook == HookPrerouting || c.Hook == HookInput) {
			return fmt.Errorf("action tcpmssclamp without a value at hook %s, where no route is known", c.Hook)
		}
	}
	if from.To != "" {
		return fmt.Errorf("action %s takes no address", r.action)
	}
	return nil
}

// parseTo reads where snat or dnat leads.
func (r *rule) parseTo(f Family, to string) error {
	if strings.Contains(to, "-") {
		if _, _, err := parseRange(to); err != nil {
			return fmt.Errorf("to %w", err)
		}
		return nil // Liqo emits no expression for a range: the rule does nothing
	}
	p, err := parsePrefix(to)
	if err != nil {
		return fmt.Errorf("to %q is no address, CIDR or range", to)
	}
	if a := p.Addr(); a.Is4In6() || a.Zone() != "" || !f.sees(a) {
		return fmt.Errorf("to %q is no address of family %s", to, f)
	}
	r.to = p.Masked()
	return nil
}

// finish lays the chains out in r.
func (b *builder) finish(r *ruleset, previous *ruleset) {
	slices.SortStableFunc(b.chains, func(x, y compiledChain) int {
		return cmp.Or(cmp.Compare(x.stage, y.stage), cmp.Compare(x.priority, y.priority))
	})
	r.rules = make([]rule, 0, b.rules)
	r.counters = make(map[string]*counter, b.rules)
	for s := range stages {
		first := int32(len(r.rules))
		for _, c := range b.chains {
			if c.stage == s {
				b.layOut(r, previous, c.rules)
			}
		}
		r.sections[s] = section{first: first, end: int32(len(r.rules))}
		if r.sections[s].end-first > linear {
			r.sections[s].index = newRuleIndex(r.rules, first, r.sections[s].end)
		}
	}
	for _, c := range b.chains {
		if c.stage == stages { // hook output: shown, never met
			b.layOut(r, previous, c.rules)
		}
	}
}

func (b *builder) layOut(r *ruleset, previous *ruleset, rules []rule) {
	end := int32(len(r.rules) + len(rules))
	for _, rule := range rules {
		rule.chainEnd = end
		r.notracks = r.notracks || rule.action == ActionNoTrack
		if !rule.policy {
			rule.counter = r.counters[rule.path]
			if rule.counter == nil && previous != nil {
				rule.counter = previous.counters[rule.path]
			}
			if rule.counter == nil {
				rule.counter = new(counter)
			}
			r.counters[rule.path] = rule.counter
		}
		r.rules = append(r.rules, rule)
	}
}
