package node

import (
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/vishvananda/netlink"

	"culvert/gateway/configfile"
	"culvert/gateway/node/rtnl"
)

// warn reports what is valid but probably not meant, above all what does not fit this machine.
func (c *Config) warn(e *configfile.Errors) {
	if len(c.Routes) == 0 {
		e.Warn("routes",
			"none, so nothing goes to the gateway; name the remote CIDRs, which culvert gateway --check -o json lists")
	}
	for i, p := range c.Routes {
		for _, ends := range c.ends() {
			if p.Contains(ends.gateway) || p.Contains(ends.own) {
				e.Warn(fmt.Sprintf("routes[%d]", i),
					"%s contains an end of the tunnel; give internal addresses a CIDR of their own", p)
			}
		}
	}
	c.ownAddresses(e.Warn)
	if gateway, err := netip.ParseAddr(c.Gateway); err == nil { // New resolves a name
		c.wayTo(gateway, e.Warn)
	}
	if link, err := netlink.LinkByName(c.Interface); err == nil && link.Attrs().Group != linkGroup && !c.running() {
		e.Warn("interface", "%s exists and is a %s link that culvert did not make; remove it or choose another name",
			c.Interface, link.Type())
	}
	for _, f := range []struct {
		own          netip.Addr
		what, sysctl string
	}{
		{c.Address.V4, "packets, so pods reach nothing", "net.ipv4.ip_forward"},
		{c.Address.V6, "IPv6 packets, so pods reach nothing over IPv6", "net.ipv6.conf.all.forwarding"},
	} {
		b, err := os.ReadFile("/proc/sys/" + strings.ReplaceAll(f.sysctl, ".", "/"))
		if err == nil && f.own.IsValid() && strings.TrimSpace(string(b)) == "0" {
			e.Warn("routes", "this machine forwards no %s; sysctl -w %s=1", f.what, f.sysctl)
		}
	}
}

// ownAddresses warns about configured addresses that this machine should have but lacks, or has but
// should not.
func (c *Config) ownAddresses(say func(path, format string, args ...any)) {
	own, err := rtnl.List(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return
	}
	here, found := "", false
	for _, a := range own {
		ip, _ := netip.AddrFromSlice(a.IP)
		ip = ip.Unmap()
		found = found || ip == c.Underlay
		if ip == of(c.GatewayAddress, ip) {
			say("gateway.address", "%s is an address of this machine; give the gateway's", ip)
		}
		if here == "" && ip.Is4() == c.Underlay.Is4() && !ip.IsLoopback() && !ip.IsLinkLocalUnicast() {
			here = ip.String()
		}
	}
	if !found {
		if here == "" {
			here = "none"
		}
		say("underlay", "%s is not an address of this machine, whose first is %s; ip -br address shows all",
			c.Underlay, here)
	}
}

// wayTo warns about obstacles on the path to the gateway's outer address.
func (c *Config) wayTo(gateway netip.Addr, say func(path, format string, args ...any)) {
	link, _, err := rtnl.SentBy(gateway)
	if err != nil {
		say("gateway.underlay", "this machine has no route to %s (%v); add one, or correct the address", gateway, err)
		return
	}
	if outer := rtnl.Overhead(c.Underlay); link != nil && link.Attrs().MTU < c.MTU+outer {
		say("mtu",
			"%d needs %d bytes on the way to gateway.underlay %s, where %s carries %d; write at most %d, here and at the gateway",
			c.MTU, c.MTU+outer, gateway, link.Attrs().Name, link.Attrs().MTU, link.Attrs().MTU-outer)
	}
}
