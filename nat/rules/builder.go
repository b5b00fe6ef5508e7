package rules

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// maxRules caps a Ruleset.
const maxRules = 1 << 20

// A piece is what one resource compiles to.
type piece struct {
	resource Resource
	origin   *origin
	chains   []*chain
	routing  []*policyRoutes
	service  *Balancer
	facts    *linkFacts
	rules    int
	mentions []mention
}

// A mention is a device, by name, or a neighbour, by address, that a piece names, and the link that it has led to.
type mention struct {
	what any
	link Link
}

// A builder compiles one resource, and collects everything that is wrong with it.
type builder struct {
	draft  *Draft
	piece  *piece
	table  int32               // that is being compiled, by its place among those of resource; -1: resource stands for it
	old    map[string]*Counter // by path, of the piece that this one replaces
	faults []error
}

func (b *builder) fault(path, format string, args ...any) {
	b.faults = append(b.faults, fmt.Errorf("rules: %s: "+format, append([]any{path}, args...)...))
}

// compile returns the piece of a resource. Rules that old, which may be nil, has under the same table, chain and name keep their counters.
func (d *Draft) compile(key Key, r Resource, old *piece) (*piece, error) {
	b := builder{draft: d, piece: &piece{resource: r, origin: &origin{key, r.Order}}}
	if old != nil {
		b.old = make(map[string]*Counter, old.rules)
		for _, c := range old.chains {
			for i := range c.rules {
				if r := &c.rules[i]; r.counter != nil {
					b.old[r.path()] = r.counter
				}
			}
		}
	}
	addTables(&b, "table", r.tables(&d.room), len(r.Tables), func(t *Table) string { return t.Name }, b.addTable)
	addTables(&b, "routing table", r.routing(), len(r.Routing), func(t *PolicyTable) string { return t.Name }, b.addRouting)
	if r.Device != nil {
		b.piece.facts = newFacts(r.Device)
	}
	if r.Service != nil {
		b.piece.service = NewBalancer(*r.Service)
		b.piece.service.origin = b.piece.origin
	}
	if err := errors.Join(b.faults...); err != nil {
		return nil, err
	}
	return b.piece, nil
}

// addTables adds tables, which have different names. The resource was given the first ones, and stands for the others.
func addTables[T any](b *builder, what string, tables []T, given int, name func(*T) string, add func(*T)) {
	names := newNames(len(tables))
	for i := range tables {
		t := &tables[i]
		if n := name(t); names.again(n) {
			b.fault(what+" "+n, "there is another table of this name")
		}
		if b.table = int32(i); i >= given {
			b.table = -1
		}
		add(t)
	}
}

// names are those of one kind that have come by, nil where there is one at most.
type names map[string]struct{}

func newNames(n int) names {
	if n < 2 {
		return nil
	}
	return make(names, n)
}

// again reports whether a name has come by before.
func (s names) again(name string) bool {
	_, again := s[name]
	if s != nil {
		s[name] = struct{}{}
	}
	return again
}

// device returns the link of a device by name, unknownLink while there is none.
func (b *builder) device(name string) Link {
	if d := b.piece.resource.Device; d == nil || d.Name != name {
		switch name {
		case tunnelDevice:
			return Tunnel
		case firstNodeDevice:
			return firstNode
		}
	}
	return b.link(name)
}

// link returns the link of a device by name or of a neighbour by address, unknownLink while there is none.
func (b *builder) link(what any) Link {
	if d := b.piece.resource.Device; d != nil && (what == any(d.Name) || what == any(d.Address.V4) || what == any(d.Address.V6)) {
		return d.Link
	}
	p := b.draft.link(what)
	b.piece.mentions = append(b.piece.mentions, mention{what, p})
	return p
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
		return stageOutput, nil
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

func (b *builder) addChain(t *Table, c *Chain, place int32, s stage, at func() string) {
	compiled := &chain{
		stage: s, priority: c.Priority, origin: b.piece.origin, number: int32(len(b.piece.chains)), table: b.table, at: place,
		in: t.Name, name: c.Name, rank: rankOfChain(c.Priority, b.piece.origin.order),
	}
	n := len(c.Rules)
	if c.Policy == PolicyDrop {
		n++
	}
	compiled.rules = make([]rule, 0, n)
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
		compiled.rules = append(compiled.rules, rule{
			rank: compiled.rank, chain: compiled, number: int32(i), name: r.Name, family: t.Family.bits(), action: r.Action, counted: !r.NoCounter, value: r.Value,
			proxyProtocol: r.ProxyProtocol,
		})
		made := &compiled.rules[i]
		made.tests = make([]comparison, 0, comparisons(r.Match))
		tcp := false
		for j := range r.Match {
			var err error
			if made.tests, err = b.match(made.tests, &r.Match[j], t.Family); err != nil {
				b.fault(atRule(), "%w", err)
			}
			tcp = tcp || r.Match[j].Proto == "tcp"
		}
		if err := made.complete(t, c, r, tcp); err != nil {
			b.fault(atRule(), "%w", err)
		}
		// Rules that share a name, as the combinations of a generated one do, share a counter.
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
		compiled.rules = append(compiled.rules, rule{
			rank: compiled.rank, chain: compiled, number: int32(len(c.Rules)), family: t.Family.bits(), action: ActionDrop, policy: true,
		})
	default:
		b.fault(at(), "unknown policy %q", c.Policy)
	}
	b.piece.chains = append(b.piece.chains, compiled)
}

// complete fills in what depends on the action, or says why the rule cannot be.
func (r *rule) complete(t *Table, c *Chain, from *Rule, tcp bool) error {
	translation := false
	switch r.action {
	case ActionDNAT, ActionSNAT, ActionMasquerade, ActionRefuseSource:
		translation = true
	case ActionAccept, ActionDrop, ActionReject, ActionCTMark, ActionMetaMarkFromCT, ActionSetMark, ActionClampMSS, ActionNoTrack:
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
