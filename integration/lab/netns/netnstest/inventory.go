// Package netnstest tells tests what is in a host of a lab.
package netnstest

import (
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"culvert/integration/lab/netns"
)

// Inventory lists the links, routes, rules and settings of a host.
func Inventory(t *testing.T, h *netns.Host) string {
	t.Helper()
	var b strings.Builder
	err := h.Do(func() error {
		links, err := netlink.LinkList()
		if err != nil {
			return err
		}
		for _, l := range links {
			b.WriteString("link " + l.Attrs().Name + "\n")
		}
		routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
		if err != nil {
			return err
		}
		for _, r := range routes {
			b.WriteString("route " + r.Dst.String() + "\n")
		}
		rules, err := netlink.RuleList(netlink.FAMILY_V4)
		if err != nil {
			return err
		}
		for _, r := range rules {
			b.WriteString("rule " + r.IifName + "\n")
		}
		for _, name := range []string{"ip_forward", "conf/all/rp_filter", "conf/default/rp_filter"} {
			text, err := os.ReadFile("/proc/sys/net/ipv4/" + name)
			if err != nil {
				return err
			}
			b.WriteString(name + " " + string(text))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}
