package peering

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"culvert/gateway/exports"
	"culvert/kube/mcs"
	"culvert/kube/objects"
	"culvert/kube/service"
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// kindServiceExport is a kind of multi-cluster Services (KEP-1645): it exports the Service of its
// name.
const kindServiceExport = mcs.KindExport

func readServiceExport(u *unstructured.Unstructured) *mcs.Export {
	e := mcs.ReadExport(u)
	if e.Object = nil; e.Deleting {
		return nil
	}
	return e
}

// An offer is what a gateway keeps of each Service.
type offer struct {
	ips     clusterIPs
	service *mcs.Service // without a type if it cannot be exported
}

func readOffer(u *unstructured.Unstructured) *offer {
	o := &offer{service: mcs.ReadService(u)}
	if ips := readService(u); ips != nil {
		o.ips = *ips
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
	group exports.Group
}

// readSlice returns nil for a slice without a Service, or with names instead of addresses.
func readSlice(u *unstructured.Unstructured) *slice {
	o := objects.Of(kindSlice, u)
	s := service.ReadSlice(o)
	if s == nil {
		return nil
	}
	return &slice{s, mcs.ReadGroup(o)}
}

// A shared is a Service that a ServiceExport lets the peer hear of, and what it was made of.
type shared struct {
	name    service.Name
	export  *mcs.Export
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
		if !g.good.Exports(namespace) || e.Peers != nil && !slices.Contains(e.Peers, g.good.Peer) || o == nil ||
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
	services, endpoints := exports.MaxServices, exports.MaxEndpoints
	for _, s := range d.Exports {
		endpoints -= len(s.Endpoints[0].Addresses)
	}
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
		return cmp.Or(a.export.Created.Compare(b.export.Created), strings.Compare(a.name.Namespace, b.name.Namespace),
			strings.Compare(a.name.Name, b.name.Name))
	})
	return list
}

// make makes what the peer hears.
func (s *shared) make() {
	var wrong []netip.Addr
	var groups []exports.Group
	for _, x := range s.slices {
		s.n += x.Len()
		g := exports.Group{Ports: x.group.Ports}
		for _, e := range x.group.Addresses {
			if !s.peering.Carries(e.IP.Is6()) {
				continue
			}
			if slices.ContainsFunc(s.peering.Pods, func(p netip.Prefix) bool { return p.Contains(e.IP) }) {
				g.Addresses = append(g.Addresses, e)
			} else {
				wrong = append(wrong, e.IP)
			}
		}
		groups = append(groups, g)
	}
	of := s.offer.service.Service
	v4, v6 := of.Has(false) && s.peering.Carries(false), of.Has(true) && s.peering.Carries(true)
	if !v4 && !v6 {
		s.fault = fmt.Sprintf("the Service's spec.ipFamilies: Peering %s carries none of them between pods",
			s.peering.Metadata.Name)
		return
	}
	of.Families = exports.Families(v4, v6)
	told := mcs.Offer(s.export, of, groups)
	if len(wrong) > 0 {
		s.fault = fmt.Sprintf("its endpoint %s is not in spec.local.podCIDRs of Peering %s, and left out%s", wrong[0],
			s.peering.Metadata.Name, more(len(wrong)))
	}
	s.told, s.size = &told, told.Size()
	if err := told.Check(); err != nil {
		s.fault, s.told = err.Error(), nil
	}
}
