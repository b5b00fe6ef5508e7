//go:build !nokube

package announce

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"culvert/gateway/node/rtnl"
	"culvert/gateway/prometheus"
)

// proxyProtocol marks this package's proxy neighbours for later runs (NDA_PROTOCOL). No other user
// of this number is known.
const proxyProtocol = 203

// An Announcer makes the kernel answer at layer 2 for addresses that are not this node's.
//
// For IPv4 it uses proxy neighbours. The kernel answers while the address has a route by the
// VIP device, which ends with this process.
//
// For IPv6 it uses a socket's anycast membership, which always ends with this process; rules before
// the local table (package steer) send to the device what the membership would deliver to the node.
// Proxy neighbours would survive a kill, beside the node that answers from then on, and need a
// setting, proxy_ndp, that a container may not write.
type Announcer struct {
	log    logrus.FieldLogger
	device int // on which nothing is announced
	garp   *garpSender

	answered map[announcement]int // the IPv6 sockets
	fault    string               // last logged
}

// pause is the interval at which links and proxy neighbours are checked, as in MetalLB.
const pause = 10 * time.Second

// Run updates neighbours, and calls again at intervals, which may call Apply, until ctx is done.
func (a *Announcer) Run(ctx context.Context, again func()) {
	var telling sync.WaitGroup
	defer telling.Wait()
	telling.Go(func() { a.garp.run(ctx) })
	due := time.NewTicker(pause)
	defer due.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-due.C:
			again()
		}
	}
}

// An announcement is an address on a link.
type announcement struct {
	address netip.Addr
	link    int
}

// New returns an Announcer that announces nothing on a device, by its index.
func New(device int, log logrus.FieldLogger) *Announcer {
	return &Announcer{log: log, device: device, garp: newGARPSender(log), answered: map[announcement]int{}}
}

// Withdraw ends all announcements except those of but, before the routes that their packets need
// are removed.
func (a *Announcer) Withdraw(but []netip.Addr) error {
	return a.end(func(at announcement) bool { return !slices.Contains(but, at.address) })
}

// Leave releases what this process holds for announcements, for another process to continue.
func (a *Announcer) Leave() {
	for at, socket := range a.answered {
		if socket != noSocket {
			unix.Close(socket)
		}
		a.garp.forget(at)
	}
}

// end ends announcements, including leftovers of an earlier run.
func (a *Announcer) end(which func(announcement) bool) error {
	proxies, err := proxyNeighbours()
	if err != nil {
		return err
	}
	var failed []error
	for at, protocol := range proxies {
		if protocol == proxyProtocol && which(at) {
			failed = append(failed, removeProxy(at))
		}
	}
	before := a.Addresses()
	for at, socket := range a.answered {
		if which(at) {
			if socket != noSocket {
				unix.Close(socket)
			}
			a.garp.forget(at)
			delete(a.answered, at)
		}
	}
	a.logChanges(before)
	return errors.Join(failed...)
}

// Apply announces addresses on the named links, or on all that are attached to a network, and no
// others. Failures are logged and must be retried.
func (a *Announcer) Apply(addresses []netip.Addr, on []string) {
	switch err := a.announce(addresses, on); {
	case err == nil:
		a.fault = ""
	case err.Error() != a.fault:
		a.fault = err.Error()
		a.log.WithError(err).Warn("an address is not announced as it should be; trying again")
	}
}

func (a *Announcer) announce(addresses []netip.Addr, on []string) error {
	if len(addresses) == 0 {
		return a.Withdraw(nil)
	}
	links, missing, err := a.links(on)
	if err != nil {
		return err
	}
	var failed []error
	if len(missing) > 0 {
		failed = append(failed,
			fmt.Errorf(
				"services.announceOn: %s: no such link, or it is down, or has no MAC addresses; ip -br link shows all",
				strings.Join(missing, ", ")))
	}
	for _, l := range links {
		for _, six := range []bool{false, true} {
			if l.of[six] && slices.ContainsFunc(addresses, func(a netip.Addr) bool { return a.Is6() == six }) {
				err := l.forwards(six)
				failed, l.of[six] = append(failed, err), err == nil
			}
		}
	}
	wanted := map[announcement]bool{}
	for _, address := range addresses {
		somewhere := false
		for _, l := range links {
			if l.of[address.Is6()] {
				wanted[announcement{address, l.index}], somewhere = true, true
			}
		}
		if !somewhere {
			failed = append(failed,
				fmt.Errorf("services.announceOn: none of the links is up, forwards and has a network of the family of %s; name one", address))
		}
	}
	failed = append(failed, a.end(func(at announcement) bool { return !wanted[at] }))
	proxies, err := proxyNeighbours()
	if err != nil {
		return err
	}
	before := a.Addresses()
	for _, l := range links { // in order, so that failures read the same each time
		for _, address := range addresses {
			if l.of[address.Is6()] {
				failed = append(failed, a.begin(announcement{address, l.index}, l, proxies))
			}
		}
	}
	a.logChanges(before)
	return errors.Join(failed...)
}

// begin announces an address on a link, or verifies that it is announced.
func (a *Announcer) begin(at announcement, l *announceLink, proxies map[announcement]uint8) (err error) {
	socket := noSocket
	_, known := a.answered[at]
	if at.address.Is4() {
		err = proxy(at, l, proxies)
	} else if !known {
		socket, err = join(at, l)
	}
	if err == nil && !known {
		a.answered[at] = socket
		a.garp.call(at, l.mac)
	}
	return err
}

// proxy makes the kernel answer ARP for an address.
func proxy(at announcement, l *announceLink, there map[announcement]uint8) error {
	if _, ok := there[at]; ok {
		return nil
	}
	if err := proxyRequest(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_EXCL, at); err != nil {
		return fmt.Errorf("services.announce: answer for %s at %s: %w", at.address, l.name, err)
	}
	return nil
}

const noSocket = -1

// join makes the kernel answer neighbour solicitations for an address (RFC 4861, Section 7.2.7),
// until the socket is closed.
func join(at announcement, l *announceLink) (socket int, err error) {
	socket, err = unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.SetsockoptIPv6Mreq(socket, unix.IPPROTO_IPV6, unix.IPV6_JOIN_ANYCAST,
			&unix.IPv6Mreq{Multiaddr: at.address.As16(), Interface: uint32(at.link)})
		if errors.Is(err, unix.EADDRNOTAVAIL) {
			err = fmt.Errorf("it does not forward, and has no such network; sysctl -w net/ipv6/conf/%s/forwarding=1",
				l.name)
		}
		if err != nil {
			unix.Close(socket)
		}
	}
	if err != nil {
		return noSocket, fmt.Errorf("services.announce: answer for %s at %s: %w", at.address, l.name, err)
	}
	return socket, nil
}

// Addresses returns the addresses announced on any link, in order.
func (a *Announcer) Addresses() (all []string) {
	for at := range a.answered {
		all = append(all, at.address.String())
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// WriteMetrics reports the announced addresses, and what was sent about them.
func (a *Announcer) WriteMetrics(b *prometheus.Page, announced []string) {
	b.Family(prometheus.Gauge, "announced_address", "Load balancer addresses that this node answers for at layer 2.",
		"address")
	for _, address := range announced {
		b.Add(1, address)
	}
	b.One(prometheus.Counter, "announcements_total",
		"Gratuitous ARP packets and unsolicited neighbour advertisements sent.", float64(a.garp.sent.Load()))
}

// logChanges logs which announcements have started and ended.
func (a *Announcer) logChanges(before []string) {
	after := a.Addresses()
	for _, x := range after {
		if !slices.Contains(before, x) {
			a.log.WithField("address", x).Info("this node answers for an address")
		}
	}
	for _, x := range before {
		if !slices.Contains(after, x) {
			a.log.WithField("address", x).Info("this node leaves an address to others")
		}
	}
}

// An announceLink is a link on which addresses are announced.
type announceLink struct {
	index int
	name  string
	mac   net.HardwareAddr
	of    map[bool]bool // by family: IPv6, IPv4
}

// forwards returns an error if the kernel does not forward packets arriving on a link: over IPv4 it
// then does not answer there either; over IPv6 it answers, and loses what is sent to it. Settings
// are written with slashes because link names may contain dots.
func (l *announceLink) forwards(six bool) error {
	settings := []string{"net/ipv4/conf/" + l.name + "/forwarding"}
	if six {
		// since Linux 6.17
		settings = []string{"net/ipv6/conf/all/forwarding", "net/ipv6/conf/" + l.name + "/force_forwarding"}
	}
	off := false
	for _, s := range settings {
		b, err := os.ReadFile("/proc/sys/" + s)
		if err == nil && strings.TrimSpace(string(b)) != "0" {
			return nil
		}
		off = off || err == nil
	}
	if !off {
		return nil
	}
	return fmt.Errorf("services.announce: %s does not forward, and no address is announced there; sysctl -w %s=1",
		l.name, settings[0])
}

// links returns the named links, or all that are attached to a network with other hosts, and the
// names of unusable ones.
func (a *Announcer) links(on []string) (all []*announceLink, missing []string, err error) {
	list, err := rtnl.List(netlink.LinkList)
	if err != nil {
		return nil, nil, fmt.Errorf("services: list this machine's links: %w", err)
	}
	networks, err := rtnl.List(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, nil, fmt.Errorf("services: list this machine's addresses: %w", err)
	}
	missing = slices.Clone(on)
	for _, link := range list {
		at := link.Attrs()
		named := slices.Contains(on, at.Name)
		if len(on) > 0 && !named || at.Index == a.device || !hasNeighbours(at) || !named && at.MasterIndex != 0 {
			continue
		}
		l := &announceLink{at.Index, at.Name, at.HardwareAddr, map[bool]bool{false: named, true: named}}
		for _, n := range networks {
			if ones, bits := n.Mask.Size(); n.LinkIndex == at.Index && ones < bits && n.IP.IsGlobalUnicast() {
				l.of[bits == 128] = true
			}
		}
		all = append(all, l)
		missing = slices.DeleteFunc(missing, func(name string) bool { return name == at.Name })
	}
	return all, missing, nil
}

// hasNeighbours reports whether a link is up and finds neighbours by broadcast.
func hasNeighbours(at *netlink.LinkAttrs) bool {
	return at.Flags&net.FlagUp != 0 && at.Flags&net.FlagBroadcast != 0 && at.RawFlags&unix.IFF_NOARP == 0 &&
		len(at.HardwareAddr) == macLength
}

// proxyNeighbours returns all IPv4 proxy neighbours, with their protocols.
func proxyNeighbours() (map[announcement]uint8, error) {
	messages, err := rtnl.List(func() ([][]byte, error) {
		request := nl.NewNetlinkRequest(unix.RTM_GETNEIGH, unix.NLM_F_DUMP)
		request.AddData(&netlink.Ndmsg{Family: unix.AF_INET, Flags: netlink.NTF_PROXY})
		return request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEIGH)
	})
	if err != nil {
		return nil, fmt.Errorf("services: list this machine's proxy neighbours: %w", err)
	}
	all := map[announcement]uint8{}
	for _, m := range messages {
		n, err := netlink.NeighDeserialize(m)
		if err != nil || n.Flags&netlink.NTF_PROXY == 0 {
			continue
		}
		attributes, err := nl.ParseRouteAttr(m[(&netlink.Ndmsg{}).Len():])
		if err != nil {
			continue
		}
		a, _ := netip.AddrFromSlice(n.IP)
		at := announcement{a, n.LinkIndex}
		all[at] = 0
		for _, x := range attributes {
			if x.Attr.Type == netlink.NDA_PROTOCOL && len(x.Value) > 0 {
				all[at] = x.Value[0]
			}
		}
	}
	return all, nil
}

func removeProxy(at announcement) error {
	if err := proxyRequest(unix.RTM_DELNEIGH, 0, at); err != nil && !errors.Is(err, unix.ENOENT) &&
		!errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("services: leave %s to others: %w; do so with: ip neigh flush proxy to %[1]s",
			at.address, err)
	}
	return nil
}

// proxyRequest requests a change of a proxy neighbour.
func proxyRequest(what, flags int, at announcement) error {
	request := nl.NewNetlinkRequest(what, flags|unix.NLM_F_ACK)
	request.AddData(&netlink.Ndmsg{Family: unix.AF_INET, Index: uint32(at.link), Flags: netlink.NTF_PROXY})
	request.AddData(nl.NewRtAttr(netlink.NDA_DST, at.address.AsSlice()))
	request.AddData(nl.NewRtAttr(netlink.NDA_PROTOCOL, []byte{proxyProtocol}))
	_, err := request.Execute(unix.NETLINK_ROUTE, 0)
	return err
}
