package terms

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"culvert/kube/peering"
)

// GivenAnnotation is where a Peering keeps all CIDRs that it has ever had of the peer, and how this
// cluster saw them. A CIDR that comes back is seen as before, because pods' addresses are in use
// elsewhere.
const GivenAnnotation = "culvert.io/remaps"

// maxGiven is the maximum number of CIDRs that are kept. The oldest are forgotten first.
const maxGiven = 4 * (maxCIDRs + 1)

// Given returns the CIDRs of a peer that its Peering has and had, the present ones last.
func (c *Cluster) Given(spec *peering.Spec) []peering.SpecRemap {
	now := remapsOf(spec)
	all := slices.DeleteFunc(readGiven(c.notes[spec.Peer][GivenAnnotation]), func(r peering.SpecRemap) bool {
		return slices.ContainsFunc(now, func(n peering.SpecRemap) bool { return n.CIDR == r.CIDR })
	})
	all = append(all, now...)
	return all[max(0, len(all)-maxGiven):]
}

// Notes returns the annotations of a Peering. nonce is that of this cluster's invitation, and
// endpoint the one that was found; "" if there is none.
func (c *Cluster) Notes(spec *peering.Spec, nonce, endpoint string) map[string]string {
	notes := map[string]string{}
	if nonce != "" {
		notes[Annotation] = nonce
	}
	if endpoint != "" {
		notes[EndpointAnnotation] = endpoint
	}
	var texts []string
	for _, r := range c.Given(spec) {
		texts = append(texts, r.CIDR+"="+cmp.Or(r.Remap, r.CIDR))
	}
	if c.unique.IsValid() || c.notes[spec.Peer][UniqueAnnotation] != "" {
		notes[UniqueAnnotation] = c.ula().String()
	}
	if len(texts) > 0 {
		notes[GivenAnnotation] = strings.Join(texts, " ")
	}
	return notes
}

// readGiven reads the annotation. It ignores what nobody but a user can have written.
func readGiven(text string) (all []peering.SpecRemap) {
	for _, one := range strings.Fields(text) {
		cidr, remap, _ := strings.Cut(one, "=")
		if r := (peering.SpecRemap{CIDR: cidr, Remap: remap}); seenAs(r).IsValid() && len(all) < maxGiven {
			if r.Remap == r.CIDR {
				r.Remap = ""
			}
			all = append(all, r)
		}
	}
	return all
}

// remapsOf returns the peer's CIDRs in a Peering.
func remapsOf(spec *peering.Spec) []peering.SpecRemap {
	return slices.Concat(spec.Remote.PodCIDRs, spec.Remote.Externals())
}

// seenAs returns the CIDR under which this cluster sees one of the peer's; invalid if it is no
// remap.
func seenAs(r peering.SpecRemap) netip.Prefix {
	real, err := netip.ParsePrefix(r.CIDR)
	seen, e := netip.ParsePrefix(cmp.Or(r.Remap, r.CIDR))
	if err != nil || e != nil || peering.CheckCIDR(real) != "" || peering.CheckCIDR(seen) != "" ||
		real.Bits() != seen.Bits() || is6(real) != is6(seen) {
		return netip.Prefix{}
	}
	return seen
}
