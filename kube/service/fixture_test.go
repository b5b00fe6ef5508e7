package service

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"culvert/gateway/node/services"
	"culvert/kube/objects"
	"culvert/nat/rules"
)

// An Object is what most of these tests are about.
type Object = objects.Object

// object reads an object as users write it.
func object(t testing.TB, text string) *Object {
	t.Helper()
	o, err := readObject(text)
	if err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return o
}

func readObject(text string) (*Object, error) {
	o := &Object{}
	j, err := yaml.YAMLToJSON([]byte(text))
	if err == nil {
		err = json.Unmarshal(j, o)
	}
	return o, err
}

// aService is a Service whose spec has the fields that more says besides.
func aService(t testing.TB, name, more string) *Object {
	return object(t,
		fmt.Sprintf("{kind: Service, metadata: {namespace: shop, name: %s, uid: u-%[1]s, creationTimestamp: '2026-01-01T00:00:00Z'}, spec: {%s}}", name, more))
}

// aSlice is an EndpointSlice of a Service.
func aSlice(t testing.TB, name, of, ports string, endpoints ...string) *Object {
	kind := "IPv4"
	if len(endpoints) > 0 && strings.Contains(endpoints[0], "::") {
		kind = "IPv6"
	}
	return object(t,
		fmt.Sprintf("{kind: EndpointSlice, metadata: {namespace: shop, name: %s, uid: u-%[1]s, labels: {kubernetes.io/service-name: %s}}, addressType: %s, ports: [%s], endpoints: [%s]}",
			name, of, kind, ports, strings.Join(endpoints, ", ")))
}

const (
	selfName       = "n1"
	leaseNamespace = "kube-system"
	webPort        = "{name: http, port: 8080, protocol: TCP}"
	web            = "clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], ports: [{name: http, port: 80, protocol: TCP}]"
)

func aNode(t testing.TB) *Object {
	return object(t,
		"{kind: Node, metadata: {name: n1, uid: u-n1, labels: {topology.kubernetes.io/zone: east}}, status: {addresses: [{type: ExternalIP, address: 198.51.100.2}, {type: Hostname, address: n1}, {type: InternalIP, address: 172.18.0.2}, {type: InternalIP, address: 'fd18::2'}]}}")
}

func aBase() *services.Config {
	return &services.Config{
		Interface: "culvert1", MTU: 1500, Ports: rules.PortRange{First: 61000, Last: 65534},
		Pods:         []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd24::/16")},
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")},
	}
}

// aState returns a State with a Node and more objects.
func aState(t testing.TB, mode Mode, more ...*Object) *State {
	t.Helper()
	s := NewState(mode, selfName, aBase())
	s.Put(aNode(t))
	for _, o := range more {
		s.Put(o)
	}
	return s
}

// served returns the Service that is served under a name in a family.
func served(t testing.TB, c *services.Config, name string, v4 bool) *services.Service {
	t.Helper()
	for i := range c.Services {
		if s := &c.Services[i]; s.Name == name && s.ClusterIPs[0].Is4() == v4 {
			return s
		}
	}
	t.Fatalf("%s is not served", name)
	return nil
}

var eligibilities = map[rules.Eligibility]string{rules.EligibleAll: "", rules.EligibleLocal: " local only",
	rules.EligibleNone: " leaving"}

// endpoints describes the endpoints of a service, and marks those on this node with "here".
func endpoints(s *services.Service) string {
	var all []string
	for _, e := range s.Endpoints {
		text := netip.AddrPortFrom(e.Address, e.Port).String() + eligibilities[e.Eligibility]
		if e.Node == selfName {
			text += " here"
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

func addr(list ...string) (all []netip.Addr) {
	for _, s := range list {
		all = append(all, netip.MustParseAddr(s))
	}
	return all
}

// texts returns what Events say of each object.
func texts(s *State) (all []string) {
	for _, e := range s.Faults() {
		all = append(all, e.Key().String()+": "+e.Message)
	}
	slices.Sort(all)
	return all
}

// show writes a value so that texts of equal ones are equal.
func show(v any) string {
	text, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return err.Error()
	}
	return string(text)
}
