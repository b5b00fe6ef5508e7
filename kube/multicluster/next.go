package multicluster

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"culvert/gateway/exports"
	"culvert/kube/mcs"
	"culvert/kube/objects"
)

// A Write is a request that brings the API server closer to what is derived of a name.
type Write struct {
	Verb     string // create, update, update status or delete
	Resource schema.GroupVersionResource
	Object   *unstructured.Unstructured // of a delete, its name, its namespace and its UID count

	was any // what the State had there when it chose the write
}

// Next returns the next write of a task; nil: all is as it should be, or waits for another object.
// fault says what is in the way.
func (s *State) Next(t task, now time.Time) (w *Write, fault string) {
	if w, fault = s.next(t, now); w != nil {
		w.was = s.there(w)
	}
	return w, fault
}

func (s *State) next(t task, now time.Time) (w *Write, fault string) {
	name := t.name
	if !s.namespaces[name.Namespace] {
		return nil, ""
	}
	all := s.offers(t)
	var merged exports.Service
	var conflicts []conflict
	if len(all) > 0 {
		merged, conflicts = merge(all)
	}
	if w := s.nextStatus(name, all, conflicts, now); w != nil {
		return w, ""
	}
	of := s.imports[name]
	switch foreign := of != nil && !managed(of); {
	case foreign && len(all) > 0:
		return nil, notOurs(name)
	case foreign:
		return s.remove(t, nil, nil), ""
	case len(all) == 0 && s.waits(name):
		return nil, ""
	case len(all) == 0:
		return s.remove(t, nil, of), ""
	case of == nil:
		next := s.importOf(name, merged, nil, nil)
		return &Write{Verb: "create", Resource: objects.ServiceImports, Object: next}, ""
	case of.GetDeletionTimestamp() != nil:
		return nil, ""
	}
	var ips []string
	derived, called := "", types.NamespacedName{Namespace: name.Namespace, Name: derivedName(name)}
	have := s.derived[called]
	if merged.Type == exports.ClusterSetIP {
		if len(merged.Families) == 1 && s.lacks[merged.Families[0]] {
			return s.unserved(t, merged, all, have, of, now), ""
		}
		switch {
		case have == nil:
			return &Write{Verb: "create", Resource: objects.Services, Object: derivedOf(name, merged, of, nil)}, ""
		case have.GetDeletionTimestamp() != nil:
			return nil, ""
		}
		var has []string
		if ips, has = addressesOf(have); !slices.Contains(merged.Families, has[0]) { // the first one cannot change
			return &Write{Verb: "delete", Resource: objects.Services, Object: have}, ""
		}
		if next := derivedOf(name, merged, of, have); !reflect.DeepEqual(specOf(next), specOf(have)) {
			return &Write{Verb: "update", Resource: objects.Services, Object: next}, ""
		}
		derived, merged.Families = called.Name, has // the cluster may have fewer
	}
	// The Service goes first in one direction, the ServiceImport's address in the other one.
	if next := s.importOf(name, merged, ips, of); !reflect.DeepEqual(specOf(next), specOf(of)) ||
		!maps.Equal(next.GetLabels(), of.GetLabels()) || !maps.Equal(next.GetAnnotations(), of.GetAnnotations()) {
		return &Write{Verb: "update", Resource: objects.ServiceImports, Object: next}, ""
	}
	if merged.Type == exports.Headless && have != nil && have.GetDeletionTimestamp() == nil {
		return &Write{Verb: "delete", Resource: objects.Services, Object: have}, ""
	}
	want := s.slicesOf(name, merged, all, derived)
	if w := s.nextSlice(t, want, of); w != nil {
		return w, ""
	}
	return statusOf(of, all, objects.Condition{Status: "True", Reason: "Ready"}, "Present", now), ""
}

// unserved is next for a Service of one family, of which this cluster has no ClusterIPs.
func (s *State) unserved(t task, m exports.Service, all []offer, have, of *unstructured.Unstructured,
	now time.Time) *Write {
	if have != nil {
		return s.remove(t, nil, nil)
	}
	if next := s.importOf(t.name, m, []string{}, of); !reflect.DeepEqual(specOf(next), specOf(of)) {
		return &Write{Verb: "update", Resource: objects.ServiceImports, Object: next}
	}
	if w := s.remove(t, map[string]*ourSlice{}, nil); w != nil {
		return w
	}
	return statusOf(of, all, objects.Condition{Status: "False", Reason: "IPFamilyNotSupported", Message: fmt.Sprintf(
		"the oldest export has %s alone, and Services of this cluster have none; the pods of its cluster are reached by their addresses",
		m.Families[0])}, "", now)
}

// notOurs says that somebody else has made a ServiceImport.
func notOurs(name types.NamespacedName) string {
	return fmt.Sprintf("ServiceImport %s: another one is there that culvert has not made; delete it", name)
}

// waits reports whether a name without offers has endpoints of a peer that has not been heard yet.
func (s *State) waits(name types.NamespacedName) bool {
	for _, x := range s.ours.of[name] {
		if s.unknown(x.cluster) {
			return true
		}
	}
	return false
}

// remove returns the next deletion of what is there of a name: EndpointSlices except those in keep,
// then the Service and the ServiceImport.
func (s *State) remove(t task, keep map[string]*ourSlice, of *unstructured.Unstructured) *Write {
	name := t.name
	for _, called := range slices.Sorted(maps.Keys(s.ours.of[name])) {
		x := s.ours.of[name][called]
		stays := keep != nil && (s.unknown(x.cluster) || s.leaves(t, x.cluster))
		if keep[called] == nil && !x.meta.deleting && !stays {
			gone := nameOf(name.Namespace, called, x.meta.uid)
			return &Write{Verb: "delete", Resource: objects.EndpointSlices, Object: gone}
		}
	}
	if keep != nil {
		return nil
	}
	called := types.NamespacedName{Namespace: name.Namespace, Name: derivedName(name)}
	if u := s.derived[called]; u != nil && u.GetDeletionTimestamp() == nil {
		return &Write{Verb: "delete", Resource: objects.Services, Object: u}
	}
	if of != nil && of.GetDeletionTimestamp() == nil {
		return &Write{Verb: "delete", Resource: objects.ServiceImports, Object: of}
	}
	return nil
}

func nameOf(namespace, name string, uid types.UID) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"namespace": namespace,
		"name": name, "uid": string(uid)}}}
}

// importOf returns the ServiceImport of a name, from the one that is there, if it is.
func (s *State) importOf(
	name types.NamespacedName,
	m exports.Service,
	ips []string,
	have *unstructured.Unstructured,
) *unstructured.Unstructured {
	spec := map[string]any{"type": m.Type, "ports": plain(orEmpty(m.Ports))}
	if m.Type == exports.Headless || ips != nil {
		spec["ipFamilies"] = plain(m.Families) // with the addresses, in one write
	}
	if len(ips) > 0 {
		spec["ips"] = plain(ips)
	}
	affinity(spec, m)
	annotations := map[string]string{}
	if m.Type == exports.ClusterSetIP {
		annotations[annotationDerived] = derivedName(name)
	}
	maps.Copy(annotations, m.Annotations)
	labels := map[string]string{mcs.LabelManaged: s.cluster}
	maps.Copy(labels, m.Labels)
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": objects.Multicluster, "kind": mcs.KindImport,
		"metadata": map[string]any{"namespace": name.Namespace, "name": name.Name}, "spec": spec}}
	if have != nil {
		u.Object["metadata"] = maps.Clone(have.Object["metadata"].(map[string]any)) // every object has it
	}
	u.SetLabels(labels)
	u.SetAnnotations(annotations)
	return u
}

// affinity sets the fields that a ServiceImport and a Service have alike.
func affinity(spec map[string]any, m exports.Service) {
	spec["sessionAffinity"] = m.Affinity
	if m.Affinity == "ClientIP" {
		spec["sessionAffinityConfig"] = map[string]any{"clientIP": map[string]any{
			"timeoutSeconds": float64(m.AffinityFor)}}
	}
	if m.InternalTrafficPolicy != "" {
		spec["internalTrafficPolicy"] = m.InternalTrafficPolicy
	}
	if m.TrafficDistribution != "" {
		spec["trafficDistribution"] = m.TrafficDistribution
	}
}

func orEmpty(all []exports.Port) []exports.Port {
	if all == nil {
		return []exports.Port{}
	}
	return all
}

// specOf returns the spec of an object as plain JSON; null if it is missing.
func specOf(u *unstructured.Unstructured) any {
	return plain(objects.PartOf(u, "spec"))
}

// derivedOf returns the Service that has the address of a ServiceImport, from the one that is
// there, if it is: what the API server has chosen stays.
func derivedOf(
	name types.NamespacedName,
	m exports.Service,
	of, have *unstructured.Unstructured,
) *unstructured.Unstructured {
	ports := []any{}
	for _, p := range m.Ports {
		port := plain(p).(map[string]any)
		port["targetPort"] = port["port"]
		ports = append(ports, port)
	}
	want := m.Families
	spec := map[string]any{"type": "ClusterIP", "ipFamilyPolicy": "SingleStack"}
	if len(want) == 1 {
		spec["ipFamilies"] = plain(want)
	}
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Service"}}
	if have == nil {
		u.Object["metadata"] = map[string]any{"namespace": name.Namespace, "name": derivedName(name),
			"labels": map[string]any{mcs.LabelManaged: name.Name}, "ownerReferences": owner(of)}
	} else {
		u.Object["metadata"] = have.Object["metadata"]
		was, _ := specOf(have).(map[string]any)
		spec = maps.Clone(was)
		for _, f := range []string{"selector", "sessionAffinityConfig", "trafficDistribution"} {
			delete(spec, f)
		}
	}
	if len(want) > 1 {
		spec["ipFamilyPolicy"] = "PreferDualStack" // as many as the cluster has, in its order
	} else if spec["ipFamilyPolicy"] != "SingleStack" {
		spec["ipFamilyPolicy"], spec["ipFamilies"] = "SingleStack", plain(want)
		spec["clusterIPs"] = []any{spec["clusterIP"]}
	}
	spec["ports"], spec["internalTrafficPolicy"] = ports, "Cluster" // unless the exports say otherwise
	affinity(spec, m)
	u.Object["spec"] = spec
	return u
}

// addressesOf returns the addresses of a Service, and the family of each.
func addressesOf(u *unstructured.Unstructured) (ips, families []string) {
	var spec struct{ ClusterIPs, IPFamilies []string }
	objects.ReadPart("spec", objects.PartOf(u, "spec"), &spec)
	if n := len(spec.ClusterIPs); n == 0 || n != len(spec.IPFamilies) || strings.EqualFold(spec.ClusterIPs[0], "None") {
		return nil, []string{"IPv4"}
	}
	return spec.ClusterIPs, spec.IPFamilies
}

// nextStatus returns the write of the conditions of this cluster's own ServiceExport, if they
// differ.
func (s *State) nextStatus(name types.NamespacedName, all []offer, conflicts []conflict, now time.Time) *Write {
	e := s.exports[name]
	if e == nil || e.Deleting {
		return nil
	}
	next := s.conditions(name, all, conflicts, now)
	if slices.Equal(next, e.Conditions) {
		return nil
	}
	u := withStatus(e.Object, map[string]any{"conditions": next})
	return &Write{Verb: "update status", Resource: objects.ServiceExports, Object: u}
}

// statusOf returns the write of a ServiceImport's status, if that differs. Ready is its condition,
// and slices says whether its EndpointSlices are there.
func statusOf(of *unstructured.Unstructured, all []offer, ready objects.Condition, slicesAre string,
	now time.Time) *Write {
	var status struct {
		EndpointSliceObjects string
		Clusters             []struct{ Cluster string }
		Conditions           []objects.Condition
	}
	objects.ReadPart("status", objects.PartOf(of, "status"), &status)
	var clusters, was []string
	for _, o := range all {
		clusters = append(clusters, o.cluster)
	}
	slices.Sort(clusters)
	for _, c := range status.Clusters {
		was = append(was, c.Cluster)
	}
	ready.Type = "Ready"
	if len(status.Conditions) == 1 {
		if ready.Since = status.Conditions[0].Since; status.Conditions[0] == ready && slices.Equal(clusters, was) &&
			status.EndpointSliceObjects == slicesAre {
			return nil
		}
	}
	if len(status.Conditions) != 1 || status.Conditions[0].Status != ready.Status {
		ready.Since = now.UTC().Format(time.RFC3339)
	}
	var list []any
	for _, c := range clusters {
		list = append(list, map[string]any{"cluster": c})
	}
	next := map[string]any{"clusters": list, "conditions": []objects.Condition{ready}}
	if slicesAre != "" {
		next["endpointSliceObjects"] = slicesAre
	}
	return &Write{Verb: "update status", Resource: objects.ServiceImports, Object: withStatus(of, next)}
}

func withStatus(u *unstructured.Unstructured, status map[string]any) *unstructured.Unstructured {
	next := &unstructured.Unstructured{Object: maps.Clone(u.Object)}
	next.Object["status"] = plain(status)
	return next
}
