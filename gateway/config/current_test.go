package config

import (
	"net/netip"
	"slices"
	"testing"

	"culvert/integration/need"
)

// TestIdentity: what decides which connections are admitted decides the identity, and asking again
// costs nothing.
func TestIdentity(t *testing.T) {
	c, err := parseText([]byte(goodFile), keyFolder(t))
	need.NoError(t, err)
	of := func(change func(*Config)) (identity string) {
		x := *c
		x.Geneve.Nodes = slices.Clone(c.Geneve.Nodes)
		change(&x)
		var current Current
		current.Set(&x, Links{})
		identity = current.Identity()
		if n := testing.AllocsPerRun(10, func() { current.Identity() }); n > 0 {
			t.Errorf("%.0f allocations for each look", n)
		}
		return identity
	}
	is := of(func(*Config) {})
	for name, change := range map[string]func(*Config){
		"log":                      func(x *Config) { x.Log.Format = "text" },
		"another place of the pod": func(x *Config) { x.Geneve.Nodes[0].Underlay = netip.MustParseAddr("192.0.2.77") },
		"order of nodes":           func(x *Config) { slices.Reverse(x.Geneve.Nodes) },
	} {
		if of(change) != is {
			t.Errorf("%s: another identity", name)
		}
	}
	if of(func(x *Config) { x.Geneve.Nodes[0].PodCIDRs = nil }) == is {
		t.Error("other pods: the same identity")
	}
}
