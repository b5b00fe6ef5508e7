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
)

// A kubeMalformed is a malformed Service or EndpointSlice, and the field that an Event and the log
// must name.
type kubeMalformed struct{ service, slice, field string }

// Each Service has its own address in the place of 10.96.0.20.
const kubeWeb = "spec: {clusterIP: 10.96.0.20, ports: [{port: 80}]"

// No field has a wrong type: the API server could not read such an object, so none can be stored.
var kubeMalformedAll = []kubeMalformed{
	{service: "spec: {clusterIP: 10.96.0.300, ports: [{port: 80}]}", field: "spec.clusterIPs[0]"},
	{service: "spec: {clusterIP: 127.0.0.1, ports: [{port: 80}]}", field: "spec.clusterIPs[0]"},
	{service: "spec: {clusterIP: 224.0.0.1, ports: [{port: 80}]}", field: "spec.clusterIPs[0]"},
	{service: "spec: {clusterIP: 0.0.0.0, ports: [{port: 80}]}", field: "spec.clusterIPs[0]"},
	{service: "spec: {clusterIP: 'fe80::1%eth0', ports: [{port: 80}]}", field: "spec.clusterIPs[0]"},
	{service: "spec: {clusterIP: 172.18.0.2, ports: [{port: 80}]}", field: "spec.clusterIPs[0]"},
	{service: "spec: {clusterIP: 10.244.0.7, ports: [{port: 80}]}", field: "spec.clusterIPs[0]"},
	{service: "spec: {clusterIP: 10.96.0.11, ports: [{port: 80}]}", field: "spec.clusterIPs[0]"}, // the Service shop has it
	{service: "spec: {clusterIP: 10.96.0.20, ports: [{name: a, port: 0}, {name: b, port: 81}]}", field: "spec.ports[0].port"},
	{service: "spec: {clusterIP: 10.96.0.20, ports: [{port: 65536}]}", field: "spec.ports[0].port"},
	{service: "spec: {clusterIP: 10.96.0.20, ports: [{port: -1}]}", field: "spec.ports[0].port"},
	{service: "spec: {clusterIP: 10.96.0.20, ports: [{port: 80, protocol: DCCP}]}", field: "spec.ports[0].protocol"},
	{service: "spec: {clusterIP: 10.96.0.20, ports: [{name: a, port: 80}, {name: a, port: 81}]}", field: "spec.ports[1].name"},
	{service: "spec: {clusterIP: 10.96.0.20, ports: [{name: a, port: 80}, {name: b, port: 80}]}", field: "spec.clusterIPs[0]"},
	{service: "spec: {type: NodePort, clusterIP: 10.96.0.20, ports: [{port: 80, nodePort: 61000}]}", field: "spec.ports[0].nodePort"},
	{service: "spec: {type: NodePort, clusterIP: 10.96.0.20, ports: [{port: 80, nodePort: 65535}]}", field: "spec.ports[0].nodePort"},
	{service: "spec: {type: NodePort, clusterIP: 10.96.0.20, ports: [{port: 80, nodePort: -5}]}", field: "spec.ports[0].nodePort"},
	{service: "spec: {type: NodePort, clusterIP: 10.96.0.20, ports: [{port: 80, nodePort: 30011}]}", field: "spec.ports[0].nodePort"}, // the Service shop has it
	{service: kubeWeb + ", externalIPs: [198.51.100, 198.51.100.9]}", field: "spec.externalIPs[0]"},
	{service: kubeWeb + ", externalIPs: ['::1']}", field: "spec.externalIPs[0]"},
	{service: kubeWeb + ", externalIPs: [198.51.100.7]}", field: "spec.externalIPs[0]"}, // the Service shop has it
	{service: kubeWeb + ", externalIPs: [10.244.0.1]}", field: "spec.externalIPs[0]"},
	{service: "spec: {clusterIP: 10.96.0.20, externalIPs: [198.51.100.10], ports: [{port: 65535}]}", field: "spec.ports[0].port"},
	{service: kubeWeb + ", loadBalancerSourceRanges: [192.0.2.0/33]}, status: {loadBalancer: {ingress: [{ip: 203.0.113.9}]}}", field: "spec.loadBalancerSourceRanges[0]"},
	{service: kubeWeb + "}, status: {loadBalancer: {ingress: [{ip: here}]}}", field: "status.loadBalancer.ingress[0].ip"},
	{service: kubeWeb + ", externalTrafficPolicy: Near}", field: "spec.externalTrafficPolicy"},
	{service: kubeWeb + ", internalTrafficPolicy: Near}", field: "spec.internalTrafficPolicy"},
	{service: kubeWeb + ", sessionAffinity: Cookie}", field: "spec.sessionAffinity"},
	{service: kubeWeb + ", sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 86401}}}", field: "spec.sessionAffinityConfig.clientIP.timeoutSeconds"},
	{service: "spec: {type: LoadBalancer, clusterIP: 10.96.0.20, externalTrafficPolicy: Local, healthCheckNodePort: 70000, ports: [{port: 80}]}", field: "spec.healthCheckNodePort"},
	{slice: "addressType: IPv5, endpoints: [{addresses: [10.244.0.9]}]", field: "addressType"},
	{slice: "addressType: IPv4, endpoints: [{addresses: [x]}, {addresses: [10.244.0.9]}]", field: "endpoints[0].addresses[0]"},
	{slice: "addressType: IPv4, endpoints: [{addresses: ['fd24::9']}]", field: "endpoints[0].addresses[0]"},
	{slice: "addressType: IPv4, endpoints: [{addresses: [169.254.169.254]}]", field: "endpoints[0].addresses[0]"},
	{slice: "addressType: IPv4, endpoints: [{addresses: []}]", field: "endpoints[0].addresses"},
	{slice: "addressType: IPv4, endpoints: [], ports: [{name: a, port: 99999}]", field: "ports[0].port"},
	{slice: "addressType: IPv4, endpoints: [], ports: [{name: a, port: 80, protocol: ICMP}]", field: "ports[0].protocol"},
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
		o["metadata"] = object{"namespace": "default", "name": name, "uid": fmt.Sprintf("%s-%s", strings.ToLower(kind), name),
			"labels":            object{"kubernetes.io/service-name": name},
			"creationTimestamp": time.Now().Add(time.Hour).UTC().Format(time.RFC3339)} // younger than all well-formed ones
		l.api.store(l.T, "/registry/"+at+"/default/"+name, o)
	}
	name = fmt.Sprintf("bad-%d", i)
	if m.slice == "" {
		put("Service", "v1", "services/specs", strings.Replace(m.service, "10.96.0.20", fmt.Sprintf("10.96.2.%d", i+1), 1))
		return "Service", name
	}
	put("Service", "v1", "services/specs", fmt.Sprintf("spec: {clusterIP: 10.96.1.%d, ports: [{name: a, port: 80}]}", i+1))
	put("EndpointSlice", "discovery.k8s.io/v1", "endpointslices", m.slice)
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
		"metadata":  object{"name": "shop-1", "namespace": "default", "labels": object{"kubernetes.io/service-name": "shop"}},
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
			meta := object{"namespace": "default", "name": name, "uid": name, "labels": object{"kubernetes.io/service-name": name},
				"creationTimestamp": time.Now().UTC().Format(time.RFC3339)}
			l.api.store(t, "/registry/services/specs/default/"+name, object{"apiVersion": "v1", "kind": "Service", "metadata": meta,
				"spec": object{"clusterIP": fmt.Sprintf("10.96.%d.%d", 100+i>>8, i&255), "ports": []object{{"name": "http", "port": 80, "protocol": "TCP"}}}})
			var endpoints []object
			for j := range 10 {
				endpoints = append(endpoints, object{"addresses": []string{fmt.Sprintf("10.244.%d.%d", 10+(i*10+j)>>8, (i*10+j)&255)}, "nodeName": "n2"})
			}
			l.api.store(t, "/registry/endpointslices/default/"+name, object{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": meta,
				"addressType": "IPv4", "ports": []object{{"name": "http", "port": 8080, "protocol": "TCP"}}, "endpoints": endpoints})
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
		t.Logf("among %d Services of ten endpoints, a changed endpoint answers after %v at the median, %v at most", many, took[kubeChanges/2], took[kubeChanges-1])
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
		file, flags := l.given(l.n1, "services: {addresses: [172.18.0.2, 'fd18::99'], pods: [10.244.0.0/16, 'fd24::/16'], serviceCIDRs: [10.96.0.0/16, 'fd96::/112']}\n")
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
		}{{l.n1, "10.96.0.11:80"}, {l.a, "10.96.0.11:80"}, {l.c, "10.96.0.11:80"}, {l.out, "172.18.0.2:30011"}, {l.b, "172.18.0.2:30011"},
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
		t.Logf("both nodes follow a changed endpoint within %v of the API server's answer, asked at %d places in turn", time.Since(began), len(places))

		for i := range kubeMalformedAll {
			m := &kubeMalformedAll[i]
			kind, name := m.store(l, i)
			eventually(t, "a line of the log for "+m.service+m.slice, func() error {
				for line := range strings.Lines(l.nodes["n1"].output()) {
					if strings.Contains(line, m.field+": ") && strings.Contains(line, "resource="+kind+"/default/"+name) {
						return nil
					}
				}
				return errNotYet
			})
			if who, _, err := l.ask(l.out, "tcp", "172.18.0.2:30011"); err != nil || who != "pc" {
				t.Errorf("beside %s%s, %q answers: %v", m.service, m.slice, who, err)
			}
			l.api.awaitEvent(t, startTimeout, "default", m.field+" of "+m.service+m.slice, func(e object, message string) bool {
				return field(e, "involvedObject", "name") == name && field(e, "involvedObject", "kind") == kind && field(e, "source", "host") == "n1" &&
					strings.Contains(message, m.field+": ")
			})
		}
		t.Logf("%d malformed Services and slices, each named in the log and by an Event", len(kubeMalformedAll))
		served("beside all that is malformed", "pc")
		l.end(l.n1, syscall.SIGTERM) // it asks for its DaemonSet
		l.requireRights()
	}, kubernetes)
}
