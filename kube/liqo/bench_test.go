package liqo

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/client-go/rest"

	"culvert/gateway/config"
	"culvert/integration/need"
	"culvert/kube"
	"culvert/kube/objects"
	"culvert/nat"
)

// A pod is added or removed in a cluster of 200 nodes with 50 pods each: from the API server's
// objects to the rules of the packet path.
func BenchmarkPodChange(b *testing.B) {
	self := gatewayOf("cluster-b")
	s, g := NewState(self), newFakeGateway()
	for _, o := range largeCluster(b) {
		s.Put(o)
	}
	g.take(s)
	if len(g.site.Nodes) != largeNodes {
		b.Fatalf("%d nodes: %v", len(g.site.Nodes), s.Faults())
	}
	e := g.engine(b, self)
	changes := podChanges(b)
	i := 0
	for b.Loop() {
		s.Put(changes[i%len(changes)])
		c := s.Changes()
		if c.Site != nil || len(c.Put) != 1 {
			b.Fatalf("%d pieces", len(c.Put))
		}
		need.NoError(b, e.Put(c.Put[0].Key, c.Put[0].Resource))
		e.CommitRules()
		s.Verdicts()
		i++
	}
}

// The same, starting from the bytes of a watch.
func BenchmarkWatchedPodChange(b *testing.B) {
	all, events := map[string][]*Object{}, make(chan []byte)
	for _, o := range largeCluster(b) {
		all[o.Kind] = append(all[o.Kind], o)
	}
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		kind := ""
		for _, k := range kindsInAPI {
			if path.Base(r.URL.Path) == gvr(k).Resource {
				kind = k
			}
		}
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.Method != http.MethodGet || kind == "":
			w.WriteHeader(http.StatusNotFound)
		case r.URL.Query().Get("watch") == "":
			list := map[string]any{"kind": kind + "List", "apiVersion": objects.Liqo,
				"metadata": map[string]any{"resourceVersion": "7"}, "items": stored(b, all[kind]...)}
			if err := json.NewEncoder(w).Encode(list); err != nil {
				b.Error(err)
			}
		case kind != KindRoute:
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		default:
			for {
				w.(http.Flusher).Flush()
				select {
				case e := <-events:
					w.Write(e)
				case <-r.Context().Done():
					return
				}
			}
		}
	}))
	defer api.Close()
	client, err := kube.NewClient(&rest.Config{Host: api.URL, QPS: -1})
	need.NoError(b, err)
	self := gatewayOf("cluster-b")
	g := &benchGateway{b: b, self: self, committed: make(chan struct{}, 1)}
	if g.Engine, err = nat.New([16]byte{1}, new(Site).Config(baseOf(self.Remote)).NAT(config.Links{}, 0)); err != nil {
		b.Fatal(err)
	}
	log := logrus.New()
	log.SetOutput(io.Discard)
	source := NewSource(client, Identity{Self: self, Base: baseOf(self.Remote), UID: "u", Refresh: time.Hour},
		logrus.NewEntry(log))
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan struct{})
	go func() { source.Run(ctx, g); close(done) }()
	defer func() { cancel(); <-done }()
	<-g.committed
	var texts [][]byte
	for _, o := range stored(b, podChanges(b)...) {
		text, err := json.Marshal(map[string]any{"type": "MODIFIED", "object": o})
		need.NoError(b, err)
		texts = append(texts, text)
	}
	b.SetBytes(int64(len(texts[0])))
	i := 0
	for b.Loop() {
		events <- texts[i%len(texts)]
		<-g.committed
		i++
	}
}

// A benchGateway reports when rules are committed.
type benchGateway struct {
	*nat.Engine
	b         *testing.B
	self      Self
	committed chan struct{}
}

func (g *benchGateway) Apply(c *config.Config) error {
	return g.Engine.Apply(c.NAT(config.Links{}.Assign(c.Geneve.Nodes), 0))
}

func (g *benchGateway) CommitRules() {
	g.Engine.CommitRules()
	g.committed <- struct{}{}
}

func (g *benchGateway) Check() kube.Check { return kube.Check{} }

func (g *benchGateway) Speaks() bool { return true }

// stored returns resources as the API server has them, with this gateway's condition and
// managedFields.
func stored(b *testing.B, of ...*Object) (all []map[string]any) {
	for _, o := range of {
		text, err := json.Marshal(o)
		need.NoError(b, err)
		var u map[string]any
		need.NoError(b, json.Unmarshal(text, &u))
		u["apiVersion"] = objects.Liqo
		if o.Kind == KindRoute || o.Kind == KindFirewall {
			u["status"] = map[string]any{"conditions": []any{map[string]any{"host": "cluster-b", "type": "Applied",
				"status": "True", "lastTransitionTime": "2026-11-21T00:00:00Z"}}}
		}
		meta := u["metadata"].(map[string]any)
		meta["resourceVersion"], meta["generation"] = "8", 3
		meta["managedFields"] = []any{
			map[string]any{"manager": "liqo", "operation": "Apply", "apiVersion": objects.Liqo,
				"time": "2026-11-21T00:00:00Z", "fieldsType": "FieldsV1",
				"fieldsV1": map[string]any{"f:metadata": map[string]any{"f:labels": map[string]any{}},
					"f:spec": map[string]any{"f:table": map[string]any{"f:name": map[string]any{},
						"f:rules": map[string]any{}}}}},
			map[string]any{"manager": "culvert", "operation": "Update", "apiVersion": objects.Liqo,
				"time": "2026-11-21T00:00:00Z", "fieldsType": "FieldsV1",
				"fieldsV1": map[string]any{"f:status": map[string]any{".": map[string]any{},
					"f:conditions": map[string]any{}}}, "subresource": "status"},
		}
		all = append(all, u)
	}
	return all
}

const largeNodes, largePods = 200, 50

// largeCluster returns what the API server has of a large cluster.
func largeCluster(b *testing.B) []*Object {
	all := []*Object{object(b, fabricText)}
	for node := range largeNodes {
		name := fmt.Sprintf("n%d", node)
		all = append(all,
			object(b, strings.NewReplacer("NAME", name, "ADDRESS", fmt.Sprintf("10.80.%d.%d", 1+node/256, node%256)).
				Replace(nodeText)),
			object(b, strings.NewReplacer("NAME", name, "ID", fmt.Sprint(node)).Replace(tunnelText)),
			podRoutes(b, node, 200))
	}
	return all
}

// podChanges gives each node another pod, one after the other, and once more.
func podChanges(b *testing.B) []*Object {
	changes := make([]*Object, 2*largeNodes)
	for i := range changes {
		changes[i] = podRoutes(b, i%largeNodes, 201+i/largeNodes)
	}
	return changes
}

// podRoutes returns the routes to a node's pods, of which the first has changed.
func podRoutes(b *testing.B, node, changed int) *Object {
	device := fmt.Sprintf("liqo.n%d", node)
	var all []map[string]any
	for pod := range largePods {
		octet := pod
		if pod == 0 {
			octet = changed
		}
		all = append(all, map[string]any{
			"dst": fmt.Sprintf("10.%d.%d.%d/32", 100+node/256, node%256, octet), "gw": fmt.Sprintf("10.80.%d.%d",
				1+node/256, node%256),
			"targetRef": map[string]any{"kind": "Pod", "namespace": "default", "name": fmt.Sprintf("pod-%d-%d",
				node, octet)},
		})
	}
	spec, err := json.Marshal(map[string]any{"table": map[string]any{"name": device, "rules": []any{
		map[string]any{"dst": fmt.Sprintf("10.80.%d.%d/32", 1+node/256, node%256),
			"routes": []any{map[string]any{"dst": fmt.Sprintf("10.80.%d.%d/32", 1+node/256, node%256), "dev": device}}},
		map[string]any{"iif": "liqo-tunnel", "routes": all},
	}}})
	need.NoError(b, err)
	o := object(b,
		fmt.Sprintf(`{kind: RouteConfiguration, metadata: {name: n%d, namespace: liqo, uid: r%d, labels: {networking.liqo.io/route-category: gateway, networking.liqo.io/route-subcategory: fabric}}}`, node, node))
	o.Spec = spec
	return o
}
