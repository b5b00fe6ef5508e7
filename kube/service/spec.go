package service

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"culvert/gateway/node/services"
	"culvert/kube/objects"
	"culvert/nat/rules"
)

const (
	maxPort  = 65535
	lastPort = 65534 // the kernel accepts no rule for 65535, and a port at a node's address needs one

	maxAffinity = 24 * 60 * 60 // seconds
)

// A service is the part of a Service used here.
type service struct {
	meta  objects.Metadata
	name  Name
	wrong faults // faults of the object itself
	// ports of each family; ClusterIPs and other addresses are of that family. Without Endpoints.
	ports       []port
	healthCheck uint16         // 0: none
	weights     map[string]int // of endpoints, by node; 1 if missing
	// first is the first load balancer address of either family, and local whether only nodes with
	// endpoints may announce them.
	first netip.Addr
	local bool
}

// A port is a port of a Service in one family.
type port struct {
	services.Service
	name  string // as in EndpointSlices
	field string // of the port
	v4    bool
	// Fields of ExternalIPs and LoadBalancerIPs.
	external, balanced []string
	clusterField       string
}

// readService returns nil for a Service without addresses to serve.
func readService(o *objects.Object) *service {
	s := &service{meta: withoutLabels(o.Metadata), name: Name{o.Metadata.Namespace, o.Metadata.Name}}
	of, fault := objects.ReadService(o)
	if fault != "" {
		s.wrong = faults{fault}
		return s
	}
	spec := &of.Spec
	if spec.ClusterIP == "" || spec.ClusterIP == "None" || spec.Type == "ExternalName" {
		return nil
	}
	w := &s.wrong
	outside := spec.Type == "NodePort" || spec.Type == "LoadBalancer" || len(spec.ExternalIPs) > 0
	common := services.Service{
		ExternalLocal: w.local("spec.externalTrafficPolicy", spec.ExternalTrafficPolicy) && outside,
		InternalLocal: w.local("spec.internalTrafficPolicy", spec.InternalTrafficPolicy),
	}
	s.affinity(spec, &common)
	if len(s.wrong) > 0 {
		return s // serving it would contradict its spec
	}
	s.weights = w.weights("metadata.annotations["+annotationWeights+"]", o.Annotations[annotationWeights])
	switch v := o.Annotations[annotationProxy]; v {
	case "", "none":
	case "v2":
		common.ProxyProtocol = true
	default:
		w.add("metadata.annotations["+annotationProxy+"]", "%q is neither v2 nor none", v)
		return s // unknown whether endpoints expect the header
	}
	clusterIPs := spec.ClusterIPs
	if len(clusterIPs) == 0 {
		clusterIPs = []string{spec.ClusterIP}
	}
	s.local = common.ExternalLocal
	for _, in := range slices.Backward(of.Status.LoadBalancer.Ingress) {
		if a, err := objects.ParseAddr(in.IP); err == nil {
			s.first = a.Unmap()
		}
	}
	for _, v4 := range []bool{true, false} {
		s.family(&of, &common, clusterIPs, v4)
	}
	if spec.Type == "LoadBalancer" && common.ExternalLocal && spec.HealthCheckNodePort != 0 {
		s.healthCheck, _ = w.port("spec.healthCheckNodePort", spec.HealthCheckNodePort, maxPort)
	}
	slices.Sort(s.wrong)
	s.wrong = slices.Compact(s.wrong) // both families have them
	return s
}

func (s *service) affinity(spec *objects.ServiceSpec, to *services.Service) {
	switch spec.SessionAffinity {
	case "", "None":
	case "ClientIP":
		to.Affinity = rules.AffinityClientIP
		if t := spec.SessionAffinityConfig.ClientIP.TimeoutSeconds; t != nil {
			if *t < 1 || *t > maxAffinity {
				s.wrong.add("spec.sessionAffinityConfig.clientIP.timeoutSeconds", "%d is not between 1 and %d",
					*t, maxAffinity)
			}
			to.AffinityTimeout = time.Duration(*t) * time.Second
		}
	default:
		s.wrong.add("spec.sessionAffinity", "%q is neither None nor ClientIP", spec.SessionAffinity)
	}
}

// family adds the ports of one family, if the Service has a cluster address of it.
func (s *service) family(read *objects.Service, common *services.Service, clusterIPs []string, v4 bool) {
	w, spec := &s.wrong, &read.Spec
	of := *common
	clusterField := ""
	for i, text := range clusterIPs {
		field := fmt.Sprintf("spec.clusterIPs[%d]", i)
		if a, ok := w.address(field, text); ok && a.Is4() == v4 && clusterField == "" {
			of.ClusterIPs, clusterField = []netip.Addr{a}, field
		}
	}
	if clusterField == "" {
		return
	}
	var external, balanced []string
	for i, ingress := range read.Status.LoadBalancer.Ingress {
		if ingress.IP == "" || ingress.IPMode == "Proxy" {
			continue
		}
		field := fmt.Sprintf("status.loadBalancer.ingress[%d].ip", i)
		if a, ok := w.address(field, ingress.IP); ok && a.Is4() == v4 && !slices.Contains(of.LoadBalancerIPs, a) {
			of.LoadBalancerIPs, balanced = append(of.LoadBalancerIPs, a), append(balanced, field)
		}
	}
	for i, text := range spec.ExternalIPs {
		field := fmt.Sprintf("spec.externalIPs[%d]", i)
		// An address that is also a load balancer's is only for that load balancer's clients.
		if a, ok := w.address(field, text); ok && a.Is4() == v4 && !slices.Contains(of.ExternalIPs, a) &&
			!slices.Contains(of.LoadBalancerIPs, a) {
			of.ExternalIPs, external = append(of.ExternalIPs, a), append(external, field)
		}
	}
	closed := false
	for i, text := range spec.LoadBalancerSourceRanges {
		p, ok := w.prefix(fmt.Sprintf("spec.loadBalancerSourceRanges[%d]", i), text)
		if closed = closed || !ok; ok && p.Addr().Is4() == v4 {
			of.SourceRanges = append(of.SourceRanges, p)
		}
	}
	if closed { // unknown which clients are allowed
		of.LoadBalancerIPs, balanced = nil, nil
	}
	for i := range spec.Ports {
		p, at := &spec.Ports[i], fmt.Sprintf("spec.ports[%d]", i)
		next := port{Service: of, name: p.Name, field: at, v4: v4, external: external, balanced: balanced,
			clusterField: clusterField}
		var ok, good bool
		next.Protocol, ok = w.protocol(at+".protocol", p.Protocol)
		next.ProxyProtocol = of.ProxyProtocol && next.Protocol == unix.IPPROTO_TCP
		next.Port, good = w.port(at+".port", p.Port, maxPort)
		if p.NodePort != 0 {
			next.NodePort, _ = w.port(at+".nodePort", p.NodePort, lastPort)
		}
		if next.Port > lastPort && len(of.ExternalIPs)+len(of.LoadBalancerIPs) > 0 {
			w.add(at+".port", "%d is served at the cluster address only: the kernel takes no rule for it", p.Port)
			next.ExternalIPs, next.LoadBalancerIPs, next.external, next.balanced = nil, nil, nil, nil
		}
		if next.Name = s.name.String(); p.Name != "" {
			next.Name += ":" + p.Name
		}
		twin := func(o port) bool { return o.v4 == v4 && o.name == p.Name && o.Protocol == next.Protocol }
		if ok && good && slices.ContainsFunc(s.ports, twin) {
			w.add(at+".name", "%q is that of another port", p.Name)
			continue
		}
		if ok && good {
			s.ports = append(s.ports, next)
		}
	}
}
