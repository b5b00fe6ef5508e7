package peering

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"culvert/integration/need"
	"culvert/kube"
)

// ends are all that judges the Peerings milan and turin of one cluster: both gateways, and the
// agent of node2. Milan is older.
type ends struct {
	t        *testing.T
	peerings map[string]*Peering
	nodes    map[string]*node
	services map[string]*clusterIPs
	gateways map[string]*Gateway
	agent    *Node
}

var turinText = strings.NewReplacer("name: milan,", "name: turin,", "u-milan", "u-turin", "peer: milan", "peer: turin",
	"xTIBA5rb", "AAAAA5rb", "milan.example", "turin.example", "10.80.0.0/24", "10.81.0.0/24", "10.61.0.0/16",
	"10.62.0.0/16", "10.71.0.0/24", "10.72.0.0/24", "2026-11-23", "2026-11-24").Replace(romeToMilan)

func newEnds(t *testing.T) *ends {
	e := &ends{t: t, peerings: map[string]*Peering{}, nodes: map[string]*node{}, services: map[string]*clusterIPs{}}
	for n := 1; n <= 2; n++ {
		e.nodes[fmt.Sprint("node", n)] = nodeObject(t, n)
	}
	e.serve("10.96.0.1")
	e.restart()
	e.change("milan")
	e.change("turin")
	return e
}

// serve has a Service take an address.
func (e *ends) serve(address string) {
	e.services["default/web"] = readService(object(e.t, "{spec: {clusterIPs: ["+address+"]}}"))
}

// restart replaces all processes by new ones.
func (e *ends) restart() {
	e.gateways, e.agent = map[string]*Gateway{}, NewNode("node2", nil)
	for _, name := range []string{"milan", "turin"} {
		g := NewGateway(Self{Name: name, Namespace: "culvert", Node: "node1", Pod: "gw-" + name,
			Addresses: []netip.Addr{netip.MustParseAddr("10.244.1.9")}})
		g.nodesKnown, g.othersKnown = true, true
		e.gateways[name] = g
	}
}

// change gives a Peering its first spec with changes, and keeps its status.
func (e *ends) change(name string, with ...string) {
	text := romeToMilan
	if name == "turin" {
		text = turinText
	}
	p := PeeringOf(object(e.t, text, with...))
	if was := e.peerings[name]; was != nil {
		p.Status = was.Status
	}
	e.peerings[name] = p
}

// run lets all processes plan until nothing changes, and returns by Peering under which CIDR the
// pods of the peer are seen at both ends, and what the gateway says is wrong.
func (e *ends) run() (seen, faults map[string]string) {
	e.t.Helper()
	var agent *NodePlan
	for range 3 {
		seen, faults = map[string]string{}, map[string]string{}
		written := map[string]*Peering{}
		for name, g := range e.gateways {
			g.nodes, g.services, g.others = e.nodes, e.services, maps.Clone(e.peerings)
			delete(g.others, name)
			g.put(e.peerings[name])
			d := g.Plan()
			p := *e.peerings[name]
			p.Status = d.Status
			written[name], faults[name] = &p, strings.Join(d.Faults, "; ")
			if d.Peering != nil {
				seen[name] = d.Peering.Remote[0].Remapped.String()
			}
		}
		e.peerings = written
		e.agent.peerings, e.agent.nodes, e.agent.services = e.peerings, e.nodes, e.services
		agent = e.agent.Plan()
	}
	carried := map[string]string{}
	for _, p := range agent.Peers {
		pods := slices.IndexFunc(p.Routes.Remote, func(c netip.Prefix) bool { return c.Bits() == 16 })
		carried[p.Peering] = p.Routes.Remote[max(pods, 0)].String()
		if len(p.Routes.Remote) != 2 || p.Behind {
			e.t.Errorf("%s: the agent has routes to %v, and is behind: %t", p.Peering, p.Routes.Remote, p.Behind)
		}
	}
	if !maps.Equal(carried, seen) {
		e.t.Errorf("the agent has %v, and the gateways %v; refused: %v, faults: %v", carried, seen, agent.Refused,
			faults)
	}
	return seen, faults
}

// TestPeersOfOneFamilyEach: a cluster of both families has a peer of IPv4 alone, and one of IPv6
// alone. Each Peering carries what its peer has, in gateways and agents, and its status says so.
func TestPeersOfOneFamilyEach(t *testing.T) {
	e := newEnds(t)
	for n := 1; n <= 2; n++ {
		e.nodes[fmt.Sprint("node", n)] = readNode(object(t, fmt.Sprintf(nodeText, n),
			fmt.Sprintf("podCIDRs: [10.244.%d.0/24]", n),
			fmt.Sprintf("podCIDRs: [10.244.%d.0/24, 'fd00:244:0:%[1]d::/64']", n)))
	}
	e.change("turin", "internalCIDR: 10.81.0.0/24", "internalCIDR: 'fd81::/64'",
		"podCIDRs: [10.244.0.0/16], externalCIDR: 10.70.0.0/24",
		"podCIDRs: ['fd00:244::/56'], externalCIDR: 'fd70::/112'",
		"{cidr: 10.244.0.0/16, remap: 10.62.0.0/16}", "{cidr: 'fd00:244::/56', remap: 'fd62::/56'}",
		"{cidr: 10.70.0.0/24, remap: 10.72.0.0/24}", "{cidr: 'fd70::/112', remap: 'fd72::/112'}")
	for range 2 {
		seen, faults := e.run()
		if text(t, seen) != `{"milan":"10.61.0.0/16","turin":"fd62::/56"}` ||
			text(t, faults) != `{"milan":"","turin":""}` {
			t.Errorf("seen %v, faults %v", seen, faults)
		}
		for name, want := range map[string]string{"milan": "10.61.0.0/16 10.80.0.3", "turin": "fd62::/56 fd81::3"} {
			st := e.peerings[name].Status
			if got := st.PodsSeenAs + " " + st.Nodes[1].Address; got != want {
				t.Errorf("%s: %s, want %s", name, got, want)
			}
		}
		for _, p := range e.agent.Plan().Peers {
			if six := p.Peering == "turin"; p.Link.Address.V6.IsValid() != six || p.Link.Address.V4.IsValid() == six {
				t.Errorf("%s: the link has %v", p.Peering, p.Link.Address)
			}
		}
		e.restart()
	}
}

// TestFirstComeStays: what one Peering, a Node or a Service has is not taken by a later change of a
// Peering, nor is what a Peering has by what they claim later. Gateways and agents agree, before
// and after all of them start again, and the fault is that of who came later, and names both.
func TestFirstComeStays(t *testing.T) {
	const milan, turin = "remap: 10.61.0.0/16", "remap: 10.62.0.0/16"
	claim := func(e *ends, address, pods string) {
		e.nodes["node3"] = readNode(object(e.t, fmt.Sprintf(nodeText, 3), "172.18.0.3", address, "10.244.3.0/24", pods))
	}
	for _, c := range []struct {
		name   string
		change func(*ends)
		fault  string // of milan, or with turin before it
		milan  string
	}{
		{"nothing", func(*ends) {}, "", ""},
		{"a change", func(e *ends) { e.change("milan", milan, "remap: 10.63.0.0/16") }, "", "10.63.0.0/16"},
		{"onto the younger Peering", func(e *ends) { e.change("milan", milan, "remap: 10.62.0.0/16") },
			"spec.remote.podCIDRs[0].remap: 10.62.0.0/16 overlaps spec.remote.podCIDRs[0].remap of Peering turin " +
				"(10.62.0.0/16), which had it first; choose a remap that nothing uses", ""},
		{"onto the older Peering", func(e *ends) { e.change("turin", turin, "remap: 10.61.0.0/16") },
			"turin: spec.remote.podCIDRs[0].remap: 10.61.0.0/16 overlaps spec.remote.podCIDRs[0].remap of Peering milan " +
				"(10.61.0.0/16), which had it first", ""},
		{"onto another field", func(e *ends) { e.change("milan", "10.80.0.0/24", "10.72.0.0/24") },
			"spec.internalCIDR: 10.72.0.0/24 overlaps spec.remote.externalCIDR.remap of Peering turin (10.72.0.0/24), " +
				"which had it first; choose a CIDR that nothing uses", ""},
		{"onto what a Peering has whose own change is refused", func(e *ends) {
			e.change("turin", turin, "remap: 0.0.0.0/0")
			e.change("milan", milan, "remap: 10.62.0.0/16")
		}, "10.62.0.0/16 overlaps spec.remote.podCIDRs[0].remap of Peering turin (10.62.0.0/16), which had it first", ""},
		{"onto what a Peering gives up", func(e *ends) {
			e.change("turin", turin, "remap: 10.63.0.0/16")
			e.change("milan", milan, "remap: 10.62.0.0/16")
		}, "", "10.62.0.0/16"},
		{"both to one CIDR at once", func(e *ends) {
			e.change("turin", turin, "remap: 10.63.0.0/16")
			e.change("milan", milan, "remap: 10.63.0.0/16")
		}, "turin: spec.remote.podCIDRs[0].remap: 10.63.0.0/16 overlaps spec.remote.podCIDRs[0].remap of Peering milan", "10.63.0.0/16"},
		{"another one's key", func(e *ends) { e.change("milan", "xTIBA5rb", "AAAAA5rb") },
			"spec.publicKey: Peering turin has it too, and had it first; give the key of this one's peer", ""},
		{"onto a Service", func(e *ends) { e.change("milan", milan, "remap: 10.96.0.0/16") },
			"spec.remote.podCIDRs[0].remap: 10.96.0.0/16 contains 10.96.0.1, the address of Service default/web; " +
				"choose a remap that nothing uses", ""},
		{"onto a node", func(e *ends) { e.change("milan", milan, "remap: 172.18.0.0/16") },
			"spec.remote.podCIDRs[0].remap: 172.18.0.0/16 contains 172.18.0.1, an address of node node1", ""},
		{"a node with a remote address", func(e *ends) { claim(e, "10.61.3.4", "10.244.3.0/24") },
			"Node node3: status.addresses[0]: 10.61.3.4 is in spec.remote.podCIDRs[0].remap of Peering milan, 10.61.0.0/16, " +
				"which had it first; give the node an address elsewhere", ""},
		{"a node with an internal address", func(e *ends) { claim(e, "10.80.0.7", "10.244.3.0/24") },
			"Node node3: status.addresses[0]: 10.80.0.7 is in spec.internalCIDR of Peering milan", ""},
		{"a node with remote pods", func(e *ends) { claim(e, "172.18.0.3", "10.61.3.0/24") },
			"Node node3: spec.podCIDRs[0]: 10.61.3.0/24 overlaps spec.remote.podCIDRs[0].remap of Peering milan, " +
				"10.61.0.0/16, which had it first; give the node a CIDR elsewhere", ""},
		{"a Service with a remote address", func(e *ends) { e.serve("10.61.0.7") },
			"Service default/web: spec.clusterIPs: 10.61.0.7 is in spec.remote.podCIDRs[0].remap of Peering milan, " +
				"10.61.0.0/16, which had it first; give the Service an address elsewhere", ""},
		{"a node with a remote address, and then another change", func(e *ends) {
			claim(e, "10.61.3.4", "10.244.3.0/24")
			e.run()
			e.change("milan", "mtu: 1400", "mtu: 1300")
		}, "Node node3: status.addresses[0]: 10.61.3.4", ""},
	} {
		e := newEnds(t)
		e.run()
		c.change(e)
		for _, when := range []string{"", "after a start: "} {
			seen, faults := e.run()
			if c.milan == "" {
				c.milan = "10.61.0.0/16"
			}
			of, fault := "milan", c.fault
			if after, ok := strings.CutPrefix(c.fault, "turin: "); ok {
				of, fault = "turin", after
			}
			if !strings.Contains(faults[of], fault) || (fault == "") != (faults[of] == "") ||
				seen["milan"] != c.milan || seen["turin"] == "" {
				t.Errorf("%s: %s%v, faults %q; want milan as %s, and of %s %q", c.name, when, seen, faults, c.milan, of,
					fault)
			}
			e.restart()
		}
	}
}

// TestSomebodyElseHadIt: a new Peering gets nothing that another one, a Node or a Service has, and
// neither a gateway nor an agent. Once they give it up, it gets both.
func TestSomebodyElseHadIt(t *testing.T) {
	for _, remap := range []string{"10.61.0.0/16", "172.18.0.0/16", "10.96.0.0/16"} {
		e := newEnds(t)
		e.change("turin", "remap: 10.62.0.0/16", "remap: "+remap)
		for _, when := range []string{"", "after a start: "} {
			if seen, faults := e.run(); seen["milan"] != "10.61.0.0/16" || seen["turin"] != "" ||
				faults["milan"] != "" || !strings.HasPrefix(faults["turin"], "spec.remote.podCIDRs[0].remap: "+remap) {
				t.Errorf("%s%s: %v, faults %q", when, remap, seen, faults)
			}
			e.restart()
		}
		e.change("milan", "remap: 10.61.0.0/16", "remap: 10.64.0.0/16")
		e.nodes = map[string]*node{"node2": {addresses: []netip.Addr{netip.MustParseAddr("192.0.2.2")}}}
		e.serve("192.0.2.3")
		if seen, faults := e.run(); seen["milan"] != "10.64.0.0/16" || seen["turin"] != remap {
			t.Errorf("%s is free: %v, faults %q", remap, seen, faults)
		}
	}
}

// TestAcceptedIsNoWarrant: what a gateway says it has, beyond what its Peering's spec says, takes
// nothing from another Peering, a Node or a Service when agents start.
func TestAcceptedIsNoWarrant(t *testing.T) {
	for _, taken := range []string{"10.62.0.0/16", "172.18.0.0/16", "10.96.0.0/16"} {
		for _, spec := range []string{"remap: 10.61.0.0/16", "remap: 0.0.0.0/0"} {
			e := newEnds(t)
			e.run()
			before := e.agent.Plan()
			e.change("milan", "remap: 10.61.0.0/16", spec)
			p := *e.peerings["milan"]
			said := *p.Status.Accepted
			said.Remote.PodCIDRs = []SpecRemap{{CIDR: "10.244.0.0/16", Remap: taken}}
			p.Status.Accepted = &said
			e.peerings["milan"] = &p
			for _, agent := range []*Node{e.agent, NewNode("node2", nil)} {
				agent.peerings, agent.nodes, agent.services = e.peerings, e.nodes, e.services
				d := agent.Plan()
				if i := slices.IndexFunc(d.Peers, func(p NodePeer) bool { return p.Peering == "turin" }); i < 0 ||
					fmt.Sprint(d.Peers[i]) != fmt.Sprint(before.Peers[1]) {
					t.Errorf("%s, %s: turin: %+v, %v", taken, spec, d.Peers, d.Refused)
				}
				if text(t, d.Peers) != strings.ReplaceAll(text(t, d.Peers), taken, "") && taken != "10.62.0.0/16" {
					t.Errorf("%s, %s: %+v, %v", taken, spec, d.Peers, d.Refused)
				}
			}
		}
	}
}

// TestOthersAreRead: a gateway that starts judges no change before it has read who may have what it
// takes. It does not wait for what an older manifest does not let it read.
func TestOthersAreRead(t *testing.T) {
	inCluster(t, func(t *testing.T, c *cluster) {
		defer func() { c.stop() }()
		turin := object(t, turinText)
		turin.Object["status"] = map[string]any{"accepted": turin.Object["spec"]}
		need.NoError(t, c.Tracker().Create(paths[KindPeering], turin, "culvert"))
		synctest.Wait()
		check := func(when, remap, fault string) {
			t.Helper()
			has, said := c.config.Load(), c.condition(Accepted)
			if has == nil || has.Remote[0].Remapped.String() != remap || !strings.Contains(said.Message, fault) ||
				(said.Status == "True") != (fault == "") {
				t.Errorf("%s: %+v, %s", when, has, text(t, c.status()))
			}
		}
		const fault = "10.62.0.0/16 overlaps spec.remote.podCIDRs[0].remap of Peering turin (10.62.0.0/16), which had it first"
		c.remap("10.62.0.0/16")
		check("a change onto turin", "10.61.0.0/16", fault)
		c.runAgain()
		check("a start", "10.61.0.0/16", fault)
		c.stop()
		c.hides.Store(error(apierrors.NewServiceUnavailable("slow")))
		c.runAgain()
		if has := c.config.Load(); has != nil {
			t.Errorf("before all Peerings are read, the gateway has %+v", has)
		}
		c.hides.Store(error(apierrors.NewForbidden(paths[KindPeering].GroupResource(), "", nil)))
		time.Sleep(time.Minute)
		synctest.Wait()
		check("an older manifest", "10.62.0.0/16", "")
	})
}

// TestStartKnowsWhoWasFirst: a gateway that starts decides who had an address first only once it
// has read which agents use which addresses, and all Pods. What nodes have disputed before counts,
// too.
func TestStartKnowsWhoWasFirst(t *testing.T) {
	inCluster(t, func(t *testing.T, c *cluster) {
		defer func() { c.stop() }()
		c.stop()
		c.update(kindNode, object(t, fmt.Sprintf(nodeText, 1), "172.18.0.1}",
			"172.18.0.1}, {type: ExternalIP, address: 172.18.0.2}"))
		c.runAgain()
		if has := c.config.Load(); has == nil || len(has.Geneve.Nodes) != 2 || !c.status().Nodes[0].Disputed {
			t.Errorf("node1 lists the address of node2's agent: %+v, %s", has, text(t, c.status()))
		}
		c.stop()
		u := c.peering().DeepCopy()
		need.NoError(t, unstructured.SetNestedField(u.Object, "Pods", "spec", "podsFrom"))
		c.update(KindPeering, u)
		for n, pod := range []string{"{name: thief, namespace: aaa, creationTimestamp: \"2026-11-23T11:00:00Z\"}",
			"{name: victim, namespace: shop, creationTimestamp: \"2026-11-23T12:00:00Z\"}"} {
			c.create(kindPod, fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: %s, spec: {nodeName: node%d}, "+
				"status: {phase: Running, podIPs: [{ip: 10.244.9.2}]}}", pod, n+1))
		}
		c.runAgain()
		has := c.config.Load()
		if want := netip.MustParsePrefix("10.244.9.2/32"); has == nil || len(has.Geneve.Nodes) != 2 ||
			!slices.Equal(has.Geneve.Nodes[1].PodCIDRs, []netip.Prefix{want}) {
			t.Errorf("an older pod of node1 claims the address of one of node2: %+v, %s", has, text(t, c.status()))
		}
	})
}

// TestStandbyAgrees: a gateway that is not the active one goes on with what that one has accepted,
// although it has heard first of a Service in a new CIDR of the Peering.
func TestStandbyAgrees(t *testing.T) {
	inCluster(t, func(t *testing.T, c *cluster) {
		c.rests.Store(true)
		c.create(kindService, "{apiVersion: v1, kind: Service, metadata: {name: late, namespace: shop}, "+
			"spec: {clusterIP: 10.62.0.7, clusterIPs: [10.62.0.7]}}")
		synctest.Wait()
		c.remap("10.62.0.0/16")
		if has := c.config.Load().Remote[0].Remapped.String(); has != "10.61.0.0/16" {
			t.Errorf("before the active one says anything: %s", has)
		}
		u := c.peering().DeepCopy()
		need.NoError(t, unstructured.SetNestedField(u.Object, u.Object["spec"], "status", "accepted"))
		c.update(KindPeering, u)
		time.Sleep(2 * kube.Tick)
		synctest.Wait()
		if has := c.config.Load().Remote[0].Remapped.String(); has != "10.62.0.0/16" {
			t.Errorf("the active one has accepted the change, and the standby goes on with %s", has)
		}
	})
}

// TestMadeAgain: of a Peering that is deleted and made again, nothing goes on, even if no plan is
// made in between: its peer may be one to be cut off.
func TestMadeAgain(t *testing.T) {
	e := newEnds(t)
	e.run()
	e.change("milan", "u-milan", "u-again", "remap: 10.61.0.0/16", "remap: 0.0.0.0/0")
	e.peerings["milan"].Status = Status{}
	if seen, faults := e.run(); seen["milan"] != "" || faults["milan"] == "" ||
		e.peerings["milan"].Status.Accepted != nil {
		t.Errorf("with a fault: %v, %v", seen, faults)
	}
	e.change("milan", "u-milan", "u-again", "remap: 10.61.0.0/16", "remap: 10.63.0.0/16")
	if seen, faults := e.run(); seen["milan"] != "10.63.0.0/16" || faults["milan"] != "" {
		t.Errorf("without one: %v, %v", seen, faults)
	}
}
