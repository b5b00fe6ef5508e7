package liqo

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sort"
	"strings"

	"culvert/kube/objects"
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// Self is what a gateway knows about itself.
type Self struct {
	Name, Namespace string
	Remote          string // the remote cluster's ID
	Node            string // the gateway's node
	Server          bool
	MTU             int
	// KeepUnknown leaves sources without a route back unchanged. Otherwise they become U, and
	// answers to them go to their node.
	KeepUnknown bool
}

// peer returns the peer's tunnel address.
func (s *Self) peer() netip.Addr {
	if s.Server {
		return netip.AddrFrom4([4]byte{169, 254, 18, 2})
	}
	return netip.AddrFrom4([4]byte{169, 254, 18, 1})
}

// The labels that select a resource's gateways.
const (
	labelRemote   = "liqo.io/remote-cluster-id"
	labelFirewall = "networking.liqo.io/firewall-"
	labelRoute    = "networking.liqo.io/route-"
	category      = "category"
	subcategory   = "subcategory"
	unique        = "unique"
	forGateways   = "gateway"
	ipMapping     = "ip-mapping"
	ownNode       = "fabric-node"
)

// selects reports whether a resource is for this gateway.
func (s *Self) selects(o *objects.Object) bool {
	l := o.Metadata.Labels
	switch o.Kind {
	case KindFirewall:
		sub := l[labelFirewall+subcategory]
		return l[labelFirewall+category] == forGateways &&
			(sub == "all-gateways" || sub == "fabric" || sub == ipMapping || l[labelFirewall+unique] == s.Remote)
	case KindRoute:
		sub, only := l[labelRoute+subcategory], l[labelRoute+unique]
		return l[labelRoute+category] == forGateways && (sub == "fabric" || sub == ownNode && only == s.Node ||
			only == s.Remote)
	case KindPublicKey, KindFabric:
		return o.Metadata.Namespace == s.Namespace && l[labelRemote] == s.Remote
	case KindTunnel:
		return o.Metadata.Namespace == s.Namespace
	case KindNode:
		return true
	}
	return false
}

// A State is the meaning of all resources together. It depends on the resources, not on their
// order, with one exception: a PublicKey that becomes invalid keeps its key. It belongs to one
// goroutine.
type State struct {
	self    Self
	items   map[string]map[rules.Key]*item // by kind
	dirty   map[rules.Key]bool             // rules that have changed, by resource
	again   bool                           // the Site may have changed
	applied Site
	own     map[rules.Key]rules.Resource // the Site's own rules
	said    map[rules.Key]string         // the fault that the Site has found with a resource
	waiting []string
}

// An item is a resource for this gateway.
type item struct {
	key  rules.Key
	meta objects.Metadata
	// by kind: *piece, *fabric, *internalNode, *tunnelSpec, [32]byte; nil if the resource is left
	// out
	parsed    any
	fault     string     // why
	refused   string     // why the gateway refused its rules
	condition *Condition // this gateway's condition on the resource
}

// A piece is the compiled form of a FirewallConfiguration or RouteConfiguration.
type piece struct {
	rules.Resource
	unknown  netip.Addr         // U, if these are the rules that mark connections from it
	remaps   []rules.RemoteCIDR // translated by it
	toTunnel []netip.Prefix     // prefixes routed to the peer
}

// NewState returns the State of a cluster without resources.
func NewState(self Self) *State {
	s := &State{
		self: self, items: map[string]map[rules.Key]*item{}, dirty: map[rules.Key]bool{},
		own:  map[rules.Key]rules.Resource{},
		said: map[rules.Key]string{}, again: true,
	}
	for _, kind := range []string{KindFirewall, KindRoute, KindTunnel, KindFabric, KindNode, KindPublicKey} {
		s.items[kind] = map[rules.Key]*item{}
	}
	return s
}

// Put adds or replaces a resource.
func (s *State) Put(o *objects.Object) {
	key := o.Key()
	if !s.self.selects(o) {
		s.Delete(key)
		return
	}
	old := s.items[o.Kind][key]
	it := &item{key: key, meta: o.Metadata}
	var f faults
	it.parse(o, &s.self, &f)
	if it.fault = f.String(); it.fault != "" {
		it.parsed = nil
		if o.Kind == KindPublicKey && old != nil {
			it.parsed = old.parsed
		}
	}
	s.items[o.Kind][key] = it
	s.changed(key, old, it)
}

// Delete forgets a resource.
func (s *State) Delete(key rules.Key) {
	if old := s.items[key.Kind][key]; old != nil {
		delete(s.items[key.Kind], key)
		s.changed(key, old, nil)
	}
}

// changed records what must be derived again.
func (s *State) changed(key rules.Key, old, it *item) {
	if old != nil && it != nil {
		it.refused = old.refused
		if old.meta.Created.Equal(it.meta.Created) && reflect.DeepEqual(old.parsed, it.parsed) {
			return
		}
	}
	switch key.Kind {
	case KindFirewall, KindRoute:
		s.dirty[key] = true
		s.again = s.again || old.concerns() || it.concerns()
	default:
		s.again = true
	}
}

// concerns reports whether the Site depends on the item's rules.
func (it *item) concerns() bool {
	if it == nil {
		return false
	}
	p, ok := it.parsed.(*piece)
	return ok && (p.unknown.IsValid() || p.remaps != nil || p.toTunnel != nil)
}

func (it *item) parse(o *objects.Object, self *Self, f *faults) {
	switch o.Kind {
	case KindFirewall:
		var spec firewallSpec
		if f.readStrictly("spec", o.Spec, &spec); len(*f) == 0 {
			t := spec.table(f)
			p := &piece{Resource: rules.Resource{Tables: []rules.Table{t}}, unknown: unknownSource(&t),
				remaps: remaps(&t)}
			p.Order = order(&o.Metadata, o.Metadata.Labels[labelFirewall+subcategory] == ipMapping)
			it.parsed = p
		}
		it.readCondition(o, self)
	case KindRoute:
		var spec routeSpec
		if f.readStrictly("spec", o.Spec, &spec); len(*f) == 0 {
			t := spec.table(self.peer(), o.Metadata.Labels[labelRoute+subcategory] == ownNode, f)
			p := &piece{Resource: rules.Resource{Routing: []rules.PolicyTable{t}}, toTunnel: toTunnel(&t, self.peer())}
			p.Order = order(&o.Metadata, false)
			it.parsed = p
		}
		it.readCondition(o, self)
	case KindFabric:
		var spec fabricSpec
		f.read("spec", o.Spec, &spec)
		it.parsed = spec.fabric(f)
	case KindNode:
		it.parsed = readNode(o, self, f)
	case KindTunnel:
		spec := &tunnelSpec{}
		if f.read("spec", o.Spec, spec); len(*f) == 0 {
			spec.check(f)
		}
		it.parsed = spec
	case KindPublicKey:
		var spec keySpec
		if f.read("spec", o.Spec, &spec); len(*f) == 0 {
			it.parsed = spec.key(f)
		}
	}
}

// nodePortTable is the table that marks connections from U by their node.
const nodePortTable = "service-nodeport-routing"

// unknownSource returns the address whose connections the table marks, if that is its purpose.
func unknownSource(t *rules.Table) netip.Addr {
	if t.Name != nodePortTable {
		return netip.Addr{}
	}
	for _, c := range t.Chains {
		for _, r := range c.Rules {
			if r.Action != rules.ActionCTMark && r.Action != rules.ActionMetaMarkFromCT {
				continue
			}
			for _, m := range r.Match {
				if a, err := netip.ParseAddr(m.IP.Value); err == nil && m.Op == rules.OpEqual && packet.Forwardable(a) {
					return a
				}
			}
		}
	}
	return netip.Addr{}
}

// remaps returns the CIDRs whose addresses the table translates 1:1 towards the tunnel.
func remaps(t *rules.Table) []rules.RemoteCIDR {
	var all []rules.RemoteCIDR
	for _, c := range t.Chains {
		for _, r := range c.Rules {
			real, err := netip.ParsePrefix(r.To)
			if err != nil || r.Action != rules.ActionDNAT {
				continue
			}
			for _, m := range r.Match {
				seen, err := netip.ParsePrefix(m.IP.Value)
				if err == nil && m.Op == rules.OpEqual && m.IP.Position == rules.PositionDestination &&
					seen == seen.Masked() && seen.Bits() == real.Bits() && seen.Addr().Is4() == real.Addr().Is4() {
					all = append(all, rules.RemoteCIDR{Real: real.Masked(), Remapped: seen})
				}
			}
		}
	}
	return all
}

// Changes are the changes for a gateway. Rules have the key of their resource.
type Changes struct {
	Site   *Site // nil: unchanged
	Delete []rules.Key
	Put    []Put
}

// A Put is the rules of one resource.
type Put struct {
	Key      rules.Key
	Resource rules.Resource
}

// Changes returns the changes since the last call.
func (s *State) Changes() Changes {
	var c Changes
	if s.again {
		s.again = false
		d := s.derive()
		s.waiting = d.waiting
		s.said = d.fault
		if !reflect.DeepEqual(s.applied, d.site) {
			s.applied = d.site
			c.Site = &d.site
			s.replaceOwn(&c)
		}
	}
	if len(s.dirty) == 0 {
		return c
	}
	for key := range s.dirty {
		it := s.items[key.Kind][key]
		if it == nil || it.parsed == nil {
			c.Delete = append(c.Delete, key)
			continue
		}
		c.Put = append(c.Put, Put{key, it.parsed.(*piece).Resource})
	}
	// Refused rules may fit now.
	for _, kind := range []string{KindFirewall, KindRoute} {
		for key, it := range s.items[kind] {
			if it.refused != "" && it.parsed != nil && !s.dirty[key] {
				c.Put = append(c.Put, Put{key, it.parsed.(*piece).Resource})
			}
		}
	}
	clear(s.dirty)
	slices.SortFunc(c.Delete, compareKeys)
	sort.Slice(c.Put, func(i, j int) bool { return compareKeys(c.Put[i].Key, c.Put[j].Key) < 0 })
	return c
}

func compareKeys(a, b rules.Key) int { return strings.Compare(a.String(), b.String()) }

// replaceOwn replaces the rules that follow from the Site.
func (s *State) replaceOwn(c *Changes) {
	own := s.applied.rules(&s.self)
	for _, key := range slices.SortedFunc(maps.Keys(s.own), compareKeys) {
		if _, ok := own[key]; !ok {
			c.Delete = append(c.Delete, key)
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(own), compareKeys) {
		if !reflect.DeepEqual(own[key], s.own[key]) {
			c.Put = append(c.Put, Put{key, own[key]})
		}
	}
	s.own = own
}

// Refused records the gateway's answer to a resource's rules: nil, or why it refused them. It
// reports whether the refusal is new.
func (s *State) Refused(key rules.Key, err error) (news bool) {
	it := s.items[key.Kind][key]
	if it == nil {
		return err != nil
	}
	why := ""
	if err != nil {
		why = "spec.table: " + err.Error()
	}
	news, it.refused = why != "" && why != it.refused, why
	return news
}

// Waiting returns what a gateway needs and lacks.
func (s *State) Waiting() []string { return s.waiting }

// Faults returns why resources are left out.
func (s *State) Faults() map[rules.Key]string {
	all := map[rules.Key]string{}
	for _, items := range s.items {
		for key, it := range items {
			if why := it.why(); why != "" {
				all[key] = why
			}
		}
	}
	for key, why := range s.said {
		if s.items[key.Kind][key] != nil {
			all[key] = why
		}
	}
	return all
}

func (it *item) why() string {
	if it.fault != "" {
		return it.fault
	}
	return it.refused
}
