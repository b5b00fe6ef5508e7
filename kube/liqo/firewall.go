package liqo

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"culvert/nat/rules"
)

// firewallSpec is the spec of a FirewallConfiguration.
type firewallSpec struct {
	Table struct {
		Name   string          `json:"name"`
		Family rules.Family    `json:"family"`
		Chains []firewallChain `json:"chains"`
	} `json:"table"`
}

type firewallChain struct {
	Name     string          `json:"name"`
	Type     rules.ChainType `json:"type"`
	Hook     rules.Hook      `json:"hook"`
	Policy   rules.Policy    `json:"policy"`
	Priority int32           `json:"priority"`
	Rules    struct {
		NAT    []natRule    `json:"natRules"`
		Filter []filterRule `json:"filterRules"`
		Route  []any        `json:"routeRules"`
	} `json:"rules"`
}

type natRule struct {
	Name  string          `json:"name"`
	Type  rules.Action    `json:"natType"`
	To    string          `json:"to"`
	Match []firewallMatch `json:"match"`
	About any             `json:"targetRef"` // the object for which Liqo made it
}

type filterRule struct {
	Name    string          `json:"name"`
	Action  rules.Action    `json:"action"`
	Value   string          `json:"value"`
	Counter *bool           `json:"counter"`
	Match   []firewallMatch `json:"match"`
}

type firewallMatch struct {
	Op    rules.Op `json:"op"`
	IP    *operand `json:"ip"`
	Port  *operand `json:"port"`
	Dev   *operand `json:"dev"`
	Proto *struct {
		Value string `json:"value"`
	} `json:"proto"`
}

type operand struct {
	Value    string         `json:"value"`
	Position rules.Position `json:"position"`
}

// tunnelDevice is the name of the WireGuard tunnel in resources, anyTunnel the name of all of a
// gateway's tunnels; here there is only one.
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

// table returns the spec's table. It must not be used if f has grown.
func (s *firewallSpec) table(f *faults) rules.Table {
	from := &s.Table
	t := rules.Table{Name: from.Name, Family: from.Family}
	if from.Name == "" {
		f.add("spec.table.name", "missing")
	}
	switch from.Family {
	case rules.FamilyINET, rules.FamilyIPv4, rules.FamilyIPv6:
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

// once reports a name that is missing or a duplicate in its list.
func once(f *faults, names map[string]int, path, name string, i int) {
	if j, ok := names[name]; ok {
		f.add(path, "%q is that of number %d too", name, j)
	} else if name == "" {
		f.add(path, "missing")
	}
	names[name] = i
}

// check reports where a chain is not allowed.
func (c *firewallChain) check(path string, f *faults) bool {
	before := len(*f)
	switch c.Hook {
	case rules.HookPrerouting, rules.HookInput, rules.HookForward, rules.HookOutput, rules.HookPostrouting:
	case "ingress":
		f.add(path+".hook", "ingress belongs to a device driver; packets of a gateway's tunnels first meet prerouting")
	default:
		f.add(path+".hook", "%q is no hook", c.Hook)
	}
	switch c.Type {
	case rules.ChainFilter:
	case rules.ChainNAT:
		switch c.Hook {
		case rules.HookInput, rules.HookOutput:
			f.add(path+".hook", "type nat at %s translates the gateway's own traffic, which is never translated",
				c.Hook)
		case rules.HookForward:
			f.add(path+".hook", "type nat is at prerouting or postrouting, not at forward")
		}
		if c.Priority <= rules.PriorityConntrack {
			f.add(path+".priority", "type nat at %d, where no connection is known yet", c.Priority)
		}
	case "route":
		f.add(path+".type", "route re-routes packets that the host itself sends, and a gateway forwards")
	default:
		f.add(path+".type", "%q is neither filter nor nat", c.Type)
	}
	switch c.Policy {
	case rules.PolicyAccept, rules.PolicyDrop, "":
	default:
		f.add(path+".policy", "%q is neither accept nor drop", c.Policy)
	}
	return len(*f) == before
}

func (c *firewallChain) chain(path string, family rules.Family, f *faults) rules.Chain {
	out := rules.Chain{Name: c.Name, Type: c.Type, Hook: c.Hook, Priority: c.Priority, Policy: c.Policy}
	if len(c.Rules.Route) > 0 {
		f.add(path+".rules.routeRules", "re-route packets that the host itself sends, and a gateway forwards")
	}
	if c.Type != rules.ChainNAT && len(c.Rules.NAT) > 0 {
		f.add(path+".rules.natRules", "in a chain of type %s", c.Type)
	}
	if c.Type != rules.ChainFilter && len(c.Rules.Filter) > 0 {
		f.add(path+".rules.filterRules", "in a chain of type %s", c.Type)
	}
	names := map[string]int{}
	add := func(path string, i int, r rules.Rule, matches []firewallMatch) {
		if r.Name == "" {
			r.Name = fmt.Sprintf("rule-%d", i) // Liqo's webhook, which names rules, can be disabled
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
		add(at, i, rules.Rule{Name: r.Name, Action: r.Type, To: r.To}, r.Match)
	}
	for i := range c.Rules.Filter {
		r := &c.Rules.Filter[i]
		at := fmt.Sprintf("%s.rules.filterRules[%d]", path, i)
		value := r.check(at, c.Hook, f)
		add(at, i, rules.Rule{Name: r.Name, Action: r.Action, Value: value, NoCounter: r.Counter != nil && !*r.Counter},
			r.Match)
	}
	return out
}

func (r *natRule) check(path string, hook rules.Hook, family rules.Family, f *faults) {
	want := rules.HookPostrouting
	switch r.Type {
	case rules.ActionDNAT:
		want = rules.HookPrerouting
	case rules.ActionSNAT:
	case rules.ActionMasquerade:
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
	if r.Type != rules.ActionMasquerade {
		checkAddress(path+".to", r.To, family, f)
	}
}

// check returns the value of the rule as a number.
func (r *filterRule) check(path string, hook rules.Hook, f *faults) (value uint32) {
	number := func(most uint64) {
		n, err := strconv.ParseUint(r.Value, 10, 32)
		if err != nil || n > most {
			f.add(path+".value", "%q is no number from 0 to %d", r.Value, most)
		}
		value = uint32(n)
	}
	switch r.Action {
	case rules.ActionAccept, rules.ActionDrop, rules.ActionMetaMarkFromCT, rules.ActionNoTrack:
	case rules.ActionReject:
		if hook == rules.HookPostrouting {
			f.add(path+".action", "reject at postrouting")
		}
	case rules.ActionCTMark:
		number(1<<32 - 1)
	case rules.ActionClampMSS:
		if r.Value != "" {
			number(1<<16 - 1)
		}
		if value == 0 && (hook == rules.HookPrerouting || hook == rules.HookInput) {
			f.add(path+".value", "missing; at %s no route is known to tell it", hook)
		}
		if !r.tcp() {
			f.add(path+".match", "tcpmssclamp needs a match of proto tcp")
		}
	default:
		f.add(path+".action", "%q is no action", r.Action)
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

func (m *firewallMatch) match(path string, family rules.Family, f *faults) rules.Match {
	out := rules.Match{Op: m.Op}
	if m.IP == nil && m.Port == nil && m.Dev == nil && m.Proto == nil {
		f.add(path, "none of ip, port, dev and proto; the API server leaves out fields that Liqo's CRD does not have")
	}
	if m.Op != rules.OpEqual && m.Op != rules.OpNotEqual {
		f.add(path+".op", "%q is neither eq nor neq", m.Op)
	}
	position := func(path string, o *operand, a, b rules.Position) rules.Operand {
		if o.Position != a && o.Position != b {
			f.add(path+".position", "%q is neither %s nor %s", o.Position, a, b)
		}
		return rules.Operand{Value: o.Value, Position: o.Position}
	}
	if p := m.Proto; p != nil {
		if out.Proto = p.Value; p.Value != "tcp" && p.Value != "udp" {
			f.add(path+".proto.value", "%q is neither tcp nor udp", p.Value)
		}
	}
	if d := m.Dev; d != nil {
		out.Dev = position(path+".dev", d, rules.PositionIn, rules.PositionOut)
		if out.Dev.Value = device(d.Value); d.Value == "" {
			f.add(path+".dev.value", "missing")
		}
	}
	if a := m.IP; a != nil {
		out.IP = position(path+".ip", a, rules.PositionSource, rules.PositionDestination)
		checkAddress(path+".ip.value", a.Value, family, f)
	}
	if p := m.Port; p != nil {
		out.Port = position(path+".port", p, rules.PositionSource, rules.PositionDestination)
		checkPort(path+".port.value", p.Value, f)
	}
	return out
}

// checkAddress reports a value that is not an address, CIDR or ascending range of the family.
func checkAddress(path, value string, family rules.Family, f *faults) {
	fits := func(a netip.Addr) bool {
		return a.Zone() == "" && !a.Is4In6() && (family == rules.FamilyINET || a.Is4() == (family == rules.FamilyIPv4))
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
