//go:build !nokube

package services

import (
	"fmt"
	"net/netip"
	"slices"

	"culvert/gateway/configfile"
)

// Announces reports whether nodes are configured to announce an address at layer 2 and this one
// can, because it serves the address family.
func (c *Config) Announces(a netip.Addr) bool {
	return c.masquerade().Of(a.Is6()).IsValid() && slices.ContainsFunc(c.Announce, func(p netip.Prefix) bool {
		return p.Contains(a)
	})
}

// answers returns the load balancer addresses to be announced.
func (c *Config) answers() (all []netip.Addr) {
	for i := range c.Services {
		for _, a := range c.Services[i].LoadBalancerIPs {
			if c.Announces(a) && !slices.Contains(all, a) {
				all = append(all, a)
			}
		}
	}
	return all
}

// readAnnounce reads the fields about layer 2.
func (c *Config) readAnnounce(e *configfile.Errors, f *File) {
	c.Announce = e.Prefixes("services.announce", f.Announce)
	for i, s := range f.AnnounceOn {
		path := fmt.Sprintf("services.announceOn[%d]", i)
		switch name := string(s); {
		case !isInterfaceName(name):
			e.Add(path, "%q is no interface name; ip -br link shows all", name)
		case slices.Contains(c.AnnounceOn, name):
			e.Add(path, "%q is there twice; leave one out", name)
		case name == c.Interface:
			e.Add(path, "%q is services.interface, which no other host is at; name the link of the hosts that ask",
				name)
		default:
			c.AnnounceOn = append(c.AnnounceOn, name)
		}
	}
	if len(f.AnnounceOn) > 0 && len(f.Announce) == 0 {
		e.Add("services.announceOn",
			"there is no services.announce, and it is for nothing else; say which addresses, or leave it out")
	}
}

// validateAnnounce reports addresses that are announced but not served.
func (c *Config) validateAnnounce(e *configfile.Errors) {
	for i, p := range c.Announce {
		if !c.masquerade().Of(p.Addr().Is6()).IsValid() {
			e.Add(fmt.Sprintf("services.announce[%d]", i),
				"%s is of a family of which services.addresses has none; add this node's, or leave the CIDR out", p)
		} else if !slices.ContainsFunc(c.Answers, func(a netip.Addr) bool { return p.Contains(a) }) {
			e.Add(fmt.Sprintf("services.announce[%d]", i),
				"%s has none of loadBalancerIPs in it; add one to services.serve, or leave the CIDR out", p)
		}
	}
	if n := len(c.Answers); n > MaxAnnounced {
		e.Add("services.announce", "%d addresses, and one node answers for %d at most; divide them among nodes", n,
			MaxAnnounced)
	}
	for _, a := range c.Answers {
		if slices.Contains(c.Addresses, a) {
			e.Add("services.announce", "%s is one of services.addresses, and the kernel answers for it; leave it out",
				a)
		}
	}
}
