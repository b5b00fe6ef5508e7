package service

import (
	"slices"
	"sort"

	"culvert/gateway/node/services"
	"culvert/kube/objects"
	"culvert/nat/rules"
)

// A Front is a Service that is served away from the cluster's nodes, at an address of its own. Only
// its ports and endpoints matter.
type Front struct {
	Meta objects.Metadata
	// Wrong has the faults of the Service, each with the path of its field.
	Wrong []string
	// Refused says why it cannot be served at all, with the path of the field; "" if it can.
	Refused string

	of *service
}

// ReadFront reads a Service.
func ReadFront(o *objects.Object) *Front {
	f := &Front{Meta: o.Metadata}
	read, fault := objects.ReadService(o)
	switch spec := &read.Spec; {
	case fault != "":
		f.Refused = fault
	case spec.Type == "ExternalName":
		f.Refused = "spec.type: ExternalName is a name without endpoints"
	case spec.ClusterIP == "None":
		f.Refused = "spec.clusterIP: a headless Service has no one address that stands for its endpoints"
	default:
		if f.of = readService(o); f.of == nil {
			f.Refused = "spec.clusterIP: missing"
			return f
		}
		f.Wrong = f.of.wrong
		if len(f.of.ports) == 0 {
			f.Refused = "spec.clusterIPs: no address, or no port that can be served"
			if len(f.Wrong) > 0 {
				f.Refused = f.Wrong[0]
			}
		}
	}
	return f
}

// Has reports whether the Service has an address of a family.
func (f *Front) Has(v6 bool) bool {
	return f.of != nil && slices.ContainsFunc(f.of.ports, func(p port) bool { return p.v4 != v6 })
}

// A Slice is an EndpointSlice of a Service.
type Slice struct {
	Of Name
	of *slice
	n  int
}

// Len returns the number of endpoints in any state.
func (s *Slice) Len() int { return s.n }

// Count returns the Slice without its endpoints, of which it knows the number alone.
func (s *Slice) Count() *Slice { return &Slice{Of: s.Of, n: s.n} }

// ReadSlice parses an EndpointSlice. It returns nil for one without a Service, or with names
// instead of addresses.
func ReadSlice(o *objects.Object) *Slice {
	s := readSlice(o, "")
	if s == nil {
		return nil
	}
	return &Slice{Of: Name{o.Metadata.Namespace, o.Metadata.Labels[labelService]}, of: s, n: len(s.endpoints)}
}

// A FrontPort is a port of a Front, with the endpoints that new clients get.
type FrontPort struct {
	services.Service
	Label string // the port's name
}

// Ports returns the ports of a Front for one family. Its clients are on no node, so neither hints
// nor the policy Local exclude endpoints.
func (f *Front) Ports(all []*Slice, v6 bool) (ports []FrontPort) {
	own := map[string]*slice{}
	for _, s := range all {
		own[s.of.meta.Name] = s.of
	}
	if f.of == nil {
		return nil
	}
	for i := range f.of.ports {
		p := &f.of.ports[i]
		if p.v4 == v6 {
			continue
		}
		x := FrontPort{p.Service, p.name}
		x.Endpoints = slices.DeleteFunc(choose(candidates(own, p.name, p.Protocol, p.v4), "", "", f.of.weights),
			func(e services.Endpoint) bool { return e.Eligibility != rules.EligibleAll })
		ports = append(ports, x)
	}
	sort.Slice(ports, func(i, j int) bool {
		a, b := &ports[i], &ports[j]
		return a.Protocol < b.Protocol || a.Protocol == b.Protocol && a.Port < b.Port
	})
	return slices.CompactFunc(ports, func(a, b FrontPort) bool { return a.Protocol == b.Protocol && a.Port == b.Port })
}
