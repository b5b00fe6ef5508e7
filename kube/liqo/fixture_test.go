package liqo

import (
	"bytes"
	"cmp"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"sigs.k8s.io/yaml"

	"culvert/gateway/config"
	"culvert/integration/need"
	"culvert/kube/objects"
	"culvert/nat"
	"culvert/nat/rules"
)

// An Object is what most of these tests are about.
type Object = objects.Object

// What Liqo's own controllers made, for two nodes and two peerings of overlapping clusters, in
// three versions and settings.
var captures = []string{"main-557c199cf", "v1.2.0", "main-557c199cf-options"}

var captureFiles = []string{"firewallconfigurations", "routeconfigurations", "genevetunnels", "internalfabrics",
	"internalnodes"}

// gatewayOf is the gateway of one of the captures' peerings, on node n1.
func gatewayOf(remote string) Self {
	return Self{Name: remote, Namespace: "liqo-tenant-" + remote, Remote: remote, Node: "n1",
		Server: remote == "cluster-b", MTU: 1340}
}

func loadCapture(t testing.TB, capture string) []*Object {
	t.Helper()
	var all []*Object
	for _, file := range captureFiles {
		b, err := os.ReadFile(filepath.Join("..", "testdata", capture, file+".yaml"))
		need.NoError(t, err)
		for _, doc := range bytes.Split(b, []byte("\n---\n")) {
			all = append(all, object(t, string(doc)))
		}
	}
	for _, remote := range []string{"cluster-b", "cluster-c"} {
		all = append(all, publicKey(t, remote, "peer", "2026-11-20T23:40:00Z", remote[len(remote)-1]))
	}
	return all
}

func object(t testing.TB, text string) *Object {
	t.Helper()
	o := &Object{}
	if err := yaml.Unmarshal([]byte(text), o); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return o
}

// publicKey returns the PublicKey of a peer, all bytes of it the same.
func publicKey(t testing.TB, remote, name, created string, octet byte) *Object {
	t.Helper()
	spec, err := json.Marshal(map[string]any{"publicKey": bytes.Repeat([]byte{octet}, 32)})
	need.NoError(t, err)
	o := object(t, `{kind: PublicKey, metadata: {name: `+name+`, namespace: liqo-tenant-`+remote+`, uid: `+name+
		`-uid, creationTimestamp: "`+created+`", labels: {liqo.io/remote-cluster-id: `+remote+`}}}`)
	o.Spec = spec
	return o
}

// A fakeGateway holds what it was told, and refuses what nat refuses.
type fakeGateway struct {
	site   Site
	pieces map[rules.Key]rules.Resource
	sites  int
}

func newFakeGateway() *fakeGateway { return &fakeGateway{pieces: map[rules.Key]rules.Resource{}} }

// take applies the changes of s.
func (g *fakeGateway) take(s *State) {
	c := s.Changes()
	if c.Site != nil {
		g.site = *c.Site
		if err := config.Check(g.site.Config(baseOf(s.self.Remote))); err != nil {
			panic(err)
		}
		g.sites++
	}
	for _, key := range c.Delete {
		delete(g.pieces, key)
	}
	for _, p := range c.Put {
		err := accepted(p.Resource)
		if err == nil {
			g.pieces[p.Key] = p.Resource
		}
		s.Refused(p.Key, err)
	}
}

// accepted returns why nat would not take a resource.
func accepted(r rules.Resource) error {
	c := baseConfig()
	c.Firewall, c.Routing = append(c.Firewall, r.Tables...), append(c.Routing, r.Routing...)
	return nat.Check(c)
}

func baseConfig() *nat.Config {
	g := gatewayOf("cluster-b")
	own := g
	own.Server = !own.Server
	c := &nat.Config{MTU: 1340}
	c.Firewall, c.Routing, c.PeerTunnelAddress, c.TunnelAddress = []rules.Table{}, []rules.PolicyTable{},
		rules.PairOf(g.peer()), rules.PairOf(own.peer())
	c.GatewayAddress = rules.PairOf(own.peer().Next().Next().Next())
	return c
}

// tables returns the tables of resources in the order in which nat runs them.
func (g *fakeGateway) tables() (firewall []rules.Table, routing []rules.PolicyTable) {
	var keys []rules.Key
	for key := range g.pieces {
		if key.Kind == KindFirewall || key.Kind == KindRoute {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, func(a, b rules.Key) int {
		return cmp.Or(cmp.Compare(g.pieces[a].Order, g.pieces[b].Order), cmp.Compare(a.Namespace, b.Namespace),
			cmp.Compare(a.Name, b.Name))
	})
	for _, key := range keys {
		firewall = append(firewall, g.pieces[key].Tables...)
		routing = append(routing, g.pieces[key].Routing...)
	}
	return firewall, routing
}
