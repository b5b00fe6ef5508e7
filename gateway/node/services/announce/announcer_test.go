//go:build !nokube

package announce

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"culvert/gateway/prometheus"
	"culvert/integration/fresh"
	"culvert/integration/need"
)

func TestMain(m *testing.M) { need.TestsInNamespace(m) }

// No test runs on the main thread: it could leave it in another namespace.
func init() { runtime.LockOSThread() }

// announcing returns an Announcer in a forwarding namespace of its own, beside the link culvert1,
// and its log.
func announcing(t *testing.T) (*Announcer, *test.Hook) {
	t.Helper()
	runtime.LockOSThread() // never unlocked
	need.Kernel(t, "namespace", unix.Unshare(unix.CLONE_NEWNET))
	need.NoError(t, fresh.Network())
	device := addNetwork(t, "culvert1", "172.18.0.2/24").Attrs().Index
	for _, setting := range []string{"ipv4/conf/all/forwarding", "ipv4/conf/default/forwarding",
		"ipv6/conf/all/forwarding"} {
		setSetting(t, setting, "1")
	}
	log, hook := test.NewNullLogger()
	a := New(device, log)
	t.Cleanup(func() {
		if err := a.Withdraw(nil); err != nil {
			t.Error(err)
		}
	})
	return a, hook
}

func setSetting(t *testing.T, name, value string) {
	t.Helper()
	need.NoError(t, os.WriteFile("/proc/sys/net/"+name, []byte(value), 0))
}

// addNetwork makes a link with addresses.
func addNetwork(t *testing.T, name string, addresses ...string) netlink.Link {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.Flags = name, net.FlagUp
	link := netlink.NewVeth(attrs)
	link.PeerName = name + "peer"
	need.NoError(t, netlink.LinkAdd(link))
	for _, a := range addresses {
		prefix, err := netlink.ParseIPNet(a)
		need.NoError(t, err)
		need.NoError(t, netlink.AddrAdd(link, &netlink.Addr{IPNet: prefix, Flags: unix.IFA_F_NODAD}))
	}
	return link
}

// ownProxies returns the proxy entries that are marked as this package's, by link.
func ownProxies(t *testing.T) (all []string) {
	t.Helper()
	proxies, err := proxyNeighbours()
	need.NoError(t, err)
	for at, protocol := range proxies {
		link, err := netlink.LinkByIndex(at.link)
		need.NoError(t, err)
		if protocol == proxyProtocol {
			all = append(all, at.address.String()+" at "+link.Attrs().Name)
		}
	}
	slices.Sort(all)
	return all
}

// anycast returns the anycast addresses of the kernel, by link.
func anycast(t *testing.T) (all []string) {
	t.Helper()
	text, err := os.ReadFile("/proc/thread-self/net/anycast6")
	need.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) > 2 && strings.HasSuffix(fields[2], "0077") {
			all = append(all, fields[1])
		}
	}
	slices.Sort(all)
	return all
}

// Addresses are announced at links with neighbours, or at those that are named.
func TestAnnounceLinks(t *testing.T) {
	a, hook := announcing(t)
	both := addNetwork(t, "both", "198.51.100.2/24", "fd98::2/64")
	addNetwork(t, "four", "198.51.101.2/24")
	addNetwork(t, "pod", "169.254.1.1/32", "fe80::1/64")
	netlink.LinkSetDown(addNetwork(t, "down", "198.51.102.2/24"))
	netlink.LinkSetARPOff(addNetwork(t, "silent", "198.51.103.2/24"))
	bridge := &netlink.Bridge{LinkAttrs: netlink.NewLinkAttrs()}
	bridge.Name = "bridge"
	need.NoError(t, netlink.LinkAdd(bridge))
	need.NoError(t, netlink.LinkSetMaster(addNetwork(t, "member", "198.51.104.2/24"), bridge))
	vips := addrs("198.51.100.77", "fd98::77")
	a.Apply(vips, nil)
	requireEqual(t, ownProxies(t), []string{"198.51.100.77 at both", "198.51.100.77 at four"})
	requireEqual(t, anycast(t), []string{"both"})
	if e := hook.LastEntry(); e == nil || e.Message != "this node answers for an address" ||
		len(hook.AllEntries()) != 2 {
		t.Errorf("it says %v", hook.AllEntries())
	}

	a.Apply(vips, []string{"pod", "down", "none"})
	requireEqual(t, ownProxies(t), []string{"198.51.100.77 at pod"})
	requireEqual(t, anycast(t), []string{"pod"})
	a.Apply(vips, []string{"pod", "down", "none"})
	warned := 0
	for _, e := range hook.AllEntries() {
		if err, ok := e.Data[logrus.ErrorKey].(error); ok && strings.Contains(err.Error(),
			"services.announceOn: down, none: no such link") {
			warned++
		}
	}
	if warned != 1 {
		t.Errorf("%d lines about links that are not there", warned)
	}

	netlink.LinkDel(both)
	a.Apply(vips, nil)
	requireEqual(t, ownProxies(t), []string{"198.51.100.77 at four"})
	if e := hook.LastEntry(); e == nil || !strings.Contains(fmt.Sprint(e.Data[logrus.ErrorKey]),
		"has a network of the family of fd98::77") {
		t.Errorf("without a link for an address it says %v", e)
	}
}

// If the kernel does not forward, nothing is announced: over IPv6 it would answer, and then drop
// the packets.
func TestAnnounceForwards(t *testing.T) {
	a, hook := announcing(t)
	addNetwork(t, "lan.7", "198.51.100.2/24", "fd98::2/64")
	vips := addrs("198.51.100.77", "fd98::77")
	a.Apply(vips, nil)
	requireEqual(t, ownProxies(t), []string{"198.51.100.77 at lan.7"})
	requireEqual(t, anycast(t), []string{"lan.7"})
	refuses := func(setting string) {
		t.Helper()
		setSetting(t, setting, "0")
		hook.Reset()
		a.Apply(vips, nil)
		if e := hook.LastEntry(); e == nil || !strings.Contains(fmt.Sprint(e.Data[logrus.ErrorKey]),
			"sysctl -w net/"+setting+"=1") {
			t.Errorf("%s: it says %v", setting, e)
		}
	}
	refuses("ipv4/conf/lan.7/forwarding")
	requireEqual(t, ownProxies(t), nil)
	requireEqual(t, anycast(t), []string{"lan.7"})
	refuses("ipv6/conf/all/forwarding")
	requireEqual(t, anycast(t), nil)
	setSetting(t, "ipv6/conf/all/forwarding", "1")
	a.Apply(vips, nil)
	requireEqual(t, anycast(t), []string{"lan.7"})
}

// What a killed run has left is taken over or removed; what belongs to others stays.
func TestAnnounceAdopts(t *testing.T) {
	a, _ := announcing(t)
	link := addNetwork(t, "lan", "198.51.100.2/24")
	for _, address := range addrs("198.51.100.77", "198.51.100.78") {
		need.NoError(t, proxyRequest(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_EXCL,
			announcement{address, link.Attrs().Index}))
	}
	foreign := netlink.Neigh{LinkIndex: link.Attrs().Index, Family: unix.AF_INET, Flags: netlink.NTF_PROXY,
		IP: net.IPv4(198, 51, 100, 79)}
	need.NoError(t, netlink.NeighAdd(&foreign))
	a.Apply(addrs("198.51.100.77", "198.51.100.79"), nil)
	requireEqual(t, ownProxies(t), []string{"198.51.100.77 at lan"})
	a.Apply(nil, nil)
	requireEqual(t, ownProxies(t), nil)
	if all, err := proxyNeighbours(); err != nil || len(all) != 1 {
		t.Errorf("somebody else's proxy is gone: %v, %v", all, err)
	}
}

// The notifications to neighbours, as RFC 826 and RFC 4861 define them.
func TestHeraldPackets(t *testing.T) {
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	if got, want := gratuitous(arpReply, netip.MustParseAddr("198.51.100.77"), mac), []byte{0, 1, 8, 0, 6, 4, 0, 2,
		2, 0, 0, 0, 0, 1, 198, 51, 100, 77, 2, 0, 0, 0, 0, 1, 198, 51, 100, 77}; !bytes.Equal(got, want) {
		t.Errorf("ARP\n%x, want\n%x", got, want)
	}
	vip := netip.MustParseAddr("fd98::77")
	want := append([]byte{136, 0, 0, 0, 0x20, 0, 0, 0}, vip.AsSlice()...)
	if got, want := advertisement(vip, mac), append(want, 2, 1, 2, 0, 0, 0, 0, 1); !bytes.Equal(got, want) {
		t.Errorf("neighbour advertisement\n%x, want\n%x", got, want)
	}
}

// A failure is logged once, whatever the number of addresses, and the remedy names a capability
// only where one is missing.
func TestHeraldFails(t *testing.T) {
	a, hook := announcing(t)
	h := a.garp
	defer h.close()
	for i := range byte(3) {
		h.call(announcement{netip.AddrFrom4([4]byte{198, 51, 100, i}), 9999}, net.HardwareAddr{2, 0, 0, 0, 0, 1})
	}
	_, err := h.sendDue(true)
	if err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(),
		"services: tell of 198.51.100.") {
		t.Errorf("at a link that is not there: %v", err)
	}
	h.warn(err)
	h.warn(err)
	if all := hook.AllEntries(); len(all) != 1 || all[0].Data["remedy"] != nil {
		t.Errorf("it says %v", all)
	}
	hook.Reset()
	h.refused = false
	h.warn(fmt.Errorf("services: open a packet socket: %w", unix.EPERM))
	if e := hook.LastEntry(); e == nil || e.Data["remedy"] == nil {
		t.Errorf("without CAP_NET_RAW it says %v", e)
	}
}

// Neighbours are notified five times of each announcement, and never of one that has ended.
func TestHeraldCalls(t *testing.T) {
	a, _ := announcing(t)
	addNetwork(t, "lan", "198.51.100.2/24", "fd98::2/64")
	a.Apply(addrs("198.51.100.77", "fd98::77"), nil)
	h := a.garp
	defer h.close()
	for i := range garpRepeats {
		if more, err := h.sendDue(i == 0); err != nil || more != (i < garpRepeats-1) {
			t.Errorf("call %d: more %t: %v", i, more, err)
		}
	}
	if more, err := h.sendDue(false); err != nil || more || h.sent.Load() != 3*garpRepeats {
		t.Errorf("%d packets, want %d: %v", h.sent.Load(), 3*garpRepeats, err)
	}
	a.Apply(nil, nil)
	a.Apply(addrs("198.51.100.77"), nil)
	a.Apply(nil, nil)
	if more, err := h.sendDue(false); err != nil || more || h.sent.Load() != 3*garpRepeats {
		t.Errorf("%d packets after what has ended: %v", h.sent.Load(), err)
	}
}

// The metrics name the announced addresses.
func TestMetrics(t *testing.T) {
	a := New(0, logrus.New())
	a.answered[announcement{netip.MustParseAddr("203.0.113.7"), 2}] = noSocket
	var b prometheus.Page
	a.WriteMetrics(&b, a.Addresses())
	if text := b.Text.String(); !strings.Contains(text, "culvert_announced_address{address=\"203.0.113.7\"} 1\n") {
		t.Error(text)
	}
}

func requireEqual(t *testing.T, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("there is\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func addrs(texts ...string) (all []netip.Addr) {
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}
