package integration

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"culvert/integration/need"
)

// A kubeMalformed is an object that an API server can store: kube/service/testdata/malformed.yaml
// describes the fields.
type kubeMalformed struct {
	Spec, Status, Slice string
	Fields              []string
	Unreadable          bool
}

func readMalformed(t *testing.T) (all []kubeMalformed) {
	t.Helper()
	text, err := os.ReadFile("../kube/service/testdata/malformed.yaml")
	need.NoError(t, err)
	need.NoError(t, yaml.Unmarshal(text, &all))
	return slices.DeleteFunc(all, func(m kubeMalformed) bool { return m.Unreadable })
}

// store puts the malformed object, under a name of its own, where the API server keeps accepted
// objects.
func (m *kubeMalformed) store(l *kubeAnnounceLab, i int) (kind, name string) {
	l.Helper()
	put := func(kind, apiVersion, at, text string) {
		o := object{}
		if err := yaml.Unmarshal([]byte("{"+text+"}"), &o); err != nil {
			l.Fatalf("%v in %s", err, text)
		}
		o["apiVersion"], o["kind"] = apiVersion, kind
		o["metadata"] = object{"namespace": "default", "name": name, "uid": fmt.Sprintf("%s-%s",
			strings.ToLower(kind), name),
			"labels": object{"kubernetes.io/service-name": name},
			// younger than all well-formed ones
			"creationTimestamp": time.Now().Add(time.Hour).UTC().Format(time.RFC3339)}
		l.api.store(l.T, "/registry/"+at+"/default/"+name, o)
	}
	name = fmt.Sprintf("bad-%d", i)
	if m.Slice == "" {
		// each has an address of its own
		spec := strings.Replace(m.Spec, "10.96.0.20", fmt.Sprintf("10.96.2.%d", i+1), 1)
		put("Service", "v1", "services/specs", "spec: {"+spec+"}, status: {"+m.Status+"}")
		return "Service", name
	}
	put("Service", "v1", "services/specs", fmt.Sprintf("spec: {clusterIP: 10.96.1.%d, ports: [{name: http, port: 80}]}",
		i+1))
	put("EndpointSlice", "discovery.k8s.io/v1", "endpointslices", m.Slice)
	return "EndpointSlice", name
}

// shop creates a Service at all kinds of addresses, with an endpoint.
func (l *kubeAnnounceLab) shop(host string) {
	l.Helper()
	l.apply(object{"apiVersion": "v1", "kind": "Service", "metadata": object{"name": "shop", "namespace": "default"},
		"spec": object{"type": "NodePort", "clusterIP": "10.96.0.11", "externalIPs": []string{"198.51.100.7"},
			"ports": []object{{"name": "http", "port": 80, "nodePort": 30011, "protocol": "TCP"}}}})
	l.shopAt(host)
}

// shopAt makes a host of the first node the Service's only endpoint.
func (l *kubeAnnounceLab) shopAt(host string) {
	l.Helper()
	l.apply(object{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
		"metadata": object{"name": "shop-1", "namespace": "default",
			"labels": object{"kubernetes.io/service-name": "shop"}},
		"ports":     []object{{"name": "http", "port": 8080, "protocol": "TCP"}},
		"endpoints": []object{{"addresses": []string{serviceAddresses[host][0]}, "nodeName": "n1"}}})
}

const (
	kubeManyShort    = 200
	kubeManyLong     = 5000
	kubeChanges      = 21
	kubeChangeAtMost = 200 * time.Millisecond
)

// TestKubeServicesMany: among thousands of Services with ten endpoints each, new connections reach
// a changed endpoint soon after the API server has acknowledged the change. The median of several
// changes must be within the bound.
func TestKubeServicesMany(t *testing.T) {
	isolated(t, func(t *testing.T) {
		l := newKubeAnnounceLab(t)
		l.shop("pa")
		many := kubeManyShort
		if os.Getenv(longEnv) != "" {
			many = kubeManyLong
		}
		for i := range many {
			name := fmt.Sprintf("many-%d", i)
			meta := object{"namespace": "default", "name": name, "uid": name,
				"labels":            object{"kubernetes.io/service-name": name},
				"creationTimestamp": time.Now().UTC().Format(time.RFC3339)}
			l.api.store(t, "/registry/services/specs/default/"+name, object{"apiVersion": "v1", "kind": "Service",
				"metadata": meta,
				"spec": object{"clusterIP": fmt.Sprintf("10.96.%d.%d", 100+i>>8, i&255),
					"ports": []object{{"name": "http", "port": 80, "protocol": "TCP"}}}})
			var endpoints []object
			for j := range 10 {
				endpoints = append(endpoints,
					object{"addresses": []string{fmt.Sprintf("10.244.%d.%d", 10+(i*10+j)>>8, (i*10+j)&255)},
						"nodeName": "n2"})
			}
			l.api.store(t, "/registry/endpointslices/default/"+name, object{"apiVersion": "discovery.k8s.io/v1",
				"kind": "EndpointSlice", "metadata": meta,
				"addressType": "IPv4", "ports": []object{{"name": "http", "port": 8080, "protocol": "TCP"}},
				"endpoints": endpoints})
		}
		l.join(l.n1)
		const beside = 3 // web, shop and kubernetes
		if served := fmt.Sprintf("services=%d", many+beside); !strings.Contains(l.nodes["n1"].output(), served) {
			t.Errorf("the node's log has no %q:\n%s", served, l.nodes["n1"].output())
		}
		var took []time.Duration
		for i := range kubeChanges {
			to := []string{"pc", "pa"}[i%2]
			l.shopAt(to)
			began := time.Now()
			for who := ""; who != to; {
				var err error
				if who, _, err = l.ask(l.c, "tcp", "10.96.0.11:80"); err != nil || time.Since(began) > startTimeout {
					t.Fatalf("%q answers, want %s: %v", who, to, err)
				}
			}
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		t.Logf("among %d Services of ten endpoints, a changed endpoint answers after %v at the median, %v at most",
			many, took[kubeChanges/2], took[kubeChanges-1])
		if took[kubeChanges/2] > kubeChangeAtMost {
			t.Errorf("the median is %v, want at most %v", took[kubeChanges/2], kubeChangeAtMost)
		}
	}, kubernetes)
}

// TestKubeNodeLacksAddress: a node starts although its machine lacks one of its addresses, says so,
// and serves at the address once it is there.
func TestKubeNodeLacksAddress(t *testing.T) {
	isolated(t, func(t *testing.T) {
		l := newKubeAnnounceLab(t)
		l.shop("pa")
		file, flags := l.given(l.n1,
			"services: {addresses: [172.18.0.2, 'fd18::99'], pods: [10.244.0.0/16, 'fd24::/16'], serviceCIDRs: [10.96.0.0/16, 'fd96::/112']}\n")
		l.nodes["n1"] = l.n1.start(nil, os.Getenv(binaryEnv), append([]string{"node", "--config", file}, flags...)...)
		l.says(l.n1, "services.addresses[1]: fd18::99 is not an address of this machine", 1)
		if who, _, err := l.ask(l.c, "tcp", "10.96.0.11:80"); err != nil || who != "pa" {
			t.Errorf("%q answers: %v", who, err)
		}
		l.n1.ip("address add fd18::99/64 dev lan nodad")
		await(t, "routes by the address", func() bool {
			return strings.Contains(l.n1.run("ip", "-6", "route", "show", "table", "7091"), "src fd18::99")
		})
	}, kubernetes)
}

// TestKubeServices has two nodes, one with a device and one with sockets and without any
// capability, serve a Service under a real API server and the rights of their manifest, and follow
// its endpoints. For each malformed Service or slice, an Event and a log line must name the field,
// and no other Service may be affected.
func TestKubeServices(t *testing.T) {
	isolated(t, func(t *testing.T) {
		l := newKubeAnnounceLab(t)
		l.shop("pa")
		l.join(l.n1)
		file, flags := l.given(l.n2, "services: {mode: sockets, pods: [10.244.0.0/16]}\n")
		l.nodes["n2"] = startUnprivileged(l.n2, file, flags...)
		places := []struct {
			from *peerHost
			to   string
		}{{l.n1, "10.96.0.11:80"}, {l.a, "10.96.0.11:80"}, {l.c, "10.96.0.11:80"}, {l.out, "172.18.0.2:30011"},
			{l.b, "172.18.0.2:30011"},
			{l.out, "172.18.0.3:30011"}, {l.b, "172.18.0.3:30011"}}
		served := func(when, want string) {
			t.Helper()
			for _, p := range places {
				if who, _, err := l.ask(p.from, "tcp", p.to); err != nil || who != want {
					t.Errorf("%s: %s asks %s: %q answers, want %s: %v", when, p.from.name, p.to, who, want, err)
				}
			}
		}
		served("at first", "pa")
		l.shopAt("pc")
		began := time.Now()
		for _, p := range places {
			eventually(t, p.to+" is answered by the new endpoint", func() error {
				if who, _, err := l.ask(p.from, "tcp", p.to); err != nil || who != "pc" {
					return fmt.Errorf("%q answers: %w: %v", who, errNotYet, err)
				}
				return nil
			})
		}
		t.Logf("both nodes follow a changed endpoint within %v of the API server's answer, asked at %d places in turn",
			time.Since(began), len(places))

		all := readMalformed(t)
		for i := range all {
			m := &all[i]
			what := m.Spec + m.Status + m.Slice
			kind, name := m.store(l, i)
			names := func(text string) bool {
				return !slices.ContainsFunc(m.Fields, func(field string) bool {
					return !strings.Contains(text, field+": ")
				})
			}
			eventually(t, "a line of the log for "+what, func() error {
				for line := range strings.Lines(l.nodes["n1"].output()) {
					if strings.Contains(line, "resource="+kind+"/default/"+name) && names(line) {
						return nil
					}
				}
				return errNotYet
			})
			if who, _, err := l.ask(l.out, "tcp", "172.18.0.2:30011"); err != nil || who != "pc" {
				t.Errorf("beside %s, %q answers, want pc: %v", what, who, err)
			}
			l.api.awaitEvent(t, startTimeout, "default", fmt.Sprintf("%q of %s", m.Fields, what),
				func(e object, message string) bool {
					return field(e, "involvedObject", "name") == name && field(e, "involvedObject", "kind") == kind &&
						field(e, "source", "host") == "n1" && names(message)
				})
		}
		t.Logf("%d malformed Services and slices, each named in the log and by an Event", len(all))
		served("beside all that is malformed", "pc")
		l.end(l.n1, syscall.SIGTERM) // it asks for its DaemonSet
		l.requireRights()
	}, kubernetes)
}
