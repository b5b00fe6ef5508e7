package peering

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"culvert/gateway/exports"
	"culvert/kube/objects"
	"culvert/nat/packet"
	"culvert/nat/rules"
)

// LabelImported is the label of Services and EndpointSlices that stand for those of a peer; its
// value is the Peering's name. Objects without it are not culvert's, and stay as they are.
const LabelImported = "culvert.io/imported-by"

// Their other labels and annotations.
const (
	labelService = "kubernetes.io/service-name"
	labelManager = "endpointslice.kubernetes.io/managed-by"
	annotationOf = "culvert.io/exported-as" // NAMESPACE/NAME in the other cluster
)

// suffix6 ends the name of an EndpointSlice of IPv6; that of IPv4 has the name of the Service, in
// which no dot can be.
const suffix6 = ".ipv6"

// sliceName returns the name of the EndpointSlice of one family.
func sliceName(service string, v6 bool) string {
	if v6 {
		return service + suffix6
	}
	return service
}

// ImportRole returns the name of the Role by which a Peering's gateway writes imports. The Role
// owns them, so that nothing is left behind when it is removed, for example by helm uninstall.
func ImportRole(peering string) string { return "culvert-imports-" + peering }

const (
	kindRole        = "Role"
	kindServiceCIDR = "ServiceCIDR"
)

// An imported is this cluster's counterpart of one Service of the peer.
type imported struct {
	name  string
	of    string     // NAMESPACE/NAME in the other cluster
	at    rules.Pair // as this cluster sees it
	ports []exports.Port
}

// dnsLabel is a name that may be part of a DNS name (RFC 1123, Section 2.1).
var dnsLabel = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)

var protocolNames = map[uint8]string{packet.TCP: "TCP", packet.UDP: "UDP", packet.SCTP: "SCTP"}

// imports returns the Services that a Peering imports of the peer's list, by name, and why it
// refuses others. The list is not trusted: names become DNS labels in one namespace, and addresses
// must be in the external CIDR that the Peering gives the peer.
func (p *Peering) imports(told []*exports.Service) (all map[string]*imported, faults []string) {
	all = map[string]*imported{}
	ports := 0
	for _, e := range told {
		x := &imported{name: importName(e.Name, e.Namespace), of: e.Namespace + "/" + e.Name}
		refuse := func(format string, args ...any) {
			faults = append(faults, fmt.Sprintf("the peer's Service %.130q: ", x.of)+fmt.Sprintf(format, args...))
		}
		if !dnsLabel.MatchString(e.Name) || !dnsLabel.MatchString(e.Namespace) {
			refuse("its name or its namespace is no DNS label")
			continue
		}
		if len(x.name) > maxLabel {
			refuse("%s would be its name here, and has %d characters; at most %d are possible", x.name,
				len(x.name), maxLabel)
			continue
		}
		if other := all[x.name]; other != nil {
			refuse("%s would be its name here, as that of %s is", x.name, other.of)
			continue
		}
		var fault string
		if x.at, fault = p.seenExport(e); fault != "" {
			refuse("%s", fault)
			continue
		}
		if fault := badPorts(e.Ports); fault != "" {
			refuse("%s", fault)
			continue
		}
		if ports += len(e.Ports); ports > maxPorts {
			refuse("the peer exports more than %d ports", maxPorts)
			continue
		}
		x.ports = e.Ports
		all[x.name] = x
	}
	return all, faults
}

// seenExport returns the address of each family under which this cluster sees a Service of the
// peer. One of a family is left out if the Peering has no external CIDR of the peer for it.
func (p *Peering) seenExport(e *exports.Service) (at rules.Pair, fault string) {
	if len(e.Endpoints) != 1 || len(e.Endpoints[0].Addresses) == 0 {
		return at, "it has no address"
	}
	for _, x := range e.Endpoints[0].Addresses {
		seen, wrong := p.seenExternal(x.IP)
		known := slices.ContainsFunc(p.Remote, func(r rules.RemoteCIDR) bool {
			return r.External && r.Real.Addr().Is4() == x.IP.Is4()
		})
		switch {
		case wrong != "" && known:
			return at, wrong
		case wrong != "":
			fault = wrong
		case at.Of(seen.Is6()).IsValid():
			return at, fmt.Sprintf("%s is its second address of one family", x.IP)
		}
		at.Set(seen)
	}
	if at.IsValid() {
		fault = ""
	}
	return at, fault
}

// seenExternal returns the address under which this cluster sees an address of the peer's external
// CIDR.
func (p *Peering) seenExternal(a netip.Addr) (netip.Addr, string) {
	for _, r := range p.Remote {
		if !r.External || !r.Real.Contains(a) {
			continue
		}
		if a == r.Real.Addr() {
			return netip.Addr{}, fmt.Sprintf("%s stands for all that are unknown there", a)
		}
		return Remapped(a, r.Real, r.Remapped), ""
	}
	return netip.Addr{}, fmt.Sprintf("%s is not of its cluster's external CIDR, spec.remote.externalCIDR.cidr", a)
}

// badPorts returns the fault of one Service's ports; "" = none.
func badPorts(all []exports.Port) string {
	if len(all) == 0 {
		return "it has no ports"
	}
	for i, p := range all {
		switch {
		case p.Protocol != "TCP" && p.Protocol != "UDP" && p.Protocol != "SCTP":
			return fmt.Sprintf("protocol %.20q is not TCP, UDP or SCTP", p.Protocol)
		case p.Port == 0:
			return "0 is no port"
		case p.Name == "" && len(all) > 1:
			return "one of several ports has no name"
		case p.Name != "" && !dnsLabel.MatchString(p.Name):
			return fmt.Sprintf("%q, the name of a port, is no DNS label", p.Name)
		}
		if slices.ContainsFunc(all[:i], func(o exports.Port) bool {
			return o.Name == p.Name || o.Port == p.Port && o.Protocol == p.Protocol
		}) {
			return fmt.Sprintf("port %q, %d, is there twice", p.Name, p.Port)
		}
	}
	return ""
}

// servicePort and slicePort are ports in the formats of a Service's spec and of an EndpointSlice.
type servicePort struct {
	Name       string `json:"name,omitempty"`
	Protocol   string `json:"protocol"`
	Port       uint16 `json:"port"`
	TargetPort any    `json:"targetPort"`
}

type slicePort struct {
	Name     string `json:"name"`
	Protocol string `json:"protocol"`
	Port     uint16 `json:"port"`
}

func (x *imported) servicePorts() (all []servicePort) {
	for _, p := range x.ports {
		all = append(all, servicePort{p.Name, p.Protocol, p.Port, p.Port})
	}
	return all
}

func (x *imported) slicePorts() (all []slicePort) {
	for _, p := range x.ports {
		all = append(all, slicePort{p.Name, p.Protocol, p.Port})
	}
	return all
}

// service returns the Service that stands for x, in the namespace of its owner. It has no selector:
// slice has its endpoint of a family. Where x has both families, the Service has as many as the
// cluster's.
func (x *imported) service(peering string, owner *unstructured.Unstructured) *unstructured.Unstructured {
	return with(&unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": kindService,
		"metadata": map[string]any{
			"name": x.name, "namespace": owner.GetNamespace(),
			"labels":          map[string]any{LabelImported: peering},
			"annotations":     map[string]any{annotationOf: x.of},
			"ownerReferences": owners("rbac.authorization.k8s.io/v1", kindRole, owner),
		},
	}}, "spec", x.withFamilies(map[string]any{"type": "ClusterIP", "ports": x.servicePorts()}))
}

// only returns the one family that x has; "" if it has both.
func (x *imported) only() string {
	switch {
	case !x.at.V6.IsValid():
		return "IPv4"
	case !x.at.V4.IsValid():
		return "IPv6"
	}
	return ""
}

// withFamilies sets the families in the spec of a Service.
func (x *imported) withFamilies(spec map[string]any) map[string]any {
	spec["ipFamilyPolicy"] = "PreferDualStack"
	if only := x.only(); only != "" {
		spec["ipFamilyPolicy"], spec["ipFamilies"] = "SingleStack", []string{only}
	}
	return spec
}

// serviceFamilies returns the families of a Service, and whether it may have only one.
func serviceFamilies(u *unstructured.Unstructured) (families []string, single bool) {
	var spec struct {
		Families []string `json:"ipFamilies"`
		Policy   string   `json:"ipFamilyPolicy"`
	}
	if !readPart(u, "spec", &spec) || len(spec.Families) == 0 {
		spec.Families = []string{"IPv4"}
	}
	return spec.Families, spec.Policy == "" || spec.Policy == "SingleStack"
}

// fits reports whether a Service can get the families of x: its first one cannot change.
func (x *imported) fits(u *unstructured.Unstructured) bool {
	families, _ := serviceFamilies(u)
	return x.only() == "" || x.only() == families[0]
}

// has reports whether x needs an EndpointSlice of this name; a nil x needs none.
func (x *imported) has(slice string) bool {
	return x != nil && x.at.Of(strings.HasSuffix(slice, suffix6)).IsValid()
}

// slice returns the Service's only EndpointSlice of a family, which is deleted with the Service.
func (x *imported) slice(peering string, of *unstructured.Unstructured, v6 bool) *unstructured.Unstructured {
	kind := "IPv4"
	if v6 {
		kind = "IPv6"
	}
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "discovery.k8s.io/v1", "kind": kindSlice,
		"metadata": map[string]any{
			"name": sliceName(x.name, v6), "namespace": of.GetNamespace(),
			"labels":          map[string]any{LabelImported: peering, labelService: x.name, labelManager: Group},
			"ownerReferences": owners("v1", kindService, of),
		},
		"addressType": kind,
	}}
	return x.fill(u)
}

// owners are references to the one owner of an object.
func owners(version, kind string, u *unstructured.Unstructured) []any {
	return []any{map[string]any{"apiVersion": version, "kind": kind, "name": u.GetName(), "uid": string(u.GetUID())}}
}

// fill returns a slice with x's endpoint and ports.
func (x *imported) fill(u *unstructured.Unstructured) *unstructured.Unstructured {
	at := x.at.Of(strings.HasSuffix(u.GetName(), suffix6))
	u = with(u, "ports", x.slicePorts())
	return with(u, "endpoints", []any{map[string]any{"addresses": []string{at.String()},
		"conditions": map[string]any{"ready": true}}})
}

// sameService reports whether a Service matches x.
func (x *imported) sameService(u *unstructured.Unstructured) bool {
	var spec struct {
		Selector map[string]string `json:"selector"`
		Ports    []servicePort     `json:"ports"`
	}
	have, want := "", encoded(x.servicePorts())
	if readPart(u, "spec", &spec) {
		have = encoded(spec.Ports)
	}
	_, single := serviceFamilies(u)
	return have == want && len(spec.Selector) == 0 && u.GetAnnotations()[annotationOf] == x.of && x.fits(u) &&
		single == (x.only() != "")
}

// IsImport reports whether the gateway of a Peering has made an object, a Service or else an
// EndpointSlice, by its owner: anybody may give it the label. The API server's garbage collector
// checks whether the owner is there.
func IsImport(peering string, service bool, u *unstructured.Unstructured) bool {
	kind, name := kindService, strings.TrimSuffix(u.GetName(), suffix6)
	if service {
		kind, name = kindRole, ImportRole(peering)
	}
	return u.GetLabels()[LabelImported] == peering &&
		slices.ContainsFunc(u.GetOwnerReferences(), func(o metav1.OwnerReference) bool {
			return o.Kind == kind && o.Name == name
		})
}

// sameSlice reports whether an EndpointSlice matches x.
func (x *imported) sameSlice(u *unstructured.Unstructured) bool {
	var ports []slicePort
	var endpoints []struct {
		Addresses  []string `json:"addresses"`
		Conditions struct {
			Ready *bool `json:"ready"`
		} `json:"conditions"`
	}
	if !readPart(u, "ports", &ports) || !readPart(u, "endpoints", &endpoints) || len(endpoints) != 1 {
		return false
	}
	e := endpoints[0]
	at := x.at.Of(strings.HasSuffix(u.GetName(), suffix6))
	return encoded(ports) == encoded(x.slicePorts()) && slices.Equal(e.Addresses, []string{at.String()}) &&
		(e.Conditions.Ready == nil || *e.Conditions.Ready) &&
		u.GetLabels()[labelService] == x.name
}

func encoded(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return "" // unreachable: these are structs of texts and numbers
	}
	return string(b)
}

// readPart reads a part of an object, and reports success.
func readPart(u *unstructured.Unstructured, name string, into any) bool {
	return json.Unmarshal(objects.PartOf(u, name), into) == nil
}

// updated returns the Service u changed to match x. Fields that the API server has chosen stay, and
// so do annotations of others.
func (x *imported) updated(u, owner *unstructured.Unstructured) *unstructured.Unstructured {
	spec := map[string]any{}
	readPart(u, "spec", &spec)
	delete(spec, "selector")
	spec["ports"] = x.servicePorts()
	if _, single := serviceFamilies(u); single != (x.only() != "") {
		if spec = x.withFamilies(spec); x.only() != "" {
			spec["clusterIPs"] = []any{spec["clusterIP"]}
		}
	}
	next := with(u, "spec", spec)
	metadata := maps.Clone(next.Object["metadata"].(map[string]any)) // every object has it
	annotations := map[string]any{}
	for name, value := range u.GetAnnotations() { // others' stay
		annotations[name] = value
	}
	annotations[annotationOf] = x.of
	metadata["annotations"] = annotations
	metadata["ownerReferences"] = owners("rbac.authorization.k8s.io/v1", kindRole, owner)
	next.Object["metadata"] = metadata
	return next
}
