package config

import (
	"fmt"

	"culvert/nat/rules"
)

// Places maps rules, routes and services of c to the fields of the file that specify them.
type Places map[place]string

// A place is a resource and, if that represents a list, the name of a rule in it; "" is the
// resource itself.
type place struct {
	key  rules.Key
	rule string
}

// Places returns the places of c. Resources that are not from the file, such as given rules, have
// none.
func (c *Config) Places() Places {
	all := Places{
		{rules.Key{Kind: "network", Name: "unknown-source"}, ""}: "nat.unknownSource",
		{rules.Key{Kind: "network", Name: "mss"}, ""}:            "mssClamp",
		{rules.Key{Kind: "network", Name: "routes"}, ""}:         "network.remote",
		{rules.Key{Kind: "network", Name: "outbound"}, ""}:       "network.remote",
		{rules.Key{Kind: "network", Name: "return"}, ""}:         "geneve.nodes",
	}
	for i, path := range c.remotePaths() {
		for _, resource := range []string{"remap", "outbound"} {
			all[place{rules.Key{Kind: "network", Name: resource}, c.Remote[i].Seen().String()}] = path
		}
	}
	for i := range c.Rules {
		all[place{rules.Key{Kind: "network", Name: "rules"}, c.Rules[i].Name}] = fmt.Sprintf("rules[%d]", i)
	}
	for i := range c.Geneve.Nodes {
		all[place{rules.Key{Kind: "node", Name: c.Geneve.Nodes[i].Name}, ""}] = fmt.Sprintf("geneve.nodes[%d]", i)
	}
	for i := range c.Addresses {
		for a := range c.Addresses[i].External.All() {
			all[place{rules.Key{Kind: "mapping", Name: a.String()}, ""}] = fmt.Sprintf("nat.addresses[%d]", i)
		}
	}
	for i := range c.Services {
		s := &c.Services[i]
		for a := range s.Address.All() {
			name := fmt.Sprintf("%s %s:%d/%d", s.Name, a, s.Port, s.Protocol)
			all[place{rules.Key{Kind: "service", Name: name}, ""}] = fmt.Sprintf("nat.services[%d]", i)
		}
	}
	return all
}

// Field returns the path of the field that specifies a rule of a resource, "" if no field does.
func (p Places) Field(key rules.Key, rule string) string {
	if path := p[place{key, rule}]; path != "" {
		return path
	}
	return p[place{key, ""}]
}
