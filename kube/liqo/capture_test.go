package liqo

import (
	"bytes"
	"encoding/json"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"culvert/integration/need"
	"culvert/nat"
	"culvert/nat/rules"
)

var update = flag.Bool("update", false, "write the tables of the captured gateways anew, for the tests of nat")

// The tables of each captured gateway are those that nat's tests walk packets through, and that a
// lab has compared with the kernel.
func TestCapturesGiveTheRulesThatNatHasChecked(t *testing.T) {
	for _, capture := range captures {
		for _, remote := range []string{"cluster-b", "cluster-c"} {
			t.Run(capture+" "+remote, func(t *testing.T) {
				s, g := NewState(gatewayOf(remote)), newFakeGateway()
				for _, o := range loadCapture(t, capture) {
					s.Put(o)
				}
				g.take(s)
				if f := s.Faults(); len(f) > 0 {
					t.Errorf("faults %v", f)
				}
				name := filepath.Join("..", "..", "nat", "testdata", "liqo-crs", capture, remote+".json")
				text, err := os.ReadFile(name)
				need.NoError(t, err)
				var checked nat.Config
				need.NoError(t, json.Unmarshal(text, &checked))
				firewall, routing := g.tables()
				if *update {
					checked.Firewall, checked.Routing = firewall, routing
					writeJSON(t, name, checked)
				}
				compare := cmp.Options{cmpopts.EquateComparable(netip.Prefix{}, netip.Addr{}), cmpopts.EquateEmpty()}
				if d := cmp.Diff(checked.Firewall, firewall, compare); d != "" {
					t.Errorf("tables (go test -update writes them anew):\n%s", d)
				}
				if d := cmp.Diff(checked.Routing, routing, compare); d != "" {
					t.Errorf("routing:\n%s", d)
				}
				checkSite(t, &g.site, &checked)
			})
		}
	}
}

func checkSite(t *testing.T, s *Site, checked *nat.Config) {
	t.Helper()
	var nodes []rules.Node
	for i, n := range s.Nodes {
		nodes = append(nodes, rules.Node{Link: nat.Link(i + 1), Name: n.Name, Address: rules.PairOf(n.Address),
			Device: n.Device})
	}
	if !slices.Equal(nodes, checked.Nodes) {
		t.Errorf("nodes %v, want %v", nodes, checked.Nodes)
	}
	if s.GatewayAddress == (netip.Addr{}) || s.UnknownSource != checked.UnknownSource.V4 ||
		s.PeerPublicKey == [32]byte{} {
		t.Errorf("site %+v", s)
	}
	var real, seen []netip.Prefix
	for _, r := range checked.Remote {
		real, seen = append(real, r.Real), append(seen, r.Seen())
	}
	if !slices.Equal(s.FromTunnel, sortedPrefixes(real)) || !slices.Equal(s.NotFromNodes, sortedPrefixes(seen)) {
		t.Errorf("from the tunnel %v, not from nodes %v; want %v, %v", s.FromTunnel, s.NotFromNodes, real, seen)
	}
	for _, r := range s.Remote {
		if !slices.ContainsFunc(checked.Remote, func(o rules.RemoteCIDR) bool {
			return r.Real == o.Real &&
				r.Seen() == o.Seen()
		}) {
			t.Errorf("%v is no pair of %v", r, checked.Remote)
		}
	}
	if len(s.Remote) != len(checked.Remote) {
		t.Errorf("pairs %v, want %v", s.Remote, checked.Remote)
	}
}

// The tables of nodes are no gateway's, but they are the same language.
func TestNodeTablesAreTheSameLanguage(t *testing.T) {
	for _, capture := range captures {
		var all []rules.Table
		for _, o := range loadCapture(t, capture) {
			if o.Kind != KindFirewall || o.Metadata.Labels[labelFirewall+category] != "fabric" {
				continue
			}
			var spec firewallSpec
			var f faults
			f.read("spec", o.Spec, &spec)
			if all = append(all, spec.table(&f)); f != nil {
				t.Errorf("%s: %v", o.Key(), f)
			}
		}
		name := filepath.Join("..", "..", "nat", "testdata", "liqo-crs", capture, "nodes.tables")
		if *update {
			writeJSON(t, name, all)
		}
		var checked []rules.Table
		text, err := os.ReadFile(name)
		if err == nil {
			err = json.Unmarshal(text, &checked)
		}
		if d := cmp.Diff(checked, all, cmpopts.EquateEmpty()); err != nil || d != "" {
			t.Errorf("%s: %v (go test -update writes it anew):\n%s", name, err, d)
		}
	}
}

func writeJSON(t *testing.T, name string, v any) {
	t.Helper()
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", "\t")
	need.NoError(t, e.Encode(v))
	need.NoError(t, os.WriteFile(name, b.Bytes(), 0o644))
}
