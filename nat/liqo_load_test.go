package nat

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// What Liqo's own controllers made, for two nodes and two peerings of overlapping clusters, in three versions and settings.
var captures = []string{"main-557c199cf", "v1.2.0", "main-557c199cf-options"}

type crMeta struct {
	Name, Namespace string
	Labels          map[string]string
}

type crMatch struct {
	Op    string
	IP    *struct{ Value, Position string }
	Port  *struct{ Value, Position string }
	Dev   *struct{ Value, Position string }
	Proto *struct{ Value string }
}

type crFirewall struct {
	Metadata crMeta
	Spec     struct {
		Table struct {
			Name, Family string
			Chains       []struct {
				Name, Type, Hook, Policy string
				Priority                 int32
				Rules                    struct {
					NatRules []struct {
						Name, NatType, To string
						Match             []crMatch
					}
					FilterRules []struct {
						Name, Action, Value string
						Counter             *bool
						Match               []crMatch
					}
				}
			}
		}
	}
}

type crRoute struct {
	Metadata crMeta
	Spec     struct {
		Table struct {
			Name  string
			Rules []struct {
				Dst, Src, Iif, Oif string
				Fwmark             uint32
				Priority           int
				Routes             []struct{ Dst, Gw, Dev string }
			}
		}
	}
}

func loadCapture[T any](t testing.TB, capture, file string) []T {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "liqo-crs", capture, file))
	if err != nil {
		t.Fatal(err)
	}
	var all []T
	for _, doc := range bytes.Split(b, []byte("\n---\n")) {
		var x T
		if err := yaml.Unmarshal(doc, &x); err != nil {
			t.Fatal(err)
		}
		all = append(all, x)
	}
	return all
}

func (m crMatch) match() Match {
	x := Match{Op: Op(m.Op)}
	for _, o := range []struct {
		from *struct{ Value, Position string }
		to   *Operand
	}{{m.IP, &x.IP}, {m.Port, &x.Port}, {m.Dev, &x.Dev}} {
		if o.from != nil {
			*o.to = Operand{o.from.Value, Position(o.from.Position)}
		}
	}
	if m.Proto != nil {
		x.Proto = m.Proto.Value
	}
	return x
}

func matchesOf(from []crMatch) []Match {
	var all []Match
	for _, m := range from {
		all = append(all, m.match())
	}
	return all
}

func (f *crFirewall) table(t testing.TB) Table {
	x := Table{Name: f.Spec.Table.Name, Family: Family(f.Spec.Table.Family)}
	for _, c := range f.Spec.Table.Chains {
		chain := Chain{Name: c.Name, Type: ChainType(c.Type), Hook: Hook(c.Hook), Priority: c.Priority, Policy: Policy(c.Policy)}
		for _, r := range c.Rules.NatRules {
			chain.Rules = append(chain.Rules, Rule{Name: r.Name, Match: matchesOf(r.Match), Action: RuleAction(r.NatType), To: r.To})
		}
		for _, r := range c.Rules.FilterRules {
			value := 0
			if r.Value != "" {
				var err error
				if value, err = strconv.Atoi(r.Value); err != nil {
					t.Fatal(err)
				}
			}
			chain.Rules = append(chain.Rules, Rule{
				Name: r.Name, Match: matchesOf(r.Match), Action: RuleAction(r.Action), Value: uint32(value),
				NoCounter: r.Counter != nil && !*r.Counter,
			})
		}
		x.Chains = append(x.Chains, chain)
	}
	return x
}

func (f *crRoute) table() PolicyTable {
	x := PolicyTable{Name: f.Spec.Table.Name}
	prefix := func(s string) netip.Prefix {
		if s == "" {
			return netip.Prefix{}
		}
		return netip.MustParsePrefix(s)
	}
	for _, r := range f.Spec.Table.Rules {
		rule := PolicyRule{Destination: prefix(r.Dst), Source: prefix(r.Src), In: r.Iif, Out: r.Oif, Mark: r.Fwmark, Priority: r.Priority}
		for _, route := range r.Routes {
			y := PolicyRoute{Destination: prefix(route.Dst), Device: route.Dev}
			if route.Gw != "" {
				y.Via = addr(route.Gw)
			}
			rule.Routes = append(rule.Routes, y)
		}
		x.Rules = append(x.Rules, rule)
	}
	return x
}

// A capturedGateway is the gateway of one peering, scheduled on node n1, with what it watches.
type capturedGateway struct {
	*ruleset
	config *Config
	loaded []string        // names of the CRs
	marks  map[string]Port // of the nodes, from the ctmark rules
	pods   map[Port]string // one on each node
}

// The nodes of every capture.
const portN1, portN2 = Port(1), Port(2)

// captured compiles what the gateway of a peering selects by its labels. The tables of the peering
// come before those of single addresses, so that a source from the tunnel is remapped rather than taken for a mapped host.
func captured(t testing.TB, capture, remote string) capturedGateway {
	t.Helper()
	g := capturedGateway{config: &Config{}, marks: map[string]Port{}, pods: map[Port]string{}}
	c := g.config
	*c = Config{
		GatewayAddress: addr("10.80.0.3"), TunnelAddress: addr("169.254.18.1"), PeerTunnelAddress: addr("169.254.18.2"),
		LocalPodCIDRs: []netip.Prefix{pfx("10.244.0.0/16")}, LocalExternalCIDRs: []netip.Prefix{pfx("10.70.0.0/16")},
		Remote: []RemoteCIDR{
			{Real: pfx("10.244.0.0/16"), Remapped: pfx("10.71.0.0/16")},
			{Real: pfx("10.70.0.0/16"), Remapped: pfx("10.68.0.0/16"), External: true},
		},
		UnknownSource: addr("10.70.0.0"),
		MTU:           1340,
		Firewall:      []Table{}, Routing: []PolicyTable{},
	}
	if remote == "cluster-c" {
		c.Remote = []RemoteCIDR{{Real: pfx("10.245.0.0/16")}, {Real: pfx("10.71.0.0/16"), Remapped: pfx("10.69.0.0/16"), External: true}}
	}
	if remote == "cluster-c" { // there we are the client
		c.TunnelAddress, c.PeerTunnelAddress = c.PeerTunnelAddress, c.TunnelAddress
	}
	var mappings []Table
	for _, f := range loadCapture[crFirewall](t, capture, "firewallconfigurations.yaml") {
		l := f.Metadata.Labels
		sub, unique := l["networking.liqo.io/firewall-subcategory"], l["networking.liqo.io/firewall-unique"]
		switch {
		case l["networking.liqo.io/firewall-category"] != "gateway":
			continue
		case sub == "ip-mapping":
			mappings = append(mappings, f.table(t))
		case sub == "all-gateways", sub == "fabric", unique == remote:
			c.Firewall = append(c.Firewall, f.table(t))
		default:
			continue
		}
		g.loaded = append(g.loaded, f.Metadata.Name)
	}
	c.Firewall = append(c.Firewall, mappings...)
	for _, f := range loadCapture[crRoute](t, capture, "routeconfigurations.yaml") {
		l := f.Metadata.Labels
		sub, unique := l["networking.liqo.io/route-subcategory"], l["networking.liqo.io/route-unique"]
		if l["networking.liqo.io/route-category"] != "gateway" || sub == "fabric-node" && unique != "n1" || sub == "" && unique != remote {
			continue
		}
		g.loaded = append(g.loaded, f.Metadata.Name)
		x := f.table()
		c.Routing = append(c.Routing, x)
		if node, ok := strings.CutSuffix(f.Metadata.Name, "-gw-node"); ok {
			first := x.Rules[0] // dst N(n) → dev G(n)
			port := map[string]Port{"n1": portN1, "n2": portN2}[node]
			g.pods[port] = x.Rules[1].Routes[0].Destination.Addr().String()
			c.Nodes = append(c.Nodes, Node{Port: port, Name: node, Device: first.Routes[0].Device, Address: first.Destination.Addr()})
		}
	}
	var err error
	if g.ruleset, err = newRuleset(c); err != nil {
		t.Fatal(err)
	}
	for _, r := range g.all() {
		if r.action == ActionCTMark {
			node := map[string]Port{"n1": portN1, "n2": portN2}[r.name]
			g.marks[fmt.Sprint(r.value)] = node
		}
	}
	return g
}
