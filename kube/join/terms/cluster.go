package terms

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"culvert/ipam"
	"culvert/kube/peering"
)

// Found is a CIDR, and the source that says so.
type Found struct {
	CIDR   netip.Prefix
	Source string
}

// Hints are what the user says about a cluster. Find finds the values of empty ones.
type Hints struct {
	Pods, Services []netip.Prefix
	Avoid          []netip.Prefix // what nothing that is chosen may overlap
	API            netip.Addr     // address by which the user reaches the API server; invalid: it has a name
}

// A Cluster is what is known about a cluster's addresses.
type Cluster struct {
	Name     string // its ID
	Nodes    int
	Pods     []Found
	PodsFrom string  // Nodes or Pods
	Services []Found // reserved: no peer and no tunnel gets them
	// Balanced says whether load balancers of the cluster have addresses. Address is that of a
	// node, by which a NodePort is reached.
	Balanced bool
	Address  netip.Addr
	Public   bool     // Address is an ExternalIP
	Six      bool     // pods have IPv6 addresses, which no Peering carries
	Archs    []string // GOARCH of nodes, each once
	outside  string   // a Node whose CIDRs Pods does not contain; "": none

	taken    []ipam.Taken   // CIDRs in use
	wide     []netip.Prefix // CIDRs in which more may come into use
	peerings []*peering.Peering
	specs    map[string]*peering.Spec
	notes    map[string]map[string]string
	hosts    []netip.Addr              // of nodes
	planned  map[string][]netip.Prefix // by peer: CIDRs of Peerings that are proposed
}

// maxCIDRs is the maximum number of pod CIDRs in a Peering.
const maxCIDRs = 16

// Find derives a cluster's addresses. If something cannot be found, the error names the flag by
// which the user can say it.
func (s *Survey) Find(name string, h Hints) (*Cluster, error) {
	c := &Cluster{Name: name, Nodes: len(s.nodes), Balanced: s.balanced, Six: s.six, peerings: s.peerings,
		specs: s.specs, notes: s.notes}
	if len(s.nodes) == 0 && len(s.virtual) > 0 {
		return nil, errors.New(
			"all Nodes are virtual ones, where culvert's agent cannot run; add a Node with a kernel of its own")
	}
	if len(s.nodes) == 0 {
		return nil, errors.New("there is no Node")
	}
	c.findAddress(s)
	err := s.contradicts(h)
	if err != nil {
		return nil, err
	}
	c.Services = s.serviceCIDRs(h)
	if c.Pods, err = s.podCIDRs(h, c.Services); err != nil {
		return nil, err
	}
	c.PodsFrom, c.outside = s.podsFrom(c.Pods)
	c.take(s, h)
	return c, nil
}

// findAddress chooses the node by which a NodePort is reached: one that is ready, and by an
// external address if there is one.
func (c *Cluster) findAddress(s *Survey) {
	best := -1
	for _, name := range sortedKeys(s.nodes) {
		n := s.nodes[name]
		if n.arch != "" && !slices.Contains(c.Archs, n.arch) {
			c.Archs = append(c.Archs, n.arch)
		}
		c.hosts = append(c.hosts, n.internal, n.external)
		rank, address := 0, n.internal
		if n.external.IsValid() {
			rank, address = 2, n.external
		}
		if n.ready {
			rank++
		}
		if address.IsValid() && rank > best {
			best, c.Address, c.Public = rank, address, n.external.IsValid()
		}
	}
}

// contradicts returns how the cluster's objects contradict what the user says of it. A CIDR of pods
// that no object knows is a typing error, if objects know others.
func (s *Survey) contradicts(h Hints) error {
	var known []Found
	for _, name := range sortedKeys(s.nodes) {
		for _, p := range s.nodes[name].pods {
			known = append(known, Found{p, "Node " + name})
		}
	}
	for _, p := range s.pods {
		known = append(known, Found{netip.PrefixFrom(p.address, 32), "a Pod of Node " + p.node})
	}
	known = append(known, s.pools...)
	if f, ok := s.flags["--cluster-cidr"]; ok {
		for _, p := range prefixes(f.value) {
			known = append(known, Found{p, "--cluster-cidr of " + f.pod})
		}
	}
	for _, p := range h.Pods {
		if len(known) > 0 && !slices.ContainsFunc(known, func(k Found) bool { return k.CIDR.Overlaps(p) }) {
			return fmt.Errorf("--pod-cidr: no Node and no Pod has an address in %s; %s has %s", p, known[0].Source,
				known[0].CIDR)
		}
	}
	for _, a := range s.services {
		if len(h.Services) > 0 && !slices.ContainsFunc(h.Services, func(p netip.Prefix) bool { return p.Contains(a) }) {
			return fmt.Errorf("--service-cidr: a Service has the address %s, which is in none of %s", a, h.Services)
		}
	}
	return nil
}

func (s *Survey) serviceCIDRs(h Hints) (all []Found) {
	for _, p := range h.Services {
		all = append(all, Found{p, "--service-cidr"})
	}
	if len(all) > 0 {
		return all
	}
	if len(s.ranges) > 0 {
		return s.ranges
	}
	if f, ok := s.flags["--service-cluster-ip-range"]; ok {
		for _, p := range prefixes(f.value) {
			all = append(all, Found{p, "--service-cluster-ip-range of " + f.pod})
		}
		return all
	}
	for _, p := range around(s.services, nil) {
		all = append(all, Found{p, "guessed: the addresses of Services are in it"})
	}
	return all
}

// podCIDRs asks several sources in turn, and returns the first answer that contains all addresses
// of Pods.
func (s *Survey) podCIDRs(h Hints, services []Found) (all []Found, err error) {
	for _, p := range h.Pods {
		all = append(all, Found{p, "--pod-cidr"})
	}
	if len(all) > 0 {
		return all, nil
	}
	var flag []Found
	if f, ok := s.flags["--cluster-cidr"]; ok {
		for _, p := range prefixes(f.value) {
			flag = append(flag, Found{p, "--cluster-cidr of " + f.pod})
		}
	}
	var others []netip.Addr // addresses that are not pods'
	for _, n := range s.nodes {
		others = append(others, n.addresses...)
	}
	others = append(others, s.services...)
	for _, f := range services {
		others = append(others, f.CIDR.Addr())
	}
	for _, found := range [][]Found{s.ofPeerings(), s.pools, flag, s.ofNodes(others)} {
		if len(found) > 0 && len(found) <= maxCIDRs && !slices.ContainsFunc(s.pods,
			func(p surveyedPod) bool { return !contains(found, p.address) }) {
			return found, nil
		}
	}
	return s.ofPods(others)
}

// ofPeerings returns the pod CIDRs of existing Peerings, unless a Node has since got pods outside
// them.
func (s *Survey) ofPeerings() (all []Found) {
	if len(s.specs) == 0 {
		return nil
	}
	name := sortedKeys(s.specs)[0]
	for _, p := range prefixes(s.specs[name].Local.PodCIDRs...) {
		all = append(all, Found{p, "as Peering " + name + " has it"})
	}
	for _, n := range s.nodes {
		if slices.ContainsFunc(n.pods, func(p netip.Prefix) bool { return !contains(all, p.Addr()) }) &&
			s.specs[name].PodsFrom != "Pods" {
			return nil
		}
	}
	return all
}

// ofNodes guesses from Nodes, whose CIDRs are parts of a larger one.
func (s *Survey) ofNodes(others []netip.Addr) (all []Found) {
	var parts []netip.Prefix
	var first []netip.Addr
	for _, n := range s.nodes {
		if len(n.pods) == 0 {
			return nil
		}
		parts = append(parts, n.pods...)
	}
	for _, p := range parts {
		if p.Bits() < 16 {
			first = nil
			break
		}
		first = append(first, p.Addr())
	}
	if whole := around(first, others); len(whole) > 0 {
		for _, p := range whole {
			all = append(all, Found{p, fmt.Sprintf("guessed: spec.podCIDRs of %s are in it",
				count(len(s.nodes), "Node"))})
		}
		return all
	}
	slices.SortFunc(parts, netip.Prefix.Compare)
	for _, p := range slices.Compact(parts) {
		all = append(all, Found{p, "spec.podCIDRs of a Node"})
	}
	return all
}

// ofPods guesses from the addresses of Pods.
func (s *Survey) ofPods(others []netip.Addr) (all []Found, err error) {
	var addresses []netip.Addr
	for _, p := range s.pods {
		addresses = append(addresses, p.address)
	}
	if len(addresses) == 0 && s.six {
		return nil, errors.New(
			"pods have addresses of IPv6 alone; Peerings carry IPv4 alone so far, so that there is nothing to join")
	}
	if len(addresses) == 0 {
		return nil, errors.New("--pod-cidr: missing; neither Nodes nor Pods tell where pods are")
	}
	whole := around(addresses, others)
	if len(whole) == 0 || len(whole) > maxCIDRs {
		return nil,
			fmt.Errorf("--pod-cidr: missing; pods such as %s share their networks with nodes or Services, so that nothing can be guessed", addresses[0])
	}
	for _, p := range whole {
		all = append(all, Found{p, fmt.Sprintf("guessed: the addresses of %s are in it", count(len(addresses), "Pod"))})
	}
	return all, nil
}

// around returns the /16 around each address; none if one of these contains an address of others.
func around(addresses, others []netip.Addr) (all []netip.Prefix) {
	for _, a := range addresses {
		if p := netip.PrefixFrom(a, 16).Masked(); !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	for _, p := range all {
		if slices.ContainsFunc(others, p.Contains) {
			return nil
		}
	}
	return all
}

func contains(all []Found, a netip.Addr) bool {
	return slices.ContainsFunc(all, func(f Found) bool { return f.CIDR.Contains(a) })
}

// podsFrom returns Nodes if the Nodes' CIDRs say where every pod is, otherwise Pods; and a Node
// whose CIDRs are not among the pods'.
func (s *Survey) podsFrom(pods []Found) (from, outside string) {
	from = "Nodes"
	for _, name := range sortedKeys(s.nodes) {
		n := s.nodes[name]
		if slices.ContainsFunc(n.pods, func(p netip.Prefix) bool { return !contains(pods, p.Addr()) }) {
			return "Pods", name
		}
		if len(n.pods) == 0 {
			from = "Pods"
		}
	}
	for _, p := range s.pods {
		if n, ok := s.nodes[p.node]; ok && !slices.ContainsFunc(n.pods,
			func(c netip.Prefix) bool { return c.Contains(p.address) }) {
			from = "Pods"
		}
	}
	return from, ""
}

// take records the CIDRs that no choice may overlap, except those of the cluster's Peerings: see
// chooser.
func (c *Cluster) take(s *Survey, h Hints) {
	add := func(name string, p netip.Prefix) { c.taken = append(c.taken, ipam.Taken{Name: name, Prefix: p}) }
	host := func(name string, a netip.Addr) {
		if a.Is4() && !a.IsLoopback() && !slices.ContainsFunc(c.taken,
			func(t ipam.Taken) bool { return t.Prefix.Contains(a) }) {
			add(name, netip.PrefixFrom(a, 32))
		}
	}
	for _, f := range c.Pods {
		add("pods of "+c.Name, f.CIDR)
	}
	for _, f := range c.Services {
		add("Services of "+c.Name, f.CIDR)
		if strings.HasPrefix(f.Source, "guessed") {
			c.wide = append(c.wide, netip.PrefixFrom(f.CIDR.Addr(), 12).Masked())
		}
	}
	for _, p := range h.Avoid {
		add("--avoid", p)
	}
	for _, name := range sortedKeys(s.nodes) {
		for _, a := range s.nodes[name].addresses {
			if host("node "+name, a); a.Is4() && a.IsPrivate() {
				c.wide = append(c.wide, netip.PrefixFrom(a, 16).Masked())
			}
		}
	}
	for _, a := range slices.Concat(s.services, s.outside) {
		host("a Service of "+c.Name, a)
	}
	for _, a := range s.away {
		host("a virtual node of "+c.Name, a)
	}
	host("the API server", h.API)
	slices.SortFunc(c.wide, netip.Prefix.Compare)
	c.wide = slices.Compact(c.wide)
}
