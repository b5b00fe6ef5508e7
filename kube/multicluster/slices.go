package multicluster

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"culvert/gateway/exports"
	"culvert/kube/mcs"
	"culvert/kube/objects"
)

// slicesOf returns the EndpointSlices of a name, by their own name.
func (s *State) slicesOf(name types.NamespacedName, merged exports.Service, all []offer,
	derived string) map[string]*ourSlice {
	want := map[string]*ourSlice{}
	for _, o := range all {
		lost := map[string]bool{} // ports that the ServiceImport has otherwise
		for _, p := range o.Ports {
			lost[p.Name] = !slices.ContainsFunc(merged.Ports, func(m exports.Port) bool {
				return m.Name == p.Name && m.Protocol == p.Protocol && m.Port == p.Port
			})
		}
		var groups []exports.Group
		for _, g := range o.Endpoints {
			ports := slices.DeleteFunc(slices.Clone(g.Ports), func(p exports.Port) bool { return lost[p.Name] })
			if len(g.Ports) > 0 && len(ports) == 0 {
				continue
			}
			for _, v6 := range []bool{false, true} {
				of := slices.DeleteFunc(slices.Clone(g.Addresses), func(e exports.Endpoint) bool {
					return e.IP.Is6() != v6
				})
				if len(of) > 0 && merged.Has(v6) {
					groups = append(groups, exports.Group{Ports: ports, Addresses: of})
				}
			}
		}
		have := map[string]*ourSlice{}
		for called, x := range s.ours.of[name] {
			if x.cluster == o.cluster {
				have[called] = x
			}
		}
		for called, g := range layOut(derivedName(name)+"-"+o.cluster, groups, have) {
			want[called] = &ourSlice{cluster: o.cluster, derived: derived, v6: g.Addresses[0].IP.Is6(), group: g}
		}
	}
	return want
}

// maxSlice is how many endpoints an EndpointSlice has, as those of kube-controller-manager.
const maxSlice = 100

// layOut distributes endpoints among EndpointSlices, whose names begin with prefix. The endpoints
// of a group are of one family. An endpoint stays in the slice that has it now, so that a change of
// one writes one.
func layOut(prefix string, groups []exports.Group, have map[string]*ourSlice) map[string]exports.Group {
	want := map[string]exports.Group{}
	key := func(ports []exports.Port, v6 bool) string { return fmt.Sprint(v6, ports) }
	alike, wanted := map[string][]string{}, map[string]bool{} // by ports and family
	for _, g := range groups {
		wanted[key(g.Ports, g.Addresses[0].IP.Is6())] = true
	}
	free := map[bool][]string{} // by family, of groups that are there no longer
	for _, called := range slices.Sorted(maps.Keys(have)) {
		x := have[called]
		if k := key(x.group.Ports, x.v6); wanted[k] {
			alike[k] = append(alike[k], called)
		} else {
			free[x.v6] = append(free[x.v6], called)
		}
	}
	for _, g := range groups {
		var mine []string
		at, v6 := map[netip.Addr]int{}, g.Addresses[0].IP.Is6()
		for _, called := range alike[key(g.Ports, v6)] {
			if want[called].Addresses == nil {
				for _, e := range have[called].group.Addresses {
					at[e.IP] = len(mine)
				}
				mine = append(mine, called)
			}
		}
		if len(mine) == 0 {
			mine, free[v6] = free[v6], nil
		}
		lists, added := make([][]exports.Endpoint, len(mine)), []exports.Endpoint{}
		for _, e := range g.Addresses {
			if i, ok := at[e.IP]; ok && len(lists[i]) < maxSlice {
				lists[i] = append(lists[i], e)
			} else {
				added = append(added, e)
			}
		}
		for i := 0; len(added) > 0; i++ {
			if i == len(lists) {
				lists = append(lists, nil)
				mine = append(mine, unused(prefix, func(called string) bool {
					return have[called] != nil || want[called].Addresses != nil || slices.Contains(mine, called)
				}))
			}
			n := min(len(added), maxSlice-len(lists[i]))
			lists[i], added = append(lists[i], added[:n]...), added[n:]
		}
		for i, list := range lists {
			if len(list) > 0 {
				slices.SortFunc(list, func(a, b exports.Endpoint) int { return a.IP.Compare(b.IP) })
				want[mine[i]] = exports.Group{Ports: g.Ports, Addresses: list}
			}
		}
	}
	return want
}

// unused returns the first name with a number that nothing has.
func unused(prefix string, taken func(string) bool) string {
	for n := 1; ; n++ {
		if called := fmt.Sprintf("%s-%d", prefix, n); !taken(called) {
			return called
		}
	}
}

// nextSlice returns the next write of EndpointSlices. What is added comes before what goes.
func (s *State) nextSlice(t task, want map[string]*ourSlice, of *unstructured.Unstructured) *Write {
	name := t.name
	for _, called := range slices.Sorted(maps.Keys(want)) {
		x := want[called]
		have := s.ours.of[name][called]
		switch {
		case s.leaves(t, x.cluster):
		case have == nil:
			return &Write{Verb: "create", Resource: objects.EndpointSlices, Object: sliceOf(name, called, x, of, "")}
		case have.meta.deleting, have.same(x):
		default:
			next := sliceOf(name, called, x, of, have.meta.version)
			return &Write{Verb: "update", Resource: objects.EndpointSlices, Object: next}
		}
	}
	return s.remove(t, want, nil)
}

func sliceOf(
	name types.NamespacedName,
	called string,
	x *ourSlice,
	of *unstructured.Unstructured,
	version string,
) *unstructured.Unstructured {
	labels := map[string]any{mcs.LabelManaged: x.cluster, mcs.LabelService: name.Name, mcs.LabelCluster: x.cluster,
		labelManager: manager}
	if x.derived != "" {
		labels[labelService] = x.derived
	}
	metadata := map[string]any{
		"namespace":       name.Namespace,
		"name":            called,
		"labels":          labels,
		"ownerReferences": owner(of),
	}
	if version != "" {
		metadata["resourceVersion"] = version
	}
	endpoints := make([]endpointPart, len(x.group.Addresses))
	for i, e := range x.group.Addresses {
		endpoints[i] = endpointOf(e)
	}
	ports := x.group.Ports
	if ports == nil {
		ports = []exports.Port{}
	}
	family := "IPv4"
	if x.v6 {
		family = "IPv6"
	}
	return &unstructured.Unstructured{
		Object: map[string]any{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
			"metadata": metadata, "addressType": family, "ports": plain(ports), "endpoints": plain(endpoints)},
	}
}
