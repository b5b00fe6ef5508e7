package service

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/yaml"

	"culvert/gateway/node/services"
	"culvert/integration/need"
	"culvert/nat"
)

// A malformed object: testdata/malformed.yaml describes the fields.
type malformed struct {
	Spec, Status, Slice string
	Fields              []string
	Left                int
	Unreadable          bool
}

// allMalformed reads the malformed objects that the tests share.
func allMalformed(t testing.TB) (all []malformed) {
	t.Helper()
	text, err := os.ReadFile("testdata/malformed.yaml")
	need.NoError(t, err)
	need.NoError(t, yaml.UnmarshalStrict(text, &all))
	return all
}

// objects returns the malformed object under a name of its own, and for a slice the Service that it
// is of.
func (m *malformed) objects(t *testing.T, i int) []*Object {
	name := fmt.Sprintf("bad-%d", i)
	if m.Slice == "" {
		o := aService(t, name, m.Spec)
		o.Metadata.Created = o.Metadata.Created.Add(time.Hour)
		if m.Status != "" {
			o.Status = object(t, "{status: {"+m.Status+"}}").Status
		}
		return []*Object{o}
	}
	text := "{kind: EndpointSlice, metadata: {namespace: shop, name: " + name +
		", uid: u, labels: {kubernetes.io/service-name: " + name + "}}, " + m.Slice
	if !strings.Contains(m.Slice, "ports:") {
		text += ", ports: [{name: http, port: 8080}]"
	}
	s := aService(t, name, fmt.Sprintf("clusterIP: 10.96.1.%d, ports: [{name: http, port: 80}]", i+1))
	return []*Object{s, object(t, text+"}")}
}

// goodObjects exist beside the malformed ones.
func goodObjects(t *testing.T) []*Object {
	return []*Object{
		aService(t, "web", web+", externalIPs: [198.51.100.7]"), aSlice(t, "web-1", "web", webPort,
			"{addresses: [10.244.0.1], nodeName: n1}"),
		aService(t, "api", "type: NodePort, clusterIP: 10.96.0.11, ports: [{name: http, port: 80, nodePort: 30011}]"),
		aSlice(t, "api-1", "api", webPort, "{addresses: [10.244.0.3]}"),
	}
}

// goodOnes are what is served of the objects that are well formed.
func goodOnes(c *services.Config) string {
	return show(slices.DeleteFunc(slices.Clone(c.Services), func(s services.Service) bool {
		return strings.HasPrefix(s.Name, "shop/bad-")
	}))
}

func (m *malformed) remains(c *services.Config, i int) (n int) {
	for _, s := range c.Services {
		if own := fmt.Sprintf("shop/bad-%d", i); s.Name == own || strings.HasPrefix(s.Name, own+":") {
			if m.Slice == "" {
				n++
			}
			n += len(s.Endpoints)
		}
	}
	return n
}

// TestMalformed: malformed objects, one by one and all at once, do not affect others. An Event
// names the field, once. An object that is fixed is served.
func TestMalformed(t *testing.T) {
	want := goodOnes(aState(t, All, goodObjects(t)...).Config())
	together := aState(t, All, goodObjects(t)...)
	names := func(what string, m *malformed, told []string) {
		for _, field := range m.Fields {
			if !slices.ContainsFunc(told, func(s string) bool { return strings.Contains(s, field+": ") }) {
				t.Errorf("%s: %q do not name %s", what, told, field)
			}
		}
	}
	all := allMalformed(t)
	for i := range all {
		m := &all[i]
		what := m.Spec + m.Slice + m.Status
		s := aState(t, All, goodObjects(t)...)
		for _, o := range m.objects(t, i) {
			s.Put(o)
			together.Put(o)
		}
		c := s.Config()
		if got := goodOnes(c); got != want {
			t.Errorf("%s: others are served as\n%s", what, got)
		}
		if got := m.remains(c, i); got != m.Left {
			t.Errorf("%s: %d of it are served, want %d", what, got, m.Left)
		}
		told := texts(s)
		if len(told) != 1 || !strings.Contains(told[0], fmt.Sprintf("/shop/bad-%d: ", i)) {
			t.Errorf("%s: %q", what, told)
		}
		names(what, m, told)
		mended := aService(t, fmt.Sprintf("bad-%d", i), "clusterIP: 10.96.0.30, ports: [{name: http, port: 80}]")
		s.Put(mended)
		if m.Slice != "" {
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
	if len(told) != len(all) {
		t.Errorf("%d Events for %d objects, want one for each", len(told), len(all))
	}
	for i := range all {
		of := slices.DeleteFunc(slices.Clone(told), func(s string) bool {
			return !strings.Contains(s, fmt.Sprintf("/shop/bad-%d: ", i))
		})
		if len(of) != 1 {
			t.Errorf("%q", of)
		}
	}
}

// TestMalformedAlone: when an API server has one malformed object, an Event and a line of the log
// name it and its field, once, and everything else is served. When it is deleted, nothing of it is
// left.
func TestMalformedAlone(t *testing.T) {
	all := allMalformed(t)
	for i := range all {
		m := &all[i]
		t.Run(strings.TrimSpace(m.Spec+m.Slice+" "+m.Status), func(t *testing.T) {
			want := goodOnes(aState(t, All, goodObjects(t)...).Config())
			bad := m.objects(t, i)
			kind, name := bad[len(bad)-1].Kind, bad[len(bad)-1].Metadata.Name
			inCluster(t, nil, func(c *cluster) {
				if got, n := c.last(); n != 1 || goodOnes(got) != want || m.remains(got, i) != m.Left {
					t.Errorf("applied %d times, %d of it, want %d; others:\n%s", n, m.remains(got, i), m.Left,
						goodOnes(got))
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				told := c.told()
				if len(told) != 1 || !strings.HasPrefix(told[0], kind+"/"+name+": ") {
					t.Fatalf("Events: %q", told)
				}
				lines := slices.DeleteFunc(strings.Split(c.log.String(), "\n"), func(line string) bool {
					return !strings.Contains(line, "level=warning")
				})
				if len(lines) != 1 || !strings.Contains(lines[0], "resource="+kind+"/shop/"+name) {
					t.Fatalf("log: %q", lines)
				}
				for _, field := range m.Fields {
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
	for _, m := range allMalformed(f) {
		f.Add(m.Spec, m.Status, m.Slice)
	}
	f.Add(web, "", "addressType: IPv4, ports: ["+webPort+"], endpoints: [{addresses: [10.244.0.9]}]")
	f.Fuzz(func(t *testing.T, spec, status, slice string) {
		s := aState(t, All)
		for kind, text := range map[string]string{KindService: "spec: {" + spec + "}, status: {" + status + "}",
			KindSlice: slice} {
			o, err := readObject("{kind: " + kind +
				", metadata: {namespace: shop, name: x, labels: {kubernetes.io/service-name: x}}, " + text + "}")
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

// Leading zeros, which API servers up to 1.35 keep, are no fault: kube-proxy serves such addresses.
func TestLeadingZeros(t *testing.T) {
	o := aService(t, "web",
		"type: LoadBalancer, clusterIP: 10.96.011.012, externalIPs: [198.051.100.007], loadBalancerSourceRanges: [172.018.000.000/024], "+
			"ports: [{name: http, port: 80, protocol: TCP}]")
	o.Status = []byte(`{"loadBalancer": {"ingress": [{"ip": "203.000.113.007"}]}}`)
	s := NewState(All, "n1", aBase())
	s.Put(namedNode(t, 1, "", ""))
	s.Put(o)
	s.Put(aSlice(t, "web-1", "web", webPort, "{addresses: [10.244.002.004]}"))
	c := s.Config()
	if len(s.wrong) > 0 || len(c.Services) != 1 {
		t.Fatalf("%v, %+v", s.wrong, c.Services)
	}
	x := c.Services[0]
	got := fmt.Sprint(x.ClusterIPs, x.ExternalIPs, x.LoadBalancerIPs, x.SourceRanges, x.Endpoints[0].Address)
	if want := "[10.96.11.12] [198.51.100.7] [203.0.113.7] [172.18.0.0/24] 10.244.2.4"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
