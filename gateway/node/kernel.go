package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"culvert/gateway/echo"
	"culvert/gateway/node/rtnl"
)

// linkGroup marks the kernel links made by this package. The request that creates a link also sets
// the group, so a crash leaves no link without it.
const linkGroup = 0x63756c76 // "culv"

// kernelLink is a Geneve or VXLAN link of the kernel.
type kernelLink struct {
	kind  Mode
	name  string
	index int
	kept  bool // it survives close

	mtu    int
	failed bool // the kernel has asked for the gateway in vain since the last answer
	echoes *echoes
	ping   int // ping socket; -1: this process may not have one
}

// openKernel creates the link and brings it up. The error is errors.ErrUnsupported if the kernel
// has no links of this kind.
func openKernel(c *Config, kind Mode, remote netip.Addr) (link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.Group = c.Interface, c.MTU, linkGroup
	var spec netlink.Link
	if kind == Geneve {
		spec = &netlink.Geneve{LinkAttrs: attrs, ID: c.VNI, Remote: remote.AsSlice(), Dport: c.Port}
	} else {
		spec = &netlink.Vxlan{LinkAttrs: attrs, VxlanId: int(c.VNI), SrcAddr: c.Underlay.AsSlice(),
			Group: remote.AsSlice(), Port: int(c.Port)}
	}
	if err := netlink.LinkAdd(spec); err != nil {
		return nil, linkError(c, kind, err)
	}
	made, err := netlink.LinkByName(c.Interface)
	if err != nil {
		return nil, fmt.Errorf("node: %s is gone as soon as it was made: %w", c.Interface, err)
	}
	l := newKernelLink(c, kind, made.Attrs().Index)
	if err := l.start(); err != nil {
		return nil, errors.Join(linkError(c, kind, err), l.close())
	}
	return l, nil
}

func newKernelLink(c *Config, kind Mode, index int) *kernelLink {
	return &kernelLink{kind: kind, name: c.Interface, index: index, echoes: newEchoes(c), mtu: c.MTU, ping: -1}
}

func (l *kernelLink) start() error {
	// A UDP train that leaves the link whole reaches a gateway on this machine as one datagram with
	// one tunnel header. culvert's gateway can handle that; others may not.
	if err := SetFeatures(l.name, false, FeatureUDPSegmentation); err != nil {
		return err
	}
	// The kernel opens the UDP port here.
	return netlink.LinkSetUp(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: l.index}})
}

// setRemote changes only the link's remote address. The message is built by hand because
// netlink.LinkModify sends every attribute, and VXLAN refuses a port.
func (l *kernelLink) setRemote(remote netip.Addr) error {
	of4, of6 := nl.IFLA_VXLAN_GROUP, nl.IFLA_VXLAN_GROUP6
	if l.kind == Geneve {
		of4, of6 = nl.IFLA_GENEVE_REMOTE, nl.IFLA_GENEVE_REMOTE6
	}
	attribute := of4
	if remote.Is6() {
		attribute = of6
	}
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(l.index)
	req.AddData(msg)
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated(string(l.kind)))
	info.AddRtAttr(nl.IFLA_INFO_DATA, nil).AddRtAttr(attribute, remote.AsSlice())
	req.AddData(info)
	if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return fmt.Errorf("node: set remote %s of %s: %w", remote, l.name, err)
	}
	return nil
}

func (l *kernelLink) mode() Mode { return l.kind }

// presenceInterval is how often a node checks that its kernel link is still there.
const presenceInterval = time.Second

// run waits until ctx is done or the link is gone. The kernel carries the packets.
func (l *kernelLink) run(ctx context.Context, _ logrus.FieldLogger) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(presenceInterval):
		}
		if _, err := netlink.LinkByIndex(l.index); errors.As(err, new(netlink.LinkNotFoundError)) {
			return fmt.Errorf("node: %s was %w", l.name, errRemoved)
		}
	}
}

// probe asks the kernel, which looks for the gateway by ARP or neighbour discovery in the tunnel.
// If this process may have a ping socket (net.ipv4.ping_group_range), packets of mtu bytes are
// tested too; otherwise whole is the same as small.
func (l *kernelLink) probe() (small, whole answer) {
	small = l.neighbour()
	// NTF_USE makes the kernel ask as if there were a packet, and ask again after a failure.
	err := netlink.NeighSet(&netlink.Neigh{LinkIndex: l.index, Family: l.family(), Flags: netlink.NTF_USE,
		IP: l.echoes.gateway.AsSlice()})
	if err != nil {
		return untold, untold // the link is gone
	}
	if l.ping < 0 && l.echoes.sequence == 0 {
		l.ping = openPing(l.echoes.own)
	}
	if l.ping < 0 {
		return small, small
	}
	buffer := make([]byte, maxMTU)
	for {
		n, _, err := unix.Recvfrom(l.ping, buffer, unix.MSG_DONTWAIT)
		if err != nil {
			break
		}
		if a, ok := echo.ParseMessage(buffer[:n], l.echoes.own.Is6()); ok {
			l.echoes.answered(a)
		}
	}
	whole = l.echoes.last(wholeEcho)
	l.echoes.next()
	unix.Sendto(l.ping, echo.Message(l.echoes.request(l.mtu)), 0, sockaddr(l.echoes.gateway))
	return small, whole
}

// family is the family of the addresses by which the gateway is looked for.
func (l *kernelLink) family() int {
	if l.echoes.gateway.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// neighbour reports whether the gateway has answered the kernel.
func (l *kernelLink) neighbour() answer {
	neighbours, err := netlink.NeighList(l.index, l.family())
	if err != nil {
		return untold
	}
	for _, n := range neighbours {
		if a, _ := netip.AddrFromSlice(n.IP); a.Unmap() != l.echoes.gateway {
			continue
		}
		switch n.State {
		case netlink.NUD_REACHABLE:
			l.failed = false
			return yes
		case netlink.NUD_FAILED:
			l.failed = true
		}
	}
	if l.failed { // it may be asking again
		return no
	}
	return untold
}

// openPing opens a socket that sends unfragmented echo requests from an address. It returns -1 if
// this process may not have one.
func openPing(source netip.Addr) int {
	family, protocol, level, option, value := unix.AF_INET, unix.IPPROTO_ICMP, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER,
		unix.IP_PMTUDISC_PROBE
	if source.Is6() {
		family, protocol, level, option, value = unix.AF_INET6, unix.IPPROTO_ICMPV6, unix.IPPROTO_IPV6,
			unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return -1
	}
	if err := errors.Join(unix.Bind(fd, sockaddr(source)), unix.SetsockoptInt(fd, level, option, value)); err != nil {
		unix.Close(fd)
		return -1
	}
	return fd
}

func sockaddr(a netip.Addr) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Addr: a.As4()}
	}
	return &unix.SockaddrInet6{Addr: a.As16()}
}

func (l *kernelLink) close() error {
	if l.ping >= 0 {
		unix.Close(l.ping)
		l.ping = -1
	}
	if l.kept {
		return nil
	}
	made := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Name: l.name, Index: l.index}}
	if err := rtnl.RemoveLink(made); err != nil {
		return fmt.Errorf("node: %w", err)
	}
	return nil
}

// linkError adds a remedy to the error of a link that could not be made.
func linkError(c *Config, kind Mode, err error) error {
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("mode: this kernel has no %s links; try another mode: %w", kind, errors.ErrUnsupported)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf(
			"node: adding a link needs CAP_NET_ADMIN in this network namespace; run culvert node as root: %w", err)
	case errors.Is(err, unix.EADDRINUSE):
		return fmt.Errorf(
			"port: UDP port %d is in use; stop what uses it or choose another port here and at the gateway: %w", c.Port,
			err)
	case errors.Is(err, unix.EEXIST), errors.Is(err, unix.EBUSY): // VXLAN, Geneve
		return fmt.Errorf(
			"vni: this node has another %s link with VNI %d on port %d; remove it or choose another VNI: %w",
			kind, c.VNI, c.Port, err)
	}
	return fmt.Errorf("node: make %s link %s: %w", kind, c.Interface, err)
}

// removeLeftover removes the link of a killed run, and refuses a link that somebody else made.
func removeLeftover(name string) error {
	found, err := rtnl.FindLink(name)
	if found != nil && found.Attrs().Group != linkGroup {
		return fmt.Errorf(
			"interface: %s exists and is a %s link that culvert did not make; remove it or choose another name",
			name, found.Type())
	}
	if found != nil {
		err = rtnl.RemoveLink(found)
	}
	if err != nil {
		return fmt.Errorf("node: what an earlier run left: %w", err)
	}
	return nil
}
