package reference

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"culvert/gateway/config"
	"culvert/integration/lab/netns"
	"culvert/integration/lab/plan"
)

// kernelParts are the reference gateway's links, routes, rules and tables, with functions that undo
// them.
type kernelParts struct{ undo []func() error }

// Sysctls are the sysctls that the reference gateway sets in its network namespace. Both
// clusters have the same pod CIDR, so the source of a packet from the tunnel is routed elsewhere:
// reverse path filters must be off.
var Sysctls = map[string]string{"ipv4/ip_forward": "1", "ipv4/conf/all/rp_filter": "0",
	"ipv4/conf/default/rp_filter": "0"}

// remove undoes everything, last first.
func (k *kernelParts) remove() error {
	var errs []error
	for i := len(k.undo) - 1; i >= 0; i-- {
		errs = append(errs, k.undo[i]())
	}
	return errors.Join(errs...)
}

// add makes everything except the TUN device, which must exist.
func (k *kernelParts) add(c *config.Config) error {
	for name, value := range Sysctls {
		if err := k.setSysctl(name, value); err != nil {
			return err
		}
	}
	// removed with the device
	if err := netns.Sysctl(map[string]string{"ipv4/conf/" + referenceTUN + "/rp_filter": "0"}); err != nil {
		return err
	}
	if err := addTunnelRoute(c); err != nil {
		return err
	}
	for i := range c.Geneve.Nodes {
		if err := k.addNode(c, &c.Geneve.Nodes[i]); err != nil {
			return fmt.Errorf("%s: %w", c.Geneve.Nodes[i].Name, err)
		}
	}
	return k.addNFTables(c)
}

func (k *kernelParts) setSysctl(name, value string) error {
	before, err := os.ReadFile(filepath.Join("/proc/sys/net", name))
	if err != nil {
		return err
	}
	k.undo = append(k.undo,
		func() error { return netns.Sysctl(map[string]string{name: strings.TrimSpace(string(before))}) })
	return netns.Sysctl(map[string]string{name: value})
}

// addTunnelRoute routes packets from nodes into the tunnel. The routes disappear with the TUN
// device.
func addTunnelRoute(c *config.Config) error {
	l, err := netlink.LinkByName(referenceTUN)
	if err != nil {
		return err
	}
	own, _ := c.WireGuard.Role.TunnelAddresses()
	if err := netns.AddAddress(referenceTUN, netip.PrefixFrom(own.V4, 30)); err != nil {
		return fmt.Errorf("%s: %w", referenceTUN, err)
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return fmt.Errorf("%s: %w", referenceTUN, err)
	}
	err = netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Table: referenceTable,
		Dst:   netns.IPNet(plan.Everywhere),
		Scope: unix.RT_SCOPE_LINK})
	if err != nil {
		return fmt.Errorf("%s: route: %w", referenceTUN, err)
	}
	return nil
}

// referenceLink is the prefix of the VXLAN links' names, as in nftScript.
const referenceLink = "node"

// RemoveKilled removes the leftovers of a killed reference gateway from this thread's network
// namespace, except the sysctls.
func RemoveKilled() error {
	links, err := netlink.LinkList()
	if err != nil {
		return err
	}
	rules, err := netlink.RuleList(unix.AF_INET)
	if err != nil {
		return err
	}
	errs := []error{NFT("delete table ip reference\n")}
	for _, l := range links {
		if l.Type() == "vxlan" && strings.HasPrefix(l.Attrs().Name, referenceLink) {
			errs = append(errs, netlink.LinkDel(l))
		}
	}
	for i := range rules {
		if rules[i].Table == referenceTable {
			errs = append(errs, netlink.RuleDel(&rules[i]))
		}
	}
	return errors.Join(errs...)
}

// addNode makes the VXLAN link to a node, and routes its pods there.
func (k *kernelParts) addNode(c *config.Config, n *config.Node) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = fmt.Sprintf("%s%d", referenceLink, n.VNI), int(c.MTU)
	link := &netlink.Vxlan{LinkAttrs: attrs, VxlanId: int(n.VNI), Group: n.Underlay.AsSlice(),
		Port: int(c.Geneve.ListenPort)}
	if err := netlink.LinkAdd(link); err != nil {
		return fmt.Errorf("add VXLAN link: %w", err)
	}
	k.undo = append(k.undo, func() error { return netlink.LinkDel(link) })
	own := c.Geneve.GatewayAddress.V4
	if err := netns.AddAddress(attrs.Name, netip.PrefixFrom(own, 32)); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return err
	}
	routes := []netlink.Route{{LinkIndex: link.Index, Dst: netns.IPNet(netip.PrefixFrom(n.Address.V4, 32)),
		Scope: unix.RT_SCOPE_LINK, Src: own.AsSlice()}}
	for _, pods := range n.PodCIDRs {
		routes = append(routes, netlink.Route{LinkIndex: link.Index, Dst: netns.IPNet(pods), Gw: n.Address.V4.AsSlice(),
			Flags: int(netlink.FLAG_ONLINK)})
	}
	for _, r := range routes {
		if err := netlink.RouteAdd(&r); err != nil {
			return fmt.Errorf("route to %s: %w", r.Dst, err)
		}
	}
	rule := netlink.NewRule()
	rule.IifName, rule.Table, rule.Family = attrs.Name, referenceTable, unix.AF_INET
	if err := netlink.RuleAdd(rule); err != nil {
		return fmt.Errorf("rule: %w", err)
	}
	k.undo = append(k.undo, func() error { return netlink.RuleDel(rule) })
	return nil
}

// nftScript remaps the destination of packets entering the tunnel and the source of those leaving
// it, like Liqo's gateway.
const nftScript = `table ip reference {
	chain prerouting {
		type nat hook prerouting priority dstnat; policy accept;
		iifname "node*" dnat ip prefix to ip daddr map { %s }
	}
	chain postrouting {
		type nat hook postrouting priority srcnat; policy accept;
		oifname "node*" snat ip prefix to ip saddr map { %s }
	}
	chain forward {
		type filter hook forward priority mangle; policy accept;
		tcp flags syn / syn,rst tcp option maxseg size > %d tcp option maxseg size set %[3]d
	}
}
`

func (k *kernelParts) addNFTables(c *config.Config) error {
	var destinations, sources []string
	for _, r := range c.Remote {
		destinations = append(destinations, fmt.Sprintf("%s : %s", r.Remapped, r.Real))
		sources = append(sources, fmt.Sprintf("%s : %s", r.Real, r.Remapped))
	}
	const headers = 40 // bytes of IPv4 and TCP
	script := fmt.Sprintf(nftScript, strings.Join(destinations, ", "), strings.Join(sources, ", "), int(c.MTU)-headers)
	if err := NFT(script); err != nil {
		return err
	}
	k.undo = append(k.undo, func() error { return NFT("delete table ip reference\n") })
	return nil
}

// NFT runs a script of nft(8) in this thread's network namespace.
func NFT(script string) error {
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(script)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}
