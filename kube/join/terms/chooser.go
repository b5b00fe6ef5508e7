package terms

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"culvert/ipam"
	"culvert/kube/peering"
)

// Where CIDRs are chosen. Later choices are next to taken ones; those of IPv4 are elsewhere once
// these ranges are full.
type ranges struct {
	internal, external, remap netip.Prefix
	first                     netip.Addr // of remaps
	externalBits              int
}

// ranges4 are those of IPv4. An external CIDR has 510 addresses, one for all that is unknown, the
// others for exported Services.
var ranges4 = ranges{internal: netip.MustParsePrefix("10.80.0.0/16"), external: netip.MustParsePrefix("10.70.0.0/16"),
	remap: netip.MustParsePrefix("10.48.0.0/12"), first: netip.MustParseAddr("10.61.0.0"), externalBits: 23}

// ranges returns those of a family. Those of IPv6 are parts of the cluster's own prefix, except for
// the remap of a CIDR that would not fit in.
func (c *Cluster) ranges(v6 bool) ranges {
	if !v6 {
		return ranges4
	}
	part := func(subnet uint16, bits int) netip.Prefix {
		a := c.ula().Addr().As16()
		binary.BigEndian.PutUint16(a[6:], subnet)
		return netip.PrefixFrom(netip.AddrFrom16(a), bits)
	}
	r := ranges{internal: part(0, 52), external: part(0x1000, 52), remap: part(0x8000, 49), externalBits: 112}
	r.first = r.remap.Addr()
	return r
}

// UniqueAnnotation is where Peerings keep the cluster's own prefix of unique local addresses.
const UniqueAnnotation = "culvert.io/unique-local"

// ula returns the cluster's own prefix of unique local addresses: the one that a Peering knows, or
// a new one.
func (c *Cluster) ula() netip.Prefix {
	for _, name := range sortedKeys(c.notes) {
		p, err := netip.ParsePrefix(c.notes[name][UniqueAnnotation])
		if err == nil && p.Bits() == 48 && p == p.Masked() && is6(p) && p.Addr().IsPrivate() && !c.unique.IsValid() {
			c.unique = p
		}
	}
	if !c.unique.IsValid() {
		c.unique = newULA(48)
	}
	return c.unique
}

// newULA returns a new random prefix of unique local addresses (RFC 4193, Section 3.2), at most 48
// bits long. Tests replace it.
var newULA = func(bits int) netip.Prefix {
	var a [16]byte
	rand.Read(a[:6]) // never fails (crypto/rand)
	a[0] = 0xfd
	return netip.PrefixFrom(netip.AddrFrom16(a), bits).Masked()
}

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
		for _, q := range slices.Concat(p.Internal, p.External, p.Pods, p.Seen()) {
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
	all := prefixes(slices.Concat(spec.Internals(), spec.Local.Externals())...)
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
			if pools == nil && is6(want) {
				continue
			}
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
