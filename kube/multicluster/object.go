package multicluster

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"culvert/gateway/exports"
	"culvert/kube/mcs"
	"culvert/kube/objects"
	"culvert/kube/peering"
)

// managedBy is who has made an EndpointSlice.
const (
	labelService = "kubernetes.io/service-name"
	labelManager = "endpointslice.kubernetes.io/managed-by"
	manager      = "multicluster." + peering.Group

	annotationDerived = "multicluster.kubernetes.io/derived-service"
)

func managed(u *unstructured.Unstructured) bool { return u.GetLabels()[mcs.LabelManaged] != "" }

// derivedName returns the name of the Service that has the address of a ServiceImport.
func derivedName(name types.NamespacedName) string {
	sum := sha256.Sum256([]byte(name.String()))
	return "derived-" + strings.ToLower(base32.HexEncoding.EncodeToString(sum[:])[:10])
}

// An ourSlice is an EndpointSlice with LabelManaged, as far as State compares it.
type ourSlice struct {
	meta    metadata
	of      types.NamespacedName
	cluster string // whose endpoints
	derived string // the Service; "": none
	v6      bool
	group   exports.Group
}

type metadata struct {
	name, version string
	uid           types.UID
	deleting      bool
}

// readOurs reads an EndpointSlice with LabelManaged, and the name that it belongs to.
func readOurs(u *unstructured.Unstructured) (*ourSlice, types.NamespacedName) {
	labels := u.GetLabels()
	x := &ourSlice{cluster: labels[mcs.LabelCluster], derived: labels[labelService], meta: metadata{u.GetName(),
		u.GetResourceVersion(), u.GetUID(), u.GetDeletionTimestamp() != nil}}
	var family string
	json.Unmarshal(objects.PartOf(u, "addressType"), &family)
	x.v6 = family == "IPv6"
	json.Unmarshal(objects.PartOf(u, "ports"), &x.group.Ports)
	var endpoints []endpointPart
	json.Unmarshal(objects.PartOf(u, "endpoints"), &endpoints)
	for _, e := range endpoints {
		x.group.Addresses = append(x.group.Addresses, e.read())
	}
	return x, types.NamespacedName{Namespace: u.GetNamespace(), Name: labels[mcs.LabelService]}
}

// endpointPart is an endpoint in the format of an EndpointSlice.
type endpointPart struct {
	Addresses  []string       `json:"addresses"`
	Hostname   string         `json:"hostname,omitempty"`
	Conditions conditionsPart `json:"conditions"`
}

type conditionsPart struct {
	Ready       bool `json:"ready"`
	Serving     bool `json:"serving"`
	Terminating bool `json:"terminating"`
}

func (e *endpointPart) read() exports.Endpoint {
	x := exports.Endpoint{Host: e.Hostname, State: exports.NotReady}
	if len(e.Addresses) > 0 {
		x.IP, _ = objects.ParseAddr(e.Addresses[0])
	}
	switch c := e.Conditions; {
	case c == conditionsPart{true, true, false}:
		x.State = ""
	case c == conditionsPart{false, true, true}:
		x.State = exports.Serving
	case c == conditionsPart{false, false, true}:
		x.State = exports.Terminating
	}
	return x
}

func endpointOf(x exports.Endpoint) endpointPart {
	ready := x.State == ""
	return endpointPart{[]string{x.IP.String()}, x.Host, conditionsPart{ready, ready || x.State == exports.Serving,
		x.State == exports.Serving || x.State == exports.Terminating}}
}

// same reports whether an EndpointSlice has what it should.
func (x *ourSlice) same(want *ourSlice) bool {
	return x.cluster == want.cluster && x.derived == want.derived && slices.Equal(x.group.Ports, want.group.Ports) &&
		slices.Equal(x.group.Addresses, want.group.Addresses)
}

// owner is a reference to a ServiceImport, with which an object goes.
func owner(u *unstructured.Unstructured) []any {
	return []any{map[string]any{"apiVersion": objects.Multicluster, "kind": mcs.KindImport, "name": u.GetName(),
		"uid": string(u.GetUID())}}
}

// plain returns a value as the API's JSON has it.
func plain(v any) any {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // unreachable: these are structs of texts and numbers
	}
	var p any
	if err := json.Unmarshal(b, &p); err != nil {
		panic(err) // unreachable
	}
	return p
}
