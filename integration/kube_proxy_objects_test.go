package integration

import (
	"fmt"
	"strings"
)

// A proxyFamily has the addresses of a node for one family.
type proxyFamily struct {
	node, other, pods, services string
	ranges                      string                        // some addresses of outside
	pod                         func(node, number int) string // address of a pod
	outside                     func(number int) string
	cluster                     func(number int) string // address of a Service
	virtual                     func(number int) string // external and load balancer addresses
}

var proxyFamilies = map[string]proxyFamily{
	"IPv4": {
		node: "172.18.0.2", other: "172.18.0.3", pods: "10.244.0.0/16", services: "10.96.0.0/12",
		ranges:  "198.18.0.0/25",
		pod:     func(node, n int) string { return fmt.Sprintf("10.244.%d.%d", node, 2+n%250) },
		outside: func(n int) string { return fmt.Sprintf("198.18.%d.%d", n>>8&255, n&255) },
		cluster: func(n int) string { return fmt.Sprintf("10.97.%d.%d", n>>8&255, n&255) },
		virtual: func(n int) string { return fmt.Sprintf("203.0.%d.%d", n>>8&255, n&255) },
	},
	"IPv6": {
		node: "fd18::2", other: "fd18::3", pods: "fd24::/16", services: "fd96::/112", ranges: "2001:db8::/41",
		pod:     func(node, n int) string { return fmt.Sprintf("fd24:%x::%x", node, 2+n) },
		outside: func(n int) string { return fmt.Sprintf("2001:db8:%x::9", n) },
		cluster: func(n int) string { return fmt.Sprintf("fd96::%x", 1+n) },
		virtual: func(n int) string { return fmt.Sprintf("2001:db8:ffff::%x", 1+n) },
	},
}

// kubePart is a Kubernetes object or a part of one.
type kubePart = map[string]any

// A proxySet is a line of kube-proxy's input.
type proxySet struct{ Services, Slices []kubePart }

// objects returns the Services and EndpointSlices as an API server would.
func (f *proxyFamily) objects(services []*proxyService) (all proxySet) {
	family := "IPv4"
	if strings.Contains(f.node, ":") {
		family = "IPv6"
	}
	policy := map[bool]string{false: "Cluster", true: "Local"}
	for _, s := range services {
		protocol := s.protocol()
		port := kubePart{"protocol": strings.ToUpper(protocol), "port": s.port, "targetPort": s.targetPort}
		spec := kubePart{
			"type": "ClusterIP", "clusterIP": s.cluster, "clusterIPs": []string{s.cluster},
			"ipFamilies": []string{family}, "ports": []kubePart{port},
			"externalIPs": s.external, "internalTrafficPolicy": policy[s.internalLocal],
		}
		status := kubePart{}
		if s.nodePort > 0 {
			port["nodePort"], spec["type"] = s.nodePort, "NodePort"
		}
		if len(s.balancer) > 0 {
			spec["type"], spec["loadBalancerSourceRanges"] = "LoadBalancer", s.ranges
			var ingress []kubePart
			for _, a := range s.balancer {
				ingress = append(ingress, kubePart{"ip": a, "ipMode": "VIP"})
			}
			status = kubePart{"loadBalancer": kubePart{"ingress": ingress}}
		}
		if spec["type"] != "ClusterIP" || len(s.external) > 0 {
			spec["externalTrafficPolicy"] = policy[s.externalLocal]
		}
		if s.affinity {
			spec["sessionAffinity"], spec["sessionAffinityConfig"] = "ClientIP",
				kubePart{"clientIP": kubePart{"timeoutSeconds": 10800}}
		}
		all.Services = append(all.Services, kubePart{"metadata": kubePart{"name": s.name, "namespace": "default"},
			"spec": spec, "status": status})
		var endpoints []kubePart
		for _, e := range s.endpoints {
			endpoints = append(endpoints, kubePart{"addresses": []string{e.address}, "nodeName": e.node,
				"conditions": kubePart{"ready": true, "serving": true, "terminating": false}})
		}
		all.Slices = append(all.Slices, kubePart{
			"metadata": kubePart{"name": s.name + "-1", "namespace": "default",
				"labels": kubePart{"kubernetes.io/service-name": s.name}},
			"addressType": family, "endpoints": endpoints,
			"ports": []kubePart{{"name": "", "protocol": strings.ToUpper(protocol), "port": s.targetPort}},
		})
	}
	return all
}

func (s *proxyService) protocol() string {
	if s.udp {
		return "udp"
	}
	return "tcp"
}

// yaml returns the file of a culvert node that serves the same Services.
func (f *proxyFamily) yaml(services []*proxyService) string {
	var b strings.Builder
	fmt.Fprintf(&b,
		"name: n1\nservices:\n  addresses: [%q]\n  pods: [%q]\n  serviceCIDRs: [%q]\n  metrics: 127.0.0.1:8083\n  serve:\n", f.node, f.pods, f.services)
	quoted := func(list []string) string { return `["` + strings.Join(list, `", "`) + `"]` }
	for _, s := range services {
		fmt.Fprintf(&b, "  - {name: %s, protocol: %s, clusterIP: %q, port: %d", s.name, s.protocol(), s.cluster, s.port)
		if s.nodePort > 0 {
			fmt.Fprintf(&b, ", nodePort: %d", s.nodePort)
		}
		for field, list := range map[string][]string{"externalIPs": s.external, "loadBalancerIPs": s.balancer,
			"sourceRanges": s.ranges} {
			if len(list) > 0 {
				fmt.Fprintf(&b, ", %s: %s", field, quoted(list))
			}
		}
		for field, set := range map[string]bool{"affinity: clientIP": s.affinity,
			"externalTrafficPolicy: Local": s.externalLocal,
			"internalTrafficPolicy: Local": s.internalLocal} {
			if set {
				fmt.Fprintf(&b, ", %s", field)
			}
		}
		b.WriteString(", endpoints: [")
		for _, e := range s.endpoints {
			fmt.Fprintf(&b, "{address: %q, port: %d, node: %s}, ", e.address, s.targetPort, e.node)
		}
		b.WriteString("]}\n")
	}
	return b.String()
}
