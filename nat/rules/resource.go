package rules

import (
	"cmp"
	"net/netip"
	"reflect"
	"slices"
	"strings"
)

// A Key names a resource, from any source.
type Key struct{ Kind, Namespace, Name string }

func (k Key) compare(o Key) int {
	switch {
	case k.Kind != o.Kind:
		return strings.Compare(k.Kind, o.Kind)
	case k.Namespace != o.Namespace:
		return strings.Compare(k.Namespace, o.Namespace)
	}
	return strings.Compare(k.Name, o.Name)
}

// An origin is where a chain or a policy rule comes from, and so its order among others of equal
// priority.
type origin struct {
	key   Key
	order int64
}

func (o *origin) compare(p *origin) int {
	if o.order != p.order {
		return cmp.Compare(o.order, p.order)
	}
	return o.key.compare(p.key)
}

// String returns kind/namespace/name, or kind/name without a namespace.
func (k Key) String() string {
	if k.Namespace == "" {
		return k.Kind + "/" + k.Name
	}
	return k.Kind + "/" + k.Namespace + "/" + k.Name
}

// A Resource is one part of the desired state. It appears, changes and disappears as a whole.
type Resource struct {
	// Order orders the resources' chains and policy rules of equal priority; ties are broken by
	// key.
	Order   int64
	Device  *Device
	Tables  []Table
	Routing []PolicyTable
	Service *Service
	// Mapping and Node are compact forms of tables that a cluster has many of.
	Mapping *MappingRules
	Node    *NodeRules
}

// tables returns Tables and those that the Resource stands for, which are built in room.
func (r *Resource) tables(room *mappingRoom) []Table {
	all := r.Tables
	if r.Mapping != nil {
		if all = r.Mapping.table(room); len(r.Tables) > 0 {
			all = slices.Concat(r.Tables, all)
		}
	}
	if r.Node != nil {
		all = append(all[:len(all):len(all)], returnTable([]NodeRules{*r.Node}))
	}
	return all
}

// routing returns Routing and the tables that the Resource stands for, which are built in room.
func (r *Resource) routing(room *mappingRoom) []PolicyTable {
	all := r.Routing
	if r.Mapping != nil {
		if all = r.Mapping.routing(room); len(r.Routing) > 0 {
			all = slices.Concat(r.Routing, all)
		}
	}
	if r.Node != nil {
		all = append(all[:len(all):len(all)], r.Node.routing()...)
	}
	return all
}

// clone returns a copy that shares nothing mutable with r.
func (r *Resource) clone() Resource {
	c := *r
	c.Tables = slices.Clone(c.Tables)
	for i := range c.Tables {
		t := &c.Tables[i]
		t.Chains = slices.Clone(t.Chains)
		for j := range t.Chains {
			rules := slices.Clone(t.Chains[j].Rules)
			for k := range rules {
				rules[k].Match = slices.Clone(rules[k].Match)
			}
			t.Chains[j].Rules = rules
		}
	}
	c.Routing = slices.Clone(c.Routing)
	for i := range c.Routing {
		rules := slices.Clone(c.Routing[i].Rules)
		for j := range rules {
			rules[j].Routes = slices.Clone(rules[j].Routes)
		}
		c.Routing[i].Rules = rules
	}
	c.Device, c.Mapping, c.Node, c.Service = copied(r.Device), copied(r.Mapping), copied(r.Node), copied(r.Service)
	if c.Device != nil {
		c.Device.Sources = slices.Clone(c.Device.Sources)
	}
	if c.Node != nil {
		c.Node.Prefixes = slices.Clone(c.Node.Prefixes)
	}
	if c.Service != nil {
		c.Service.Backends = slices.Clone(c.Service.Backends)
		if f := copied(c.Service.Frontend); f != nil {
			f.Sources = slices.Clone(f.Sources)
			c.Service.Frontend = f
		}
	}
	return c
}

func copied[T any](p *T) *T {
	if p == nil {
		return nil
	}
	c := *p
	return &c
}

// equal reports whether r and o are equal.
func (r *Resource) equal(o *Resource) bool {
	if r.Order != o.Order || !r.Device.equal(o.Device) || !same(r.Mapping, o.Mapping) ||
		(r.Node == nil) != (o.Node == nil) {
		return false
	}
	if n, m := r.Node, o.Node; n != nil && (n.Name != m.Name || n.Device != m.Device || n.Mark != m.Mark ||
		!slices.Equal(n.Prefixes, m.Prefixes)) {
		return false
	}
	if len(r.Tables)+len(o.Tables)+len(r.Routing)+len(o.Routing) == 0 && r.Service == o.Service {
		return true // the common case; the rest is slow
	}
	return reflect.DeepEqual(r.Tables, o.Tables) && reflect.DeepEqual(r.Routing, o.Routing) &&
		r.Service.equal(o.Service)
}

// equal reports whether s and o are equal; either may be nil.
func (s *Service) equal(o *Service) bool {
	if s == nil || o == nil {
		return s == o
	}
	if !slices.Equal(s.Backends, o.Backends) {
		return false
	}
	a, b := *s, *o
	a.Backends, b.Backends = nil, nil // there are many, and reflection is slow
	return reflect.DeepEqual(&a, &b)
}

// same reports whether both are nil or point to equal values.
func same[T comparable](a, b *T) bool {
	return a == b || a != nil && b != nil && *a == *b
}

// A Device is a tunnel that rules and routes may name.
type Device struct {
	Link    Link
	Name    string
	Address Pair // of the other end, for routes via it; the zero Addr if none is
	// Own is the gateway's address on an outside link: packets to it are for the gateway, and
	// masquerade uses it as source.
	Own Pair
	// Sources may send from an outside link, besides Address.
	Sources []netip.Prefix
}

// equal reports whether d and o are equal; either may be nil.
func (d *Device) equal(o *Device) bool {
	return d == o || d != nil && o != nil && d.Link == o.Link && d.Name == o.Name && d.Address == o.Address &&
		d.Own == o.Own &&
		slices.Equal(d.Sources, o.Sources)
}
