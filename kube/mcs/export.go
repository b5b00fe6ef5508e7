package mcs

import (
	"cmp"
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"culvert/gateway/exports"
	"culvert/kube/objects"
)

// Version is the version of the API that is used.
const Version = "multicluster.x-k8s.io/v1beta1"

// Its kinds.
const (
	KindExport = "ServiceExport"
	KindImport = "ServiceImport"
)

// The resources of its kinds.
var (
	Exports = objects.Resource(Version, KindExport)
	Imports = objects.Resource(Version, KindImport)
)

// The labels of EndpointSlices (KEP-1645, "EndpointSlice").
const (
	LabelService = "multicluster.kubernetes.io/service-name"
	LabelCluster = "multicluster.kubernetes.io/source-cluster"
)

// An Export is the used part of a ServiceExport.
type Export struct {
	Object      *unstructured.Unstructured
	Generation  int64
	Created     time.Time
	Deleting    bool
	Labels      map[string]string // that are exported
	Annotations map[string]string
	Conditions  []Condition
}

// A Condition is a Kubernetes condition.
type Condition struct {
	Type     string `json:"type"`
	Status   string `json:"status"` // True, False or Unknown
	Reason   string `json:"reason"`
	Message  string `json:"message"`
	Observed int64  `json:"observedGeneration,omitempty"`
	Since    string `json:"lastTransitionTime"`
}

// ReadExport reads a ServiceExport.
func ReadExport(u *unstructured.Unstructured) *Export {
	e := &Export{Object: u, Generation: u.GetGeneration(), Created: u.GetCreationTimestamp().Time,
		Deleting: u.GetDeletionTimestamp() != nil}
	var spec struct{ ExportedLabels, ExportedAnnotations map[string]string }
	var status struct{ Conditions []Condition }
	json.Unmarshal(objects.PartOf(u, "spec"), &spec) // the API server has checked it
	json.Unmarshal(objects.PartOf(u, "status"), &status)
	e.Labels, e.Annotations, e.Conditions = spec.ExportedLabels, spec.ExportedAnnotations, status.Conditions
	return e
}

// A Service is the used part of a Service.
type Service struct {
	exports.Service
	Invalid string // why it cannot be exported; ""
}

// ReadService reads a Service.
func ReadService(u *unstructured.Unstructured) *Service {
	var spec struct {
		Type                  string
		ClusterIP             string
		Ports                 []exports.Port
		SessionAffinity       string
		SessionAffinityConfig struct {
			ClientIP struct{ TimeoutSeconds int32 }
		}
		InternalTrafficPolicy string
		TrafficDistribution   string
	}
	s := &Service{}
	if fault := objects.ReadPart("spec", objects.PartOf(u, "spec"), &spec); fault != "" {
		s.Invalid = fault
		return s
	}
	if spec.Type == "ExternalName" {
		s.Invalid = "spec.type: ExternalName is a name without endpoints"
		return s
	}
	s.Service = exports.Service{Namespace: u.GetNamespace(), Name: u.GetName(), Type: exports.ClusterSetIP,
		Ports: spec.Ports, Affinity: spec.SessionAffinity,
		InternalTrafficPolicy: spec.InternalTrafficPolicy, TrafficDistribution: spec.TrafficDistribution}
	if spec.ClusterIP == "None" {
		s.Type = exports.Headless
	}
	if s.Affinity = cmp.Or(s.Affinity, "None"); s.Affinity == "ClientIP" {
		s.AffinityFor = spec.SessionAffinityConfig.ClientIP.TimeoutSeconds
	}
	for i := range s.Ports {
		s.Ports[i].Protocol = cmp.Or(s.Ports[i].Protocol, "TCP")
	}
	return s
}

// A Slice is the endpoints of an EndpointSlice, in IPv4.
type Slice struct {
	Of   types.NamespacedName // its Service
	name string
	exports.Group
}

// ReadSlice returns nil for an EndpointSlice without a Service, without IPv4 addresses, or that is
// itself imported from another cluster.
func ReadSlice(u *unstructured.Unstructured) *Slice {
	labels := u.GetLabels()
	service := labels["kubernetes.io/service-name"]
	var family string
	json.Unmarshal(objects.PartOf(u, "addressType"), &family)
	if service == "" || family != "IPv4" || labels[LabelCluster] != "" {
		return nil
	}
	var endpoints []struct {
		Addresses  []string
		Hostname   string
		Conditions struct{ Ready, Serving, Terminating *bool }
	}
	s := &Slice{Of: types.NamespacedName{Namespace: u.GetNamespace(), Name: service}, name: u.GetName()}
	json.Unmarshal(objects.PartOf(u, "ports"), &s.Ports)
	json.Unmarshal(objects.PartOf(u, "endpoints"), &endpoints)
	s.Ports = slices.DeleteFunc(s.Ports, func(p exports.Port) bool { return p.Port == 0 })
	for i := range s.Ports {
		s.Ports[i].Protocol = cmp.Or(s.Ports[i].Protocol, "TCP")
	}
	for _, e := range endpoints {
		if len(e.Addresses) == 0 {
			continue
		}
		a, err := objects.ParseAddr(e.Addresses[0])
		if err != nil || !a.Is4() {
			continue
		}
		yes := func(b *bool, otherwise bool) bool { return b == nil && otherwise || b != nil && *b }
		ready := yes(e.Conditions.Ready, true)
		serving, ending := yes(e.Conditions.Serving, ready), yes(e.Conditions.Terminating, false)
		x := exports.Endpoint{IP: a, Host: e.Hostname}
		switch {
		case ready:
		case ending && serving:
			x.State = exports.Serving
		case ending:
			x.State = exports.Terminating
		default:
			x.State = exports.NotReady
		}
		s.Addresses = append(s.Addresses, x)
	}
	slices.SortFunc(s.Ports, func(a, b exports.Port) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Protocol, b.Protocol))
	})
	return s
}

// Offer returns what a cluster exports by a ServiceExport, its Service and the Service's
// EndpointSlices.
func Offer(e *Export, of *Service, all []*Slice) exports.Service {
	s := of.Service
	s.Created, s.Labels, s.Annotations = e.Created, e.Labels, e.Annotations
	s.Endpoints = nil
	had := map[place]bool{} // that several EndpointSlices have one is normal while it moves
	slices.SortFunc(all, func(a, b *Slice) int { return strings.Compare(a.name, b.name) })
	for _, x := range all {
		i := slices.IndexFunc(s.Endpoints, func(g exports.Group) bool { return slices.Equal(g.Ports, x.Ports) })
		if i < 0 {
			i = len(s.Endpoints)
			s.Endpoints = append(s.Endpoints, exports.Group{Ports: x.Ports})
		}
		g := &s.Endpoints[i]
		for _, e := range x.Addresses {
			if at := (place{i, e.IP}); !had[at] {
				had[at] = true
				g.Addresses = append(g.Addresses, e)
			}
		}
	}
	for i := range s.Endpoints {
		slices.SortFunc(s.Endpoints[i].Addresses, func(a, b exports.Endpoint) int { return a.IP.Compare(b.IP) })
	}
	return s
}

// A place is an address in a group.
type place struct {
	group int
	ip    netip.Addr
}
