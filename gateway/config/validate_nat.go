package config

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"

	"culvert/gateway/configfile"
	"culvert/nat/rules"
)

// A natCheck has what the checks of mappings and of services share.
type natCheck struct {
	*Config
	e        *configfile.Errors
	external *bart.Lite
	nodes    map[string]bool       // by name; "" stands for none
	names    []string              // of these, for hints
	mapped   map[netip.Addr]string // the field of each external address of a mapping
}

// validateNAT checks mappings and services, and their references.
func (c *Config) validateNAT(e *configfile.Errors, external *bart.Lite) {
	x := &natCheck{Config: c, e: e, external: external, nodes: map[string]bool{"": true},
		mapped: map[netip.Addr]string{}}
	for _, n := range c.Geneve.Nodes {
		x.nodes[n.Name] = true
	}
	x.names = slices.Sorted(maps.Keys(x.nodes))
	x.names = x.names[:min(len(x.names), 128)] // a hint is not worth more time
	x.mappings()
	x.services()
}

// mappings checks nat.addresses.
func (x *natCheck) mappings() {
	hosts := map[netip.Addr]string{}
	for i, m := range x.Addresses {
		at := fmt.Sprintf("nat.addresses[%d].", i)
		x.via(at+"via", m.Via)
		sameFamilies(x.e, at+"internal", m.Internal, m.External)
		for a := range m.External.All() {
			x.ours(at+"external", a)
			x.once(x.mapped, at+"external", a)
		}
		for a := range m.Internal.All() {
			isHost(x.e, at+"internal", a)
			x.once(hosts, at+"internal", a)
		}
	}
}

// services checks nat.services.
func (x *natCheck) services() {
	type target struct {
		addr     netip.Addr
		protocol uint8
		port     uint16
	}
	claimed := map[target]string{}
	for i, s := range x.Services {
		at := fmt.Sprintf("nat.services[%d].", i)
		x.e.Name(at+"name", s.Name, configfile.MaxLabel)
		for a := range s.Address.All() {
			x.ours(at+"address", a)
			t := target{a, s.Protocol, s.Port}
			if other, ok := claimed[t]; ok {
				x.e.Add(at+"port", "%s port %d is %s too; choose another port or address", a, s.Port, other)
			}
			claimed[t] = at + "port"
			if other, ok := x.mapped[a]; ok {
				x.e.Add(at+"address", "%s is %s too; choose another", a, other)
			}
			if len(s.Backends) > 0 && !s.families().Of(a.Is6()).IsValid() {
				x.e.Add(at+"address", "%s has no %s backend; add one, or remove the address", a, familyOf(a))
			}
		}
		for k, b := range s.Backends {
			x.via(fmt.Sprintf("%sbackends[%d].via", at, k), b.Via)
			path := fmt.Sprintf("%sbackends[%d].address", at, k)
			isHost(x.e, path, b.Address)
			if b.Address.IsValid() && s.Address.IsValid() && !s.Address.Of(b.Address.Is6()).IsValid() {
				x.e.Add(path, "%s is %s, and the service has only %s; add an %[2]s address to it", b.Address,
					familyOf(b.Address), s.Address)
			}
		}
	}
}

// via checks a reference to a node.
func (x *natCheck) via(path, name string) {
	if x.nodes[name] || x.e.Bad("geneve.nodes") {
		return
	}
	hint := "name one of them"
	if near := configfile.Closest(name, x.names); near != "" {
		hint = "did you mean " + near + "?"
	}
	x.e.Add(path, "%q is no node of geneve.nodes; %s", name, hint)
}

// ours checks an address that this cluster answers for.
func (x *natCheck) ours(path string, a netip.Addr) {
	switch {
	case !isHost(x.e, path, a):
	case !x.external.Contains(a):
		x.e.Add(path, "%s is in no CIDR of network.local.externalCIDRs; %s", a, externalRemedy)
	case x.UnknownSource.Has(a):
		x.e.Add(path, "%s is the unknown-source address; choose another", a)
	}
}

// once reports an address that another field of its kind already has.
func (x *natCheck) once(of map[netip.Addr]string, path string, a netip.Addr) {
	if !a.IsValid() {
		return
	}
	if other, ok := of[a]; ok {
		x.e.Add(path, "%s is %s too; choose another, or leave one of them out", a, other)
		return
	}
	of[a] = path
}
func (c *Config) validateExports(e *configfile.Errors, external *bart.Lite) {
	seen := make(map[rules.Endpoint]int, len(c.Exports))
	for i, x := range c.Exports {
		at := fmt.Sprintf("nat.exports[%d].", i)
		if !x.Prefix.IsValid() || e.Bad(at+"protocol") || e.Bad(at+"port") {
			continue // reported before
		}
		if !external.LookupPrefix(x.Prefix) && !c.Local.hasPods(x.Prefix) {
			e.Add(at+"cidr", "%s is in no CIDR of network.local, so the peer cannot reach it; correct one of them",
				x.Prefix)
		}
		family, ofICMP := icmpFamily[x.Protocol]
		switch {
		case ofICMP && x.Port != 0:
			e.Add(at+"port", "%s has no ports; leave port out", family.name)
		case ofICMP && familiesOf([]netip.Prefix{x.Prefix}) != family.bit:
			e.Add(at+"protocol", "%s, but cidr is of the other family; write %s", family.name, family.other)
		}
		if j, ok := seen[x]; ok {
			e.Add(at+"cidr", "the same as nat.exports[%d]; leave one of them out", j)
		}
		seen[x] = i
	}
}
