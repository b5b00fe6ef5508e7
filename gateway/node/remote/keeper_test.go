package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"culvert/gateway/node/rtnl"
	"culvert/integration/need"
)

func TestMain(m *testing.M) { need.TestsInNamespace(m) }

func eventually(t testing.TB, what string, check func() error) {
	t.Helper()
	need.Eventually(t, 20*time.Second, what, check)
}

func prefixes(all ...string) (list []netip.Prefix) {
	for _, s := range all {
		list = append(list, netip.MustParsePrefix(s))
	}
	return list
}

// link makes a link that is up, with an address, and removes it at the end.
func link(t *testing.T, name, address string) netlink.Link {
	t.Helper()
	veth := netlink.NewVeth(netlink.NewLinkAttrs())
	veth.Name, veth.PeerName = name, name+"p"
	need.NoError(t, netlink.LinkAdd(veth))
	t.Cleanup(func() { netlink.LinkDel(veth) })
	a, err := netlink.ParseAddr(address)
	need.NoError(t, err)
	need.NoError(t, netlink.AddrAdd(veth, a))
	for _, l := range []string{name, name + "p"} {
		end, err := netlink.LinkByName(l)
		need.NoError(t, err)
		need.NoError(t, netlink.LinkSetUp(end))
	}
	return veth
}

// A following is a running Keeper.
type following struct {
	*Keeper
	mu   sync.Mutex
	last []Status
}

// run runs a Keeper that prepare has changed.
func run(t *testing.T, prepare ...func(*Keeper)) *following {
	t.Helper()
	log := logrus.New()
	log.Out = io.Discard
	f := &following{Keeper: New(log)}
	for _, change := range prepare {
		change(f.Keeper)
	}
	ctx, stop := context.WithCancel(context.Background())
	var tasks sync.WaitGroup
	tasks.Go(func() {
		f.Run(ctx, func(all []Status) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.last = all
		})
	})
	t.Cleanup(func() {
		stop()
		tasks.Wait()
		if _, err := Remove(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// says waits until the Status of each Peer contains a word; "" expects none at all.
func (f *following) says(t *testing.T, words ...string) {
	t.Helper()
	eventually(t, fmt.Sprintf("statuses %q", words), func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if len(f.last) != len(words) {
			return fmt.Errorf("%v", f.last)
		}
		for i, word := range words {
			text := f.last[i].Warning
			if f.last[i].Err != nil {
				text = f.last[i].Err.Error()
			}
			if word == "" && text != "" || !strings.Contains(text, word) {
				return fmt.Errorf("%v", f.last)
			}
		}
		return nil
	})
}

// routes returns the routes of this package, in ip route's format.
func routes(t *testing.T) (all []string) {
	t.Helper()
	table, err := mainTable()
	need.NoError(t, err)
	for _, r := range table {
		if r.Protocol == Protocol {
			all = append(all, rtnl.Describe(&r))
		}
	}
	slices.Sort(all)
	return all
}

func wantRoutes(t *testing.T, want ...string) {
	t.Helper()
	slices.Sort(want)
	eventually(t, "routes", func() error {
		if got := routes(t); !slices.Equal(got, want) {
			return fmt.Errorf("%q, want %q", got, want)
		}
		return nil
	})
}

func wantRules(t *testing.T, want ...string) {
	t.Helper()
	eventually(t, "rules", func() error {
		var got []string
		for i := range families {
			rules, there, err := families[i].read()
			need.NoError(t, err)
			for _, r := range rules {
				got = append(got, r.label)
			}
			if there != (len(rules) > 0) {
				return fmt.Errorf("table %s is there: %t, with rules %v", families[i].name(), there, rules)
			}
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("%q, want %q", got, want)
		}
		return nil
	})
}

var milan = Peer{Name: "milan", Link: "cv-milan", Gateways: []netip.Addr{netip.MustParseAddr("10.80.0.1")},
	Local: prefixes("10.244.0.0/16"), Remote: prefixes("10.61.0.0/16", "10.70.0.0/24")}

var (
	milanRoutes = []string{"10.61.0.0/16 via 10.80.0.1 dev cv-milan", "10.70.0.0/24 via 10.80.0.1 dev cv-milan",
		"10.80.0.1/32 dev cv-milan"}
	milanRules = []string{"10.244.0.0/16 to 10.61.0.0/16", "10.61.0.0/16 to 10.244.0.0/16",
		"10.244.0.0/16 to 10.70.0.0/24", "10.70.0.0/24 to 10.244.0.0/16"}
)

// TestKeeperDual: a peer of both families has routes and the exception in each. What is the node's
// own in IPv6 is told, and with IPv6 all of it goes.
func TestKeeperDual(t *testing.T) {
	needNAT(t)
	dual := milan
	dual.Gateways = append(slices.Clone(milan.Gateways), netip.MustParseAddr("fd80::1"))
	dual.Local, dual.Remote = append(prefixes("fd00:244::/56"), milan.Local...), append(slices.Clone(milan.Remote),
		prefixes("fd61::/56")...)
	six := []string{"fd61::/56 via fd80::1 dev cv-milan", "fd80::1/128 dev cv-milan"}
	address := func(l netlink.Link, text string) {
		a, err := netlink.ParseAddr(text)
		need.NoError(t, err)
		a.Flags = unix.IFA_F_NODAD
		need.NoError(t, netlink.AddrAdd(l, a))
	}
	address(link(t, "cv-milan", "10.80.0.2/32"), "fd80::2/128")
	k := run(t)
	k.Apply([]Peer{dual})
	k.says(t, "")
	wantRoutes(t, slices.Concat(milanRoutes, six)...)
	wantRules(t, append(slices.Clone(milanRules), "fd00:244::/56 to fd61::/56", "fd61::/56 to fd00:244::/56")...)
	own := link(t, "eth0", "10.9.0.1/24")
	address(own, "fd61::9/40")
	k.says(t, "fd61::/56 overlaps fd61::/40 dev eth0, to which this node has a route of its own")
	k.Apply([]Peer{milan})
	k.says(t, "")
	wantRoutes(t, milanRoutes...)
	wantRules(t, milanRules...)
	k.Apply([]Peer{dual})
	k.says(t, "fd61::/56 overlaps fd61::/40 dev eth0")
	wantRoutes(t, append(slices.Clone(milanRoutes), six[1])...)
	need.NoError(t, netlink.LinkDel(own))
	k.says(t, "")
	wantRoutes(t, slices.Concat(milanRoutes, six)...)
	if removed, err := Remove(); err != nil || !slices.Contains(removed, "nftables table ip6 culvert") {
		t.Errorf("%q, %v", removed, err)
	}
}

func needNAT(t *testing.T) {
	t.Helper()
	need.Namespace(t)
	_, err := keepTables([]pair{{from: netip.MustParsePrefix("192.0.2.0/24"),
		to: netip.MustParsePrefix("198.51.100.0/24")}}, nil)
	need.Kernel(t, "nft", err)
	_, err = keepTables(nil, nil)
	need.NoError(t, err)
}

// TestKeeper: routes and the exception appear with their link, are restored, follow changes and
// disappear.
func TestKeeper(t *testing.T) {
	needNAT(t)
	k := run(t)
	k.Apply([]Peer{milan})
	k.says(t, "there is no link cv-milan yet")
	wantRules(t)
	link(t, "cv-milan", "10.80.0.2/32")
	k.says(t, "")
	wantRoutes(t, milanRoutes...)
	wantRules(t, milanRules...)

	need.BreakNetlink(t, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_ROUTE,
		unix.RTNLGRP_IPV6_RULE, unix.RTNLGRP_LINK)
	table, err := mainTable()
	need.NoError(t, err)
	for _, r := range table {
		if r.Protocol == Protocol && r.Gw != nil {
			need.NoError(t, netlink.RouteDel(&r))
		}
	}
	if _, err := families[0].remove(); err != nil {
		t.Fatal(err)
	}
	wantRoutes(t, milanRoutes...)
	wantRules(t, milanRules...)

	other := milan
	other.Remote = prefixes("10.62.0.0/16")
	k.Apply([]Peer{other})
	wantRoutes(t, "10.62.0.0/16 via 10.80.0.1 dev cv-milan", "10.80.0.1/32 dev cv-milan")
	wantRules(t, "10.244.0.0/16 to 10.62.0.0/16", "10.62.0.0/16 to 10.244.0.0/16")
	k.Apply(nil)
	wantRoutes(t)
	wantRules(t)
}

// TestGatewaysPod: packets of a gateway's pod to nodes through the tunnel keep their source; its
// other packets do not.
func TestGatewaysPod(t *testing.T) {
	needNAT(t)
	need.Programs(t, "nft", "nft")
	k := run(t)
	link(t, "cv-milan", "10.80.0.2/32")
	here := milan
	here.Pod, here.Port = netip.MustParseAddr("10.244.1.9"), 6091
	k.Apply([]Peer{here})
	k.says(t, "")
	wantRules(t, append(slices.Clone(milanRules), "10.244.1.9/32 to 0.0.0.0/0 UDP 6091")...)
	if got := list(t); !strings.Contains(got, "ip protocol 17 udp dport 6091 ip saddr 10.244.1.9 ") &&
		!strings.Contains(got, "udp dport 6091 ip saddr 10.244.1.9 ") {
		t.Error(got)
	}
	k.Apply([]Peer{milan}) // the pod has moved
	wantRules(t, milanRules...)
}

// list returns the table as nft prints it, with rule numbers.
func list(t *testing.T) string {
	t.Helper()
	out, err := need.Command(t, "nft", "-a", "list", "table", "ip", Table).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

// TestRestart: what an earlier process has made stays until the new one knows its peers, and is not
// made again.
func TestRestart(t *testing.T) {
	needNAT(t)
	need.Programs(t, "nft", "nft")
	link(t, "cv-milan", "10.80.0.2/32")
	first := New(logrus.New())
	first.Apply([]Peer{milan})
	first.reconcile(func([]Status) {})
	again := New(logrus.New())
	again.reconcile(func([]Status) { t.Error("a report of what nobody asked for") })
	if got := routes(t); !slices.Equal(got, milanRoutes) {
		t.Errorf("%q", got)
	}
	handles := list(t)
	again.Apply([]Peer{milan})
	again.reconcile(func([]Status) {})
	if now := list(t); now != handles {
		t.Errorf("made anew: %s, before: %s", now, handles)
	}
	for _, want := range []string{"type nat hook postrouting priority srcnat - 1",
		"ip saddr 10.244.0.0/16 ip daddr 10.61.0.0/16 snat to ip saddr"} {
		if !strings.Contains(handles, want) {
			t.Errorf("no %q in %s", want, handles)
		}
	}
	removed, err := Remove()
	if want := append([]string{}, "route "+milanRoutes[0], "route "+milanRoutes[1], "route "+milanRoutes[2],
		"nftables table ip "+Table); err != nil || len(removed) != len(want) {
		t.Errorf("removed %q, %v, want %q", removed, err, want)
	}
	wantRoutes(t)
	wantRules(t)
}

// TestOthersRoutes: addresses that this node already reaches in another way are refused by name,
// and the routes of others stay.
func TestOthersRoutes(t *testing.T) {
	needNAT(t)
	link(t, "cv-milan", "10.80.0.2/32")
	link(t, "eth0", "10.61.7.2/24")
	via, err := netlink.LinkByName("eth0")
	need.NoError(t, err)
	need.NoError(t, netlink.RouteAdd(&netlink.Route{LinkIndex: via.Attrs().Index,
		Dst: rtnl.IPNet(netip.MustParsePrefix("10.99.0.0/16")), Gw: []byte{10, 61, 7, 1}}))
	need.NoError(t, netlink.RouteAdd(&netlink.Route{LinkIndex: via.Attrs().Index,
		Dst: rtnl.IPNet(netip.MustParsePrefix("10.96.0.0/12")), Gw: []byte{10, 61, 7, 1}}))
	k := run(t)
	for _, c := range []struct{ remote, want string }{
		{"10.61.0.0/16", "10.61.0.0/16 overlaps 10.61.7.0/24 dev eth0"},
		{"10.61.7.128/25", "10.61.7.128/25 overlaps 10.61.7.0/24 dev eth0"},
		{"10.99.0.0/16", "10.99.0.0/16 overlaps 10.99.0.0/16 via 10.61.7.1 dev eth0"},
		{"10.97.0.0/16", ""}, // more specific than another program's route
	} {
		bad := milan
		bad.Remote = prefixes(c.remote)
		k.Apply([]Peer{bad})
		k.says(t, c.want)
		if c.want == "" {
			wantRoutes(t, c.remote+" via 10.80.0.1 dev cv-milan", "10.80.0.1/32 dev cv-milan")
		} else {
			wantRoutes(t)
			wantRules(t)
		}
	}
}

// TestOthersRules: where a CNI's rule leads what a pod sends to another table, as for addresses of
// a second network card, packets to a Peer take the Peer's link all the same, and others the CNI's.
// A node without such a rule gets none.
func TestOthersRules(t *testing.T) {
	link(t, "cv-milan", "10.80.0.5/22")
	link(t, "pod0", "10.244.1.1/24")
	card := link(t, "eth1", "172.31.1.2/24")
	const table = 2
	need.NoError(t, netlink.RouteAdd(&netlink.Route{LinkIndex: card.Attrs().Index, Table: table,
		Dst: rtnl.IPNet(netip.MustParsePrefix("0.0.0.0/0"))}))
	by := func(to string) string {
		t.Helper()
		found, err := netlink.RouteGetWithOptions(netip.MustParseAddr(to).AsSlice(), &netlink.RouteGetOptions{
			Iif: "pod0", SrcAddr: netip.MustParseAddr("10.244.1.5").AsSlice()})
		need.NoError(t, err)
		l, err := netlink.LinkByIndex(found[0].LinkIndex)
		need.NoError(t, err)
		return l.Attrs().Name
	}
	rules := func() (n int) {
		list, err := netlink.RuleList(netlink.FAMILY_V4)
		need.NoError(t, err)
		for _, r := range list {
			if r.Protocol == Protocol {
				n++
			}
		}
		return n
	}
	need.NoError(t, os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0))
	k := run(t)
	k.Apply([]Peer{{Name: "milan", Link: "cv-milan", Gateways: []netip.Addr{netip.MustParseAddr("10.80.0.1")},
		Local: prefixes("10.244.0.0/16"), Remote: prefixes("10.61.0.0/16", "10.71.0.0/24")}})
	k.says(t, "")
	wantRoutes(t, "10.61.0.0/16 via 10.80.0.1 dev cv-milan", "10.71.0.0/24 via 10.80.0.1 dev cv-milan",
		"10.80.0.1/32 dev cv-milan")
	if n := rules(); n != 0 || by("10.61.0.1") != "cv-milan" {
		t.Errorf("without a CNI's rule there are %d, and packets leave by %s", n, by("10.61.0.1"))
	}
	foreign := netlink.NewRule()
	foreign.Family, foreign.Priority, foreign.Table = unix.AF_INET, 1536, table
	foreign.Src = rtnl.IPNet(netip.MustParsePrefix("10.244.1.5/32"))
	need.NoError(t, netlink.RuleAdd(foreign))
	eventually(t, "the Peer's link", func() error {
		if l := by("10.61.0.1"); l != "cv-milan" || by("10.71.0.1") != l {
			return errors.New(l)
		}
		return nil
	})
	if l := by("192.0.2.1"); l != "eth1" {
		t.Errorf("a packet to somebody else leaves by %s", l)
	}
	k.Apply(nil)
	eventually(t, "no rules", func() error {
		if n := rules(); n > 0 {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	need.NoError(t, netlink.RuleDel(foreign))
}

// TestOthersRoutesLater: a Peer that has routes keeps them when it asks for addresses that this
// node reaches in another way, and when the node gets such a way. The next process does the same.
func TestOthersRoutesLater(t *testing.T) {
	needNAT(t)
	link(t, "cv-milan", "10.80.0.2/32")
	eth0 := link(t, "eth0", "192.0.2.2/24")
	k := run(t)
	k.Apply([]Peer{milan})
	k.says(t, "")
	wantRoutes(t, milanRoutes...)
	more := milan
	more.Remote = append(slices.Clone(milan.Remote), prefixes("192.0.2.0/28")...)
	k.Apply([]Peer{more})
	const fault = "192.0.2.0/28 overlaps 192.0.2.0/24 dev eth0"
	k.says(t, fault)
	wantRoutes(t, milanRoutes...)
	wantRules(t, milanRules...)
	k.says(t, "no node routes elsewhere; meanwhile this node goes on with the rest")
	more.Remote = append(prefixes("10.62.0.0/16"), more.Remote...)
	again := New(logrus.New())
	again.Apply([]Peer{more})
	k.Apply([]Peer{more})
	again.reconcile(func(all []Status) {
		if len(all) != 1 || all[0].Err == nil || !strings.Contains(all[0].Err.Error(), fault) {
			t.Errorf("%+v", all)
		}
	})
	wantRoutes(t, append(slices.Clone(milanRoutes), "10.62.0.0/16 via 10.80.0.1 dev cv-milan")...)
	k.Apply([]Peer{milan})
	k.says(t, "")
	wantRoutes(t, milanRoutes...)

	need.NoError(t, netlink.RouteAdd(&netlink.Route{LinkIndex: eth0.Attrs().Index,
		Dst: rtnl.IPNet(netip.MustParsePrefix("10.61.8.0/24")), Scope: netlink.SCOPE_LINK}))
	k.says(t, "10.61.0.0/16 overlaps 10.61.8.0/24 dev eth0, to which this node has a route of its own; choose a remap that "+
		"no node routes elsewhere; meanwhile this node keeps the route")
	wantRoutes(t, milanRoutes...)
	wantRules(t, milanRules...)
}

// TestLargeTable: a table of thousands of rules is set in one transaction, however small the
// socket's buffers are. The kernel's reason for a refusal arrives as well.
func TestLargeTable(t *testing.T) {
	needNAT(t)
	t.Cleanup(func() {
		_, err := keepTables(nil, nil)
		need.NoError(t, err)
	})
	var pairs []pair
	var want []string
	for i := range 4000 {
		to := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 100, byte(i >> 8), byte(i)}), 32)
		pairs = append(pairs, pair{from: netip.MustParsePrefix("10.244.0.0/16"), to: to})
		want = append(want, pairs[i].label())
	}
	_, err := keepTables(pairs, nil)
	need.NoError(t, err)
	wantRules(t, want...)

	conn, err := dialNetfilter()
	need.NoError(t, err)
	defer conn.close()
	b := batch{family: unix.NFPROTO_IPV4}
	b.begin()
	for range pairs {
		b.message(unix.NFT_MSG_DELTABLE, 0, text(unix.NFTA_TABLE_NAME, "nobodys"))
	}
	b.ask()
	b.end()
	if err := conn.commit(&b); !errors.Is(err, unix.ENOENT) {
		t.Errorf("%v, want %v", err, unix.ENOENT)
	}
}

// TestFailuresAreLogged: a failure is logged when it begins, when its cause changes and when it
// ends, however often the routes are compared.
func TestFailuresAreLogged(t *testing.T) {
	log, hook := test.NewNullLogger()
	k := New(log)
	k.table = func([]pair, []Tunnel) (map[string]uint64, error) { return nil, nil }
	stale := netlink.Route{Dst: rtnl.IPNet(netip.MustParsePrefix("10.61.0.0/16")), Protocol: Protocol}
	var list, remove error
	k.list = func() ([]netlink.Route, error) { return []netlink.Route{stale}, list }
	k.remove = func(*netlink.Route) error { return remove }
	k.Apply(nil)
	const failed, ended = "the kernel's routes to other clusters cannot be kept; trying again: ",
		"the kernel's routes to other clusters are as they should be again"
	for _, step := range []struct {
		list, remove error
		want         string
	}{
		{nil, nil, ""},
		{unix.EPERM, nil, failed + "operation not permitted"},
		{unix.EPERM, nil, ""},
		{unix.ENOMEM, nil, failed + "cannot allocate memory"},
		{nil, unix.EPERM, failed +
			"remove the route to 10.61.0.0/16, which is no longer wanted: operation not permitted; remove it with: ip route del 10.61.0.0/16"},
		{nil, unix.EPERM, ""},
		{nil, unix.ESRCH, ended}, // somebody else has removed it
		{nil, nil, ""},
	} {
		list, remove = step.list, step.remove
		hook.Reset()
		k.reconcile(func([]Status) {})
		got := ""
		for _, e := range hook.AllEntries() {
			if got += e.Message; e.Data["error"] != nil {
				got += fmt.Sprint(": ", e.Data["error"])
			}
		}
		if got != step.want {
			t.Errorf("list %v, remove %v: %q, want %q", step.list, step.remove, got, step.want)
		}
	}
}

// TestNoNftables: if the kernel refuses the exception, the routes exist and the status names the
// remedy.
func TestNoNftables(t *testing.T) {
	need.Namespace(t)
	link(t, "cv-milan", "10.80.0.2/32")
	k := run(t)
	k.table = func([]pair, []Tunnel) (map[string]uint64, error) { return nil, errors.New("operation not supported") }
	k.Apply([]Peer{milan})
	k.says(t, "except [10.61.0.0/16 10.70.0.0/24] from masquerading in your CNI's settings")
	wantRoutes(t, milanRoutes...)
}
