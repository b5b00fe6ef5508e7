package terms

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"culvert/kube/objects"
	"culvert/kube/peering"
)

// A Survey collects what the objects of a cluster say about its addresses. The zero Survey is that
// of a cluster without objects.
type Survey struct {
	nodes    map[string]surveyedNode
	virtual  map[string]bool // Nodes on which no agent can run
	away     []netip.Addr    // addresses of these
	pods     []surveyedPod
	flags    map[string]flagOf // of control planes that run as Pods
	services []netip.Addr      // addresses of Services inside the cluster
	outside  []netip.Addr      // addresses of load balancers
	balanced bool              // a load balancer has an address
	ranges   []Found           // ServiceCIDRs
	pools    []Found           // IPPools of Calico
	peerings []*peering.Peering
	images   map[string]bool // of gateways
	specs    map[string]*peering.Spec
	notes    map[string]map[string]string // annotations
}

type surveyedNode struct {
	pods               []netip.Prefix
	addresses          []netip.Addr
	internal, external netip.Addr
	ready              bool
	arch               string
}

type surveyedPod struct {
	node    string
	address netip.Addr
}

type flagOf struct{ value, pod string }

// part reads a part of an object into to. It ignores errors, because the API server has checked the
// object.
func part(u *unstructured.Unstructured, name string, to any) {
	json.Unmarshal(objects.PartOf(u, name), to)
}

// Node adds a Node.
func (s *Survey) Node(u *unstructured.Unstructured) {
	var n surveyedNode
	n.pods, n.addresses = peering.NodeOf(u)
	if s.nodes == nil {
		s.nodes, s.virtual = map[string]surveyedNode{}, map[string]bool{}
	}
	if objects.Virtual(u.GetLabels()) {
		s.virtual[u.GetName()], s.away = true, append(s.away, n.addresses...)
		return
	}
	read, _ := objects.ReadNode(objects.Of("Node", u)) // the API server has checked it
	first := func(kind string) (a netip.Addr) {
		if all := read.AddressesOf(kind); len(all) > 0 {
			a = all[0]
		}
		return a
	}
	n.external, n.internal, n.ready = first("ExternalIP"), first("InternalIP"), read.Conditions.True("Ready")
	n.arch = read.Info.Architecture
	s.nodes[u.GetName()] = n
}

// Pod adds a Pod, after all Nodes. If the control plane runs as Pods, its flags have the cluster's
// CIDRs.
func (s *Survey) Pod(u *unstructured.Unstructured) {
	node, addresses := peering.PodOf(u)
	for _, a := range addresses {
		if s.virtual[node] {
			s.away = append(s.away, a)
			continue
		}
		s.pods = append(s.pods, surveyedPod{node, a})
	}
	if u.GetNamespace() == peering.GatewayNamespace {
		if s.images == nil {
			s.images = map[string]bool{}
		}
		for _, c := range objects.ReadContainers(objects.Of("Pod", u)) {
			s.images[c.Image] = true
		}
	}
	component := u.GetLabels()["component"]
	if u.GetNamespace() != "kube-system" || component != "kube-controller-manager" && component != "kube-apiserver" {
		return
	}
	if s.flags == nil {
		s.flags = map[string]flagOf{}
	}
	for _, c := range objects.ReadContainers(objects.Of("Pod", u)) {
		for _, word := range slices.Concat(c.Command, c.Args) {
			if name, value, ok := strings.Cut(word, "="); ok && value != "" && (name == "--cluster-cidr" ||
				name == "--service-cluster-ip-range") {
				s.flags[name] = flagOf{value, u.GetName()}
			}
		}
	}
}

// Service adds a Service.
func (s *Survey) Service(u *unstructured.Unstructured) {
	read, _ := objects.ReadService(objects.Of("Service", u)) // the API server has checked it
	add := func(to *[]netip.Addr, text string) {
		if a, err := objects.ParseAddr(text); err == nil {
			*to = append(*to, a)
		}
	}
	for _, ip := range read.Spec.ClusterIPs {
		add(&s.services, ip)
	}
	for _, ip := range read.Spec.ExternalIPs {
		add(&s.outside, ip)
	}
	for _, in := range read.Status.LoadBalancer.Ingress {
		add(&s.outside, in.IP)
		s.balanced = s.balanced || in.IP != "" || in.Hostname != ""
	}
}

// ServiceCIDR adds a ServiceCIDR.
func (s *Survey) ServiceCIDR(u *unstructured.Unstructured) {
	var spec struct{ CIDRs []string }
	part(u, "spec", &spec)
	for _, c := range prefixes(spec.CIDRs...) {
		s.ranges = append(s.ranges, Found{c, "ServiceCIDR " + u.GetName()})
	}
}

// IPPool adds an IPPool of Calico.
func (s *Survey) IPPool(u *unstructured.Unstructured) {
	var spec struct {
		CIDR     string
		Disabled bool
	}
	part(u, "spec", &spec)
	if spec.Disabled {
		return
	}
	for _, c := range prefixes(spec.CIDR) {
		s.pools = append(s.pools, Found{c, "IPPool " + u.GetName()})
	}
}

// Peering adds a Peering.
func (s *Survey) Peering(u *unstructured.Unstructured) {
	p := peering.PeeringOf(u)
	spec := new(peering.Spec)
	part(u, "spec", spec)
	if s.specs == nil {
		s.specs, s.notes = map[string]*peering.Spec{}, map[string]map[string]string{}
	}
	s.peerings = append(s.peerings, p)
	s.specs[u.GetName()], s.notes[u.GetName()] = spec, u.GetAnnotations()
}

// only4 returns the name of a Peering whose gateway knows IPv4 alone, as 0.1.0 does, which does not
// say what it has accepted; "" if there is none, or if image takes its place.
func (s *Survey) only4(image string) string {
	if image != "" && !s.images[image] {
		return ""
	}
	for _, p := range s.peerings {
		for _, c := range p.Status.Conditions {
			if c.Type == peering.Accepted && c.Status == "True" && p.Status.Accepted == nil {
				return p.Metadata.Name
			}
		}
	}
	return ""
}

// prefixes returns the prefixes among texts, which may be lists with commas.
func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		for one := range strings.SplitSeq(text, ",") {
			if p, err := objects.ParsePrefix(strings.TrimSpace(one)); err == nil {
				all = append(all, p.Masked())
			}
		}
	}
	return all
}
