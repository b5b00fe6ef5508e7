package mcs

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"culvert/gateway/exports"
	"culvert/kube/objects"
)

// The kinds of the API.
const (
	KindExport = "ServiceExport"
	KindImport = "ServiceImport"
)

// The labels of EndpointSlices (KEP-1645, "EndpointSlice").
const (
	LabelService = "multicluster.kubernetes.io/service-name"
	LabelCluster = "multicluster.kubernetes.io/source-cluster"
)

// ClusterSet is the zone of the names of multi-cluster Services.
const ClusterSet = "clusterset.local"

// Zone reports whether a Corefile makes CoreDNS serve the zone.
func Zone(corefile string) bool {
	for line := range strings.Lines(corefile) {
		if words := strings.Fields(line); len(words) > 1 && words[0] == "multicluster" {
			return slices.Contains(words, ClusterSet)
		}
	}
	return false
}

// LabelManaged is the label of all objects that culvert multicluster makes; others are left as they
// are.
const LabelManaged = "culvert.io/multicluster"

// AnnotationPeers is the annotation of a ServiceExport that names, separated by commas, the only
// peers that hear of it.
const AnnotationPeers = "culvert.io/export-to"

// An Export is the used part of a ServiceExport.
type Export struct {
	Object      *unstructured.Unstructured
	Generation  int64
	Created     time.Time
	Deleting    bool
	Labels      map[string]string // that are exported
	Annotations map[string]string
	Peers       []string // that hear of it; nil: all
	Conditions  []objects.Condition
}

// ReadExport reads a ServiceExport.
func ReadExport(u *unstructured.Unstructured) *Export {
	e := &Export{Object: u, Generation: u.GetGeneration(), Created: u.GetCreationTimestamp().UTC(),
		Deleting: u.GetDeletionTimestamp() != nil}
	var spec struct{ ExportedLabels, ExportedAnnotations map[string]string }
	var status struct{ Conditions []objects.Condition }
	json.Unmarshal(objects.PartOf(u, "spec"), &spec) // the API server has checked it
	json.Unmarshal(objects.PartOf(u, "status"), &status)
	e.Labels, e.Annotations, e.Conditions = spec.ExportedLabels, spec.ExportedAnnotations, status.Conditions
	if names, ok := u.GetAnnotations()[AnnotationPeers]; ok {
		e.Peers = []string{}
		for name := range strings.SplitSeq(names, ",") {
			e.Peers = append(e.Peers, strings.TrimSpace(name))
		}
	}
	return e
}

// A Service is the used part of a Service.
type Service struct {
	exports.Service
	Invalid string // why it cannot be exported; ""
}

// ReadService reads a Service.
func ReadService(u *unstructured.Unstructured) *Service {
	read, fault := objects.ReadService(objects.Of("Service", u))
	spec := &read.Spec
	switch {
	case fault != "":
		return &Service{Invalid: fault}
	case spec.Type == "ExternalName":
		return &Service{Invalid: "spec.type: ExternalName is a name without endpoints"}
	}
	s := &Service{Service: exports.Service{Namespace: u.GetNamespace(), Name: u.GetName(), Type: exports.ClusterSetIP,
		Families: exports.Families(slices.Contains(spec.IPFamilies, "IPv4"), slices.Contains(spec.IPFamilies, "IPv6")),
		Affinity: cmp.Or(spec.SessionAffinity, "None"), InternalTrafficPolicy: spec.InternalTrafficPolicy,
		TrafficDistribution: spec.TrafficDistribution}}
	if spec.ClusterIP == "None" {
		s.Type = exports.Headless
	}
	if d := spec.SessionAffinityConfig.ClientIP.TimeoutSeconds; d != nil && s.Affinity == "ClientIP" {
		s.AffinityFor = int32(*d)
	}
	for _, p := range spec.Ports {
		s.Ports = append(s.Ports, exports.Port{Name: p.Name, Protocol: cmp.Or(p.Protocol, "TCP"), Port: uint16(p.Port),
			AppProtocol: p.AppProtocol})
	}
	return s
}

// A Slice is an EndpointSlice with addresses, all of one family.
type Slice struct {
	Of types.NamespacedName // its Service
	exports.Group
}

// ReadSlice returns nil for an EndpointSlice without a Service, or with names instead of addresses.
func ReadSlice(u *unstructured.Unstructured) *Slice {
	service := u.GetLabels()["kubernetes.io/service-name"]
	var family string
	json.Unmarshal(objects.PartOf(u, "addressType"), &family)
	if service == "" || family != "IPv4" && family != "IPv6" {
		return nil
	}
	return &Slice{types.NamespacedName{Namespace: u.GetNamespace(), Name: service},
		ReadGroup(objects.Of("EndpointSlice", u))}
}

// ReadGroup reads the endpoints of an EndpointSlice with addresses.
func ReadGroup(o *objects.Object) (g exports.Group) {
	var endpoints []struct {
		Addresses  []string
		Hostname   string
		Conditions struct{ Ready, Serving, Terminating *bool }
	}
	objects.ReadPart("ports", o.Ports, &g.Ports) // the API server has checked them
	objects.ReadPart("endpoints", o.Endpoints, &endpoints)
	g.Ports = slices.DeleteFunc(g.Ports, func(p exports.Port) bool { return p.Port == 0 })
	for i := range g.Ports {
		g.Ports[i].Protocol = cmp.Or(g.Ports[i].Protocol, "TCP")
	}
	slices.SortFunc(g.Ports, func(a, b exports.Port) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Protocol, b.Protocol))
	})
	for _, e := range endpoints {
		if len(e.Addresses) == 0 {
			continue
		}
		a, err := objects.ParseAddr(e.Addresses[0])
		if err != nil || a.Is4In6() {
			continue
		}
		c, state := &e.Conditions, exports.NotReady
		ready := c.Ready == nil || *c.Ready
		switch ending := c.Terminating != nil && *c.Terminating; {
		case ready:
			state = exports.Ready
		case ending && c.Serving != nil && *c.Serving:
			state = exports.Serving
		case ending:
			state = exports.Terminating
		}
		g.Addresses = append(g.Addresses, exports.Endpoint{IP: a, Host: e.Hostname, State: state})
	}
	return g
}

// Offer returns what a cluster exports by a ServiceExport, its Service and the Service's endpoints,
// in the order of their EndpointSlices' names: those of the Service's families.
func Offer(e *Export, of exports.Service, all []exports.Group) exports.Service {
	s := of
	s.Created, s.Labels, s.Annotations = e.Created, e.Labels, e.Annotations
	for _, x := range all {
		i := slices.IndexFunc(s.Endpoints, func(g exports.Group) bool { return slices.Equal(g.Ports, x.Ports) })
		if i < 0 {
			i = len(s.Endpoints)
			s.Endpoints = append(s.Endpoints, exports.Group{Ports: x.Ports})
		}
		for _, a := range x.Addresses {
			if s.Has(a.IP.Is6()) {
				s.Endpoints[i].Addresses = append(s.Endpoints[i].Addresses, a)
			}
		}
	}
	for i := range s.Endpoints {
		g := &s.Endpoints[i]
		slices.SortStableFunc(g.Addresses, func(a, b exports.Endpoint) int { return a.IP.Compare(b.IP) })
		// While an endpoint moves, two EndpointSlices have it.
		g.Addresses = slices.CompactFunc(g.Addresses, func(a, b exports.Endpoint) bool { return a.IP == b.IP })
	}
	return s
}
