package rules

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// reserve makes room for what tables compile to. It lives and dies together, and a few large
// objects cost less than many small ones.
func (b *builder) reserve(tables []Table) {
	chains, rules, tests := 0, 0, 0
	for i := range tables {
		chains += len(tables[i].Chains)
		for j := range tables[i].Chains {
			c := &tables[i].Chains[j]
			if rules += len(c.Rules); c.Policy == PolicyDrop {
				rules++
			}
			for k := range c.Rules {
				tests += comparisons(c.Rules[k].Match)
			}
		}
	}
	b.piece.chains, b.rules, b.tests = make([]chain, 0, chains), make([]rule, 0, rules), make([]comparison, 0, tests)
}

func (b *builder) addTable(t *Table) {
	switch t.Family {
	case FamilyINET, FamilyIPv4, FamilyIPv6:
	case "ARP", "BRIDGE", "NETDEV":
		b.fault("table "+t.Name, "family %s sees frames, and a gateway passes on packets only", t.Family)
		return
	default:
		b.fault("table "+t.Name, "unknown family %q", t.Family)
		return
	}
	names := newNames(len(t.Chains))
	for i := range t.Chains {
		c := &t.Chains[i]
		at := func() string { return "table " + t.Name + " chain " + c.Name }
		if names.again(c.Name) {
			b.fault(at(), "there is another chain of this name")
		}
		s, err := stageOf(c)
		if err != nil {
			b.fault(at(), "%w", err)
			continue
		}
		if b.piece.rules += len(c.Rules) + 1; b.piece.rules > maxRules {
			b.fault(at(), "more than %d rules", maxRules)
			return
		}
		b.addChain(t, c, int32(i), s, at)
	}
}

// stageOf returns the stage at which a chain runs, or why it cannot.
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
			return 0, fmt.Errorf("type nat at hook %s translates the gateway's own traffic, which is never translated",
				c.Hook)
		}
		if c.Hook == HookInput {
			return stageInput, nil
		}
		return stageOutput, nil
	case HookForward:
		if nat {
			return 0, errors.New("type nat has no hook forward")
		}
		return stageForward, nil
	case "ingress":
		return 0, errors.New(
			"hook ingress belongs to a device driver; packets of a gateway's tunnels first meet hook prerouting")
	}
	return 0, fmt.Errorf("unknown hook %q", c.Hook)
}

func (b *builder) addChain(t *Table, c *Chain, place int32, s stage, at func() string) {
	number := len(b.piece.chains)
	b.piece.chains = append(b.piece.chains, chain{
		stage: s, priority: c.Priority, origin: b.piece.origin, number: int32(number), table: b.table, at: place,
		in: t.Name, name: c.Name, rank: rankOfChain(c.Priority, b.piece.origin.order),
	})
	compiled, first := &b.piece.chains[number], len(b.rules)
	var names map[string]*Counter
	if len(c.Rules) > 1 {
		names = make(map[string]*Counter, len(c.Rules))
	}
	for i := range c.Rules {
		r := &c.Rules[i]
		atRule := func() string { return at() + " rule " + cmp.Or(r.Name, strconv.Itoa(i+1)) }
		if r.Name == "" {
			b.fault(atRule(), "a rule needs a name")
		} else if names[r.Name] != nil && b.piece.origin.key.Kind != kindNetwork {
			b.fault(atRule(), "there is another rule of this name")
		}
		b.rules = append(b.rules, rule{
			rank: compiled.rank, chain: compiled, number: int32(i), name: r.Name, family: t.Family.bits(),
			action: r.Action, counted: !r.NoCounter, value: r.Value,
			proxyProtocol: r.ProxyProtocol,
		})
		made, tests, tcp := &b.rules[first+i], len(b.tests), false
		for j := range r.Match {
			var err error
			if b.tests, err = b.match(b.tests, &r.Match[j], t.Family); err != nil {
				b.fault(atRule(), "%w", err)
			}
			tcp = tcp || r.Match[j].Proto == "tcp"
		}
		made.tests = slices.Clip(b.tests[tests:])
		if err := made.complete(t, c, r, tcp); err != nil {
			b.fault(atRule(), "%w", err)
		}
		// Rules that share a name, such as the combinations of a generated one, share a counter.
		if made.counter = names[r.Name]; made.counter == nil && b.old != nil {
			made.counter = b.old[made.path()]
		}
		if made.counter == nil {
			made.counter = new(Counter)
		}
		if names != nil {
			names[r.Name] = made.counter
		}
	}
	switch c.Policy {
	case PolicyAccept, "":
	case PolicyDrop:
		b.rules = append(b.rules, rule{
			rank: compiled.rank, chain: compiled, number: int32(len(c.Rules)), family: t.Family.bits(),
			action: ActionDrop, policy: true,
		})
	default:
		b.fault(at(), "unknown policy %q", c.Policy)
	}
	compiled.rules = slices.Clip(b.rules[first:])
}

// complete fills in what depends on the action, or says why the rule is not possible.
func (r *rule) complete(t *Table, c *Chain, from *Rule, tcp bool) error {
	translation := false
	switch r.action {
	case ActionDNAT, ActionSNAT, ActionMasquerade, ActionRefuseSource:
		translation = true
	case ActionAccept, ActionDrop, ActionReject, ActionCTMark, ActionMetaMarkFromCT, ActionSetMark, ActionClampMSS,
		ActionNoTrack:
	default:
		return fmt.Errorf("unknown action %q", r.action)
	}
	if translation != (c.Type == ChainNAT) {
		return fmt.Errorf("action %s in a chain of type %s", r.action, c.Type)
	}
	for i := range from.Match {
		if from.Match[i].NoReturn && (c.Type != ChainNAT || c.Hook != HookPostrouting) {
			return fmt.Errorf("match of NoReturn in a chain of type %s at hook %s", c.Type, c.Hook)
		}
	}
	if (r.action == ActionDNAT) != (c.Hook == HookPrerouting) && translation {
		return fmt.Errorf("action %s at hook %s", r.action, c.Hook)
	}
	if from.ProxyProtocol && r.action != ActionDNAT && r.action != ActionSNAT {
		return fmt.Errorf("action %s chooses no server, which would get a PROXY protocol header", r.action)
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

// parseTo parses the target of snat or dnat.
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
