package peering

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"culvert/nat/rules"
)

// Seen returns the CIDRs under which this cluster sees the other.
func (p *Peering) Seen() (all []netip.Prefix) {
	for _, r := range p.Remote {
		all = append(all, r.Remapped)
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	return all
}

// podsSeenAs returns the CIDRs under which this cluster sees the peer's pods.
func (p *Peering) podsSeenAs() string {
	var all []string
	for _, r := range p.Remote {
		if !r.External {
			all = append(all, r.Remapped.String())
		}
	}
	return strings.Join(all, ", ")
}

// SeenAddress returns the address under which this cluster sees an address of the peer's cluster,
// by the remaps of spec.remote; or why it sees none.
func (p *Peering) SeenAddress(a netip.Addr) (netip.Addr, string) {
	for _, r := range p.Remote {
		switch {
		case !r.Real.Contains(a):
		case r.External && a == r.Real.Addr():
			return netip.Addr{}, fmt.Sprintf("%s stands for all that are unknown there", a)
		default:
			return Remapped(a, r.Real, r.Seen()), ""
		}
	}
	return netip.Addr{}, fmt.Sprintf("%s is in no CIDR of its cluster, spec.remote", a)
}

// Carries reports whether pods of both clusters have CIDRs of a family in the Peering.
func (p *Peering) Carries(v6 bool) bool {
	of := func(c netip.Prefix) bool { return c.IsValid() && c.Addr().Is6() == v6 }
	return slices.ContainsFunc(p.Pods, of) &&
		slices.ContainsFunc(p.Remote, func(r rules.RemoteCIDR) bool { return !r.External && of(r.Real) })
}

// SameSpec reports whether two versions of a Peering ask for the same.
func (p *Peering) SameSpec(o *Peering) bool { return reflect.DeepEqual(p.spec, o.spec) }
