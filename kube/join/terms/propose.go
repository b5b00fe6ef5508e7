package terms

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"culvert/gateway/wgkey"
	"culvert/kube/peering"
)

// A Peer is what a cluster learns about the other one.
type Peer struct {
	Name     string
	Pods     []netip.Prefix // empty: not known yet
	External []netip.Prefix
	Key      wgkey.Key    // zero: not known yet
	Role     string       // of this cluster: Server or Client
	Endpoint string       // of the Server, for a Client; "": not known yet
	hosts    []netip.Addr // of its nodes, which are reached outside the tunnel; nil: not known
}

// A Line tells the user about something found or chosen.
type Line struct {
	What   string `json:"what"`
	Value  string `json:"value"`
	Source string `json:"source"`
}

// stands is the source of a choice that is already in the Peering.
const stands = "as the Peering has it"

// old returns the present spec of the Peering with a peer; an empty Spec if there is none.
func (c *Cluster) old(peer string) *peering.Spec {
	if s := c.specs[peer]; s != nil {
		return s
	}
	return &peering.Spec{}
}

// Has reports whether there is a Peering with a peer.
func (c *Cluster) Has(peer string) bool { return c.specs[peer] != nil }

// PodCIDRs are the prefixes of Pods.
func (c *Cluster) PodCIDRs() (all []netip.Prefix) {
	for _, f := range c.Pods {
		all = append(all, f.CIDR)
	}
	return all
}

// beside returns the CIDRs of a cluster that its peer should avoid, but for those of their Peering,
// which come back.
func (c *Cluster) beside(peer string) (all []netip.Prefix) {
	for _, t := range c.newChooser(peer, nil).taken {
		all = append(all, t.Prefix)
	}
	return all
}

// each returns a CIDR of each family: of those that a Peering has, or else what pick returns.
func each(old []string, families []bool, pick func(v6 bool) (netip.Prefix, error)) (all []netip.Prefix, err error) {
	for _, v6 := range families {
		have := slices.DeleteFunc(prefixes(old...), func(p netip.Prefix) bool { return is6(p) != v6 })
		if len(have) == 0 {
			p, err := pick(v6)
			if err != nil {
				return nil, err
			}
			have = []netip.Prefix{p}
		}
		all = append(all, have[0])
	}
	return all, nil
}

// externals returns the external CIDRs for a peer.
func (x *chooser) externals(peer string, families []bool) ([]netip.Prefix, error) {
	return each(x.cluster.old(peer).Local.Externals(), families, func(v6 bool) (netip.Prefix, error) {
		r := x.cluster.ranges(v6)
		return x.pick("external CIDR", netip.PrefixFrom(r.external.Addr(), r.externalBits), r.external)
	})
}

// internals returns the CIDRs of the tunnels to nodes: at least four times as many addresses as
// there are nodes, and no fewer than 1,024.
func (x *chooser) internals(peer string, families []bool) ([]netip.Prefix, error) {
	return each(x.cluster.old(peer).Internals(), families, func(v6 bool) (netip.Prefix, error) {
		r, bits := x.cluster.ranges(v6), 22
		for bits > r.internal.Bits() && 1<<(32-bits) < 4*x.cluster.Nodes {
			bits--
		}
		if v6 {
			bits = 64
		}
		return x.pick("internal CIDR", netip.PrefixFrom(r.internal.Addr(), bits), r.internal)
	})
}

// carries returns the families that the Peering with a peer can have at this end: those of pods, if
// it learns where they are. One that it has already stays as long as any Node tells.
func (c *Cluster) carries(peer string) []bool {
	old := c.old(peer)
	had := prefixes(old.Local.PodCIDRs...)
	return slices.DeleteFunc(c.families(), func(v6 bool) bool {
		return v6 && (c.narrow(peer) || c.only4 != "") || c.Has(peer) && old.PodsFrom != "Pods" && c.lacks[bit(v6)] &&
			!(c.tells[bit(v6)] && hasFamily(had, v6))
	})
}

// narrow reports whether the MTU of the Peering with a peer is too small for IPv6.
func (c *Cluster) narrow(peer string) bool {
	mtu := c.old(peer).MTU
	return mtu != 0 && mtu < peering.MinMTU6
}

// common returns the families that the Peering with a peer is to have, and tells of one that it
// does not carry.
func (c *Cluster) common(peer Peer) (families []bool, lines []Line, err error) {
	for _, v6 := range []bool{false, true} {
		name, here := []string{"IPv4", "IPv6"}[bit(v6)], slices.Contains(c.carries(peer.Name), v6)
		there := len(peer.Pods) == 0 || hasFamily(peer.Pods, v6)
		why := ""
		switch {
		case here && there:
			families = append(families, v6)
		case here:
			why = "the pod CIDRs of " + peer.Name + " have none"
		case v6 && c.only4 != "" && slices.Contains(c.families(), v6):
			why = fmt.Sprintf("the gateway of Peering %s is too old for it; --image or --push installs another one",
				c.only4)
		case v6 && c.narrow(peer.Name) && slices.Contains(c.families(), v6):
			why = fmt.Sprintf("spec.mtu of Peering %s is %d, and IPv6 needs %d", peer.Name, c.old(peer.Name).MTU,
				peering.MinMTU6)
		case slices.Contains(c.families(), v6):
			why = "Nodes do not tell where pods have it, and the Peering takes pods' addresses from them"
		case v6 && c.guess != "":
			why = c.guess
		case len(peer.Pods) > 0 && there:
			why = "the pod CIDRs of " + c.Name + " have none"
		}
		if why != "" {
			lines = append(lines, Line{name, "is not carried", why})
		}
	}
	if len(families) == 0 {
		return nil, nil, fmt.Errorf("%[1]s and %[2]s have no family of addresses in common, and nothing translates "+
			"between IPv4 and IPv6; give the pods of one of them both (%[1]s: %[3]s; %[2]s: %[4]s)", c.Name, peer.Name,
			joined(c.PodCIDRs()), joined(peer.Pods))
	}
	return families, lines, nil
}

// only returns the prefixes of some families.
func only(families []bool, all []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(all), func(p netip.Prefix) bool { return !slices.Contains(families, is6(p)) })
}

func texts(all []netip.Prefix) (texts []string) {
	for _, p := range all {
		texts = append(texts, p.String())
	}
	return texts
}

func joined(all []netip.Prefix) string { return strings.Join(texts(all), ", ") }

// Propose returns what the Peering with a peer should say, and why. beside are networks of the
// other cluster, which are avoided where that is possible. externals are this cluster's external
// CIDRs for that peer; if there are none, they are chosen.
func (c *Cluster) Propose(peer Peer, externals, beside []netip.Prefix) (*peering.Spec, []Line, error) {
	old, x := c.old(peer.Name), c.newChooser(peer.Name, beside)
	if c.Has(peer.Name) && (old.Cluster != c.Name || old.Peer != peer.Name) {
		return nil, nil, fmt.Errorf(
			"Peering %s joins %s with %s, and this is to join %s with %s; leave it, or give names that fit",
			peer.Name, old.Cluster, old.Peer, c.Name, peer.Name)
	}
	spec := *old
	spec.Cluster, spec.Peer = c.Name, peer.Name
	if !c.Has(peer.Name) {
		spec.PodsFrom, spec.Role = c.PodsFrom, peer.Role
	}
	if spec.Role == "Client" && peer.Endpoint != "" {
		spec.Endpoint = peer.Endpoint
	}
	if peer.Key != (wgkey.Key{}) {
		spec.PublicKey = peer.Key.Base64()
	}
	families, left, err := c.common(peer)
	if err != nil {
		return nil, nil, err
	}
	lines := append(c.lines(families), left...)
	peer.Pods, peer.External = only(families, peer.Pods), only(families, peer.External)
	if externals = only(families, externals); len(externals) == 0 {
		if externals, err = x.externals(peer.Name, families); err != nil {
			return nil, nil, err
		}
	}
	for _, p := range externals {
		x.take("the external CIDR", p)
		lines = append(lines, Line{"external", p.String(), why(old.Local.Externals(), p, "for nodes and exported Services")})
	}
	spec.Local = peering.SpecLocal{PodCIDRs: texts(only(families, c.PodCIDRs()))}
	spec.Local.ExternalCIDR, spec.Local.ExternalCIDRs = peering.Fields(texts(externals))
	if spec.PodsFrom != "Pods" && c.outside != "" {
		return nil, nil, fmt.Errorf(
			"--pod-cidr: Node %s has pods outside %s, and Peering %s takes pods' addresses from Nodes", c.outside,
			strings.Join(spec.Local.PodCIDRs, ", "), peer.Name)
	}
	more, err := x.remotes(&spec, old, peer)
	if err != nil {
		return nil, nil, err
	}
	internals, err := x.internals(peer.Name, families)
	if err != nil {
		return nil, nil, err
	}
	spec.InternalCIDR, spec.InternalCIDRs = peering.Fields(texts(internals))
	for _, p := range internals {
		lines = append(lines, Line{"tunnels", p.String(), why(old.Internals(), p, "between the gateway and its nodes")})
	}
	if spec.Role == "Client" && spec.Endpoint != "" {
		source := stands
		if spec.Endpoint != old.Endpoint {
			source = "by which its gateway is reached"
		}
		lines = append(lines, Line{"endpoint of " + peer.Name, spec.Endpoint, source})
	}
	return &spec, append(lines, more...), nil
}

// why returns the source of a choice; old is what the Peering has.
func why(old []string, chosen netip.Prefix, purpose string) string {
	if slices.Contains(prefixes(old...), chosen) {
		return stands
	}
	return "chosen: " + purpose
}

// lines returns what was found of some families.
func (c *Cluster) lines(families []bool) (all []Line) {
	for _, f := range c.Pods {
		if slices.Contains(families, is6(f.CIDR)) {
			all = append(all, Line{"pods", f.CIDR.String(), f.Source})
		}
	}
	if c.PodsFrom == "Pods" {
		all = append(all, Line{"pods are where", "Pods say", "Nodes do not tell where all pods are"})
	}
	for _, f := range c.Services {
		all = append(all, Line{"Services", f.CIDR.String(), f.Source + "; no peer gets it"})
	}
	return all
}

// remotes chooses the CIDRs under which this cluster sees the peer's.
func (x *chooser) remotes(spec, old *peering.Spec, peer Peer) (lines []Line, err error) {
	spec.Remote = peering.SpecRemote{}
	if len(peer.Pods) == 0 {
		return nil, nil
	}
	was := map[string]netip.Prefix{} // by the real CIDR
	for _, r := range x.cluster.Given(old) {
		// What the Peering has now stays. What it had before comes back, unless something else has
		// taken its place.
		if seen := seenAs(r); seen.IsValid() && (slices.Contains(remapsOf(old), r) || x.inUse(seen) == "") {
			was[r.CIDR] = seen
		}
	}
	for _, seen := range was {
		x.take("the Peering itself", seen)
	}
	endpoint, _ := netip.ParseAddrPort(cmp.Or(peer.Endpoint, old.Endpoint)) // invalid for a name
	remap := func(what string, real, want, within netip.Prefix) (*peering.SpecRemap, error) {
		r := &peering.SpecRemap{CIDR: real.String()}
		inside := func(p netip.Prefix) bool {
			return spec.Role == "Client" && p.IsValid() && p.Contains(endpoint.Addr())
		}
		source, seen := stands, was[r.CIDR]
		if inside(seen) {
			seen = netip.Prefix{} // nothing can have passed by it
		}
		if !seen.IsValid() {
			by := x.inUse(real)
			if k := slices.IndexFunc(peer.hosts, real.Contains); k >= 0 { // clouds take both from one range
				by = fmt.Sprintf("node %s of %s", peer.hosts[k], peer.Name)
			}
			if inside(real) {
				by = "the peer's endpoint, " + endpoint.Addr().String()
			}
			if by != "" {
				source = fmt.Sprintf("chosen: %s overlaps %s", real, by)
				if seen, err = x.pick(fmt.Sprintf("remap of %s, %s of %s", real, what, peer.Name), want,
					within); err != nil {
					return nil, err
				}
			} else {
				source, seen = "nothing here overlaps it", real
				x.take(what, real)
			}
		}
		value := real.String() + " as it is"
		if seen == real && !private(real) {
			source = "PUBLIC: nothing here will reach its owners any more"
		}
		if seen != real {
			r.Remap = seen.String()
			value = fmt.Sprintf("%s as %s", real, seen)
		}
		lines = append(lines, Line{fmt.Sprintf("%s of %s", what, peer.Name), value, source})
		return r, nil
	}
	var externals []peering.SpecRemap
	for _, of := range []struct {
		what string
		all  []netip.Prefix
		to   *[]peering.SpecRemap
	}{{"pods", peer.Pods, &spec.Remote.PodCIDRs}, {"external", peer.External, &externals}} {
		for _, real := range of.all {
			ranges := x.cluster.ranges(is6(real))
			within, first := ranges.remap, ranges.first
			if of.what == "external" {
				within, first = ranges.external, ranges.external.Addr()
			}
			if is6(real) && real.Bits() < within.Bits() { // it has no room within the cluster's own prefix
				within = newULA(min(real.Bits(), 48))
				first = within.Addr()
			}
			r, err := remap(of.what, real, netip.PrefixFrom(first, real.Bits()).Masked(), within)
			if err != nil {
				return nil, err
			}
			*of.to = append(*of.to, *r)
		}
	}
	one, all := peering.Fields(externals)
	if spec.Remote.ExternalCIDRs = all; len(externals) > 0 {
		spec.Remote.ExternalCIDR = &one
	}
	return lines, nil
}

// private reports whether a CIDR is in a range that nobody owns: RFC 1918, RFC 6598, RFC 2544 and
// RFC 4193.
func private(p netip.Prefix) bool {
	ranges := prefixes("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "198.18.0.0/15",
		"fc00::/7")
	return slices.ContainsFunc(ranges, func(r netip.Prefix) bool {
		return r.Contains(p.Addr()) && r.Bits() <= p.Bits()
	})
}

// podsFor returns the pod CIDRs that the Peering with a peer can have.
func (c *Cluster) podsFor(peer string) []netip.Prefix { return only(c.carries(peer), c.PodCIDRs()) }

// Pair proposes both ends of a peering, of the client first. endpoint is the server's; "" if it is
// not known yet. What later calls propose for other peers of these clusters overlaps nothing of it.
func Pair(client, server *Cluster, endpoint string) (specs [2]*peering.Spec, lines [2][]Line, err error) {
	ends := [2]*Cluster{client, server}
	var externals [2][]netip.Prefix
	var beside [2][]netip.Prefix
	for i, c := range ends {
		beside[i] = ends[1-i].beside(c.Name)
	}
	families, _, err := client.common(Peer{Name: server.Name, Pods: server.podsFor(client.Name)})
	if err != nil {
		return specs, lines, err
	}
	for i, c := range ends {
		if externals[i], err = c.newChooser(ends[1-i].Name, beside[i]).externals(ends[1-i].Name, families); err != nil {
			return specs, lines, fmt.Errorf("%s: %w", c.Name, err)
		}
		beside[1-i] = append(beside[1-i], externals[i]...)
	}
	for i, c := range ends {
		other := ends[1-i]
		peer := Peer{
			Name: other.Name, Pods: other.podsFor(c.Name), External: externals[1-i], hosts: other.hosts,
			Role: []string{"Client", "Server"}[i], Endpoint: []string{endpoint, ""}[i],
		}
		if specs[i], lines[i], err = c.Propose(peer, externals[i], beside[i]); err != nil {
			return specs, lines, fmt.Errorf("%s: %w", c.Name, err)
		}
		c.plan(specs[i])
		for _, r := range specs[i].Remote.PodCIDRs {
			beside[1-i] = append(beside[1-i], prefixes(r.Remap)...)
		}
	}
	return specs, lines, nil
}
