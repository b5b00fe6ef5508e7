package multicluster

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"culvert/gateway/exports"
	"culvert/kube/objects"
	"culvert/kube/peering"
)

// What a peer may make this cluster keep, besides exports.MaxServices and exports.MaxEndpoints.
const (
	maxPorts  = 100  // of one Service; an EndpointSlice can have no more
	maxGroups = 50   // of one Service: each has EndpointSlices of its own
	maxTexts  = 32   // labels of one Service, and annotations
	maxText   = 1024 // bytes of an annotation
)

// heard is what a peer exports, as its gateway told it. The gateway is not trusted.
type heard struct {
	known    bool // something has been heard
	services []exports.Service
	fault    string
}

// readHeard reads a PeerExports.
func readHeard(u *unstructured.Unstructured) *heard {
	h := &heard{known: u.Object["heard"] != nil}
	if fault := objects.ReadPart("services", objects.PartOf(u, "services"), &h.services); fault != "" {
		return &heard{fault: fault}
	}
	return h
}

// dnsLabel is a name that may be part of a DNS name (RFC 1123, Section 2.1).
var dnsLabel = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// judge returns what is acceptable of a peer's Services, by name and with addresses as this cluster
// sees them, and why the rest is refused. They may have room ClusterIPs; those that have one are
// the first.
func (h *heard) judge(p *peering.Peering, room int, has func(types.NamespacedName) bool) (
	all map[types.NamespacedName]*exports.Service, faults []string) {
	all = map[types.NamespacedName]*exports.Service{}
	if h.fault != "" {
		return all, []string{h.fault}
	}
	endpoints, short := 0, 0
	for _, s := range inTurn(h.services, has) {
		refuse := func(format string, args ...any) {
			faults = append(faults, fmt.Sprintf("the peer's Service %.130q: ", s.Namespace+"/"+s.Name)+
				fmt.Sprintf(format, args...))
		}
		if len(all) == exports.MaxServices {
			refuse("it is beyond the %d that a peer may export", exports.MaxServices)
			break
		}
		name := types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
		switch {
		case !dnsLabel.MatchString(s.Name) || !dnsLabel.MatchString(s.Namespace):
			refuse("its name or its namespace is no DNS label")
			continue
		case !p.ImportsInto(s.Namespace):
			continue // what nobody has asked for is no fault
		case all[name] != nil:
			refuse("it is there twice")
			continue
		case s.Type != exports.ClusterSetIP && s.Type != exports.Headless:
			refuse("its type %.20q is neither ClusterSetIP nor Headless", s.Type)
			continue
		case s.Created.IsZero():
			refuse("the time of its ServiceExport is missing")
			continue
		}
		if fault := badService(s); fault != "" {
			refuse("%s", fault)
			continue
		}
		if s.Type == exports.ClusterSetIP {
			if room == 0 {
				short++
				continue
			}
			room--
		}
		v4, v6 := s.Has(false) && p.Carries(false), s.Has(true) && p.Carries(true)
		if !v4 && !v6 {
			refuse("the Peering carries none of its ipFamilies between pods")
			continue
		}
		here := *s
		here.Families = exports.Families(v4, v6)
		here.Affinity = cmp.Or(here.Affinity, "None")
		here.Labels, here.Annotations = acceptable(s.Labels, labelValue), acceptable(s.Annotations, annotationValue)
		here.Endpoints = nil
		for i, g := range s.Endpoints {
			if i == maxGroups {
				refuse("its endpoints have more than %d different lists of ports", maxGroups)
				break
			}
			if fault := badPorts(g.Ports); fault != "" {
				refuse("its endpoints: %s", fault)
				continue
			}
			g.Addresses = slices.Clone(g.Addresses)
			var wrong string
			g.Addresses = slices.DeleteFunc(g.Addresses, func(e exports.Endpoint) bool {
				_, fault := p.SeenAddress(e.IP)
				if fault == "" && !s.Has(e.IP.Is6()) {
					fault = fmt.Sprintf("%s is of a family that its ipFamilies lack", e.IP)
				}
				if fault == "" &&
					(e.Host != "" && !dnsLabel.MatchString(e.Host) || !slices.Contains(states, e.State)) {
					fault = fmt.Sprintf("%s has a host name or a state that is none", e.IP)
				}
				if wrong == "" {
					wrong = fault
				}
				return fault != ""
			})
			if wrong != "" {
				refuse("its endpoint %s", wrong)
			}
			if endpoints += len(g.Addresses); endpoints > exports.MaxEndpoints {
				refuse("with its endpoints there are more than the %d that a peer may export", exports.MaxEndpoints)
				break
			}
			for i := range g.Addresses {
				e := &g.Addresses[i]
				named(e)
				e.IP, _ = p.SeenAddress(e.IP)
			}
			here.Endpoints = append(here.Endpoints, g)
		}
		all[name] = &here
	}
	if short > 0 {
		faults = append(faults, fmt.Sprintf("%d of the peer's Services are not imported, because a peer's may have "+
			"only a quarter of the cluster's ClusterIPs; add a ServiceCIDR", short))
	}
	slices.Sort(faults)
	return all, slices.Compact(faults)
}

// inTurn returns Services; those that have a ClusterIP here come first.
func inTurn(all []exports.Service, has func(types.NamespacedName) bool) []*exports.Service {
	var first, rest []*exports.Service
	for i := range all {
		s := &all[i]
		if has(types.NamespacedName{Namespace: s.Namespace, Name: s.Name}) {
			first = append(first, s)
		} else {
			rest = append(rest, s)
		}
	}
	return append(first, rest...)
}

// named gives an endpoint without a host name the name that DNS derives from its address in its own
// cluster, so that it has one name in all clusters.
func named(e *exports.Endpoint) {
	if e.Host != "" {
		return
	}
	if e.Host = strings.NewReplacer(".", "-", ":", "-").Replace(e.IP.String()); strings.HasSuffix(e.Host, "-") {
		e.Host += "0" // as CoreDNS does: a label cannot end otherwise
	}
}

var states = []string{exports.Ready, exports.NotReady, exports.Serving, exports.Terminating}

// badService returns what the API server would refuse of a Service or a ServiceImport; "" = none.
func badService(s *exports.Service) string {
	switch {
	case s.Affinity != "" && s.Affinity != "None" && s.Affinity != "ClientIP":
		return fmt.Sprintf("sessionAffinity %.20q is neither ClientIP nor None", s.Affinity)
	case s.Affinity == "ClientIP" && (s.AffinityFor < 1 || s.AffinityFor > 86400):
		return fmt.Sprintf("%d s of session affinity are not between 1 and 86400", s.AffinityFor)
	case s.Affinity != "ClientIP" && s.AffinityFor != 0:
		return "session affinity has a time and no kind"
	case s.InternalTrafficPolicy != "" && s.InternalTrafficPolicy != "Cluster" && s.InternalTrafficPolicy != "Local":
		return fmt.Sprintf("internalTrafficPolicy %.20q is neither Cluster nor Local", s.InternalTrafficPolicy)
	case !slices.Contains(distributions, s.TrafficDistribution):
		return fmt.Sprintf("trafficDistribution %.20q is unknown", s.TrafficDistribution)
	case slices.ContainsFunc(s.Families, func(f string) bool { return f != "IPv4" && f != "IPv6" }):
		return "one of its ipFamilies is neither IPv4 nor IPv6"
	case len(s.Ports) == 0 && s.Type == exports.ClusterSetIP:
		return "it has no port"
	case len(s.Ports) > 1 && slices.ContainsFunc(s.Ports, func(p exports.Port) bool { return p.Name == "" }):
		return "one of several ports has no name"
	}
	for i, p := range s.Ports {
		if slices.ContainsFunc(s.Ports[:i], func(o exports.Port) bool {
			return o.Port == p.Port && o.Protocol == p.Protocol
		}) {
			return fmt.Sprintf("port %d is there twice", p.Port)
		}
	}
	return badPorts(s.Ports)
}

// distributions are those of Kubernetes 1.35. A ServiceImport with another one could not become a
// Service.
var distributions = []string{"", "PreferClose", "PreferSameZone", "PreferSameNode"}

// badPorts returns the fault of ports of a Service or of endpoints; "" = none.
func badPorts(all []exports.Port) string {
	if len(all) > maxPorts {
		return fmt.Sprintf("more than %d ports", maxPorts)
	}
	for i, p := range all {
		switch {
		case p.Protocol != "TCP" && p.Protocol != "UDP" && p.Protocol != "SCTP":
			return fmt.Sprintf("protocol %.20q is not TCP, UDP or SCTP", p.Protocol)
		case p.Port == 0:
			return "0 is no port"
		case p.Name != "" && !dnsLabel.MatchString(p.Name):
			return fmt.Sprintf("%.70q, the name of a port, is no DNS label", p.Name)
		case p.AppProtocol != "" && len(validation.IsQualifiedName(p.AppProtocol)) > 0:
			return fmt.Sprintf("%.70q is no application protocol", p.AppProtocol)
		case slices.ContainsFunc(all[:i], func(o exports.Port) bool { return o.Name == p.Name }):
			return fmt.Sprintf("two ports are called %q", p.Name)
		}
	}
	return ""
}

func labelValue(v string) bool      { return len(validation.IsValidLabelValue(v)) == 0 }
func annotationValue(v string) bool { return len(v) <= maxText }

// acceptable returns labels or annotations that a ServiceImport can have. Those of Kubernetes and
// of culvert would mean something to controllers.
func acceptable(all map[string]string, good func(string) bool) map[string]string {
	kept := map[string]string{}
	for _, k := range slices.Sorted(maps.Keys(all)) {
		v := all[k]
		domain, _, qualified := strings.Cut(k, "/")
		ours := qualified && (domain == peering.Group || domain == "kubernetes.io" || domain == "k8s.io" ||
			strings.HasSuffix(domain, "."+peering.Group) || strings.HasSuffix(domain, ".kubernetes.io") ||
			strings.HasSuffix(domain, ".k8s.io"))
		if !ours && len(validation.IsQualifiedName(k)) == 0 && good(v) && len(kept) < maxTexts {
			kept[k] = v
		}
	}
	if len(kept) == 0 {
		return nil
	}
	return kept
}
