package liqo

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"culvert/integration/need"
	"culvert/kube"
	"culvert/nat/rules"
)

// A spoilt resource is a copy of a captured one with another value at path; nil removes what is
// there.
type spoilt struct {
	kind, name string
	path       string
	value      any
	field      string // that the Event names; "" = path
}

const (
	natTable   = "cluster-b-remap-podcidr"
	markTable  = "service-nodeport-routing"
	mssTable   = "gw-mss-clamping"
	extTable   = "n1-extcidr"
	chain0     = "spec.table.chains[0]"
	chain1     = "spec.table.chains[1]"
	natRule0   = chain0 + ".rules.natRules[0]"
	filter0    = chain0 + ".rules.filterRules[0]"
	routeRule0 = "spec.table.rules[0]"
	route0     = routeRule0 + ".routes[0]"
)

var oneMatch = []any{map[string]any{"op": "eq", "proto": map[string]any{"value": "udp"}}}

func aRule(more ...any) []any {
	r := map[string]any{"name": "x", "match": oneMatch}
	for i := 0; i < len(more); i += 2 {
		r[more[i].(string)] = more[i+1]
	}
	return []any{r}
}

var allSpoilt = []spoilt{
	{KindFirewall, natTable, "spec", "text", "spec"},
	{KindFirewall, natTable, "spec.table", 7, ""},
	{KindFirewall, natTable, "spec.table.name", "", ""},
	{KindFirewall, natTable, "spec.table.name", 7, ""},
	{KindFirewall, natTable, "spec.table.family", "ARP", ""},
	{KindFirewall, natTable, "spec.table.family", "BRIDGE", ""},
	{KindFirewall, natTable, "spec.table.family", "NETDEV", ""},
	{KindFirewall, natTable, "spec.table.family", "ipv4", ""},
	{KindFirewall, natTable, "spec.table.chains", map[string]any{}, ""},
	{KindFirewall, natTable, chain0 + ".name", nil, ""},
	{KindFirewall, natTable, chain1 + ".name", "outgoing", ""},
	{KindFirewall, natTable, chain0 + ".hook", "ingress", ""},
	{KindFirewall, natTable, chain0 + ".hook", "nowhere", ""},
	{KindFirewall, natTable, chain0 + ".hook", "input", ""},
	{KindFirewall, natTable, chain0 + ".hook", "output", ""},
	{KindFirewall, natTable, chain0 + ".hook", "forward", ""},
	{KindFirewall, natTable, chain0 + ".hook", "postrouting", natRule0 + ".natType"},
	{KindFirewall, natTable, chain0 + ".type", "route", ""},
	{KindFirewall, natTable, chain0 + ".type", "mangle", ""},
	{KindFirewall, natTable, chain0 + ".type", "filter", chain0 + ".rules.natRules"},
	{KindFirewall, natTable, chain0 + ".priority", "first", "spec.table.chains.priority"},
	{KindFirewall, natTable, chain0 + ".priority", 1 << 31, "spec.table.chains.priority"},
	{KindFirewall, natTable, chain0 + ".priority", -200, ""},
	{KindFirewall, natTable, chain0 + ".policy", "return", ""},
	{KindFirewall, natTable, chain0 + ".rules.routeRules", []any{map[string]any{"name": "x"}}, ""},
	{KindFirewall, natTable, chain0 + ".rules.filterRules", aRule("action", "accept"), ""},
	{KindFirewall, natTable, natRule0 + ".natType", "redirect", ""},
	{KindFirewall, natTable, natRule0 + ".natType", "snat", ""},
	{KindFirewall, natTable, chain1 + ".rules.natRules[0].natType", "masquerade", chain1 + ".rules.natRules[0].to"},
	{KindFirewall, natTable, natRule0 + ".to", nil, ""},
	{KindFirewall, natTable, natRule0 + ".to", "host", ""},
	{KindFirewall, natTable, natRule0 + ".to", "10.0.0.0/33", ""},
	{KindFirewall, natTable, natRule0 + ".to", "fd00::/64", ""},
	{KindFirewall, natTable, natRule0 + ".to", "10.0.0.9-10.0.0.1", ""},
	{KindFirewall, natTable, natRule0 + ".match[0].op", "lt", ""},
	{KindFirewall, natTable, natRule0 + ".match[0].ip.value", "10.71.0/16", ""},
	{KindFirewall, natTable, natRule0 + ".match[0].ip.value", "::ffff:10.0.0.1", ""},
	{KindFirewall, natTable, natRule0 + ".match[0].ip.position", "in", ""},
	{KindFirewall, natTable, natRule0 + ".match[1].dev.position", "src", ""},
	{KindFirewall, natTable, natRule0 + ".match[1].dev.value", "", ""},
	{KindFirewall, markTable, chain0 + ".rules.natRules", aRule("natType", "masquerade"), ""},
	{KindFirewall, markTable, filter0 + ".action", "jump", ""},
	{KindFirewall, markTable, filter0 + ".value", "-1", ""},
	{KindFirewall, markTable, filter0 + ".value", "4294967296", ""},
	{KindFirewall, markTable, filter0 + ".value", nil, ""},
	{KindFirewall, markTable, filter0 + ".counter", "yes", "spec.table.chains.rules.filterRules.counter"},
	{KindFirewall, markTable, chain0 + ".rules.filterRules[1].name", "n2", ""},
	{KindFirewall, mssTable, filter0 + ".value", "65536", ""},
	{KindFirewall, mssTable, filter0 + ".match", oneMatch, ""},
	{KindFirewall, mssTable, filter0 + ".match",
		[]any{map[string]any{"op": "eq", "proto": map[string]any{"value": "sctp"}}}, filter0 + ".match[0].proto.value"},
	{KindFirewall, mssTable, filter0 + ".match",
		[]any{map[string]any{"op": "eq", "port": map[string]any{"value": "80-", "position": "dst"}}},
		filter0 + ".match[0].port.value"},
	{KindFirewall, mssTable, filter0 + ".match",
		[]any{map[string]any{"op": "eq", "port": map[string]any{"value": "90-80", "position": "dst"}}},
		filter0 + ".match[0].port.value"},
	{KindFirewall, mssTable, filter0 + ".match",
		[]any{map[string]any{"op": "eq", "port": map[string]any{"value": "80", "position": "in"}}},
		filter0 + ".match[0].port.position"},
	{KindFirewall, mssTable, chain0 + ".hook", "prerouting", filter0 + ".value"},
	{KindFirewall, mssTable, chain0, map[string]any{"name": "c", "type": "filter", "hook": "postrouting",
		"policy": "accept", "rules": map[string]any{"filterRules": aRule("action", "reject")}}, filter0 + ".action"},
	{KindFirewall, mssTable, chain0, map[string]any{"name": "c", "type": "filter", "hook": "output",
		"policy": "reject"}, chain0 + ".policy"},
	// Fields of a newer Liqo: without the part that is not understood, a rule would match too much.
	// Where the API server's CRD does not have the field either, an empty match is left.
	{KindFirewall, markTable, filter0 + ".match",
		[]any{map[string]any{"op": "eq", "ctstate": map[string]any{"value": []any{"established", "related"}}}},
		filter0 + ".match[0].ctstate"},
	{KindFirewall, markTable, filter0 + ".match", []any{map[string]any{"op": "eq"}}, filter0 + ".match[0]"},
	{KindFirewall, markTable, filter0 + ".match",
		[]any{map[string]any{"op": "eq", "IP": map[string]any{"value": "10.0.0.1", "position": "src"}}},
		filter0 + ".match[0].IP"},
	{KindFirewall, natTable, natRule0 + ".match[0].ip.set", "blocked", ""},
	{KindFirewall, natTable, natRule0 + ".toPort", 80, ""},
	{KindFirewall, natTable, chain0 + ".device", "eth0", ""},
	{KindFirewall, natTable, "spec.table.sets", []any{}, ""},
	{KindFirewall, natTable, "spec.suspended", true, ""},
	{KindRoute, extTable, routeRule0 + ".ipproto", "tcp", ""},
	{KindRoute, extTable, route0 + ".type", "blackhole", ""},
	{KindRoute, extTable, "spec.table.id", 7, ""},
	{KindRoute, extTable, "spec.suspended", true, ""},
	{KindRoute, extTable, "spec.table.name", nil, ""},
	{KindRoute, extTable, "spec.table.rules", []any{}, ""},
	{KindRoute, extTable, routeRule0 + ".dst", "10.71.0.0", ""},
	{KindRoute, extTable, routeRule0 + ".src", "x", ""},
	{KindRoute, extTable, routeRule0 + ".src", "fd00::/64", ""},
	{KindRoute, extTable, routeRule0 + ".fwmark", -1, ""},
	{KindRoute, extTable, routeRule0 + ".fwmark", 1 << 32, ""},
	{KindRoute, extTable, routeRule0 + ".priority", -1, ""},
	{KindRoute, extTable, routeRule0 + ".priority", "high", "spec.table.rules.priority"},
	{KindRoute, extTable, routeRule0 + ".iif", 7, "spec.table.rules.iif"},
	{KindRoute, extTable, route0 + ".dst", nil, ""},
	{KindRoute, extTable, route0 + ".dst", "10.0.0.0/33", ""},
	{KindRoute, extTable, route0 + ".gw", "fe80::1", ""},
	{KindRoute, extTable, route0 + ".gw", "nobody", ""},
	{KindRoute, extTable, route0 + ".src", "::1", ""},
	{KindRoute, extTable, route0, map[string]any{"dst": "10.0.0.0/8"}, ""},
	{KindRoute, extTable, route0 + ".nextHops", []any{map[string]any{"gw": "10.80.0.2"}}, ""},
	{KindRoute, extTable, route0, map[string]any{"dst": "10.0.0.0/8", "nextHops": []any{map[string]any{"weight": 1}}},
		route0 + ".nextHops[0]"},
	{KindFabric, "cluster-b", "spec.interface.gateway.ip", nil, ""},
	{KindFabric, "cluster-b", "spec.interface.gateway.ip", "10.80.0", ""},
	{KindFabric, "cluster-b", "spec.interface.gateway.ip", "127.0.0.1", ""},
	{KindFabric, "cluster-b", "spec.interface", "x", ""},
	{KindFabric, "cluster-b", "spec.remoteCIDRs[0]", "10.0.0.0", ""},
	{KindFabric, "cluster-b", "spec.mtu", "big", ""},
	{KindNode, "n1", "spec.interface.gateway.name", nil, ""},
	{KindNode, "n1", "spec.interface.gateway.name", "liqo-tunnel", ""},
	{KindNode, "n1", "spec.interface.node.ip", "x", ""},
	{KindNode, "n1", "spec.interface.node.ip", "224.0.0.1", ""},
	{KindNode, "n1", "status.nodeIP.remote", "x", ""},
	{KindNode, "n1", "status.nodeIP.remote", "0.0.0.0", ""},
	{KindNode, "n1", "status.nodeIP", "x", ""},
	{KindTunnel, "cluster-b-n1", "spec.id", nil, ""},
	{KindTunnel, "cluster-b-n1", "spec.id", -1, ""},
	{KindTunnel, "cluster-b-n1", "spec.id", 1 << 24, ""},
	{KindTunnel, "cluster-b-n1", "spec.id", "a", ""},
	{KindTunnel, "cluster-b-n1", "spec.internalNodeRef.name", nil, ""},
	{KindTunnel, "cluster-b-n1", "spec.internalFabricRef.name", nil, ""},
	{KindTunnel, "cluster-b-n1", "spec.internalFabricRef.name", "cluster-z", ""},
	{KindTunnel, "cluster-b-n1", "spec.id", 0, ""},
	{KindTunnel, "cluster-b-n1", "metadata.annotations", nil, "spec.id"}, // as it is: it has the id of the first
	{KindPublicKey, "peer", "spec.publicKey", "c2hvcnQ=", ""},
	{KindPublicKey, "peer", "spec.publicKey", nil, ""},
	{KindPublicKey, "peer", "spec.publicKey", "no base64!", ""},
	{KindPublicKey, "peer", "spec.publicKey", 32, ""},
}

func (p *spoilt) want() string {
	if p.field != "" {
		return p.field
	}
	return p.path
}

// object returns a copy of the captured resource under another name, spoilt. It is the youngest of
// its kind.
func (p *spoilt) object(t *testing.T, from []*Object, number int) *Object {
	t.Helper()
	for _, o := range from {
		if o.Kind != p.kind || o.Metadata.Name != p.name || p.kind == KindPublicKey &&
			o.Metadata.Namespace != "liqo-tenant-cluster-b" {
			continue
		}
		text, err := json.Marshal(o)
		need.NoError(t, err)
		var m map[string]any
		need.NoError(t, json.Unmarshal(text, &m))
		put(t, m, p.path, p.value)
		meta := m["metadata"].(map[string]any)
		meta["name"] = fmt.Sprintf("spoilt-%03d", number)
		meta["uid"] = fmt.Sprintf("spoilt-%03d-uid", number)
		meta["creationTimestamp"] = "2026-11-21T00:00:00Z"
		if text, err = json.Marshal(m); err != nil {
			t.Fatal(err)
		}
		return object(t, string(text))
	}
	t.Fatalf("no %s %s", p.kind, p.name)
	return nil
}

func put(t *testing.T, m map[string]any, path string, value any) {
	t.Helper()
	head, rest, more := strings.Cut(path, ".")
	name, index, listed := strings.Cut(head, "[")
	if listed {
		var i int
		if _, err := fmt.Sscanf(index, "%d]", &i); err != nil {
			t.Fatal(err)
		}
		list := m[name].([]any)
		if !more {
			list[i] = value
			return
		}
		put(t, list[i].(map[string]any), rest, value)
		return
	}
	switch {
	case more:
		put(t, m[name].(map[string]any), rest, value)
	case value == nil:
		delete(m, name)
	default:
		m[name] = value
	}
}

// An outcome is everything that follows from resources.
type outcome struct {
	site     Site
	pieces   map[rules.Key]rules.Resource
	faults   map[rules.Key]string
	verdicts map[rules.Key]bool
	waiting  []string
}

func outcomeOf(s *State, g *fakeGateway) outcome {
	o := outcome{g.site, g.pieces, s.Faults(), map[rules.Key]bool{}, s.Waiting()}
	for _, v := range s.Verdicts() {
		o.verdicts[v.Key] = v.Applied
	}
	return o
}

func outcomeWith(objects ...*Object) (outcome, []kube.Fault) {
	s, g := NewState(gatewayOf("cluster-b")), newFakeGateway()
	for _, o := range objects {
		s.Put(o)
	}
	g.take(s)
	return outcomeOf(s, g), s.Reports()
}

// checkSpoilt compares an outcome with the one of good resources alone.
func checkSpoilt(t *testing.T, good, got outcome, events []kube.Fault, spoiled []*Object, want []string) {
	t.Helper()
	for i, o := range spoiled {
		key := o.Key()
		if !strings.Contains(got.faults[key], want[i]+": ") {
			t.Errorf("fault %q does not name %s", got.faults[key], want[i])
		}
		named := slices.ContainsFunc(events, func(e kube.Fault) bool {
			return e.Metadata.UID == o.Metadata.UID && e.Kind == o.Kind && strings.Contains(e.Message, want[i]+": ")
		})
		if !named {
			t.Errorf("no Event on %s names %s: %v", key, want[i], events)
		}
		if applied, ok := got.verdicts[key]; (o.Kind == KindFirewall || o.Kind == KindRoute) && (applied || !ok) {
			t.Errorf("%s: condition True", key)
		}
		delete(got.faults, key)
		delete(got.verdicts, key)
	}
	if len(events) != len(spoiled) {
		t.Errorf("%d Events for %d resources: %v", len(events), len(spoiled), events)
	}
	if !reflect.DeepEqual(good, got) {
		t.Errorf("others are affected:\n%+v\n%+v", good, got)
	}
}

func TestMalformedResourceIsLeftOutAlone(t *testing.T) {
	objects := loadCapture(t, captures[0])
	good, events := outcomeWith(objects...)
	if len(events) > 0 || len(good.faults) > 0 || len(good.verdicts) < 10 {
		t.Fatalf("%v %v %v", events, good.faults, good.verdicts)
	}
	var all []*Object
	var want []string
	for i := range allSpoilt {
		p := &allSpoilt[i]
		o := p.object(t, objects, i)
		all, want = append(all, o), append(want, p.want())
		t.Run(fmt.Sprintf("%s %s %v", p.kind, p.path, p.value), func(t *testing.T) {
			got, events := outcomeWith(append(slices.Clone(objects), o)...)
			checkSpoilt(t, good, got, events, all[i:], want[i:])
		})
	}
	t.Run("all together", func(t *testing.T) {
		got, events := outcomeWith(append(slices.Clone(all), objects...)...)
		checkSpoilt(t, good, got, events, all, want)
	})
}

// A resource that is malformed for some time loses its rules and gets them back when it is fixed.
// Each cause is reported once.
func TestResourceMalformedForAWhile(t *testing.T) {
	objects := loadCapture(t, captures[0])
	s, g := NewState(gatewayOf("cluster-b")), newFakeGateway()
	for _, o := range objects {
		s.Put(o)
	}
	g.take(s)
	before := outcomeOf(s, g)
	before.pieces = maps.Clone(before.pieces)
	i := slices.IndexFunc(objects, func(o *Object) bool { return o.Metadata.Name == natTable })
	bad := *objects[i]
	bad.Spec = json.RawMessage(strings.Replace(string(bad.Spec), `"dnat"`, `"redirect"`, 1))
	for range 3 {
		s.Put(&bad)
		g.take(s)
	}
	if f := s.Faults(); len(f) != 1 || !strings.Contains(f[bad.Key()], natRule0+".natType") {
		t.Errorf("faults %v", f)
	}
	if _, there := g.pieces[bad.Key()]; there || outcomeOf(s, g).verdicts[bad.Key()] {
		t.Error("a malformed resource still has rules")
	}
	s.Put(objects[i])
	g.take(s)
	if got := outcomeOf(s, g); !reflect.DeepEqual(before, got) {
		t.Errorf("after it was fixed:\n%+v\n%+v", before, got)
	}
}

// The order in which resources are added, deleted and added again has no effect.
func TestArrivalInAnyOrderEndsInTheSameState(t *testing.T) {
	objects := loadCapture(t, captures[0])
	var spoiled []*Object
	for i := range allSpoilt {
		if i%9 == 0 {
			spoiled = append(spoiled, allSpoilt[i].object(t, objects, i))
		}
	}
	final := append(slices.Clone(objects), spoiled...)
	want, _ := outcomeWith(final...)
	runs := 1000
	if testing.Short() {
		runs = 100
	}
	for seed := range runs {
		r := rand.New(rand.NewPCG(uint64(seed), 12))
		s, g := NewState(gatewayOf("cluster-b")), newFakeGateway()
		// Each resource has a history that ends in what it is; histories run side by side.
		var histories [][]func()
		for _, o := range final {
			var h []func()
			for range r.IntN(4) {
				switch other := *o; r.IntN(3) {
				case 0:
					h = append(h, func() { s.Put(o) })
				case 1:
					h = append(h, func() { s.Delete(o.Key()) })
				default:
					other.Metadata.Created = other.Metadata.Created.AddDate(0, 0, r.IntN(3)-1)
					other.Spec = json.RawMessage(strings.Replace(string(o.Spec), "10.", "11.", r.IntN(3)))
					h = append(h, func() { s.Put(&other) })
					if r.IntN(4) == 0 && o.Kind != KindPublicKey {
						spoiledAgain := other
						spoiledAgain.Spec = json.RawMessage(`{"table": 1}`)
						h = append(h, func() { s.Put(&spoiledAgain) })
					}
				}
			}
			histories = append(histories, append(h, func() { s.Put(o) }))
		}
		for len(histories) > 0 {
			i := r.IntN(len(histories))
			histories[i][0]()
			if histories[i] = histories[i][1:]; len(histories[i]) == 0 {
				histories = slices.Delete(histories, i, i+1)
			}
			if r.IntN(8) == 0 {
				g.take(s)
			}
		}
		g.take(s)
		if got := outcomeOf(s, g); !reflect.DeepEqual(want, got) {
			t.Fatalf("seed %d:\n%+v\n%+v", seed, want, got)
		}
	}
}
