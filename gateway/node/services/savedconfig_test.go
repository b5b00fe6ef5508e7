package services

import (
	"bytes"
	"net/netip"
	"reflect"
	"testing"

	"github.com/sirupsen/logrus/hooks/test"

	"culvert/integration/need"
)

// savedConfig returns a configuration of Kubernetes' Services with a value in each field.
func savedConfig(t *testing.T, folder string) *Config {
	t.Helper()
	c, err := parse(t)
	need.NoError(t, err)
	c.State, c.Which = folder, "all"
	c.Services[0].SourceRanges = []netip.Prefix{}
	return c
}

// TestSaved: a run finds the Services of the previous one with every field, but not with another
// file, for another choice of Services, while the previous run still serves, or after any damage.
func TestSaved(t *testing.T) {
	folder := t.TempDir()
	c := savedConfig(t, folder)
	s, _ := keeping(t, folder)
	s.config = c
	if Saved(c, s.log) != nil {
		t.Error("beside a process that runs")
	}
	s.keeper.writeServices(s, func() {})
	s.keeper.Close()
	log, hook := test.NewNullLogger()
	base := c.base(true)
	got := Saved(&base, log)
	if got == nil || !reflect.DeepEqual(got, c) {
		t.Fatalf("%+v, want %+v", got, c)
	}
	for what, change := range map[string]func(*Config){
		"other pods":     func(c *Config) { c.Pods = nil },
		"other Services": func(c *Config) { c.Which = "labelled" },
		"another node":   func(c *Config) { c.Node = "n9" },
		"another address": func(c *Config) {
			c.Addresses = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
		},
	} {
		next := base
		if change(&next); Saved(&next, log) != nil {
			t.Errorf("with %s", what)
		}
	}
	if n := len(hook.AllEntries()); n > 0 {
		t.Errorf("%d messages", n)
	}

	var text bytes.Buffer
	need.NoError(t, c.save(&text, func() {}))
	for i := range text.Len() {
		damaged := bytes.Clone(text.Bytes())
		damaged[i] ^= 1
		if _, err := load(bytes.NewReader(damaged)); err == nil {
			t.Errorf("damage of byte %d is not found", i)
		}
		if _, err := load(bytes.NewReader(text.Bytes()[:i])); err == nil {
			t.Errorf("%d bytes are taken for all", i)
		}
	}
	if err := Forget(&base); err != nil || Saved(&base, log) != nil {
		t.Errorf("what is to be forgotten is there: %v", err)
	}
}
