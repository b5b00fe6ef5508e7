package service

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"sort"
	"unique"

	"culvert/gateway/node/services"
	"culvert/kube/objects"
	"culvert/nat/rules"
)

// A slice is the part of an EndpointSlice used here.
type slice struct {
	meta      objects.Metadata
	wrong     faults
	ports     []slicePort
	endpoints []endpoint
}

type slicePort struct {
	name     string
	protocol uint8
	port     uint16
}

// An endpoint is an endpoint of a slice, for all of its ports.
type endpoint struct {
	address     netip.Addr
	node        unique.Handle[string]
	local       bool // on this node
	active      bool // counts for the choice of the announcing node
	ready       bool
	serving     bool
	terminating bool
	hinted      bool     // hints name nodes
	forNode     bool     // and this one is among them
	zones       []string // in hints
}

// A hint names a node or a zone for which an endpoint is intended.
type hint struct {
	Name string `json:"name"`
}

// readSlice returns nil for a slice without a Service, or with names instead of addresses.
func readSlice(o *objects.Object, self string) *slice {
	s := &slice{meta: withoutLabels(o.Metadata)}
	var kind string
	var ports []struct {
		Name     *string `json:"name"`
		Protocol string  `json:"protocol"`
		Port     *int64  `json:"port"`
	}
	var endpoints []struct {
		Addresses  []string `json:"addresses"`
		Conditions struct {
			Ready       *bool `json:"ready"`
			Serving     *bool `json:"serving"`
			Terminating *bool `json:"terminating"`
		} `json:"conditions"`
		NodeName string `json:"nodeName"`
		Hints    struct {
			ForNodes []hint `json:"forNodes"`
			ForZones []hint `json:"forZones"`
		} `json:"hints"`
	}
	readable := s.wrong.read("addressType", o.AddressType, &kind)
	readable = s.wrong.read("ports", o.Ports, &ports) && readable
	readable = s.wrong.read("endpoints", o.Endpoints, &endpoints) && readable
	switch {
	case !readable:
		return s
	case kind == "FQDN" || o.Metadata.Labels[labelService] == "":
		return nil
	case kind != "IPv4" && kind != "IPv6":
		s.wrong.add("addressType", "%q is not IPv4, IPv6 or FQDN", kind)
		return s
	}
	for i, p := range ports {
		if p.Name == nil || p.Port == nil || *p.Port == 0 {
			continue // kube-proxy supports neither a port for all nor one without a name
		}
		at := fmt.Sprintf("ports[%d].", i)
		protocol, ok := s.wrong.protocol(at+"protocol", p.Protocol)
		port, good := s.wrong.port(at+"port", *p.Port, maxPort)
		if ok && good {
			s.ports = append(s.ports, slicePort{*p.Name, protocol, port})
		}
	}
	for i, e := range endpoints {
		at := fmt.Sprintf("endpoints[%d].addresses", i)
		if len(e.Addresses) == 0 {
			s.wrong.add(at, "missing")
			continue
		}
		a, ok := s.wrong.address(at+"[0]", e.Addresses[0])
		if ok && a.Is4() != (kind == "IPv4") {
			s.wrong.add(at+"[0]", "%s is not %s, the addressType", a, kind)
			continue
		}
		if !ok {
			continue
		}
		x := endpoint{
			address: a, node: unique.Make(e.NodeName), local: self != "" && e.NodeName == self,
			hinted: len(e.Hints.ForNodes) > 0,
			ready:  or(e.Conditions.Ready, true), serving: or(e.Conditions.Serving, true),
			terminating: or(e.Conditions.Terminating, false),
		}
		x.active = x.ready || or(e.Conditions.Serving, false)
		for _, n := range e.Hints.ForNodes {
			x.forNode = x.forNode || n.Name == self
		}
		for _, z := range e.Hints.ForZones {
			x.zones = append(x.zones, z.Name)
		}
		s.endpoints = append(s.endpoints, x)
	}
	return s
}

func or(b *bool, def bool) bool {
	if b == nil {
		return def
	}
	return *b
}

// A candidate is an endpoint of one port of a Service.
type candidate struct {
	*endpoint
	port uint16
}

// candidates merges the slices of a Service for one of its ports and one family. If several have
// the same endpoint, one on this node counts, else the one of the slice whose name comes first.
func candidates(all map[string]*slice, name string, protocol uint8, v4 bool) (list []candidate) {
	type place struct {
		address netip.Addr
		port    uint16
	}
	found := map[place]int{}
	for _, s := range sorted(all) {
		for _, p := range s.ports {
			if p.name != name || p.protocol != protocol {
				continue
			}
			for i := range s.endpoints {
				e := &s.endpoints[i]
				if e.address.Is4() != v4 {
					break // all addresses of a slice have one family
				}
				at, known := found[place{e.address, p.port}]
				switch {
				case !known:
					found[place{e.address, p.port}] = len(list)
					list = append(list, candidate{e, p.port})
				case e.local && !list[at].local:
					list[at].endpoint = e
				}
			}
		}
	}
	sort.Slice(list, func(i, j int) bool {
		a, b := &list[i], &list[j]
		c := a.address.Compare(b.address)
		return c < 0 || c == 0 && a.port < b.port
	})
	return list
}

func sorted(all map[string]*slice) []*slice {
	list := make([]*slice, 0, len(all))
	for _, s := range all {
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b *slice) int { return cmp.Compare(a.meta.Name, b.meta.Name) })
	return list
}

// choose decides for each candidate which new clients of a node in a zone it gets, as kube-proxy
// does. Ready endpoints get them or, if there are none, those that serve while terminating. This is
// decided for the Cluster policy and, separately, among the endpoints on this node, for the Local
// policy. Hints apply to the Cluster policy if every ready endpoint has one and one is for this
// node, or else for its zone.
//
// Weights are per node of the endpoints: with Liqo's virtual nodes, per cluster.
//
// Serving candidates that are not chosen keep their connections. Others are left out.
func choose(all []candidate, self, zone string, weights map[string]int) []services.Endpoint {
	var ready, localReady, hinted, zoned, forNode, forZone = false, false, true, true, false, false
	for _, e := range all {
		if !e.ready {
			continue
		}
		ready, localReady = true, localReady || e.local
		hinted, forNode = hinted && e.hinted, forNode || e.forNode
		zoned, forZone = zoned && len(e.zones) > 0, forZone || slices.Contains(e.zones, zone)
	}
	cluster := func(e *endpoint) bool {
		switch {
		case !ready:
			return e.serving && e.terminating
		case !e.ready:
			return false
		case hinted && forNode:
			return e.forNode
		case zoned && forZone:
			return slices.Contains(e.zones, zone)
		}
		return true
	}
	local := func(e *endpoint) bool {
		return e.local && (localReady && e.ready || !localReady && !e.ready && e.serving && e.terminating)
	}
	chosen := make([]services.Endpoint, 0, len(all))
	for _, e := range all {
		x := services.Endpoint{Address: e.address, Port: e.port}
		if weights != nil {
			x.Weight = weights[e.node.Value()]
		}
		if e.local {
			x.Node = self
		}
		switch {
		case cluster(e.endpoint):
		case local(e.endpoint):
			x.Eligibility = rules.EligibleLocal
		case e.serving:
			x.Eligibility = rules.EligibleNone
		default:
			continue
		}
		chosen = append(chosen, x)
	}
	return chosen
}
