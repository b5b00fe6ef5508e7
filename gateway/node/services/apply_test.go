package services

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"culvert/integration/need"
	"culvert/nat"
	"culvert/nat/rules"
)

// Two Services that differ in any field except endpoints are different.
func TestSameBut(t *testing.T) {
	for i := range reflect.TypeFor[Service]().NumField() {
		var changed Service
		name, v := reflect.TypeFor[Service]().Field(i).Name, reflect.ValueOf(&changed).Elem().Field(i)
		switch v.Kind() {
		case reflect.String:
			v.SetString("x")
		case reflect.Bool:
			v.SetBool(true)
		case reflect.Slice:
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		case reflect.Int64:
			v.SetInt(1)
		default:
			v.SetUint(1)
		}
		if same := changed.sameBut(&Service{}); same != (name == "Endpoints") {
			t.Errorf("%s: %t", name, same)
		}
	}
	if (&Service{SourceRanges: []netip.Prefix{}}).sameBut(&Service{}) {
		t.Error("no client, and every client")
	}
}

// Amended or Replaceable look at each field of a Config, except Announce, from which Answers come,
// and options of the command line.
func TestAmendedLooksAtAll(t *testing.T) {
	for i := range reflect.TypeFor[Config]().NumField() {
		var before, next Config
		name, v := reflect.TypeFor[Config]().Field(i).Name, reflect.ValueOf(&next).Elem().Field(i)
		switch v.Kind() {
		case reflect.String:
			v.SetString("x")
		case reflect.Slice:
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		case reflect.Struct:
			v.Field(0).SetUint(1)
		case reflect.Bool:
			v.SetBool(true)
		default:
			v.SetInt(1)
		}
		_, alone := before.Amended(&next)
		if seen := !alone || before.Replaceable(&next) != nil; seen == slices.Contains([]string{"Announce", "Which",
			"TakeOver"}, name) {
			t.Errorf("%s: %t", name, seen)
		}
	}
}

// If only endpoints change, the amendment equals what the whole configuration says about their
// Services, and contains nothing else.
func TestAmended(t *testing.T) {
	c, err := parse(t)
	need.NoError(t, err)
	moved, err := parse(t, "10.244.1.5", "10.244.1.6")
	need.NoError(t, err)
	amended, alone := c.Amended(moved)
	if !alone || len(amended) != 2 { // at the cluster address and at the node port of IPv4
		t.Fatalf("%t, %v", alone, amended)
	}
	var want []rules.Service
	for _, s := range moved.NAT(c.Addresses).Services {
		if s.Name == "web" {
			want = append(want, s)
		}
	}
	if diff := cmp.Diff(want, amended, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
	e, err := nat.New([16]byte{1}, c.NAT(c.Addresses))
	need.NoError(t, err)
	if err := e.Amend(amended); err != nil {
		t.Error(err)
	}
	if amended, alone := c.Amended(c); !alone || len(amended) > 0 {
		t.Errorf("no change: %t, %v", alone, amended)
	}
	for what, change := range map[string]func(*Config){
		"a port":         func(c *Config) { c.Services[0].Port++ },
		"another":        func(c *Config) { c.Services = append(c.Services, Service{Name: "new"}) },
		"an address":     func(c *Config) { c.Addresses = c.Addresses[:1] },
		"the node":       func(c *Config) { c.Node = "n2" },
		"what it is for": func(c *Config) { c.Answers = c.Addresses },
		"links":          func(c *Config) { c.AnnounceOn = []string{"eth1"} },
	} {
		next, err := parse(t)
		need.NoError(t, err)
		if change(next); what == "an address" {
			next.Services = c.Services
		}
		if _, alone := c.Amended(next); alone {
			t.Errorf("%s has changed", what)
		}
	}
}
