package config

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"culvert/nat/rules"
)

// TestChanges: a reload logs in words what it has changed.
func TestChanges(t *testing.T) {
	base := func() *Config {
		c := &Config{}
		for _, name := range []string{"rome-1", "rome-2", "rome-3"} {
			c.Geneve.Nodes = append(c.Geneve.Nodes, Node{Name: name})
		}
		c.Rules = []rules.FilterRule{{Name: "a"}, {Name: "b"}}
		c.Remote = []rules.RemoteCIDR{{Real: netip.MustParsePrefix("10.0.0.0/16"),
			Remapped: netip.MustParsePrefix("10.61.0.0/16")}}
		c.Addresses = []AddressMapping{{External: rules.PairOf(netip.MustParseAddr("10.70.0.9"))}}
		c.Services = []Service{{Name: "web"}, {Name: "dns", Port: 53, Protocol: 6},
			{Name: "dns", Port: 53, Protocol: 17}}
		return c
	}
	for _, tt := range []struct {
		name   string
		change func(*Config)
		want   string
	}{
		{"nothing", func(*Config) {}, "nothing changed"},
		{"another order of nodes", func(c *Config) { slices.Reverse(c.Geneve.Nodes) }, "nothing changed"},
		{"exports", func(c *Config) {
			c.Admit, c.Exports = AdmitExports, []rules.Endpoint{
				{Prefix: netip.MustParsePrefix("10.0.1.5/32"), Protocol: 17, Port: 53},
				{Prefix: netip.MustParsePrefix("10.0.1.0/24"), Protocol: 50}}
		}, "exports: 2 added (10.0.1.5/32 udp 53, 10.0.1.0/24 protocol 50); nat.admit changed"},
		{"warnings", func(c *Config) { c.Warnings = []string{"x"} }, "nothing changed"},
		{"nodes", func(c *Config) {
			c.Geneve.Nodes = append(c.Geneve.Nodes[1:], Node{Name: "rome-4"}, Node{Name: "rome-5"})
			c.Geneve.Nodes[0].VNI = 7
		}, "nodes: 2 added (rome-4, rome-5), 1 removed (rome-1), 1 changed (rome-2)"},
		{"many nodes", func(c *Config) {
			for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
				c.Geneve.Nodes = append(c.Geneve.Nodes, Node{Name: name})
			}
		}, "nodes: 6 added"},
		{"rules", func(c *Config) { c.Rules = append(c.Rules[:1], rules.FilterRule{Name: "c"}) },
			"rules: 1 added (c), 1 removed (b)"},
		{"the order of rules", func(c *Config) { slices.Reverse(c.Rules) }, "rules: reordered"},
		{"a remap", func(c *Config) { c.Remote[0].Remapped = netip.MustParsePrefix("10.63.0.0/16") },
			"remote CIDRs: 1 changed (10.0.0.0/16)"},
		{"a mapping", func(c *Config) { c.Addresses[0].Via = "rome-1" }, "address mappings: 1 changed (10.70.0.9)"},
		{"a service and a field", func(c *Config) { c.Services, c.MaxConnections = c.Services[1:], 5 },
			"services: 1 removed (web); nat.maxConnections changed"},
		{"services of one name, reordered", func(c *Config) {
			c.Services = []Service{{Name: "dns", Port: 53, Protocol: 17}, {Name: "dns", Port: 53, Protocol: 6},
				{Name: "web"}}
		}, "nothing changed"},
		{"one of several services of one name", func(c *Config) { c.Services[1].Port = 54 },
			"services: 1 changed (dns)"},
		{"the log's level", func(c *Config) { c.Log.Level = "debug" }, "log.level changed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := base()
			tt.change(c)
			if got := c.Changes(base()); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

// TestChangesMissNothing: each field of a configuration either cannot change live, or its change is
// reported.
func TestChangesMissNothing(t *testing.T) {
	// what they change is a remap
	silent := map[string]bool{"Warnings": true, "File.Path": true, "File.Sum": true, "IPAM.Pools": true,
		"IPAM.Reserved": true}
	var each func(v reflect.Value, path string, c *Config)
	each = func(v reflect.Value, path string, c *Config) {
		if v.Kind() == reflect.Struct && v.Type().PkgPath() == reflect.TypeFor[Config]().PkgPath() {
			for i := range v.NumField() {
				each(v.Field(i), path+"."+v.Type().Field(i).Name, c)
			}
			return
		}
		old := reflect.New(v.Type()).Elem()
		old.Set(v)
		switch v.Kind() {
		case reflect.Slice:
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		case reflect.String:
			v.SetString("x")
		case reflect.Bool:
			v.SetBool(true)
		case reflect.Array:
			v.Index(0).SetUint(7)
		case reflect.Struct:
			v.Set(reflect.ValueOf(rules.PairOf(netip.MustParseAddr("10.70.0.1"))))
		default:
			if v.CanUint() {
				v.SetUint(1)
			} else {
				v.SetInt(1)
			}
		}
		if !silent[path[1:]] && c.ChangesLive(&Config{}) == nil && c.Changes(&Config{}) == "nothing changed" {
			t.Errorf("a change of %s is not said", path[1:])
		}
		v.Set(old)
	}
	c := &Config{}
	each(reflect.ValueOf(c).Elem(), "", c)
}
