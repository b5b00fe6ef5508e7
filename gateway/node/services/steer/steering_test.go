package steer

import (
	"errors"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"culvert/gateway/node/rtnl"
	"culvert/integration/fresh"
	"culvert/integration/need"
	"culvert/nat/rules"
)

func TestMain(m *testing.M) { need.TestsInNamespace(m) }

// /proc/net shows the main thread's network, so no test runs on that thread: it could leave it in
// another namespace.
func init() { runtime.LockOSThread() }

// inNamespace moves the test to a network namespace of its own, which ends with the test's thread.
// It returns the index of a link there.
func inNamespace(t *testing.T) int {
	t.Helper()
	runtime.LockOSThread() // never unlocked
	need.Kernel(t, "namespace", unix.Unshare(unix.CLONE_NEWNET))
	need.NoError(t, fresh.Network())
	return addLink(t, "culvert1")
}

func addLink(t *testing.T, name string) int {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.Flags = name, net.FlagUp
	link := netlink.NewVeth(attrs)
	link.PeerName = name + "peer"
	need.NoError(t, netlink.LinkAdd(link))
	for _, a := range []string{"172.18.0.2/24", "172.18.0.22/24"} {
		need.NoError(t, netlink.AddrAdd(link, &netlink.Addr{IPNet: rtnl.IPNet(netip.MustParsePrefix(a))}))
	}
	return link.Attrs().Index
}

// kernelRules describes all rules.
func kernelRules(t *testing.T) (all []string) {
	t.Helper()
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		list, err := rtnl.List(func() ([]netlink.Rule, error) { return netlink.RuleList(family) })
		need.NoError(t, err)
		for i := range list {
			all = append(all, Describe(&list[i]))
		}
	}
	slices.Sort(all)
	return all
}

var both = []int{unix.AF_INET, unix.AF_INET6}

// source4 gives the node's processes an IPv4 source address.
func source4(a string) func(int) net.IP {
	return func(family int) net.IP {
		if family == unix.AF_INET {
			return netip.MustParseAddr(a).AsSlice()
		}
		return nil
	}
}

// example returns the plan of a Service of each of some protocols.
func example(protocols ...uint8) *Plan {
	p := &Plan{Routes: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("203.0.113.7/32")}}
	pods, clients := netip.MustParsePrefix("10.244.0.0/16"), rules.PortRange{First: 61000, Last: 65534}
	for _, protocol := range protocols {
		for _, a := range []string{"172.18.0.2/32", "fd18::2/128"} {
			to := netip.MustParsePrefix(a)
			p.Front = append(p.Front, Match{To: to, Protocol: protocol, Ports: clients},
				Match{To: to, Protocol: protocol, Ports: rules.PortRange{First: 30080, Last: 30080}})
		}
		p.Behind = append(p.Behind, Match{From: pods, Protocol: protocol, Ports: clients},
			Match{From: pods, Protocol: protocol, Ports: rules.Kept(protocol),
				Ends: rules.PortRange{First: 8080, Last: 8080}})
	}
	return p
}

// steered makes the rules and routes of the example, to the link with an index.
func steered(t *testing.T, index int, families []int) (*Steering, *Plan) {
	t.Helper()
	s, err := New("culvert1", index, families, nil)
	need.NoError(t, err)
	p := example(unix.IPPROTO_TCP, unix.IPPROTO_UDP)
	need.NoError(t, s.Apply(p, source4("172.18.0.2")))
	return s, p
}

func requireRules(t *testing.T, want []string) {
	t.Helper()
	requireEqual(t, kernelRules(t), want)
}

func requireEqual(t *testing.T, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("there is\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestOthersMovedTheLocalTable: another program has put a rule for the local table at 100, in place
// of the first or beside it, and other rules at the priorities of this package. What the device
// returns must still skip the rules that lead to it, and in the end everything must be as before.
func TestOthersMovedTheLocalTable(t *testing.T) {
	for name, instead := range map[string]bool{"instead": true, "beside": false} {
		t.Run(name, func(t *testing.T) {
			index := inNamespace(t)
			for _, family := range both {
				need.NoError(t, netlink.RuleAdd(localRule(family, 100)))
				need.NoError(t, netlink.RuleDel(localRule(family, 0)))
				if by := localRule(family, 0); !instead {
					by.Protocol = unix.RTPROT_BOOT // by hand
					need.NoError(t, netlink.RuleAdd(by))
				}
			}
			for _, priority := range []int{priorityOn, priorityEnd} {
				r := netlink.NewRule()
				r.Family, r.Priority, r.Table, r.Src = unix.AF_INET, priority, 77,
					rtnl.IPNet(netip.MustParsePrefix("10.99.0.0/16"))
				need.NoError(t, netlink.RuleAdd(r))
			}
			before := kernelRules(t)
			s, _ := steered(t, index, both)
			for _, family := range both {
				list, err := rtnl.List(func() ([]netlink.Rule, error) { return netlink.RuleList(family) })
				need.NoError(t, err)
				for _, r := range list {
					if r.Protocol != unix.RTPROT_KERNEL && r.Table != 77 {
						t.Errorf("the rule at %d has protocol %d: systemd-networkd removes it", r.Priority, r.Protocol)
					}
					there := func(o netlink.Rule) bool { return o.Priority == r.Goto }
					if r.Goto > 0 && !slices.ContainsFunc(list, there) {
						t.Errorf("the rule at %d jumps to %d, where there is none", r.Priority, r.Goto)
					}
				}
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			requireRules(t, before)
		})
	}
}

// TestLeftoverOfOtherFamily: a killed run has served both families, and the next one serves IPv4.
func TestLeftoverOfOtherFamily(t *testing.T) {
	index := inNamespace(t)
	before := kernelRules(t)
	steered(t, index, both)
	need.NoError(t, netlink.LinkDel(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: index}}))
	s, err := New("culvert1", addLink(t, "culvert1"), both[:1], nil)
	need.NoError(t, err)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	requireRules(t, before)
}

// TestSourceChanges changes the source of the node's processes: services.addresses changes while a
// node runs.
func TestSourceChanges(t *testing.T) {
	index := inNamespace(t)
	s, p := steered(t, index, both[:1])
	for _, source := range []string{"172.18.0.22", "172.18.0.2"} {
		need.NoError(t, s.Apply(p, source4(source)))
		list, err := rtnl.List(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(unix.AF_INET, &netlink.Route{LinkIndex: index, Table: unix.RT_TABLE_MAIN},
				netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE)
		})
		need.NoError(t, err)
		// the link's own route
		list = slices.DeleteFunc(list, func(r netlink.Route) bool { return r.Dst.String() == "172.18.0.0/24" })
		if len(list) != 2 {
			t.Errorf("%d routes, want 2: %v", len(list), list)
		}
		for _, r := range list {
			if r.Src.String() != source {
				t.Errorf("source %s of the route to %s, want %s", r.Src, r.Dst, source)
			}
		}
	}
}

// TestRouter: an external address is that of the node's router. Routed to the device, it would keep
// a node with a strict rp_filter from answering the router's ARP requests. So it is left out, and
// named.
func TestRouter(t *testing.T) {
	index := inNamespace(t)
	for _, r := range []netlink.Route{
		{LinkIndex: index, Gw: netip.MustParseAddr("172.18.0.1").AsSlice()},
		{Dst: rtnl.IPNet(netip.MustParsePrefix("192.0.2.0/24")), MultiPath: []*netlink.NexthopInfo{
			{LinkIndex: index, Gw: netip.MustParseAddr("172.18.0.7").AsSlice()},
			{LinkIndex: index, Gw: netip.MustParseAddr("172.18.0.8").AsSlice()},
		}},
	} {
		need.NoError(t, netlink.RouteAdd(&r))
	}
	s, p := steered(t, index, both[:1])
	for router, taken := range map[string]bool{"172.18.0.1": true, "172.18.0.8": true, "172.18.0.9": false} {
		next := *p
		next.Routes = append(slices.Clone(p.Routes), Host(netip.MustParseAddr(router)))
		err := s.Apply(&next, source4("172.18.0.2"))
		var named *ConflictError
		if errors.As(err, &named) != taken || !taken && err != nil {
			t.Errorf("%s: %v", router, err)
		} else if taken && !slices.Equal(named.Addresses, []netip.Addr{netip.MustParseAddr(router)}) {
			t.Errorf("%s: named is %v", router, named.Addresses)
		}
	}
}

// TestTakeOver: a run continues with the rules and routes of another: none of them disappears for a
// moment, and those that the configuration no longer needs go with the next apply.
func TestTakeOver(t *testing.T) {
	index := inNamespace(t)
	before := kernelRules(t)
	s, err := New("culvert1", index, both, nil)
	need.NoError(t, err)
	need.NoError(t, s.Apply(example(unix.IPPROTO_TCP, unix.IPPROTO_UDP), source4("172.18.0.2")))
	left := kernelRules(t)
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE,
		unix.RTNLGRP_IPV4_ROUTE)
	need.NoError(t, err)
	defer socket.Close()
	next, err := New("culvert1", index, both, nil)
	need.NoError(t, err)
	need.NoError(t, next.Apply(example(unix.IPPROTO_TCP, unix.IPPROTO_UDP), source4("172.18.0.2")))
	if after := kernelRules(t); !slices.Equal(after, left) {
		t.Errorf("there is\n%s\nthere was\n%s", strings.Join(after, "\n"), strings.Join(left, "\n"))
	}
	socket.SetReceiveTimeout(&unix.Timeval{Usec: 1}) // everything done so far is in the socket's buffer
	for {
		messages, _, err := socket.Receive()
		if err != nil {
			break
		}
		for _, m := range messages {
			if m.Header.Type == unix.RTM_DELRULE || m.Header.Type == unix.RTM_DELROUTE {
				t.Errorf("something was removed: message %d of the kernel's", m.Header.Type)
			}
		}
	}
	p := example(unix.IPPROTO_TCP)
	need.NoError(t, next.Apply(p, source4("172.18.0.2")))
	if after := kernelRules(t); len(after) >= len(left) || slices.ContainsFunc(after,
		func(r string) bool { return strings.Contains(r, "ipproto 17") }) {
		t.Errorf("there is\n%s\nthere was\n%s", strings.Join(after, "\n"), strings.Join(left, "\n"))
	}
	if err := next.Close(); err != nil {
		t.Error(err)
	}
	if after := kernelRules(t); !slices.Equal(after, before) {
		t.Errorf("left behind:\n%s\nthere was:\n%s", strings.Join(after, "\n"), strings.Join(before, "\n"))
	}
}

// TestRemains: what a killed run has left can be removed without a new run; what a running process
// uses stays.
func TestRemains(t *testing.T) {
	index := inNamespace(t)
	before := kernelRules(t)
	steered(t, index, both)
	during := kernelRules(t)
	if found, err := RemoveRemains(true); found != 0 || err == nil || !strings.Contains(err.Error(),
		"culvert1 exists; stop the culvert node") {
		t.Errorf("of a node that runs: %d, %v", found, err)
	}
	requireRules(t, during)
	need.NoError(t, netlink.LinkDel(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: index}}))
	if found, err := RemoveRemains(false); found < 10 || err != nil {
		t.Errorf("of one that is gone: %d, %v", found, err)
	}
	requireRules(t, before)
	if found, err := RemoveRemains(false); found != 0 || err != nil {
		t.Errorf("then: %d, %v", found, err)
	}
}

// TestRemainsOfKeptDevice: a device that waits for the next run can be removed, with its rules,
// unless a process uses it.
func TestRemainsOfKeptDevice(t *testing.T) {
	inNamespace(t)
	before := kernelRules(t)
	device, err := createDevice("culvert7")
	need.Kernel(t, "tun", err)
	need.NoError(t, KeepDevice(device, "culvert7", true))
	link, err := netlink.LinkByName("culvert7")
	if err == nil {
		err = netlink.LinkSetUp(link)
	}
	need.NoError(t, err)
	s, err := New("culvert7", link.Attrs().Index, both, nil)
	if err == nil {
		err = s.Apply(&Plan{}, source4("172.18.0.2"))
	}
	need.NoError(t, err)
	during := kernelRules(t)
	if _, err := RemoveRemains(true); err == nil || !strings.Contains(err.Error(), "culvert7 is held by ") {
		t.Error("while a process has it:", err)
	}
	device.Close()
	if found, err := RemoveRemains(false); found != 0 || err != nil {
		t.Errorf("while it waits for the next run: %d, %v", found, err)
	}
	requireRules(t, during)
	if found, err := RemoveRemains(true); found == 0 || err != nil {
		t.Errorf("%d, %v", found, err)
	}
	requireRules(t, before)
	if _, err := netlink.LinkByName("culvert7"); err == nil {
		t.Error("the device is still there")
	}
}

// An address that has another route, or is a router, is detected before anything changes: no route
// or rule comes or goes, however often it is tried.
func TestTakenChangesNothing(t *testing.T) {
	index := inNamespace(t)
	s, p := steered(t, index, both[:1])
	need.NoError(t, s.Apply(p, source4("172.18.0.22")))
	if err := s.Conflicts(p); err != nil {
		t.Errorf("what is there already: %v", err)
	}
	other := &netlink.Route{LinkIndex: index, Table: unix.RT_TABLE_MAIN,
		Dst: rtnl.IPNet(netip.MustParsePrefix("203.0.113.77/32"))}
	need.NoError(t, netlink.RouteAdd(other))
	before, made := kernelRules(t), s.Made
	next := *p
	next.Routes = append(slices.Clone(p.Routes), netip.MustParsePrefix("203.0.113.76/32"),
		netip.MustParsePrefix("203.0.113.77/32"))
	var named *ConflictError
	if err := s.Conflicts(&next); !errors.As(err, &named) || !slices.Equal(named.Addresses,
		[]netip.Addr{netip.MustParseAddr("203.0.113.77")}) {
		t.Errorf("%v", err)
	}
	if s.Made != made {
		t.Errorf("%d changes", s.Made-made)
	}
	requireRules(t, before)
}

// Destinations that no Service needs may have another route.
func TestSpare(t *testing.T) {
	lb := netip.MustParsePrefix("203.0.113.7/32")
	spare := map[netip.Prefix]bool{lb: true}
	var conflicts ConflictError
	conflicts.add(rtnl.IPNet(lb), spare)
	if conflicts.add(rtnl.IPNet(netip.MustParsePrefix("203.0.113.8/32")), spare); len(conflicts.Addresses) != 1 {
		t.Errorf("conflicts: %v", conflicts.Addresses)
	}
}
