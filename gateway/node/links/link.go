package links

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"culvert/gateway/node/rtnl"
	"culvert/geneve"
)

// Group is the link group of all devices of this package: "clnk".
const Group = 0x636c6e6b

// A Link is a desired link: the node's end of the tunnel to one gateway.
type Link struct {
	Of      string      // who asked for it, such as a Peering, for reports about it; "" if an earlier run made it
	Name    string      // of the device, at most 15 bytes
	VNI     geneve.VNI  // of the tunnel
	MTU     int         // largest IP packet inside, in bytes
	Remote  netip.Addr  // the gateway's outer address
	Address geneve.Pair // this node's addresses in the tunnel
	Gateway geneve.Pair // the gateway's addresses in the tunnel, of the same families
}

func (l *Link) tunnel() geneve.Tunnel {
	return geneve.Tunnel{VNI: l.VNI, Remote: l.Remote, Encap: geneve.Geneve, Inner: geneve.Ethernet,
		Local: l.Address, Peer: l.Gateway, Role: geneve.Node}
}

// check returns what is wrong with l, naming the field.
func (l *Link) check() error {
	for _, of := range []struct {
		field string
		all   []netip.Addr
	}{{"remote", []netip.Addr{l.Remote}}, {"address", l.Address.All()}, {"gateway", l.Gateway.All()}} {
		for _, a := range of.all {
			if !a.IsGlobalUnicast() {
				return fmt.Errorf("%s: %s is no address of a host", of.field, a)
			}
		}
	}
	if len(l.Name) == 0 || len(l.Name) >= unix.IFNAMSIZ {
		return fmt.Errorf("interface: %q has %d bytes; want 1 to %d", l.Name, len(l.Name), unix.IFNAMSIZ-1)
	}
	return geneve.Check([]geneve.Tunnel{l.tunnel()})
}

const aliasFormat = "culvert: VNI %d to %s at %s, here %s"

// alias describes the tunnel of a device to people and to the next process.
func (l *Link) alias() string {
	return fmt.Sprintf(aliasFormat, l.VNI, inAlias(l.Gateway), l.Remote, inAlias(l.Address))
}

// inAlias writes the addresses of a host, which fromAlias reads.
func inAlias(p geneve.Pair) string {
	if p.V4.IsValid() && p.V6.IsValid() {
		return p.V4.String() + "+" + p.V6.String()
	}
	return p.First().String()
}

func fromAlias(text string) (p geneve.Pair, err error) {
	for one := range strings.SplitSeq(text, "+") {
		a, err := netip.ParseAddr(one)
		if err != nil {
			return p, err
		}
		if a.Is4() {
			p.V4 = a
		} else {
			p.V6 = a
		}
	}
	return p, nil
}

// fromDevice returns the Link that a device of an earlier process carried; false if the device does
// not say.
func fromDevice(d netlink.Link) (Link, bool) {
	a := d.Attrs()
	l := Link{Name: a.Name, MTU: a.MTU}
	var vni uint32
	var gateway, remote, address string
	alias := strings.ReplaceAll(a.Alias, ",", " ,")
	if n, err := fmt.Sscanf(alias, strings.ReplaceAll(aliasFormat, ",", " ,"), &vni, &gateway, &remote,
		&address); n != 4 || err != nil {
		return Link{}, false
	}
	var errs [3]error
	l.VNI = geneve.VNI(vni)
	l.Gateway, errs[0] = fromAlias(gateway)
	l.Remote, errs[1] = netip.ParseAddr(remote)
	l.Address, errs[2] = fromAlias(address)
	if errors.Join(errs[:]...) != nil || l.check() != nil {
		return Link{}, false
	}
	return l, true
}

// isOurs reports whether a device was made by this package.
func isOurs(d netlink.Link) bool {
	_, tun := d.(*netlink.Tuntap)
	return tun && d.Attrs().Group == Group
}

// own returns the devices of this package.
func own() (all []netlink.Link, err error) {
	devices, err := rtnl.List(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("links: list devices: %w", err)
	}
	for _, d := range devices {
		if isOurs(d) {
			all = append(all, d)
		}
	}
	return all, nil
}

// Remove deletes the devices of this package and returns their names. It fails while a Set runs in
// this network namespace.
func Remove() (names []string, err error) {
	release, err := hold(context.Background(), 0)
	if err != nil {
		return nil, err
	}
	defer release()
	all, err := own()
	for _, d := range all {
		if e := rtnl.RemoveLink(d); e != nil {
			err = errors.Join(err, fmt.Errorf("links: %w", e))
			continue
		}
		names = append(names, d.Attrs().Name)
	}
	return names, err
}

// configure gives a device the MTU, the addresses and the alias of l, and removes its other
// addresses. A link of both families goes without IPv6, with a warning, where that is turned off.
func configure(d netlink.Link, l *Link) (warning string, err error) {
	if err := rtnl.Adapt(d, l.MTU, l.Address.All()); errors.Is(err, rtnl.ErrNoIPv6) && l.Address.V4.IsValid() {
		warning = err.Error()
	} else if err != nil {
		return "", err
	}
	if d.Attrs().Alias != l.alias() {
		if err := netlink.LinkSetAlias(d, l.alias()); err != nil {
			return "", fmt.Errorf("links: set the alias of %s: %w", l.Name, err)
		}
	}
	return warning, nil
}

// errLocal means that a gateway's outer address is one of this machine's.
var errLocal = errors.New("is an address of this node")

// way returns an error if packets cannot be sent to l's gateway, and a warning if they do not fit
// the path.
func (l *Link) way() (warning string, err error) {
	d, own, err := rtnl.SentBy(l.Remote)
	if err != nil {
		return fmt.Sprintf("this node has no route to %s (%v)", l.Remote, err), nil // a route may be added later
	}
	if own {
		return "", fmt.Errorf("%s %w", l.Remote, errLocal)
	}
	if outer := rtnl.Overhead(l.Remote); d != nil && d.Attrs().MTU < l.MTU+outer {
		mtu := d.Attrs().MTU
		return fmt.Sprintf(
			"MTU %d needs %d bytes on the way to %s, where %s carries %d: larger packets are lost; %d fits",
			l.MTU, l.MTU+outer, l.Remote, d.Attrs().Name, mtu, mtu-outer), nil
	}
	return "", nil
}

// kernelHasGeneve asks the kernel for a Geneve link that is never up.
func kernelHasGeneve() bool {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "culvert-probe"
	probe := &netlink.Geneve{LinkAttrs: attrs, ID: 1<<24 - 1, Remote: net.IPv4(192, 0, 2, 1), Dport: 1}
	// a killed process has left its probe
	if err := netlink.LinkAdd(probe); err != nil && !errors.Is(err, unix.EEXIST) {
		return false
	}
	netlink.LinkDel(probe)
	return true
}
