package links_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic/fake"
	kubetesting "k8s.io/client-go/testing"

	"culvert/gateway/node/links"
	"culvert/gateway/node/rtnl"
	"culvert/integration/need"
	"culvert/kube/fabric"
	"culvert/kube/liqo"
	"culvert/kube/objects"
)

const (
	editsNode     = "n1"
	editsPatience = 20 * time.Second
	namespace     = "tenant"
	takenPeer     = "peer" // the other end of a link whose name is taken
)

// A peering is an InternalFabric and the GeneveTunnel between it and this node. The fields are
// those of the resources.
type peering struct {
	name, link, gatewayIP, gateway string
	mtu, id                        int
	fabric, tunnel, deleting       bool // the one exists, the other exists, the first is being deleted
	made                           int  // order of creation
}

// A world is a simulated API server, and a network namespace with a node's agent.
type world struct {
	t        *testing.T
	r        *rand.Rand
	api      *fake.FakeDynamicClient
	watches  atomic.Int32
	peerings []*peering
	address  string // of this node
	taken    string // name of a link of another program
	clock    int
	stop     func() // of the agent; nil: it does not run
	moved    bool   // the node got another address in this step
	// The resource in last is written last: once the machine shows it, the agent has seen
	// everything.
	last peering
}

func (w *world) put(namespace, kind, name string, made int, deleting bool, spec map[string]any) {
	w.t.Helper()
	meta := map[string]any{"name": name, "uid": fmt.Sprint(kind, name, made),
		"creationTimestamp": time.Unix(int64(made), 0).UTC().Format(time.RFC3339)}
	if namespace != "" {
		meta["namespace"] = namespace
	}
	if deleting {
		meta["deletionTimestamp"] = time.Unix(int64(made), 0).UTC().Format(time.RFC3339)
	}
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": objects.Liqo, "kind": kind,
		"metadata": meta, "spec": spec}}
	tracker, at := w.api.Tracker(), objects.LiqoResource(kind)
	if _, err := tracker.Get(at, namespace, name); err == nil {
		need.NoError(w.t, tracker.Update(at, u, namespace))
		return
	}
	need.NoError(w.t, tracker.Create(at, u, namespace))
}

// write stores a peering's present state in the API server.
func (w *world) write(p *peering) {
	w.t.Helper()
	for _, x := range []struct {
		there      bool
		kind, name string
		deleting   bool
		spec       map[string]any
	}{
		{p.fabric, liqo.KindFabric, p.name, p.deleting, map[string]any{"mtu": int64(p.mtu),
			"gatewayIP": p.gatewayIP,
			"interface": map[string]any{"gateway": map[string]any{"ip": p.gateway},
				"node": map[string]any{"name": p.link}}}},
		{p.tunnel, liqo.KindTunnel, p.name + "-" + editsNode, false, map[string]any{"id": int64(p.id),
			"internalFabricRef": map[string]any{"name": p.name, "namespace": namespace},
			"internalNodeRef":   map[string]any{"name": editsNode}}},
	} {
		if x.there {
			w.put(namespace, x.kind, x.name, p.made, x.deleting, x.spec)
		} else if err := w.api.Tracker().Delete(objects.LiqoResource(x.kind), namespace, x.name); err != nil &&
			!strings.Contains(err.Error(), "not found") {
			w.t.Fatal(err)
		}
	}
}

func (w *world) writeNode() {
	w.t.Helper()
	w.put("", liqo.KindNode, editsNode, 1, false,
		map[string]any{"interface": map[string]any{"node": map[string]any{"ip": w.address},
			"gateway": map[string]any{"name": "liqo.n1"}}})
}

// begin starts the agent, and waits until it follows the API server.
func (w *world) begin() {
	w.t.Helper()
	log := logrus.New()
	log.SetOutput(io.Discard)
	set := links.New(6091, log)
	set.WithoutKernel()
	source := fabric.NewSource(w.api, editsNode, logrus.NewEntry(log))
	ctx, cancel := context.WithCancel(context.Background())
	ends := make(chan error, 2)
	before := w.watches.Load()
	go func() { source.Run(ctx, set.Apply); ends <- nil }()
	go func() { ends <- set.Run(ctx, source.Report) }()
	w.stop = func() {
		cancel()
		need.NoError(w.t, <-ends)
		need.NoError(w.t, <-ends)
		w.stop = nil
	}
	eventually(w.t, "the agent watches", func() error {
		if n := w.watches.Load() - before; n < 3 {
			return fmt.Errorf("%d of 3", n)
		}
		return nil
	})
}

func eventually(t testing.TB, what string, check func() error) {
	t.Helper()
	need.Eventually(t, editsPatience, what, check)
}

// good reports whether a peering, considered alone, asks for a link.
func (p *peering) good() bool {
	_, err := netip.ParseAddr(p.gatewayIP)
	return p.fabric && p.tunnel && !p.deleting && err == nil && p.mtu >= 576 && len(p.link) <= 15 && p.id < 1<<24
}

// wanted returns the links that the resources ask for, by name, as ip shows them.
func (w *world) wanted() map[string]string {
	all := slices.SortedFunc(slices.Values(append(slices.Clone(w.peerings), &w.last)), func(a, b *peering) int {
		return cmp.Or(a.made-b.made, strings.Compare(a.name, b.name))
	})
	want := map[string]string{}
	for _, p := range all {
		if _, twice := want[p.link]; p.good() && !twice && p.link != w.taken {
			want[p.link] = fmt.Sprintf("mtu %d, %s/32, culvert: VNI %d to %s at %s, here %s", p.mtu, w.address, p.id,
				p.gateway, p.gatewayIP, w.address)
		}
	}
	return want
}

// machine returns the agent's links by name, with their index, and everything else: links,
// addresses, routes and rules.
func (w *world) machine() (own map[string]string, index map[string]int, others []string) {
	w.t.Helper()
	eventually(w.t, "the kernel's lists", func() (err error) {
		own, index, others, err = w.lists()
		return err
	})
	return own, index, others
}

func (w *world) lists() (own map[string]string, index map[string]int, others []string, err error) {
	own, index = map[string]string{}, map[string]int{}
	devices, err := rtnl.List(netlink.LinkList)
	if err != nil {
		return nil, nil, nil, err
	}
	ours := map[int]bool{}
	for _, d := range devices {
		a := d.Attrs()
		addresses, err := rtnl.List(func() ([]netlink.Addr, error) { return netlink.AddrList(d, netlink.FAMILY_V4) })
		if err != nil {
			return nil, nil, nil, err
		}
		var texts []string
		for _, x := range addresses {
			texts = append(texts, x.IPNet.String())
		}
		if _, tun := d.(*netlink.Tuntap); tun && a.Group == links.Group {
			own[a.Name] = fmt.Sprintf("mtu %d, %s, %s", a.MTU, strings.Join(texts, " "), a.Alias)
			if a.Flags&net.FlagUp == 0 {
				own[a.Name] += ", down"
			}
			index[a.Name], ours[a.Index] = a.Index, true
		} else if a.Name != w.taken && a.Name != takenPeer {
			others = append(others, fmt.Sprintln("link", a.Name, d.Type(), a.MTU, a.Flags&net.FlagUp, a.Group,
				a.Alias, texts))
		}
	}
	routes, err := rtnl.List(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_UNSPEC},
			netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, nil, nil, err
	}
	for _, r := range routes {
		if !ours[r.LinkIndex] {
			others = append(others, fmt.Sprintln("route", r.String()))
		}
	}
	rules, err := rtnl.List(func() ([]netlink.Rule, error) { return netlink.RuleList(netlink.FAMILY_ALL) })
	if err != nil {
		return nil, nil, nil, err
	}
	for _, r := range rules {
		others = append(others, fmt.Sprintln("rule", r.String()))
	}
	slices.Sort(others)
	return own, index, others, nil
}

// prefix returns the prefix that Liqo's agent routes through a link.
func prefix(link string) *net.IPNet {
	return &net.IPNet{IP: net.IPv4(10, 100, link[len(link)-1], 0), Mask: net.CIDRMask(24, 32)}
}

func (w *world) routed(link string, index int) bool {
	w.t.Helper()
	there := false
	eventually(w.t, "the kernel's routes", func() error {
		found, err := rtnl.List(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{LinkIndex: index, Dst: prefix(link)},
				netlink.RT_FILTER_OIF|netlink.RT_FILTER_DST)
		})
		there = len(found) == 1
		return err
	})
	return there
}

// remove deletes a device by name, as Liqo's agent or an operator would; false: it does not exist.
func (w *world) remove(link string) bool {
	if link == w.taken {
		w.taken = ""
	}
	d, err := netlink.LinkByName(link)
	return err == nil && netlink.LinkDel(d) == nil
}

func pick[T any](r *rand.Rand, all ...T) T { return all[r.IntN(len(all))] }

// edit makes a random change. It returns a description, and the devices that it removed.
func (w *world) edit() (what string, lost []string) {
	w.clock++
	p := pick(w.r, w.peerings...)
	renew := func() { // as Liqo's controllers would recreate it
		p.link, p.gatewayIP, p.mtu, p.id = fmt.Sprint("liqo.", string(rune('a'+w.r.IntN(8)))),
			fmt.Sprint("172.18.0.", 10+w.r.IntN(4)), 1340, w.clock
		p.fabric, p.tunnel, p.deleting, p.made = true, true, false, w.clock
		w.write(p)
	}
	switch n := w.r.IntN(13); {
	case n == 0 || !p.fabric && !p.tunnel:
		renew()
		return "new " + p.name, nil
	case n == 1:
		p.gatewayIP = fmt.Sprint("172.18.0.", 10+w.r.IntN(4))
	case n == 2:
		p.mtu = 1200 + w.r.IntN(200)
	case n == 3:
		p.link = fmt.Sprint("liqo.", string(rune('a'+w.r.IntN(8)))) // maybe another peering's name
	case n == 4: // in two writes, between which an id exists twice
		q := pick(w.r, w.peerings...)
		p.id, q.id = q.id, p.id
		w.write(q)
	case n == 5 && !w.moved: // once a step: nothing would show whether the agent has seen each of several changes
		w.moved = true
		w.address = pick(w.r, "10.80.0.2", "10.80.0.3")
		w.writeNode()
		return "node " + w.address, nil
	case n == 6:
		switch w.r.IntN(4) {
		case 0:
			p.gatewayIP = "nowhere"
		case 1:
			p.mtu = 40
		case 2:
			p.link = "liqo.far-too-long-a"
		case 3:
			p.id = 1 << 24
		}
	case n == 7: // a peering ends as under Liqo
		p.deleting = true
		w.write(p)
		if w.wanted()[p.link] == "" && w.remove(p.link) {
			lost = append(lost, p.link)
		}
		p.fabric, p.tunnel, p.deleting = false, false, false
	case n == 8: // a wanted device is deleted: it must come back
		if w.remove(p.link) {
			lost = append(lost, p.link)
		}
		return "ip link del " + p.link, lost
	case n == 9:
		p.fabric = !p.fabric
	case n == 10:
		p.tunnel = !p.tunnel
	case n == 11 && w.taken == "": // a name that another program has taken first
		name := fmt.Sprint("liqo.", string(rune('a'+w.r.IntN(8))))
		if _, err := netlink.LinkByName(name); err == nil {
			return "nothing", nil
		}
		if w.wanted()[name] != "" || addVeth(name, takenPeer) != nil {
			return "nothing", nil
		}
		w.taken = name
		return name + " of somebody else", nil
	case w.taken != "":
		name := w.taken
		w.taken = ""
		w.remove(name)
		return name + " of somebody else is gone", nil
	}
	w.write(p)
	return fmt.Sprintf("%+v", *p), lost
}

// TestRandomEdits: after any changes of the resources and restarts of the agent, its links are
// exactly those that the resources ask for, routes of others through them stay, and nothing else
// changes.
func TestRandomEdits(t *testing.T) {
	need.Namespace(t)
	f, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	need.Kernel(t, "tun", err)
	f.Close()
	steps, seed := 80, uint64(25)
	if os.Getenv("CULVERT_LONG") != "" {
		steps, seed = 500, uint64(time.Now().UnixNano())
	}
	t.Logf("%d steps of seed %d", steps, seed)
	w := &world{t: t, r: rand.New(rand.NewPCG(seed, 0)), address: "10.80.0.2",
		last: peering{name: "last", link: "liqo.z", gatewayIP: "172.18.0.9", gateway: "10.80.1.99", fabric: true,
			tunnel: true}}
	kinds := map[schema.GroupVersionResource]string{}
	for _, kind := range []string{liqo.KindFabric, liqo.KindTunnel, liqo.KindNode} {
		kinds[objects.LiqoResource(kind)] = kind + "List"
	}
	kinds[objects.Pods] = "PodList"
	w.api = fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds)
	w.api.PrependWatchReactor("*", func(a kubetesting.Action) (bool, watch.Interface, error) {
		i, err := w.api.Tracker().Watch(a.GetResource(), a.GetNamespace())
		w.watches.Add(1)
		return true, i, err
	})
	w.machineOfOthers()
	w.writeNode()
	for i := range 6 {
		w.peerings = append(w.peerings, &peering{name: fmt.Sprint("cluster-", i), gateway: fmt.Sprint("10.80.1.", 1+i)})
	}
	_, _, before := w.machine()
	var had map[string]int
	restarts := 0
	for step := range steps {
		var did, lost []string
		down := w.stop == nil || w.r.IntN(4) == 0
		if down && w.stop != nil {
			w.stop()
			restarts++
		}
		w.moved = false
		for range 1 + w.r.IntN(3) {
			what, gone := w.edit()
			did, lost = append(did, what), append(lost, gone...)
		}
		w.last.id, w.last.mtu = 1<<20+step, 1000+step
		w.write(&w.last)
		if down {
			w.begin()
		}
		want := w.wanted()
		var own map[string]string
		var index map[string]int
		var others []string
		eventually(t, fmt.Sprintf("step %d, agent down %t: %s", step, down, strings.Join(did, "; ")), func() error {
			own, index, others = w.machine()
			if !maps.Equal(own, want) {
				return fmt.Errorf("links\n%s\nwant\n%s", lines(own), lines(want))
			}
			return nil
		})
		if !slices.Equal(others, before) {
			t.Fatalf("step %d: %s: the machine has\n%s\nhad\n%s", step, did, others, before)
		}
		for name, i := range had {
			if index[name] == i && !w.routed(name, i) {
				t.Fatalf("step %d: %s: %s has lost its route", step, did, name)
			}
		}
		// A link that was wanted all the time must still be the same device, unless somebody
		// removed it.
		for name, i := range index {
			if !w.routed(name, i) {
				need.NoError(t, netlink.RouteAdd(&netlink.Route{LinkIndex: i, Dst: prefix(name)}))
			}
		}
		for name, i := range had {
			if index[name] != 0 && index[name] != i && !slices.Contains(lost, name) && !w.replaced(did) {
				t.Fatalf("step %d: %s: %s is another device", step, did, name)
			}
		}
		had = index
	}
	w.stop()
	t.Logf("%d restarts of the agent", restarts)
	if _, err := links.Remove(); err != nil {
		t.Fatal(err)
	}
	if own, _, others := w.machine(); len(own) > 0 || !slices.Equal(others, before) {
		t.Errorf("at the end %v\n%s\nhad\n%s", own, others, before)
	}
}

// replaced reports whether one of several edits removed a link that another one restored.
func (w *world) replaced(did []string) bool { return len(did) > 1 }

func lines(m map[string]string) (text string) {
	for _, name := range slices.Sorted(maps.Keys(m)) {
		text += name + ": " + m[name] + "\n"
	}
	return text
}

// addVeth makes a veth link and brings both ends up.
func addVeth(name, far string) error {
	v := netlink.NewVeth(netlink.NewLinkAttrs())
	v.Name, v.PeerName = name, far
	if err := netlink.LinkAdd(v); err != nil {
		return err
	}
	peer, err := netlink.LinkByName(far)
	if err == nil {
		err = netlink.LinkSetUp(peer)
	}
	return errors.Join(err, netlink.LinkSetUp(v))
}

// machineOfOthers adds what others have on a node: the gateways' network, a link with a name like
// Liqo's, routes and a rule.
func (w *world) machineOfOthers() {
	w.t.Helper()
	// The kernel gives each new link IPv6 addresses and routes at unpredictable times.
	const ipv6 = "/proc/sys/net/ipv6/conf/default/disable_ipv6" // of this namespace
	if was, err := os.ReadFile(ipv6); err == nil {
		need.NoError(w.t, os.WriteFile(ipv6, []byte("1"), 0))
		w.t.Cleanup(func() { need.NoError(w.t, os.WriteFile(ipv6, was, 0)) })
	}
	for i, name := range []string{"ul0", "liqo.stranger"} {
		need.NoError(w.t, addVeth(name, fmt.Sprint("far", i)))
		w.t.Cleanup(func() { w.remove(name) })
		d, err := netlink.LinkByName(name)
		need.NoError(w.t, err)
		need.NoError(w.t, netlink.AddrAdd(d, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(172, byte(18+i), 0, 2),
			Mask: net.CIDRMask(24, 32)}}))
		need.NoError(w.t, netlink.LinkSetUp(d))
		need.NoError(w.t, netlink.RouteAdd(&netlink.Route{LinkIndex: d.Attrs().Index,
			Dst: &net.IPNet{IP: net.IPv4(10, byte(200+i), 0, 0), Mask: net.CIDRMask(16, 32)}, Table: 77}))
	}
	rule := netlink.NewRule()
	rule.Table, rule.Priority, rule.Mark = 77, 1000, 5
	need.NoError(w.t, netlink.RuleAdd(rule))
	w.t.Cleanup(func() { netlink.RuleDel(rule) })
	w.t.Cleanup(func() { links.Remove() })
}
