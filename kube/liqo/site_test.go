package liqo

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"culvert/nat/rules"
)

const (
	fabricText = `{kind: InternalFabric, metadata: {name: b, namespace: liqo-tenant-cluster-b, uid: f, labels: {liqo.io/remote-cluster-id: cluster-b}},
		spec: {mtu: 1340, gatewayIP: 10.244.0.6, interface: {gateway: {ip: 10.80.0.3}, node: {name: liqo.x}}, remoteCIDRs: [10.71.0.0/16]}}`
	nodeText   = `{kind: InternalNode, metadata: {name: NAME, uid: NAME}, spec: {interface: {gateway: {name: liqo.NAME}, node: {ip: ADDRESS}}}, status: {nodeIP: {local: 10.1.1.1, remote: 192.0.2.1}}}`
	tunnelText = `{kind: GeneveTunnel, metadata: {name: b-NAME, namespace: liqo-tenant-cluster-b, uid: tNAME}, spec: {id: ID, internalNodeRef: {name: NAME}, internalFabricRef: {name: b}}}`
)

func nodeNamed(t *testing.T, name, ip string) *Object {
	return object(t, strings.NewReplacer("NAME", name, "ADDRESS", ip).Replace(nodeText))
}

func tunnelTo(t *testing.T, name, id string) *Object {
	return object(t, strings.NewReplacer("NAME", name, "ID", id).Replace(tunnelText))
}

func TestSite(t *testing.T) {
	labelled := func(text, from, to string) *Object { return object(t, strings.Replace(text, from, to, 1)) }
	n1, n2 := nodeNamed(t, "n1", "10.80.0.1"), nodeNamed(t, "n2", "10.80.0.2")
	t1, t2 := tunnelTo(t, "n1", "0"), tunnelTo(t, "n2", "1")
	base := []*Object{object(t, fabricText), n1, n2, t1, t2}
	replaced := func(i int, o *Object) []*Object {
		all := slices.Clone(base)
		all[i] = o
		return all
	}
	tests := []struct {
		name    string
		objects []*Object
		nodes   string // names
		fault   string // of one resource, key and message
		waiting string
	}{
		{"two nodes", base, "n1 n2", "", ""},
		{"nothing", nil, "", "", "no InternalFabric of cluster cluster-b"},
		{"fabric of another cluster", replaced(0, labelled(fabricText, "remote-cluster-id: cluster-b",
			"remote-cluster-id: cluster-c")), "", "", "no InternalFabric of cluster cluster-b"},
		{"fabric of another namespace", replaced(0, labelled(fabricText, "liqo-tenant-cluster-b", "other")), "", "",
			"no InternalFabric of cluster cluster-b"},
		{"a second fabric", append(slices.Clone(base), labelled(fabricText, "name: b", "name: c")), "n1 n2",
			"InternalFabric/liqo-tenant-cluster-b/c metadata.labels: InternalFabric b", ""},
		{"another MTU", replaced(0, labelled(fabricText, "1340", "1400")), "n1 n2",
			"InternalFabric/liqo-tenant-cluster-b/b spec.mtu: 1400 is not the 1340 of --mtu", ""},
		{"tunnel without node", append(slices.Clone(base), tunnelTo(t, "n3", "7")), "n1 n2", "",
			"GeneveTunnel b-n3: no InternalNode n3"},
		{"node without tunnel", append(slices.Clone(base), nodeNamed(t, "n3", "10.80.0.9")), "n1 n2", "", ""},
		{"node without address",
			replaced(2, labelled(strings.NewReplacer("NAME", "n2", "ADDRESS", "10.80.0.2").Replace(nodeText),
				"local: 10.1.1.1, remote: 192.0.2.1", "")), "n1", "", "InternalNode n2: no status.nodeIP.remote"},
		{"node of the gateway without address",
			replaced(1, labelled(strings.NewReplacer("NAME", "n1", "ADDRESS", "10.80.0.1").Replace(nodeText),
				"local: 10.1.1.1, remote: 192.0.2.1", "")), "n2", "", "InternalNode n1: no status.nodeIP.local"},
		{"node measured by the other pod alone",
			replaced(2, labelled(strings.NewReplacer("NAME", "n2", "ADDRESS", "10.80.0.2").Replace(nodeText),
				"local: 10.1.1.1, remote: 192.0.2.1", "local: 192.0.2.1")), "n1 n2", "",
			"InternalNode n2: no status.nodeIP.remote, which Liqo writes after this pod becomes active; until then this is status.nodeIP.local"},
		{"node of the gateway measured by the other pod alone",
			replaced(1, labelled(strings.NewReplacer("NAME", "n1", "ADDRESS", "10.80.0.1").Replace(nodeText),
				"local: 10.1.1.1, remote: 192.0.2.1", "remote: 10.1.1.1")), "n1 n2", "",
			"InternalNode n1: no status.nodeIP.local, which Liqo writes after this pod becomes active; until then this is status.nodeIP.remote"},
		{"node with the gateway's address", replaced(2, nodeNamed(t, "n2", "10.80.0.3")), "n1",
			"InternalNode/n2 spec.interface.node.ip: 10.80.0.3 is InternalFabric b's", ""},
		{"two nodes of one address", replaced(2, nodeNamed(t, "n2", "10.80.0.1")), "n1",
			"InternalNode/n2 spec.interface.node.ip: 10.80.0.1 is that of InternalNode n1 too", ""},
		{"two nodes of one device",
			replaced(2, labelled(strings.NewReplacer("NAME", "n2", "ADDRESS", "10.80.0.2").Replace(nodeText), "liqo.n2",
				"liqo.n1")), "n1",
			"InternalNode/n2 spec.interface.gateway.name: liqo.n1 is that of InternalNode n1 too", ""},
		{"two tunnels of one VNI", replaced(4, tunnelTo(t, "n2", "0")), "n1",
			"GeneveTunnel/liqo-tenant-cluster-b/b-n2 spec.id: 0 is that of GeneveTunnel b-n1 too", ""},
		{"two tunnels to one node", append(slices.Clone(base),
			labelled(strings.NewReplacer("NAME", "n1", "ID", "9").Replace(tunnelText), "name: b-n1", "name: c-n1")),
			"n1 n2",
			"GeneveTunnel/liqo-tenant-cluster-b/c-n1 spec.internalNodeRef.name: GeneveTunnel b-n1 leads to n1 too", ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s, g := NewState(gatewayOf("cluster-b")), newFakeGateway()
			for _, o := range test.objects {
				s.Put(o)
			}
			g.take(s)
			var names []string
			for _, n := range g.site.Nodes {
				names = append(names, n.Name)
				if want := map[bool]string{true: "10.1.1.1", false: "192.0.2.1"}[n.Name == "n1"]; n.Underlay !=
					netip.MustParseAddr(want) {
					t.Errorf("%s is sent to at %s, want %s", n.Name, n.Underlay, want)
				}
			}
			if got := strings.Join(names, " "); got != test.nodes {
				t.Errorf("nodes %q, want %q", got, test.nodes)
			}
			var faults []string
			for key, why := range s.Faults() {
				faults = append(faults, key.String()+" "+why)
			}
			if test.fault == "" && len(faults) > 0 || test.fault != "" && (len(faults) != 1 ||
				!strings.Contains(faults[0], test.fault)) {
				t.Errorf("faults %q, want %q", faults, test.fault)
			}
			if test.waiting != "" && !slices.Contains(s.Waiting(), test.waiting) {
				t.Errorf("waiting for %q, want %q", s.Waiting(), test.waiting)
			}
		})
	}
}

func TestNewestPublicKeyWins(t *testing.T) {
	s, g := NewState(gatewayOf("cluster-b")), newFakeGateway()
	octet := func() byte { g.take(s); return g.site.PeerPublicKey[31] }
	s.Put(publicKey(t, "cluster-b", "old", "2026-01-01T00:00:00Z", 1))
	if octet() != 1 {
		t.Error("the only key is not in use")
	}
	s.Put(publicKey(t, "cluster-b", "new", "2026-01-02T00:00:00Z", 2))
	s.Put(publicKey(t, "cluster-c", "other", "2026-01-03T00:00:00Z", 3))
	if octet() != 2 {
		t.Error("the newest key is not in use")
	}
	faultOf := func(name string) {
		t.Helper()
		f := s.Faults()
		if f[rules.Key{Kind: KindPublicKey, Namespace: "liqo-tenant-cluster-b", Name: name}] == "" {
			t.Errorf("faults %v, none of %s", f, name)
		}
	}
	faultOf("old")
	spoilt := publicKey(t, "cluster-b", "new", "2026-01-02T00:00:00Z", 2)
	spoilt.Spec = []byte(`{"publicKey": "AAAA"}`)
	s.Put(spoilt)
	if octet() != 2 {
		t.Error("the peer is gone with a malformed key")
	}
	faultOf("new")
	s.Delete(spoilt.Key())
	if octet() != 1 {
		t.Error("the older key is not in use")
	}
	s.Delete(rules.Key{Kind: KindPublicKey, Namespace: "liqo-tenant-cluster-b", Name: "old"})
	if octet() != 0 {
		t.Error("the peer stays without a key")
	}
}

// A pod that comes or goes changes one resource's rules, and nothing about the gateway.
func TestPodChangesOneResource(t *testing.T) {
	objects := loadCapture(t, captures[0])
	s, g := NewState(gatewayOf("cluster-b")), newFakeGateway()
	for _, o := range objects {
		s.Put(o)
	}
	g.take(s)
	i := slices.IndexFunc(objects, func(o *Object) bool { return o.Metadata.Name == "n2-gw-node" })
	o := *objects[i]
	o.Spec = []byte(strings.Replace(string(o.Spec), "10.244.1.2/32", "10.244.1.9/32", 1))
	s.Put(&o)
	c := s.Changes()
	if c.Site != nil || len(c.Delete) > 0 || len(c.Put) != 1 || c.Put[0].Key != o.Key() {
		t.Errorf("changes %+v", c)
	}
	s.Put(&o) // its status has changed
	if c := s.Changes(); c.Site != nil || len(c.Delete)+len(c.Put) > 0 {
		t.Errorf("changes without a change: %+v", c)
	}
}
