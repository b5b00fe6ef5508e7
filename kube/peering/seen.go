package peering

import (
	"fmt"
	"net/netip"
	"reflect"
)

// SeenAddress returns the address under which this cluster sees an address of the peer's cluster,
// by the remaps of spec.remote; or why it sees none.
func (p *Peering) SeenAddress(a netip.Addr) (netip.Addr, string) {
	for _, r := range p.Remote {
		switch {
		case !r.Real.Contains(a):
		case r.External && a == r.Real.Addr():
			return netip.Addr{}, fmt.Sprintf("%s stands for all that are unknown there", a)
		default:
			return nth(r.Seen(), offset(r.Real, a)), ""
		}
	}
	return netip.Addr{}, fmt.Sprintf("%s is in no CIDR of its cluster, spec.remote", a)
}

// SameSpec reports whether two versions of a Peering ask for the same.
func (p *Peering) SameSpec(o *Peering) bool { return reflect.DeepEqual(p.spec, o.spec) }
