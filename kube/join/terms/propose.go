package terms

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"culvert/gateway/wgkey"
	"culvert/ipam"
	"culvert/kube/peering"
)

// Where CIDRs are chosen first. Later choices are next to taken ones, and elsewhere once these
// ranges are full.
var (
	internalRange = netip.MustParsePrefix("10.80.0.0/16")
	externalRange = netip.MustParsePrefix("10.70.0.0/16")
	remapRange    = netip.MustParsePrefix("10.48.0.0/12")
	firstRemap    = netip.MustParseAddr("10.61.0.0")
)

// externalBits is the length of an external CIDR: 510 addresses, one for all that is unknown, the
// others for exported Services.
const externalBits = 23

// A Peer is what a cluster learns about the other one.
type Peer struct {
	Name     string
	Pods     []netip.Prefix // empty: not known yet
	External netip.Prefix
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

// A chooser chooses CIDRs for one Peering of a cluster.
type chooser struct {
	cluster *Cluster
	taken   []ipam.Taken
	beside  []netip.Prefix // of the other cluster
}

// newChooser returns a chooser for the Peering with a peer. That Peering's own CIDRs count as free:
// they are proposed again or replaced.
func (c *Cluster) newChooser(peer string, beside []netip.Prefix) *chooser {
	x := &chooser{cluster: c, taken: slices.Clone(c.taken), beside: beside}
	for _, p := range c.peerings {
		if p.Metadata.Name == peer {
			continue
		}
		for _, q := range append(append([]netip.Prefix{p.Internal, p.External}, p.Pods...), p.Seen()...) {
			x.take("Peering "+p.Metadata.Name, q)
		}
		for _, r := range readGiven(c.notes[p.Metadata.Name][GivenAnnotation]) {
			x.take("Peering "+p.Metadata.Name, seenAs(r))
		}
	}
	for _, name := range sortedKeys(c.planned) {
		if name != peer {
			for _, q := range c.planned[name] {
				x.take("the Peering with "+name, q)
			}
		}
	}
	return x
}

// plan makes the CIDRs of a proposal taken for other Peerings.
func (c *Cluster) plan(spec *peering.Spec) {
	all := prefixes(spec.InternalCIDR, spec.Local.ExternalCIDR)
	for _, r := range remapsOf(spec) {
		all = append(all, seenAs(r))
	}
	if c.planned == nil {
		c.planned = map[string][]netip.Prefix{}
	}
	c.planned[spec.Peer] = all
}

func (x *chooser) take(name string, p netip.Prefix) {
	if p.IsValid() {
		x.taken = append(x.taken, ipam.Taken{Name: name, Prefix: p})
	}
}

// inUse returns what a prefix overlaps; "" = nothing.
func (x *chooser) inUse(p netip.Prefix) string {
	for _, t := range x.taken {
		if t.Prefix.Overlaps(p) {
			return t.Name
		}
	}
	for _, w := range x.cluster.wide {
		if w.Overlaps(p) {
			return "the networks of nodes or Services"
		}
	}
	return ""
}

// pick takes want, or another CIDR as long, that overlaps nothing in use and, if possible, nothing
// of the other cluster and nothing around nodes either.
func (x *chooser) pick(what string, want netip.Prefix, within netip.Prefix) (netip.Prefix, error) {
	plan := func(pools []netip.Prefix, more ...[]netip.Prefix) (netip.Prefix, error) {
		taken := slices.Clone(x.taken)
		for _, p := range slices.Concat(more...) {
			taken = append(taken, ipam.Taken{Name: "another network", Prefix: p})
		}
		p, err := ipam.NewPlan(pools, taken)
		if err != nil {
			return netip.Prefix{}, err
		}
		return new(ipam.Ledger).Network(p, ipam.Owner{Peer: x.cluster.Name, Kind: ipam.Pod, Real: want.String()},
			want, time.Time{})
	}
	var err error
	for _, more := range [][][]netip.Prefix{{x.cluster.wide, x.beside}, {x.cluster.wide}, {}} {
		for _, pools := range [][]netip.Prefix{{within}, nil} {
			var found netip.Prefix
			if found, err = plan(pools, more...); err == nil {
				x.take("the "+what, found)
				return found, nil
			}
			if !errors.Is(err, ipam.ErrExhausted) {
				return found, fmt.Errorf("%s: %w", what, err)
			}
		}
	}
	return netip.Prefix{},
		fmt.Errorf("%s: no private /%d is free in %s; make a cluster's CIDRs smaller, or leave a peering", what,
			want.Bits(), x.cluster.Name)
}

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

// beside returns the CIDRs of a cluster that its peer should avoid.
func (c *Cluster) beside() (all []netip.Prefix) {
	for _, t := range c.newChooser("", nil).taken {
		all = append(all, t.Prefix)
	}
	return all
}

// external returns the external CIDR for a peer.
func (x *chooser) external(peer string) (netip.Prefix, error) {
	if p, err := netip.ParsePrefix(x.cluster.old(peer).Local.ExternalCIDR); err == nil {
		return p, nil
	}
	return x.pick("external CIDR", netip.PrefixFrom(externalRange.Addr(), externalBits), externalRange)
}

// internal returns the CIDR of the tunnels to nodes: at least four times as many addresses as there
// are nodes, and no fewer than 1,024.
func (x *chooser) internal(peer string) (netip.Prefix, error) {
	if p, err := netip.ParsePrefix(x.cluster.old(peer).InternalCIDR); err == nil {
		return p, nil
	}
	bits := 22
	for bits > internalRange.Bits() && 1<<(32-bits) < 4*x.cluster.Nodes {
		bits--
	}
	return x.pick("internal CIDR", netip.PrefixFrom(internalRange.Addr(), bits), internalRange)
}

// Propose returns what the Peering with a peer should say, and why. beside are networks of the
// other cluster, which are avoided where that is possible. external is this cluster's external CIDR
// for that peer; if it is invalid, one is chosen.
func (c *Cluster) Propose(peer Peer, external netip.Prefix, beside []netip.Prefix) (*peering.Spec, []Line, error) {
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
	lines := c.lines()
	var err error
	if !external.IsValid() {
		if external, err = x.external(peer.Name); err != nil {
			return nil, nil, err
		}
	}
	x.take("the external CIDR", external)
	lines = append(lines, Line{"external", external.String(), c.why(old.Local.ExternalCIDR,
		"for nodes and exported Services")})
	spec.Local = peering.SpecLocal{ExternalCIDR: external.String()}
	for _, f := range c.Pods {
		spec.Local.PodCIDRs = append(spec.Local.PodCIDRs, f.CIDR.String())
	}
	if spec.PodsFrom != "Pods" && c.outside != "" {
		return nil, nil, fmt.Errorf(
			"--pod-cidr: Node %s has pods outside %s, and Peering %s takes pods' addresses from Nodes", c.outside,
			strings.Join(spec.Local.PodCIDRs, ", "), peer.Name)
	}
	more, err := x.remotes(&spec, old, peer)
	if err != nil {
		return nil, nil, err
	}
	internal, err := x.internal(peer.Name)
	if err != nil {
		return nil, nil, err
	}
	spec.InternalCIDR = internal.String()
	lines = append(lines, Line{"tunnels", spec.InternalCIDR,
		c.why(old.InternalCIDR, "between the gateway and its nodes")})
	if spec.Role == "Client" && spec.Endpoint != "" {
		source := stands
		if spec.Endpoint != old.Endpoint {
			source = "by which its gateway is reached"
		}
		lines = append(lines, Line{"endpoint of " + peer.Name, spec.Endpoint, source})
	}
	return &spec, append(lines, more...), nil
}

// why returns the source of a choice.
func (c *Cluster) why(old, purpose string) string {
	if old != "" {
		return stands
	}
	return "chosen: " + purpose
}

// lines returns what was found.
func (c *Cluster) lines() (all []Line) {
	for _, f := range c.Pods {
		all = append(all, Line{"pods", f.CIDR.String(), f.Source})
	}
	if c.PodsFrom == "Pods" {
		all = append(all, Line{"pods are where", "Pods say", "Nodes do not tell where all pods are"})
	}
	if c.Six {
		all = append(all, Line{"IPv6", "is not carried",
			"pods have addresses of it too; Peerings carry IPv4 alone so far"})
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
	for _, real := range peer.Pods {
		r, err := remap("pods", real, netip.PrefixFrom(firstRemap, real.Bits()).Masked(), remapRange)
		if err != nil {
			return nil, err
		}
		spec.Remote.PodCIDRs = append(spec.Remote.PodCIDRs, *r)
	}
	if peer.External.IsValid() {
		spec.Remote.ExternalCIDR, err = remap("external", peer.External, netip.PrefixFrom(externalRange.Addr(),
			peer.External.Bits()).Masked(), externalRange)
	}
	return lines, err
}

// private reports whether a CIDR is in a range that nobody owns: RFC 1918, RFC 6598 and RFC 2544.
func private(p netip.Prefix) bool {
	ranges := prefixes("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "198.18.0.0/15")
	return slices.ContainsFunc(ranges, func(r netip.Prefix) bool {
		return r.Contains(p.Addr()) && r.Bits() <= p.Bits()
	})
}

// Pair proposes both ends of a peering, of the client first. endpoint is the server's; "" if it is
// not known yet. What later calls propose for other peers of these clusters overlaps nothing of it.
func Pair(client, server *Cluster, endpoint string) (specs [2]*peering.Spec, lines [2][]Line, err error) {
	ends := [2]*Cluster{client, server}
	var externals [2]netip.Prefix
	var beside [2][]netip.Prefix
	for i := range ends {
		beside[i] = ends[1-i].beside()
	}
	for i, c := range ends {
		if externals[i], err = c.newChooser(ends[1-i].Name, beside[i]).external(ends[1-i].Name); err != nil {
			return specs, lines, fmt.Errorf("%s: %w", c.Name, err)
		}
		beside[1-i] = append(beside[1-i], externals[i])
	}
	for i, c := range ends {
		other := ends[1-i]
		peer := Peer{
			Name: other.Name, Pods: other.PodCIDRs(), External: externals[1-i], hosts: other.hosts,
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
