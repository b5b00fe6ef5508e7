package service

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"culvert/nat/rules"
)

// TestFront: the ports of a Service have the endpoints that kube-proxy would use for a client that
// is on no node.
func TestFront(t *testing.T) {
	f := ReadFront(aService(t, "web",
		`clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10, "fd00::1"], sessionAffinity: ClientIP, internalTrafficPolicy: Local,
		sessionAffinityConfig: {clientIP: {timeoutSeconds: 60}}, ports: [{name: http, port: 80, targetPort: named}, {name: dns, port: 53, protocol: UDP}, {name: sctp, port: 5000, protocol: SCTP}]`))
	if f.Refused != "" || len(f.Wrong) > 0 {
		t.Fatalf("%q %q", f.Refused, f.Wrong)
	}
	family := false // IPv6
	ports := func(all ...*Object) string {
		var read []*Slice
		for _, o := range all {
			s := ReadSlice(o)
			if s.Of != (Name{"shop", "web"}) {
				t.Fatalf("slice of %v", s.Of)
			}
			read = append(read, s)
		}
		var b strings.Builder
		for _, p := range f.Ports(read, family) {
			if p.Affinity != rules.AffinityClientIP || p.AffinityTimeout != time.Minute {
				t.Errorf("affinity %v %v", p.Affinity, p.AffinityTimeout)
			}
			fmt.Fprintf(&b, "%s %d/%d", p.Label, p.Port, p.Protocol)
			for _, e := range p.Endpoints {
				fmt.Fprintf(&b, " %s:%d", e.Address, e.Port)
			}
			b.WriteString("\n")
		}
		return b.String()
	}
	const both = "{name: http, port: 8080, protocol: TCP}, {name: dns, port: 5353, protocol: UDP}"
	ready := aSlice(t, "s1", "web", both, "{addresses: [10.1.0.5], nodeName: n1, hints: {forZones: [{name: west}]}}",
		"{addresses: [10.1.0.6], conditions: {ready: false, serving: true, terminating: true}}")
	if got, want := ports(ready, aSlice(t, "s2", "web", webPort, "{addresses: [10.1.1.5]}", "{addresses: [10.1.0.5]}")),
		"http 80/6 10.1.0.5:8080 10.1.1.5:8080\ndns 53/17 10.1.0.5:5353\nsctp 5000/132\n"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	ending := aSlice(t, "s1", "web", webPort, "{addresses: [10.1.0.5], conditions: {ready: false, serving: false}}",
		"{addresses: [10.1.0.6], conditions: {ready: false, serving: true, terminating: true}}")
	if got, want := ports(ending), "http 80/6 10.1.0.6:8080\ndns 53/17\nsctp 5000/132\n"; got != want {
		t.Errorf("without ready ones: %s, want %s", got, want)
	}
	if got, want := ports(), "http 80/6\ndns 53/17\nsctp 5000/132\n"; got != want {
		t.Errorf("without slices: %s, want %s", got, want)
	}
	six := aSlice(t, "s6", "web", webPort, "{addresses: ['fd00:1::5']}")
	family = true
	if got, want := ports(ready, six), "http 80/6 fd00:1::5:8080\ndns 53/17\nsctp 5000/132\n"; got != want {
		t.Errorf("of IPv6: %s, want %s", got, want)
	}
}

// TestFrontRefused: a Service for which no single address can stand is refused, with the field.
func TestFrontRefused(t *testing.T) {
	for spec, want := range map[string]string{
		"type: ExternalName, externalName: example.org":                         "spec.type: ExternalName is a name without endpoints",
		"clusterIP: None, ports: [{port: 80}]":                                  "spec.clusterIP: a headless Service has no one address that stands for its endpoints",
		"ports: [{port: 80}]":                                                   "spec.clusterIP: missing",
		`clusterIP: "fd00::1", clusterIPs: ["fd00::1"]`:                         "spec.clusterIPs: no address, or no port that can be served",
		"clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1], ports: [{port: 70000}]": "spec.ports[0].port: 70000 is not between 1 and 65535",
		"clusterIP: 10.96.0.1, sessionAffinity: Cookie, ports: [{port: 80}]":    `spec.sessionAffinity: "Cookie" is neither None nor ClientIP`,
		"clusterIP: {}": "spec.clusterIP: a object, where a string belongs",
	} {
		f := ReadFront(aService(t, "web", spec))
		if f.Refused != want || f.Ports(nil, false) != nil || f.Ports(nil, true) != nil {
			t.Errorf("%s: %q, want %q", spec, f.Refused, want)
		}
	}
}
