package service

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"culvert/gateway/node/services"
	"culvert/integration/need"
	"culvert/nat"
)

// A malformed object, and the fields that its Event names. left is how many of its ports, or of the endpoints of a slice, are still served.
type malformed struct {
	spec   string // of a Service, behind its name
	slice  string // or of a slice: ports, addressType and endpoints
	status string
	fields []string
	left   int
}

const at20 = "clusterIP: 10.96.0.20, ports: [{name: http, port: 80}]"

var allMalformed = []malformed{
	{spec: "clusterIP: 10.96.0.300, ports: [{port: 80}]", fields: []string{"spec.clusterIPs[0]"}},
	{spec: "clusterIP: 127.0.0.1, ports: [{port: 80}]", fields: []string{"spec.clusterIPs[0]"}},
	{spec: "clusterIP: 224.0.0.1, ports: [{port: 80}]", fields: []string{"spec.clusterIPs[0]"}},
	{spec: "clusterIP: 0.0.0.0, ports: [{port: 80}]", fields: []string{"spec.clusterIPs[0]"}},
	{spec: "clusterIP: 'fe80::1%eth0', ports: [{port: 80}]", fields: []string{"spec.clusterIPs[0]"}},
	{spec: "clusterIP: 172.18.0.2, ports: [{port: 80}]", fields: []string{"spec.clusterIPs[0]"}},
	{spec: "clusterIP: 10.244.0.7, ports: [{port: 80}]", fields: []string{"spec.clusterIPs[0]"}},
	{spec: "clusterIP: 10.96.0.10, ports: [{port: 80}]", fields: []string{"spec.clusterIPs[0]"}}, // that of an older one
	{spec: "clusterIP: 10.96.0.20, ports: [{port: 0}, {name: b, port: 81}]", fields: []string{"spec.ports[0].port"}, left: 1},
	{spec: "clusterIP: 10.96.0.20, ports: [{port: 65536}]", fields: []string{"spec.ports[0].port"}},
	{spec: "clusterIP: 10.96.0.20, ports: [{port: -1}]", fields: []string{"spec.ports[0].port"}},
	{spec: "clusterIP: 10.96.0.20, ports: [{port: http}]", fields: []string{"spec.ports.port"}},
	{spec: "clusterIP: 10.96.0.20, ports: 80", fields: []string{"spec.ports"}},
	{spec: "clusterIP: 10.96.0.20, ports: [{port: 80, protocol: DCCP}]", fields: []string{"spec.ports[0].protocol"}},
	{spec: "clusterIP: 10.96.0.20, ports: [{name: a, port: 80}, {name: a, port: 81}]", fields: []string{"spec.ports[1].name"}, left: 1},
	{spec: "clusterIP: 10.96.0.20, ports: [{name: a, port: 80}, {name: b, port: 80}]", fields: []string{"spec.clusterIPs[0]"}, left: 1},
	{spec: "type: NodePort, clusterIP: 10.96.0.20, ports: [{port: 80, nodePort: 61000}]", fields: []string{"spec.ports[0].nodePort"}, left: 1},
	{spec: "type: NodePort, clusterIP: 10.96.0.20, ports: [{port: 80, nodePort: 65535}]", fields: []string{"spec.ports[0].nodePort"}, left: 1},
	{spec: "type: NodePort, clusterIP: 10.96.0.20, ports: [{port: 80, nodePort: -5}]", fields: []string{"spec.ports[0].nodePort"}, left: 1},
	{spec: "type: NodePort, clusterIP: 10.96.0.20, ports: [{port: 80, nodePort: 30080}]", fields: []string{"spec.ports[0].nodePort"}, left: 1}, // taken
	{spec: at20 + ", externalIPs: [198.51.100, 198.51.100.9]", fields: []string{"spec.externalIPs[0]"}, left: 1},
	{spec: at20 + ", externalIPs: ['::1']", fields: []string{"spec.externalIPs[0]"}, left: 1},
	{spec: at20 + ", externalIPs: [198.51.100.7]", fields: []string{"spec.externalIPs[0]"}, left: 1}, // taken
	{spec: at20 + ", externalIPs: [10.244.0.1]", fields: []string{"spec.externalIPs[0]"}, left: 1},   // a pod's
	{spec: "clusterIP: 10.96.0.20, externalIPs: [198.51.100.9], ports: [{port: 65535}]", fields: []string{"spec.ports[0].port"}, left: 1},
	{spec: at20 + ", loadBalancerSourceRanges: [192.0.2.0/33]", status: "loadBalancer: {ingress: [{ip: 203.0.113.9}]}", fields: []string{"spec.loadBalancerSourceRanges[0]"}, left: 1},
	{spec: at20, status: "loadBalancer: {ingress: [{ip: here}]}", fields: []string{"status.loadBalancer.ingress[0].ip"}, left: 1},
	{spec: at20, status: "loadBalancer: []", fields: []string{"status.loadBalancer"}},
	{spec: at20 + ", externalTrafficPolicy: Near", fields: []string{"spec.externalTrafficPolicy"}},
	{spec: at20 + ", internalTrafficPolicy: Near", fields: []string{"spec.internalTrafficPolicy"}},
	{spec: at20 + ", sessionAffinity: Cookie", fields: []string{"spec.sessionAffinity"}},
	{spec: at20 + ", sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 86401}}", fields: []string{"spec.sessionAffinityConfig.clientIP.timeoutSeconds"}},
	{spec: "type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: 70000, " + at20, fields: []string{"spec.healthCheckNodePort"}, left: 1},
	{slice: "addressType: IPv5, endpoints: [{addresses: [10.244.0.9]}]", fields: []string{"addressType"}},
	{slice: "addressType: [], endpoints: [{addresses: [10.244.0.9]}]", fields: []string{"addressType"}},
	{slice: "addressType: IPv4, endpoints: [{addresses: [x]}, {addresses: [10.244.0.9]}]", fields: []string{"endpoints[0].addresses[0]"}, left: 1},
	{slice: "addressType: IPv4, endpoints: [{addresses: ['fd24::9']}, {addresses: [10.244.0.9]}]", fields: []string{"endpoints[0].addresses[0]"}, left: 1},
	{slice: "addressType: IPv4, endpoints: [{addresses: [169.254.169.254]}]", fields: []string{"endpoints[0].addresses[0]"}},
	{slice: "addressType: IPv4, endpoints: [{addresses: []}, {}]", fields: []string{"endpoints[0].addresses", "endpoints[1].addresses"}},
	{slice: "addressType: IPv4, endpoints: {addresses: [10.244.0.9]}", fields: []string{"endpoints"}},
	{slice: "addressType: IPv4, endpoints: [{addresses: [10.244.0.9], conditions: {ready: maybe}}]", fields: []string{"endpoints.conditions.ready"}},
	{slice: "addressType: IPv4, ports: [{name: http, port: 99999}], endpoints: [{addresses: [10.244.0.9]}]", fields: []string{"ports[0].port"}},
	{slice: "addressType: IPv4, ports: [{name: http, port: 80, protocol: ICMP}], endpoints: [{addresses: [10.244.0.9]}]", fields: []string{"ports[0].protocol"}},
	{slice: "addressType: IPv4, ports: [{name: http, port: '80'}], endpoints: [{addresses: [10.244.0.9]}]", fields: []string{"ports.port"}},
}

// objects returns the malformed object under a name of its own, and for a slice the Service that it is of.
func (m *malformed) objects(t *testing.T, i int) []*Object {
	name := fmt.Sprintf("bad-%d", i)
	if m.slice == "" {
		o := aService(t, name, m.spec)
		o.Metadata.Created = o.Metadata.Created.Add(time.Hour)
		if m.status != "" {
			o.Status = object(t, "{status: {"+m.status+"}}").Status
		}
		return []*Object{o}
	}
	text := "{kind: EndpointSlice, metadata: {namespace: shop, name: " + name + ", uid: u, labels: {kubernetes.io/service-name: " + name + "}}, " + m.slice
	if !strings.Contains(m.slice, "ports:") {
		text += ", ports: [{name: http, port: 8080}]"
	}
	s := aService(t, name, fmt.Sprintf("clusterIP: 10.96.1.%d, ports: [{name: http, port: 80}]", i+1))
	return []*Object{s, object(t, text+"}")}
}

// goodObjects exist beside the malformed ones.
func goodObjects(t *testing.T) []*Object {
	return []*Object{
		aService(t, "web", web+", externalIPs: [198.51.100.7]"), aSlice(t, "web-1", "web", webPort, "{addresses: [10.244.0.1], nodeName: n1}"),
		aService(t, "api", "type: NodePort, clusterIP: 10.96.0.11, ports: [{name: http, port: 80, nodePort: 30080}]"), aSlice(t, "api-1", "api", webPort, "{addresses: [10.244.0.3]}"),
	}
}

// goodOnes are what is served of the objects that are well formed.
func goodOnes(c *services.Config) string {
	return show(slices.DeleteFunc(slices.Clone(c.Services), func(s services.Service) bool { return strings.HasPrefix(s.Name, "shop/bad-") }))
}

func (m *malformed) remains(c *services.Config, i int) (n int) {
	for _, s := range c.Services {
		if own := fmt.Sprintf("shop/bad-%d", i); s.Name == own || strings.HasPrefix(s.Name, own+":") {
			if m.slice == "" {
				n++
			}
			n += len(s.Endpoints)
		}
	}
	return n
}

// TestMalformed: malformed objects, one by one and all at once, do not affect others. An Event names the field, once. An object that is fixed is served.
func TestMalformed(t *testing.T) {
	want := goodOnes(aState(t, All, goodObjects(t)...).Config())
	together := aState(t, All, goodObjects(t)...)
	names := func(what string, m *malformed, told []string) {
		for _, field := range m.fields {
			if !slices.ContainsFunc(told, func(s string) bool { return strings.Contains(s, field+": ") }) {
				t.Errorf("%s: %q do not name %s", what, told, field)
			}
		}
	}
	for i := range allMalformed {
		m := &allMalformed[i]
		what := m.spec + m.slice + m.status
		s := aState(t, All, goodObjects(t)...)
		for _, o := range m.objects(t, i) {
			s.Put(o)
			together.Put(o)
		}
		c := s.Config()
		if got := goodOnes(c); got != want {
			t.Errorf("%s: others are served as\n%s", what, got)
		}
		if got := m.remains(c, i); got != m.left {
			t.Errorf("%s: %d of it are served, want %d", what, got, m.left)
		}
		told := texts(s)
		if len(told) != 1 || !strings.Contains(told[0], fmt.Sprintf("/shop/bad-%d: ", i)) {
			t.Errorf("%s: %q", what, told)
		}
		names(what, m, told)
		if again := texts(s); again != nil {
			t.Errorf("%s: reported again: %q", what, again)
		}
		mended := aService(t, fmt.Sprintf("bad-%d", i), "clusterIP: 10.96.0.30, ports: [{name: http, port: 80}]")
		s.Put(mended)
		if m.slice != "" {
			s.Put(aSlice(t, mended.Metadata.Name, mended.Metadata.Name, webPort, "{addresses: [10.244.0.9]}"))
		}
		served(t, s.Config(), mended.Metadata.Namespace+"/"+mended.Metadata.Name+":http", true)
		if told := texts(s); told != nil {
			t.Errorf("%s: reported when it is fixed: %q", what, told)
		}
	}
	c := together.Config()
	if got := goodOnes(c); got != want {
		t.Errorf("beside all of them, others are served as\n%s", got)
	}
	told := texts(together)
	if len(told) != len(allMalformed) {
		t.Errorf("%d Events for %d objects", len(told), len(allMalformed))
	}
	for i := range allMalformed {
		of := slices.DeleteFunc(slices.Clone(told), func(s string) bool { return !strings.Contains(s, fmt.Sprintf("/shop/bad-%d: ", i)) })
		if len(of) != 1 {
			t.Errorf("%q", of)
		}
	}
}

// TestMalformedAlone: when an API server has one malformed object, an Event and a line of the log name it and its field, once, and everything else is
// served. When it is deleted, nothing of it is left.
func TestMalformedAlone(t *testing.T) {
	for i := range allMalformed {
		m := &allMalformed[i]
		t.Run(strings.TrimSpace(m.spec+m.slice+" "+m.status), func(t *testing.T) {
			want := goodOnes(aState(t, All, goodObjects(t)...).Config())
			bad := m.objects(t, i)
			kind, name := bad[len(bad)-1].Kind, bad[len(bad)-1].Metadata.Name
			inCluster(t, nil, func(c *cluster) {
				if got, n := c.last(); n != 1 || goodOnes(got) != want || m.remains(got, i) != m.left {
					t.Errorf("applied %d times, %d of it, want %d; others:\n%s", n, m.remains(got, i), m.left, goodOnes(got))
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				told := c.told()
				if len(told) != 1 || !strings.HasPrefix(told[0], kind+"/"+name+": ") {
					t.Fatalf("Events: %q", told)
				}
				lines := slices.DeleteFunc(strings.Split(c.log.String(), "\n"), func(line string) bool { return !strings.Contains(line, "level=warning") })
				if len(lines) != 1 || !strings.Contains(lines[0], "resource="+kind+"/shop/"+name) {
					t.Fatalf("log: %q", lines)
				}
				for _, field := range m.fields {
					if !strings.Contains(told[0], field+": ") || !strings.Contains(lines[0], field+": ") {
						t.Errorf("%s is not named by %s or %s", field, told[0], lines[0])
					}
				}
				for _, o := range bad {
					need.NoError(t, c.api.Tracker().Delete(resources[o.Kind], o.Metadata.Namespace, o.Metadata.Name))
				}
				if got, n := c.last(); n > len(bad) || got != nil && show(got.Services) != want {
					t.Errorf("when it has gone, applied %d times: %s", n, show(got))
				}
				if again := c.told(); len(again) != 1 || strings.Count(c.log.String(), "level=warning") != 1 {
					t.Errorf("said when it has gone: %q\n%s", again, &c.log)
				}
			}, append(append(goodObjects(t), aNode(t)), bad...)...)
		})
	}
}

// FuzzState: any objects make a configuration that is valid for a node.
func FuzzState(f *testing.F) {
	for i := range allMalformed {
		m := &allMalformed[i]
		f.Add(m.spec, m.status, m.slice)
	}
	f.Add(web, "", "addressType: IPv4, ports: ["+webPort+"], endpoints: [{addresses: [10.244.0.9]}]")
	f.Fuzz(func(t *testing.T, spec, status, slice string) {
		s := aState(t, All)
		for kind, text := range map[string]string{KindService: "spec: {" + spec + "}, status: {" + status + "}", KindSlice: slice} {
			o, err := readObject("{kind: " + kind + ", metadata: {namespace: shop, name: x, labels: {kubernetes.io/service-name: x}}, " + text + "}")
			if err != nil {
				continue
			}
			o.Kind = kind
			s.Put(o)
		}
		if err := nat.Check(s.Config().NAT(addr("172.18.0.2", "fd18::2"))); err != nil {
			t.Error(err)
		}
	})
}
