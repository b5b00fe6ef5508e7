package config

import (
	"fmt"
	"net/netip"

	"culvert/gateway/configfile"
	"culvert/nat/rules"
)

// minMTU6 is what every link of IPv6 carries (RFC 8200, Section 5).
const minMTU6 TunnelMTU = 1280

// reserved lists what no CIDR may overlap, besides the IPv4 tunnel addresses: routers forward
// nothing to it.
var reserved = []struct {
	name   string
	prefix netip.Prefix
}{
	{"the addresses of \"this network\"", netip.MustParsePrefix("0.0.0.0/8")}, // RFC 1122, Section 3.2.1.3
	{"the loopback addresses", netip.MustParsePrefix("127.0.0.0/8")},
	{"the multicast and reserved addresses", netip.MustParsePrefix("224.0.0.0/3")},
	{"the link-local addresses, of which the tunnel has some", netip.MustParsePrefix("fe80::/10")},
	{"the multicast addresses", netip.MustParsePrefix("ff00::/8")},
}

// validateFamilies checks that related addresses have the same families.
func (c *Config) validateFamilies(e *configfile.Errors) {
	six := ""
	gateway := c.Geneve.GatewayAddress
	// uses records that the field at path has a's family, which the gateway must then support
	// towards nodes.
	uses := func(path string, a netip.Addr) {
		if !a.IsValid() {
			return
		}
		if six == "" && a.Is6() {
			six = path
		}
		if gateway.IsValid() && !gateway.Of(a.Is6()).IsValid() {
			e.Add(path,
				"%s is %s, and geneve.gatewayAddress has no address of this family; add one there and to each node",
				a, familyOf(a))
		}
	}
	for a := range gateway.All() {
		uses("geneve.gatewayAddress", a)
	}
	for i, n := range c.Geneve.Nodes {
		at := fmt.Sprintf("geneve.nodes[%d].", i)
		for _, v6 := range []bool{false, true} {
			a := gateway.Of(v6)
			if n.Address.IsValid() && a.IsValid() && !n.Address.Of(v6).IsValid() {
				e.Add(at+"address",
					"only %s, and geneve.gatewayAddress has %s too; add an %s address here, or remove that one",
					n.Address, a, familyOf(a))
			}
		}
		for a := range n.Address.All() {
			uses(at+"address", a)
		}
	}
	for i, p := range c.Local.PodCIDRs {
		uses(fmt.Sprintf("network.local.podCIDRs[%d]", i), p.Addr())
	}
	for i, p := range c.Local.ExternalCIDRs {
		uses(fmt.Sprintf("network.local.externalCIDRs[%d]", i), p.Addr())
	}
	for i, path := range c.remotePaths() {
		uses(path+".cidr", c.Remote[i].Real.Addr())
	}
	if six != "" && c.MTU < minMTU6 {
		e.Add("mtu", "%d, and %s is IPv6, which needs 1280; write 1280 or more, or remove the IPv6 addresses", c.MTU,
			six)
	}
}

// familyOf returns the name of a's family.
func familyOf(a netip.Addr) string {
	if a.Is4() {
		return "IPv4"
	}
	return "IPv6"
}

// sameFamily reports whether both addresses of a translation have one family; invalid ones were
// reported before.
func sameFamily(e *configfile.Errors, path string, a, b netip.Addr) bool {
	if !a.IsValid() || !b.IsValid() || a.Is4() == b.Is4() {
		return true
	}
	e.Add(path, "%s is %s, and %s is not; nothing translates between IPv4 and IPv6, give both one family", a,
		familyOf(a), b)
	return false
}

// sameFamilies is sameFamily for pairs: each address needs one to be translated to.
func sameFamilies(e *configfile.Errors, path string, a, b rules.Pair) {
	for _, v6 := range []bool{false, true} {
		x, y := a.Of(v6), b.Of(v6)
		if a.IsValid() && b.IsValid() && x.IsValid() != y.IsValid() {
			e.Add(path, "%s and %s are not of the same families; write an address of each family of the other", a, b)
		}
	}
}

// validateRuleFamilies finds rules that no packet can match, because they require two families.
func validateRuleFamilies(e *configfile.Errors, path string, r *rules.FilterRule) {
	src, dst := familiesOf(r.Source), familiesOf(r.Destination)
	if src&dst == 0 {
		e.Add(path+".dst", "src and dst have no family in common, so no packet matches; write a rule for each family")
		return
	}
	if family, ok := icmpFamily[r.Protocol]; ok && src&dst&family.bit == 0 {
		e.Add(path+".protocol",
			"%s, but the addresses in src or dst are of the other family, so no packet matches; write %s", family.name,
			family.other)
	}
}

const bit4, bit6 = 1, 2

// icmpFamily has the protocols of one family only.
var icmpFamily = map[uint8]struct {
	bit         int
	name, other string
}{
	protocols["icmp"]:   {bit4, "icmp", "icmpv6"},
	protocols["icmpv6"]: {bit6, "icmpv6", "icmp"},
}

// familiesOf returns the bits of the families in a list; an empty list means any family.
func familiesOf(prefixes []netip.Prefix) (bits int) {
	for _, p := range prefixes {
		if p.Addr().Is4() {
			bits |= bit4
		} else {
			bits |= bit6
		}
	}
	if len(prefixes) == 0 {
		return bit4 | bit6
	}
	return bits
}
