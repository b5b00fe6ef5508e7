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
	Image          string         // that is to be installed; "": the one that is
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
	Archs    []string // GOARCH of nodes, each once
	outside  string   // a Node whose CIDRs Pods does not contain; "": none
	guess    string   // why IPv6, which pods have as well, is not among Pods; "": it is, or they have none
	only4    string   // a Peering whose gateway knows IPv4 alone; "": none
	lacks    [2]bool  // by family, IPv4 first: some Nodes do not say where pods are
	tells    [2]bool  // some do

	taken    []ipam.Taken   // CIDRs in use
	wide     []netip.Prefix // CIDRs in which more may come into use
	peerings []*peering.Peering
	specs    map[string]*peering.Spec
	notes    map[string]map[string]string
	hosts    []netip.Addr              // of nodes
	planned  map[string][]netip.Prefix // by peer: CIDRs of Peerings that are proposed
	unique   netip.Prefix              // of ula; invalid: not needed so far
}

// maxCIDRs is the maximum number of pod CIDRs in a Peering.
const maxCIDRs = 16

// Find derives a cluster's addresses. If something cannot be found, the error names the flag by
// which the user can say it.
func (s *Survey) Find(name string, h Hints) (*Cluster, error) {
	c := &Cluster{Name: name, Nodes: len(s.nodes), Balanced: s.balanced, peerings: s.peerings,
		specs: s.specs, notes: s.notes, only4: s.only4(h.Image)}
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
	if c.Pods, c.guess, err = s.podCIDRs(h, c.Services); err != nil {
		return nil, err
	}
	c.Services = slices.DeleteFunc(c.Services, func(f Found) bool { return !hasFamily(c.PodCIDRs(), is6(f.CIDR)) })
	c.podsFrom(s)
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
		c.hosts = append(c.hosts, n.addresses...)
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
		known = append(known, Found{netip.PrefixFrom(p.address, p.address.BitLen()), "a Pod of Node " + p.node})
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
		if hasFamily(h.Services, a.Is6()) &&
			!slices.ContainsFunc(h.Services, func(p netip.Prefix) bool { return p.Contains(a) }) {
			return fmt.Errorf("--service-cidr: a Service has the address %s, which is in none of %s", a, h.Services)
		}
	}
	return nil
}

func is6(p netip.Prefix) bool { return p.Addr().Is6() }

// hasFamily reports whether one of several prefixes is of a family.
func hasFamily(all []netip.Prefix, v6 bool) bool {
	return slices.ContainsFunc(all, func(p netip.Prefix) bool { return is6(p) == v6 })
}

func ofFamily(all []Found, v6 bool) (found []Found) {
	for _, f := range all {
		if is6(f.CIDR) == v6 {
			found = append(found, f)
		}
	}
	return found
}

func addressesOf(all []netip.Addr, v6 bool) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(all), func(a netip.Addr) bool { return a.Is6() != v6 })
}

// serviceCIDRs asks several sources in turn, for each family.
func (s *Survey) serviceCIDRs(h Hints) (all []Found) {
	var said, flag, guess []Found
	for _, p := range h.Services {
		said = append(said, Found{p, "--service-cidr"})
	}
	if f, ok := s.flags["--service-cluster-ip-range"]; ok {
		for _, p := range prefixes(f.value) {
			flag = append(flag, Found{p, "--service-cluster-ip-range of " + f.pod})
		}
	}
	for _, v6 := range []bool{false, true} {
		for _, p := range around(addressesOf(s.services, v6), nil) {
			guess = append(guess, Found{p, "guessed: the addresses of Services are in it"})
		}
		for _, found := range [][]Found{said, s.ranges, flag, guess} {
			if of := ofFamily(found, v6); len(of) > 0 {
				all = append(all, of...)
				break
			}
		}
	}
	return all
}

// podCIDRs asks several sources in turn, for each family, and takes the first answer that contains
// all addresses of Pods. guess says why those of IPv6 are unknown although pods have such addresses
// beside others.
func (s *Survey) podCIDRs(h Hints, services []Found) (all []Found, guess string, err error) {
	for _, p := range h.Pods {
		all = append(all, Found{p, "--pod-cidr"})
	}
	if len(all) > 0 {
		return all, "", nil
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
	for _, v6 := range []bool{false, true} {
		found, err := s.podCIDRsOf(v6, maxCIDRs-len(all), flag, others)
		switch {
		case err != nil && v6 && len(all) > 0:
			guess = err.Error()
		case err != nil:
			return nil, "", err
		}
		all = append(all, found...)
	}
	if len(all) == 0 {
		return nil, "", errors.New("--pod-cidr: missing; neither Nodes nor Pods tell where pods are")
	}
	return all, guess, nil
}

// podCIDRsOf is podCIDRs for one family; none if pods have no address of it.
func (s *Survey) podCIDRsOf(v6 bool, most int, flag []Found, others []netip.Addr) ([]Found, error) {
	var pods []netip.Addr
	for _, p := range s.pods {
		if p.address.Is6() == v6 {
			pods = append(pods, p.address)
		}
	}
	for _, found := range [][]Found{s.ofPeerings(v6), ofFamily(s.pools, v6), ofFamily(flag, v6),
		s.ofNodes(v6, others)} {
		if len(found) > 0 && len(found) <= most && !slices.ContainsFunc(pods,
			func(a netip.Addr) bool { return !contains(found, a) }) {
			return found, nil
		}
	}
	if len(pods) == 0 {
		return nil, nil
	}
	return ofPods(pods, most, others)
}

// ofPeerings returns the pod CIDRs of an existing Peering, unless a Node has since got pods outside
// them.
func (s *Survey) ofPeerings(v6 bool) (all []Found) {
	for _, name := range sortedKeys(s.specs) {
		for _, p := range prefixes(s.specs[name].Local.PodCIDRs...) {
			if is6(p) == v6 {
				all = append(all, Found{p, "as Peering " + name + " has it"})
			}
		}
		for _, n := range s.nodes {
			if n.outside(all, v6) && len(all) > 0 && s.specs[name].PodsFrom != "Pods" {
				return nil
			}
		}
		if len(all) > 0 {
			break
		}
	}
	return all
}

// outside reports whether a Node has pods of a family elsewhere than in all.
func (n *surveyedNode) outside(all []Found, v6 bool) bool {
	return slices.ContainsFunc(n.pods, func(p netip.Prefix) bool { return is6(p) == v6 && !contains(all, p.Addr()) })
}

// ofNodes guesses from Nodes, whose CIDRs are parts of a larger one.
func (s *Survey) ofNodes(v6 bool, others []netip.Addr) (all []Found) {
	var parts []netip.Prefix
	var first []netip.Addr
	for _, n := range s.nodes {
		if !hasFamily(n.pods, v6) {
			return nil
		}
		parts = append(parts, only([]bool{v6}, n.pods)...)
	}
	for _, p := range parts {
		if p.Bits() < wholeBits(p.Addr()) {
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

// ofPods guesses from the addresses of Pods, which are of one family.
func ofPods(addresses []netip.Addr, most int, others []netip.Addr) (all []Found, err error) {
	whole := around(addresses, others)
	if len(whole) == 0 || len(whole) > most {
		return nil,
			fmt.Errorf("--pod-cidr: missing; pods such as %s share their networks with nodes or Services, so that nothing can be guessed", addresses[0])
	}
	for _, p := range whole {
		all = append(all, Found{p, fmt.Sprintf("guessed: the addresses of %s are in it", count(len(addresses), "Pod"))})
	}
	return all, nil
}

// wholeBits is the length of the networks that clusters usually divide among their nodes.
func wholeBits(a netip.Addr) int {
	if a.Is4() {
		return 16
	}
	return 56
}

// around returns the network of wholeBits around each address; none if one of these contains an
// address of others.
func around(addresses, others []netip.Addr) (all []netip.Prefix) {
	for _, a := range addresses {
		if p := netip.PrefixFrom(a, wholeBits(a)).Masked(); !slices.Contains(all, p) {
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

// podsFrom decides between Nodes, if their CIDRs say where every pod is, and Pods. It finds a Node
// whose CIDRs are not among the pods'.
func (c *Cluster) podsFrom(s *Survey) {
	c.PodsFrom = "Nodes"
	for _, v6 := range c.families() {
		for _, name := range sortedKeys(s.nodes) {
			n := s.nodes[name]
			if c.outside == "" && n.outside(c.Pods, v6) {
				c.outside = name
			}
			tells := hasFamily(n.pods, v6)
			c.lacks[bit(v6)], c.tells[bit(v6)] = c.lacks[bit(v6)] || !tells, c.tells[bit(v6)] || tells
		}
		for _, p := range s.pods {
			if n, ok := s.nodes[p.node]; ok && p.address.Is6() == v6 && !slices.ContainsFunc(n.pods,
				func(c netip.Prefix) bool { return c.Contains(p.address) }) {
				c.lacks[bit(v6)] = true
			}
		}
	}
	if c.outside != "" || c.lacks[0] || c.lacks[1] {
		c.PodsFrom = "Pods"
	}
}

// bit is 1 for IPv6.
func bit(v6 bool) int {
	if v6 {
		return 1
	}
	return 0
}

// families returns those of the cluster's pods, IPv4 first: false, true for IPv6.
func (c *Cluster) families() (all []bool) {
	for _, v6 := range []bool{false, true} {
		if hasFamily(c.PodCIDRs(), v6) {
			all = append(all, v6)
		}
	}
	return all
}

// take records the CIDRs that no choice may overlap, except those of the cluster's Peerings: see
// chooser.
func (c *Cluster) take(s *Survey, h Hints) {
	add := func(name string, p netip.Prefix) { c.taken = append(c.taken, ipam.Taken{Name: name, Prefix: p}) }
	host := func(name string, a netip.Addr) {
		if a.IsValid() && !a.IsLoopback() && !slices.ContainsFunc(c.taken,
			func(t ipam.Taken) bool { return t.Prefix.Contains(a) }) {
			add(name, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	for _, f := range c.Pods {
		add("pods of "+c.Name, f.CIDR)
	}
	for _, f := range c.Services {
		add("Services of "+c.Name, f.CIDR)
		if strings.HasPrefix(f.Source, "guessed") {
			c.wide = append(c.wide, netip.PrefixFrom(f.CIDR.Addr(), wholeBits(f.CIDR.Addr())-4).Masked())
		}
	}
	for _, p := range h.Avoid {
		add("--avoid", p)
	}
	for _, name := range sortedKeys(s.nodes) {
		for _, a := range s.nodes[name].addresses {
			if host("node "+name, a); a.IsPrivate() {
				c.wide = append(c.wide, netip.PrefixFrom(a, wholeBits(a)).Masked())
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
