package kube

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// One of the pods of a cluster of 200 nodes with 50 pods each comes or goes: from what the API server sends to rules that packets meet.
func BenchmarkPodChange(b *testing.B) {
	const nodes, pods = 200, 50
	self := gatewayOf("cluster-b")
	s, g := NewState(self), newFakeGateway()
	s.Put(object(b, fabricText))
	routes := func(node, changed int) *Object {
		device := fmt.Sprintf("liqo.n%d", node)
		var all []map[string]any
		for pod := range pods {
			octet := pod
			if pod == 0 {
				octet = changed
			}
			all = append(all, map[string]any{"dst": fmt.Sprintf("10.%d.%d.%d/32", 100+node/256, node%256, octet), "gw": fmt.Sprintf("10.80.%d.%d", 1+node/256, node%256)})
		}
		spec, err := json.Marshal(map[string]any{"table": map[string]any{"name": device, "rules": []any{
			map[string]any{"dst": fmt.Sprintf("10.80.%d.%d/32", 1+node/256, node%256), "routes": []any{map[string]any{"dst": fmt.Sprintf("10.80.%d.%d/32", 1+node/256, node%256), "dev": device}}},
			map[string]any{"iif": "liqo-tunnel", "routes": all},
		}}})
		if err != nil {
			b.Fatal(err)
		}
		o := object(b, fmt.Sprintf(`{kind: RouteConfiguration, metadata: {name: n%d, namespace: liqo, uid: r%d, labels: {networking.liqo.io/route-category: gateway, networking.liqo.io/route-subcategory: fabric}}}`, node, node))
		o.Spec = spec
		return o
	}
	for node := range nodes {
		name := fmt.Sprintf("n%d", node)
		s.Put(object(b, strings.NewReplacer("NAME", name, "ADDRESS", fmt.Sprintf("10.80.%d.%d", 1+node/256, node%256)).Replace(nodeText)))
		s.Put(object(b, strings.NewReplacer("NAME", name, "ID", fmt.Sprint(node)).Replace(tunnelText)))
		s.Put(routes(node, 200))
	}
	g.take(s)
	if len(g.site.Nodes) != nodes {
		b.Fatalf("%d nodes: %v", len(g.site.Nodes), s.Faults())
	}
	e := g.engine(b, self)
	changes := make([]*Object, 400)
	for i := range changes {
		changes[i] = routes(i%nodes, 201+i/nodes)
	}
	i := 0
	for b.Loop() {
		s.Put(changes[i%len(changes)])
		c := s.Changes()
		if c.Site != nil || len(c.Put) != 1 {
			b.Fatalf("%d pieces", len(c.Put))
		}
		if err := e.Put(c.Put[0].Key, c.Put[0].Resource); err != nil {
			b.Fatal(err)
		}
		e.CommitRules()
		s.Verdicts()
		i++
	}
}
