package peering

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"culvert/gateway/exports"
	"culvert/kube/objects"
	"culvert/kube/service"
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// AnnotationPeers is the annotation of a ServiceExport that names, separated by commas, the only
// peers that hear of it.
const AnnotationPeers = "culvert.io/export-to"

// kindServiceExport is a kind of multi-cluster Services (KEP-1645): it exports the Service of its
// name.
const kindServiceExport = "ServiceExport"

// A serviceExport is a ServiceExport.
type serviceExport struct {
	created             time.Time
	labels, annotations map[string]string // for the ServiceImports
	peers               []string          // nil: all
}

func readServiceExport(u *unstructured.Unstructured) *serviceExport {
	o := objects.Of(kindServiceExport, u)
	if o.Deleting {
		return nil
	}
	var spec struct {
		ExportedLabels      map[string]string `json:"exportedLabels"`
		ExportedAnnotations map[string]string `json:"exportedAnnotations"`
	}
	objects.ReadPart("spec", o.Spec, &spec) // the API server has checked it
	e := &serviceExport{created: o.Metadata.Created.UTC(), labels: spec.ExportedLabels,
		annotations: spec.ExportedAnnotations}
	if names, ok := o.Annotations[AnnotationPeers]; ok {
		e.peers = []string{}
		for name := range strings.SplitSeq(names, ",") {
			e.peers = append(e.peers, strings.TrimSpace(name))
		}
	}
	return e
}

// An offer is what a gateway keeps of each Service.
type offer struct {
	ips     clusterIPs
	service exports.Service // without a type if it cannot be exported
}

func readOffer(u *unstructured.Unstructured) *offer {
	o := &offer{}
	if ips := readService(u); ips != nil {
		o.ips = *ips
	}
	read, _ := objects.ReadService(objects.Of(kindService, u)) // the API server has checked it
	spec, s := &read.Spec, &o.service
	switch {
	case spec.Type == "ExternalName":
		return o
	case spec.ClusterIP == "None":
		s.Type = exports.Headless
	default:
		s.Type = exports.ClusterSetIP
	}
	for _, p := range spec.Ports {
		s.Ports = append(s.Ports, exports.Port{Name: p.Name, Protocol: cmp.Or(p.Protocol, "TCP"), Port: uint16(p.Port),
			AppProtocol: p.AppProtocol})
	}
	s.InternalTrafficPolicy, s.TrafficDistribution = spec.InternalTrafficPolicy, spec.TrafficDistribution
	if s.Affinity = spec.SessionAffinity; s.Affinity == "ClientIP" {
		if d := spec.SessionAffinityConfig.ClientIP.TimeoutSeconds; d != nil {
			s.AffinityFor = int32(*d)
		}
	}
	return o
}

// offers are the Services of a gateway, by namespace/name.
type offers struct{ *Gateway }

func (g offers) set(key string, o *offer) {
	var ips *clusterIPs
	if o != nil && len(o.ips) > 0 {
		ips = &o.ips
	}
	table[*clusterIPs](g.services).set(key, ips)
	table[*offer](g.offers).set(key, o)
}

// A slice is an EndpointSlice of an exported Service.
type slice struct {
	*service.Slice
	group exports.Group // of IPv4
}

// readSlice returns nil for a slice without a Service, or with names instead of addresses.
func readSlice(u *unstructured.Unstructured) *slice {
	o := objects.Of(kindSlice, u)
	s := service.ReadSlice(o)
	if s == nil {
		return nil
	}
	return &slice{s, readGroup(o)}
}

func readGroup(o *objects.Object) (g exports.Group) {
	var ports []struct {
		Name        string `json:"name"`
		Protocol    string `json:"protocol"`
		Port        int64  `json:"port"`
		AppProtocol string `json:"appProtocol"`
	}
	var endpoints []struct {
		Addresses  []string `json:"addresses"`
		Hostname   string   `json:"hostname"`
		Conditions struct {
			Ready       *bool `json:"ready"`
			Serving     *bool `json:"serving"`
			Terminating bool  `json:"terminating"`
		} `json:"conditions"`
	}
	objects.ReadPart("ports", o.Ports, &ports) // the API server has checked them
	objects.ReadPart("endpoints", o.Endpoints, &endpoints)
	for _, p := range ports {
		g.Ports = append(g.Ports, exports.Port{Name: p.Name, Protocol: cmp.Or(p.Protocol, "TCP"), Port: uint16(p.Port),
			AppProtocol: p.AppProtocol})
	}
	for _, e := range endpoints {
		if len(e.Addresses) == 0 {
			continue
		}
		a, err := objects.ParseAddr(e.Addresses[0])
		if err != nil || !a.Is4() {
			continue
		}
		ready, state := e.Conditions.Ready == nil || *e.Conditions.Ready, exports.NotReady
		switch {
		case ready:
			state = exports.Ready
		case e.Conditions.Terminating && e.Conditions.Serving != nil && *e.Conditions.Serving:
			state = exports.Serving
		case e.Conditions.Terminating:
			state = exports.Terminating
		}
		g.Addresses = append(g.Addresses, exports.Endpoint{IP: a, Host: e.Hostname, State: state})
	}
	return g
}

// A shared is a Service that a ServiceExport lets the peer hear of, and what it was made of.
type shared struct {
	name    service.Name
	export  *serviceExport
	offer   *offer
	peering *Peering
	slices  []*slice

	told  *exports.Service // nil: no list may have it
	n     int              // endpoints in any state
	size  int
	fault string
}

// share derives the Services of ServiceExports for the peer. Those whose EndpointSlices are not all
// known yet wait for them, and the first list waits for all.
func (g *Gateway) share(d *Plan) {
	names, had := map[service.Name]bool{}, g.shared
	turn := newShares[*shared](exports.MaxServices, exports.MaxEndpoints, exports.MaxSize)
	whole := true
	all := map[service.Name]*shared{}
	for key, e := range g.serviceExports {
		namespace, name, _ := strings.Cut(key, "/")
		o := g.offers[key]
		if !g.good.Exports(namespace) || e.peers != nil && !slices.Contains(e.peers, g.good.Peer) || o == nil ||
			o.service.Type == "" {
			continue
		}
		n := service.Name{Namespace: namespace, Name: name}
		names[n] = true
		if !g.slices.known(n) {
			whole = false
			continue
		}
		s := &shared{name: n, export: e, offer: o, peering: g.good, slices: g.slices.of(n)}
		if was := had[n]; was != nil && was.export == e && was.offer == o && was.peering == g.good &&
			slices.Equal(was.slices, s.slices) {
			s = was
		} else {
			s.make()
		}
		all[n] = s
	}
	g.sharing = names
	if !g.sharesKnown || !whole && had == nil {
		return
	}
	g.shared, d.Shared = all, []*exports.Service{}
	if g.sharesRefused {
		d.ExportFaults = append(d.ExportFaults,
			"spec.services.export: the API server has no ServiceExports for the gateway: install the kinds of multi-cluster Services, and apply culvert kube template again")
	}
	for _, s := range inOrderOf(all) {
		turn.add(s, s.name.Namespace, 1, s.n, s.size)
	}
	services, endpoints := exports.MaxServices, exports.MaxEndpoints-len(d.Exports)
	size := exports.MaxSize
	if len(d.Exports) > 0 { // Services with the label
		size -= len(d.Exports)*512 + maxPorts*128
	}
	for _, s := range turn.inTurn() {
		fault := s.fault
		switch {
		case s.told == nil:
		case s.n > endpoints:
			fault = fmt.Sprintf(
				"it has %d endpoints, and others %d; at most %d may be exported, which namespaces share", s.n,
				exports.MaxEndpoints-endpoints, exports.MaxEndpoints)
			if !g.assigned[s.name] {
				g.slices.count(s.name)
			}
		case g.slices.counted[s.name]:
			if !g.assigned[s.name] { // else it is for the label that its endpoints are too many
				g.slices.forget(s.name)
			}
			continue
		case services == 0:
			fault = fmt.Sprintf("at most %d may be exported, which namespaces share", exports.MaxServices)
		case s.size > size:
			fault = fmt.Sprintf("what peers hear of it has %d bytes, and of others %d; at most %d are possible, which namespaces share",
				s.size, exports.MaxSize-size, exports.MaxSize)
		default:
			services, endpoints, size = services-1, endpoints-s.n, size-s.size
			d.Shared = append(d.Shared, s.told)
		}
		if fault != "" {
			d.ExportFaults = append(d.ExportFaults, fmt.Sprintf("%s %s: %s", kindServiceExport, s.name, fault))
		}
	}
}

// admitted returns what the peer may open connections to if spec.admit is Exports: the endpoints of
// the Services that it hears of.
func (d *Plan) admitted() (all []rules.Endpoint) {
	seen := map[rules.Endpoint]bool{}
	for _, s := range d.Shared {
		had := len(all)
		for i := range s.Endpoints {
			g := &s.Endpoints[i]
			for _, p := range g.Ports {
				protocol := protocolNumbers[p.Protocol]
				if protocol == 0 || p.Port == 0 { // kube-proxy knows no port that stands for all
					continue
				}
				for _, e := range g.Addresses {
					x := rules.Endpoint{Prefix: netip.PrefixFrom(e.IP, e.IP.BitLen()), Protocol: protocol, Port: p.Port}
					if !seen[x] {
						seen[x], all = true, append(all, x)
					}
				}
			}
		}
		if len(all) > maxBackends {
			d.ExportFaults = append(d.ExportFaults, fmt.Sprintf(
				"%s %s/%s: spec.admit of the Peering: its endpoints and others have more than %d ports; it is not admitted",
				kindServiceExport, s.Namespace, s.Name, maxBackends))
			for _, x := range all[had:] {
				delete(seen, x)
			}
			all = all[:had]
		}
	}
	return all
}

var protocolNumbers = map[string]uint8{"TCP": packet.TCP, "UDP": packet.UDP, "SCTP": packet.SCTP}

// inOrderOf returns Services by the age of their ServiceExports.
func inOrderOf(all map[service.Name]*shared) (list []*shared) {
	for _, s := range all {
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b *shared) int {
		return cmp.Or(a.export.created.Compare(b.export.created), strings.Compare(a.name.Namespace, b.name.Namespace),
			strings.Compare(a.name.Name, b.name.Name))
	})
	return list
}

// make makes what the peer hears.
func (s *shared) make() {
	told := s.offer.service
	told.Namespace, told.Name, told.Created = s.name.Namespace, s.name.Name, s.export.created
	told.Labels, told.Annotations = s.export.labels, s.export.annotations
	var wrong []netip.Addr
	for _, x := range s.slices {
		s.n += x.Len()
		i := slices.IndexFunc(told.Endpoints, func(g exports.Group) bool {
			return slices.Equal(g.Ports, x.group.Ports)
		})
		if i < 0 {
			i = len(told.Endpoints)
			told.Endpoints = append(told.Endpoints, exports.Group{Ports: x.group.Ports})
		}
		g := &told.Endpoints[i]
		for _, e := range x.group.Addresses {
			if slices.ContainsFunc(s.peering.Pods, func(p netip.Prefix) bool { return p.Contains(e.IP) }) {
				g.Addresses = append(g.Addresses, e)
			} else {
				wrong = append(wrong, e.IP)
			}
		}
	}
	for i := range told.Endpoints {
		g := &told.Endpoints[i]
		slices.SortStableFunc(g.Addresses, func(a, b exports.Endpoint) int { return a.IP.Compare(b.IP) })
		g.Addresses = slices.CompactFunc(g.Addresses, func(a, b exports.Endpoint) bool { return a.IP == b.IP })
	}
	if len(wrong) > 0 {
		s.fault = fmt.Sprintf("its endpoint %s is not in spec.local.podCIDRs of Peering %s, and left out%s", wrong[0],
			s.peering.Metadata.Name, more(len(wrong)))
	}
	s.told, s.size = &told, told.Size()
	if err := told.Check(); err != nil {
		s.fault, s.told = err.Error(), nil
	}
}
