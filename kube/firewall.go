package kube

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"culvert/nat"
)

// firewallSpec is the spec of a FirewallConfiguration.
type firewallSpec struct {
	Table struct {
		Name   string          `json:"name"`
		Family nat.Family      `json:"family"`
		Chains []firewallChain `json:"chains"`
	} `json:"table"`
}

type firewallChain struct {
	Name     string        `json:"name"`
	Type     nat.ChainType `json:"type"`
	Hook     nat.Hook      `json:"hook"`
	Policy   nat.Policy    `json:"policy"`
	Priority int32         `json:"priority"`
	Rules    struct {
		NAT    []natRule    `json:"natRules"`
		Filter []filterRule `json:"filterRules"`
		Route  []struct{}   `json:"routeRules"`
	} `json:"rules"`
}

type natRule struct {
	Name  string          `json:"name"`
	Type  nat.RuleAction  `json:"natType"`
	To    string          `json:"to"`
	Match []firewallMatch `json:"match"`
}

type filterRule struct {
	Name    string          `json:"name"`
	Action  nat.RuleAction  `json:"action"`
	Value   string          `json:"value"`
	Counter *bool           `json:"counter"`
	Match   []firewallMatch `json:"match"`
}

type firewallMatch struct {
	Op    nat.Op   `json:"op"`
	IP    *operand `json:"ip"`
	Port  *operand `json:"port"`
	Dev   *operand `json:"dev"`
	Proto *struct {
		Value string `json:"value"`
	} `json:"proto"`
}

type operand struct {
	Value    string       `json:"value"`
	Position nat.Position `json:"position"`
}

// tunnelDevice is what resources call the WireGuard tunnel, and anyTunnel what they call all of a gateway's, of which here is one.
const (
	tunnelDevice = "liqo-tunnel"
	anyTunnel    = "liqo-tunnel*"
)

func device(name string) string {
	if name == anyTunnel {
		return tunnelDevice
	}
	return name
}

// table returns the table that the spec says. If f has grown, it is not to be used.
func (s *firewallSpec) table(f *faults) nat.Table {
	from := &s.Table
	t := nat.Table{Name: from.Name, Family: from.Family}
	if from.Name == "" {
		f.add("spec.table.name", "missing")
	}
	switch from.Family {
	case nat.FamilyINET, nat.FamilyIPv4, nat.FamilyIPv6:
	case "ARP", "BRIDGE", "NETDEV":
		f.add("spec.table.family", "%s sees frames, and a gateway passes on packets only", from.Family)
		return t
	default:
		f.add("spec.table.family", "%q is not IPV4, IPV6 or INET", from.Family)
		return t
	}
	names := map[string]int{}
	for i := range from.Chains {
		c := &from.Chains[i]
		path := fmt.Sprintf("spec.table.chains[%d]", i)
		once(f, names, path+".name", c.Name, i)
		if c.check(path, f) {
			t.Chains = append(t.Chains, c.chain(path, t.Family, f))
		}
	}
	return t
}

// once reports a name that is missing, or that another element of its list has.
func once(f *faults, names map[string]int, path, name string, i int) {
	if j, ok := names[name]; ok {
		f.add(path, "%q is that of number %d too", name, j)
	} else if name == "" {
		f.add(path, "missing")
	}
	names[name] = i
}

// check reports where a chain cannot be.
func (c *firewallChain) check(path string, f *faults) bool {
	before := len(*f)
	switch c.Hook {
	case nat.HookPrerouting, nat.HookInput, nat.HookForward, nat.HookOutput, nat.HookPostrouting:
	case "ingress":
		f.add(path+".hook", "ingress belongs to a device driver; packets of a gateway's tunnels first meet prerouting")
	default:
		f.add(path+".hook", "%q is no hook", c.Hook)
	}
	switch c.Type {
	case nat.ChainFilter:
	case nat.ChainNAT:
		switch c.Hook {
		case nat.HookInput, nat.HookOutput:
			f.add(path+".hook", "type nat at %s translates the gateway's own traffic, which is never translated", c.Hook)
		case nat.HookForward:
			f.add(path+".hook", "type nat is at prerouting or postrouting, not at forward")
		}
		if c.Priority <= nat.PriorityConntrack {
			f.add(path+".priority", "type nat at %d, where no connection is known yet", c.Priority)
		}
	case "route":
		f.add(path+".type", "route re-routes packets that the host itself sends, and a gateway forwards")
	default:
		f.add(path+".type", "%q is neither filter nor nat", c.Type)
	}
	switch c.Policy {
	case nat.PolicyAccept, "":
	case nat.PolicyDrop:
		if c.Hook == nat.HookOutput {
			f.add(path+".policy", "drop at output, which what the gateway itself sends does not pass")
		}
	default:
		f.add(path+".policy", "%q is neither accept nor drop", c.Policy)
	}
	return len(*f) == before
}

func (c *firewallChain) chain(path string, family nat.Family, f *faults) nat.Chain {
	out := nat.Chain{Name: c.Name, Type: c.Type, Hook: c.Hook, Priority: c.Priority, Policy: c.Policy}
	if len(c.Rules.Route) > 0 {
		f.add(path+".rules.routeRules", "re-route packets that the host itself sends, and a gateway forwards")
	}
	if c.Type != nat.ChainNAT && len(c.Rules.NAT) > 0 {
		f.add(path+".rules.natRules", "in a chain of type %s", c.Type)
	}
	if c.Type != nat.ChainFilter && len(c.Rules.Filter) > 0 {
		f.add(path+".rules.filterRules", "in a chain of type %s", c.Type)
	}
	names := map[string]int{}
	add := func(path string, i int, r nat.Rule, matches []firewallMatch) {
		if r.Name == "" {
			r.Name = fmt.Sprintf("rule-%d", i) // Liqo's webhook, which names rules, can be told to stay out
		}
		once(f, names, path+".name", r.Name, i)
		for k := range matches {
			r.Match = append(r.Match, matches[k].match(fmt.Sprintf("%s.match[%d]", path, k), family, f))
		}
		out.Rules = append(out.Rules, r)
	}
	for i := range c.Rules.NAT {
		r := &c.Rules.NAT[i]
		at := fmt.Sprintf("%s.rules.natRules[%d]", path, i)
		r.check(at, c.Hook, family, f)
		add(at, i, nat.Rule{Name: r.Name, Action: r.Type, To: r.To}, r.Match)
	}
	for i := range c.Rules.Filter {
		r := &c.Rules.Filter[i]
		at := fmt.Sprintf("%s.rules.filterRules[%d]", path, i)
		value := r.check(at, c.Hook, f)
		add(at, i, nat.Rule{Name: r.Name, Action: r.Action, Value: value, NoCounter: r.Counter != nil && !*r.Counter}, r.Match)
	}
	return out
}

func (r *natRule) check(path string, hook nat.Hook, family nat.Family, f *faults) {
	want := nat.HookPostrouting
	switch r.Type {
	case nat.ActionDNAT:
		want = nat.HookPrerouting
	case nat.ActionSNAT:
	case nat.ActionMasquerade:
		if r.To != "" {
			f.add(path+".to", "masquerade takes no address")
		}
	default:
		f.add(path+".natType", "%q is not dnat, snat or masquerade", r.Type)
		return
	}
	if hook != want {
		f.add(path+".natType", "%s is at %s, not at %s", r.Type, want, hook)
	}
	if r.Type != nat.ActionMasquerade {
		checkAddress(path+".to", r.To, family, f)
	}
}

// check returns the value of the rule as a number.
func (r *filterRule) check(path string, hook nat.Hook, f *faults) (value uint32) {
	number := func(most uint64) {
		n, err := strconv.ParseUint(r.Value, 10, 32)
		if err != nil || n > most {
			f.add(path+".value", "%q is no number from 0 to %d", r.Value, most)
		}
		value = uint32(n)
	}
	switch r.Action {
	case nat.ActionAccept, nat.ActionDrop, nat.ActionMetaMarkFromCT, nat.ActionNoTrack:
	case nat.ActionReject:
		if hook == nat.HookPostrouting {
			f.add(path+".action", "reject at postrouting")
		}
	case nat.ActionCTMark:
		number(1<<32 - 1)
	case nat.ActionClampMSS:
		if r.Value != "" {
			number(1<<16 - 1)
		}
		if value == 0 && (hook == nat.HookPrerouting || hook == nat.HookInput) {
			f.add(path+".value", "missing; at %s no route is known to tell it", hook)
		}
		if !r.tcp() {
			f.add(path+".match", "tcpmssclamp needs a match of proto tcp")
		}
	default:
		f.add(path+".action", "%q is no action", r.Action)
	}
	if hook == nat.HookOutput && r.Action != nat.ActionNoTrack {
		f.add(path+".action", "%s at output, which what the gateway itself sends does not pass", r.Action)
	}
	return value
}

func (r *filterRule) tcp() bool {
	for i := range r.Match {
		if p := r.Match[i].Proto; p != nil && p.Value == "tcp" {
			return true
		}
	}
	return false
}

func (m *firewallMatch) match(path string, family nat.Family, f *faults) nat.Match {
	out := nat.Match{Op: m.Op}
	if m.Op != nat.OpEqual && m.Op != nat.OpNotEqual {
		f.add(path+".op", "%q is neither eq nor neq", m.Op)
	}
	position := func(path string, o *operand, a, b nat.Position) nat.Operand {
		if o.Position != a && o.Position != b {
			f.add(path+".position", "%q is neither %s nor %s", o.Position, a, b)
		}
		return nat.Operand{Value: o.Value, Position: o.Position}
	}
	if p := m.Proto; p != nil {
		if out.Proto = p.Value; p.Value != "tcp" && p.Value != "udp" {
			f.add(path+".proto.value", "%q is neither tcp nor udp", p.Value)
		}
	}
	if d := m.Dev; d != nil {
		out.Dev = position(path+".dev", d, nat.PositionIn, nat.PositionOut)
		if out.Dev.Value = device(d.Value); d.Value == "" {
			f.add(path+".dev.value", "missing")
		}
	}
	if a := m.IP; a != nil {
		out.IP = position(path+".ip", a, nat.PositionSource, nat.PositionDestination)
		checkAddress(path+".ip.value", a.Value, family, f)
	}
	if p := m.Port; p != nil {
		out.Port = position(path+".port", p, nat.PositionSource, nat.PositionDestination)
		checkPort(path+".port.value", p.Value, f)
	}
	return out
}

// checkAddress reports what is no address, CIDR or ascending range of the family.
func checkAddress(path, value string, family nat.Family, f *faults) {
	fits := func(a netip.Addr) bool {
		return a.Zone() == "" && !a.Is4In6() && (family == nat.FamilyINET || a.Is4() == (family == nat.FamilyIPv4))
	}
	if first, last, ok := strings.Cut(value, "-"); ok {
		a, errA := netip.ParseAddr(first)
		b, errB := netip.ParseAddr(last)
		if errA != nil || errB != nil || !fits(a) || !fits(b) || a.Is4() != b.Is4() || b.Less(a) {
			f.add(path, "%q is no range of %s addresses in ascending order", value, family)
		}
		return
	}
	a, err := netip.ParseAddr(value)
	if err != nil {
		p, errP := netip.ParsePrefix(value)
		a, err = p.Addr(), errP
	}
	if err != nil || !fits(a) {
		f.add(path, "%q is no %s address, CIDR or range", value, family)
	}
}

func checkPort(path, value string, f *faults) {
	first, last, ok := strings.Cut(value, "-")
	if !ok {
		last = first
	}
	a, errA := strconv.ParseUint(first, 10, 16)
	b, errB := strconv.ParseUint(last, 10, 16)
	if errA != nil || errB != nil || a > b {
		f.add(path, "%q is no port or range of ports in ascending order", value)
	}
}
