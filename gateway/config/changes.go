package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"culvert/nat/rules"
)

// maxNamed is how many names of each kind Changes lists.
const maxNamed = 5

// Changes describes the differences from old in words; "nothing changed" if there are none.
func (c *Config) Changes(old *Config) string {
	var d difference
	d.of("nodes", listOf(old.Geneve.Nodes, func(n Node) string { return n.Name }),
		listOf(c.Geneve.Nodes, func(n Node) string { return n.Name }))
	d.of("rules", listOf(old.Rules, func(r rules.FilterRule) string { return r.Name }),
		listOf(c.Rules, func(r rules.FilterRule) string { return r.Name }))
	remap := func(r rules.RemoteCIDR) string { return r.Real.String() }
	d.of("remote CIDRs", listOf(old.Remote, remap), listOf(c.Remote, remap))
	mapping := func(m AddressMapping) string { return m.External.String() }
	d.of("address mappings", listOf(old.Addresses, mapping), listOf(c.Addresses, mapping))
	d.of("services", listOf(old.Services, func(s Service) string { return s.Name }),
		listOf(c.Services, func(s Service) string { return s.Name }))
	export := func(x rules.Endpoint) string { return ExportName(&x) }
	d.of("exports", listOf(old.Exports, export), listOf(c.Exports, export))
	d.order("rules", names(old.Rules), names(c.Rules))
	for _, f := range []struct {
		path    string
		is, was any
	}{
		{"wireguard.peerPublicKey", c.WireGuard.PeerPublicKey, old.WireGuard.PeerPublicKey},
		{"wireguard.presharedKeyFile", c.WireGuard.PresharedKey, old.WireGuard.PresharedKey},
		{"wireguard.endpoint", c.WireGuard.Endpoint, old.WireGuard.Endpoint},
		{"wireguard.keepalive", c.WireGuard.Keepalive, old.WireGuard.Keepalive},
		{"geneve.gatewayAddress", c.Geneve.GatewayAddress, old.Geneve.GatewayAddress},
		{"geneve.sourceCheck", c.Geneve.SourceCheck, old.Geneve.SourceCheck},
		{"network.local", c.Local, old.Local},
		{"sources", c.Given, old.Given},
		{"nat.unknownSource", c.UnknownSource, old.UnknownSource},
		{"nat.admit", c.Admit, old.Admit},
		{"nat.maxConnections", c.MaxConnections, old.MaxConnections},
		{"connectionCheck", c.ConnectionCheck, old.ConnectionCheck},
		{"mssClamp", c.MSSClamp, old.MSSClamp},
		{"cpus", c.CPUs, old.CPUs},
		{"log.level", c.Log.Level, old.Log.Level},
	} {
		if !reflect.DeepEqual(f.is, f.was) {
			d.parts = append(d.parts, f.path+" changed")
		}
	}
	if len(d.parts) == 0 {
		return "nothing changed"
	}
	return strings.Join(d.parts, "; ")
}

// ExportName returns a name of x for people: 10.0.1.5/32 tcp 80.
func ExportName(x *rules.Endpoint) string {
	name := fmt.Sprintf("%s protocol %d", x.Prefix, x.Protocol)
	for protocol, number := range protocols {
		if number == x.Protocol {
			name = fmt.Sprintf("%s %s", x.Prefix, protocol)
		}
	}
	if x.Port != 0 {
		name += fmt.Sprintf(" %d", x.Port)
	}
	return name
}

// A named is an entry of a list with its name for messages.
type named struct {
	name  string
	value any
}

func listOf[T any](all []T, name func(T) string) (list []named) {
	for _, x := range all {
		list = append(list, named{name(x), x})
	}
	return list
}

func names(rules []rules.FilterRule) (list []string) {
	for _, r := range rules {
		list = append(list, r.Name)
	}
	return list
}

type difference struct{ parts []string }

// of adds the entries added to, removed from and changed in a list. Several services may have one
// name.
func (d *difference) of(kind string, old, list []named) {
	was := make(map[string][]any, len(old))
	for _, x := range old {
		was[x.name] = append(was[x.name], x.value)
	}
	var others []string // the names of entries that were not there as they are
	for _, x := range list {
		same := func(before any) bool { return reflect.DeepEqual(before, x.value) }
		if i := slices.IndexFunc(was[x.name], same); i >= 0 {
			was[x.name] = slices.Delete(was[x.name], i, i+1)
		} else {
			others = append(others, x.name)
		}
	}
	var added, changed, removed []string
	for _, name := range others {
		if len(was[name]) == 0 {
			added = append(added, name)
			continue
		}
		changed, was[name] = append(changed, name), was[name][1:]
	}
	for name, rest := range was {
		for range rest {
			removed = append(removed, name)
		}
	}
	slices.Sort(removed)
	var parts []string
	for _, p := range []struct {
		how   string
		names []string
	}{{"added", added}, {"removed", removed}, {"changed", changed}} {
		if n := len(p.names); n > maxNamed {
			parts = append(parts, fmt.Sprintf("%d %s", n, p.how))
		} else if n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s (%s)", n, p.how, strings.Join(p.names, ", ")))
		}
	}
	if len(parts) > 0 {
		d.parts = append(d.parts, kind+": "+strings.Join(parts, ", "))
	}
}

// order reports a list whose entries are the same in another order.
func (d *difference) order(kind string, old, list []string) {
	if !slices.Equal(old, list) && slices.Equal(slices.Sorted(slices.Values(old)), slices.Sorted(slices.Values(list))) {
		d.parts = append(d.parts, kind+": reordered")
	}
}
