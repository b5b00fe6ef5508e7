package multicluster

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"culvert/gateway/exports"
)

// An offer is a Service as one cluster exports it, with addresses of this cluster.
type offer struct {
	cluster string
	*exports.Service
	lost bool // the cluster cannot be reached
}

// serves reports whether clients may reach an endpoint.
func (o offer) serves() bool {
	return !o.lost && slices.ContainsFunc(o.Endpoints, func(g exports.Group) bool {
		return slices.ContainsFunc(g.Addresses, func(e exports.Endpoint) bool { return e.State == exports.Ready })
	})
}

// older sorts offers of one name: the first one decides where they differ (KEP-1645, "Conflict
// Resolution Policy"). Clocks of clusters may disagree, so that equal times are possible, and all
// clusters must come to the same order.
func older(a, b offer) int {
	return cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.cluster, b.cluster))
}

// A conflict is a property in which a cluster differs from the oldest export.
type conflict struct {
	reason string // of the condition
	of     string // the cluster
	what   string
}

// merge returns the one Service that clients see of all offers of a name, without endpoints, and
// what conflicts. Offers are in order, and there is one.
func merge(all []offer) (m exports.Service, conflicts []conflict) {
	first := all[0]
	m = *first.Service
	m.Endpoints, m.Ports, m.Families = nil, slices.Clone(m.Ports), families(first.Service)
	for _, o := range all[1:] {
		differs := func(reason, what string, same bool) {
			if !same {
				conflicts = append(conflicts, conflict{reason, o.cluster, what})
			}
		}
		differs("TypeConflict", fmt.Sprintf("%s is %s", first.cluster, article(m.Type)), o.Type == m.Type)
		differs("IPFamilyConflict", first.cluster+" has "+strings.Join(m.Families, " and "),
			(o.Has(false) || !m.Has(false)) && (o.Has(true) || !m.Has(true)))
		differs(
			"PortConflict",
			fmt.Sprintf("%s has %s", first.cluster, portsText(first.Ports)),
			samePorts(first.Ports, o.Ports),
		)
		differs("SessionAffinityConflict", fmt.Sprintf("%s has sessionAffinity %s", first.cluster,
			cmp.Or(m.Affinity, "None")), o.Affinity == m.Affinity)
		differs("SessionAffinityConfigConflict", fmt.Sprintf("%s has a timeout of %d s", first.cluster,
			m.AffinityFor), o.AffinityFor == m.AffinityFor)
		differs("InternalTrafficPolicyConflict", fmt.Sprintf("%s has internalTrafficPolicy %s", first.cluster,
			cmp.Or(m.InternalTrafficPolicy, "Cluster")),
			cmp.Or(o.InternalTrafficPolicy, "Cluster") == cmp.Or(m.InternalTrafficPolicy, "Cluster"))
		differs("TrafficDistributionConflict", fmt.Sprintf("%s has trafficDistribution %q", first.cluster,
			m.TrafficDistribution), o.TrafficDistribution == m.TrafficDistribution)
		differs("LabelsConflict", first.cluster+" exports other labels", maps.Equal(o.Labels, m.Labels))
		differs("AnnotationsConflict", first.cluster+" exports other annotations",
			maps.Equal(o.Annotations, m.Annotations))
		for _, p := range o.Ports { // the union: one that an older port excludes is left out
			if !slices.ContainsFunc(m.Ports, func(q exports.Port) bool {
				return q.Name == p.Name || q.Port == p.Port && q.Protocol == p.Protocol
			}) && len(m.Ports) < maxPorts {
				m.Ports = append(m.Ports, p)
			}
		}
	}
	if len(m.Ports) > 1 && slices.ContainsFunc(m.Ports, func(p exports.Port) bool { return p.Name == "" }) {
		m.Ports = m.Ports[:len(first.Ports)] // of several ports each has a name
	}
	return m, conflicts
}

// families returns the families of a Service. Of a ServiceImport, they are in the order of its
// addresses.
func families(s *exports.Service) (all []string) {
	for i, family := range []string{"IPv4", "IPv6"} {
		if s.Has(i == 1) {
			all = append(all, family)
		}
	}
	return all
}

func article(kind string) string {
	if kind == exports.Headless {
		return "headless"
	}
	return "a " + kind
}

func samePorts(a, b []exports.Port) bool {
	order := func(all []exports.Port) []exports.Port {
		return slices.SortedFunc(slices.Values(all), func(a, b exports.Port) int {
			return cmp.Or(
				strings.Compare(a.Name, b.Name),
				cmp.Compare(a.Port, b.Port),
				strings.Compare(a.Protocol, b.Protocol),
			)
		})
	}
	return slices.Equal(order(a), order(b))
}

func portsText(all []exports.Port) string {
	var texts []string
	for _, p := range all {
		text := fmt.Sprintf("%d/%s", p.Port, p.Protocol)
		if p.Name != "" {
			text = p.Name + " " + text
		}
		texts = append(texts, text)
	}
	if len(texts) == 0 {
		return "no port"
	}
	return "port " + strings.Join(texts, ", ")
}
