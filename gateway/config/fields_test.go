package config

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"culvert/gateway/configfile"
	"culvert/gateway/wgkey"
	"culvert/integration/need"
)

// TestFieldsAreTheTypes: the reference has exactly the fields of the file, in the order of the
// types.
func TestFieldsAreTheTypes(t *testing.T) {
	want, got := configfile.Leaves(new(file)), []string{}
	for _, f := range fields {
		got = append(got, f.Path)
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(want, got) {
		t.Errorf("the reference has %q, the types have %q", got, want)
	}
}

// TestDefaults: writing a default into the file changes nothing, and a required field cannot be
// omitted.
func TestDefaults(t *testing.T) {
	dir := keyFolder(t)
	load := func(path, value string) (*Config, error) {
		t.Helper()
		var tree map[string]any
		need.NoError(t, yaml.Unmarshal([]byte(goodFile), &tree))
		set(tree, strings.Split(path, "."), value)
		text, err := yaml.Marshal(tree)
		need.NoError(t, err)
		c, err := parseText(text, dir)
		if c != nil {
			c.Warnings = nil
		}
		return c, err
	}
	// goodFile needs these because of its other fields.
	needed := []string{"wireguard.peerPublicKeyFile", "wireguard.endpoint", "network.local.externalCIDRs[]",
		"network.remote.podCIDRs[].remap", "network.remote.externalCIDRs[].remap", "rules[].protocol"}
	for _, f := range fields {
		without, err := load(f.Path, "")
		if (err != nil) != (f.Default == required || slices.Contains(needed, f.Path)) {
			t.Errorf("without %s, whose default is %q: %v", f.Path, f.Default, err)
		}
		if f.Default == "" || f.Default == required || err != nil {
			continue
		}
		with, err := load(f.Path, f.Default)
		if err != nil {
			t.Errorf("%s: %s: %v", f.Path, f.Default, err)
			continue
		}
		if f.Path == "nat.services[].affinityTimeout" {
			with.Services[0].AffinityTimeout = 0 // the default is nat's
		}
		if !reflect.DeepEqual(with, without) {
			t.Errorf("%s: %s is not what its absence means", f.Path, f.Default)
		}
	}
}

// set writes a value, or removes it, at a path in the first element of each list.
func set(tree map[string]any, path []string, value string) {
	name, isList := strings.CutSuffix(path[0], "[]")
	switch list, _ := tree[name].([]any); {
	case len(path) == 1 && value == "":
		delete(tree, name)
	case len(path) == 1 && isList:
		tree[name] = []any{value}
	case len(path) == 1:
		tree[name] = value
	case isList && len(list) > 0:
		set(list[0].(map[string]any), path[1:], value)
	case !isList:
		below, ok := tree[name].(map[string]any)
		if !ok {
			below = map[string]any{}
			tree[name] = below
		}
		set(below, path[1:], value)
	}
}

// TestLive: a field can change while the gateway runs if and only if the reference says so.
func TestLive(t *testing.T) {
	old, err := parseText([]byte(goodFile), keyFolder(t))
	need.NoError(t, err)
	var restart []string
	for _, f := range fields {
		if !f.Live {
			restart = append(restart, f.Path)
		}
	}
	changed := *old
	changed.Peer, changed.IPAM.File = "x", "x"
	changed.Cluster, changed.MTU, changed.Control, changed.Metrics, changed.Log.Format = "x", 1000, "",
		"127.0.0.1:0", "x"
	changed.WireGuard.Role, changed.WireGuard.PrivateKey, changed.WireGuard.UAPI = Server, wgkey.NewPrivate(), true
	changed.WireGuard.ListenPort, changed.Geneve.ListenPort = 1, 2
	changed.Geneve.GatewayAddress.V4 = changed.Geneve.GatewayAddress.V4.Next()
	lines := strings.Split(changed.ChangesLive(old).Error(), "\n")
	changed.State = "x" // hides ipam.file
	lines = append(lines, strings.Split(changed.ChangesLive(old).Error(), "\n")...)
	for _, line := range lines {
		path, _, _ := strings.Cut(line, ": cannot change")
		if !slices.ContainsFunc(restart, func(f string) bool { return f == path || strings.HasPrefix(f, path+".") }) {
			t.Errorf("the reference says that %s changes live", path)
		}
	}
	for _, path := range restart {
		if !slices.ContainsFunc(lines, func(l string) bool {
			refused, _, _ := strings.Cut(l, ": cannot change")
			return path == refused || strings.HasPrefix(path, refused+".")
		}) {
			t.Errorf("the reference says that %s takes a restart", path)
		}
	}
}
