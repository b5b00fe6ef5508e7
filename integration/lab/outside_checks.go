package lab

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"culvert/integration/lab/plan"
	"culvert/integration/lab/probe"
)

// OutsideChecks are the promises about packets whose addresses are not pods'.
func OutsideChecks(l *Lab) []Check {
	return append(l.OfFamilies(l.sourcesChecks), l.logCheck("rule-drops"))
}

// sourcesChecks are the checks of one family.
func (l *Lab) sourcesChecks(p *plan.Plan) []Check {
	first := l.PairOf(p, "rome/pod1", "milan/pod1")
	return slices.Concat([]Check{firstContact(first)}, l.nodePortChecks(p), l.sourceChecks(p), l.mappingChecks(p),
		l.serviceChecks(p), l.servedChecks(p),
		l.sctpChecks(p), l.fragmentChecks(p), l.errorChecks(p), l.reloadChecks(p))
}

// RefusedChecks are OutsideChecks, and the effect of refused files on everything.
func RefusedChecks(l *Lab) []Check {
	all := OutsideChecks(l)
	return slices.Insert(all, len(all)-1, Check{"reload, bad files", "both gateways", l.checkRefused})
}

// nodePortChecks are services offered by a cluster to the outside that end at a remote pod.
func (l *Lab) nodePortChecks(p *plan.Plan) []Check {
	cluster := l.nodePort(p, "rome/client", "rome/node1", "milan/pod1")
	local := l.nodePort(p, "rome/client", "rome/node1", "milan/pod1")
	local.keepClient = true
	both := l.nodePort(p, "rome/client", "rome/node1", "milan/pod2")
	both.keepClient = true
	both.nodes = append(both.nodes, l.HostOf(p, "rome/node2"))
	back := l.nodePort(p, "milan/client", "milan/node2", "rome/pod1")
	back.keepClient = true
	vip := func(header func(client, entrance netip.AddrPort) []byte) *nodePortCheck {
		n := l.nodePort(p, "rome/client", "rome/node2", "milan/pod1")
		n.entrance, n.header = p[0].VIP, header
		return n
	}
	plain, v1, v2 := vip(nil), vip(proxyV1), vip(proxyV2)
	return []Check{
		{"nodeport cluster", cluster.path(), cluster.run},
		{"nodeport local", local.path(), local.run},
		{"nodeport local", back.path(), back.run},
		{"nodeport two nodes", both.path(), both.run},
		{"vip", plain.path(), plain.run},
		{"vip, proxy v1", v1.path(), v1.run},
		{"vip, proxy v2", v2.path(), v2.run},
	}
}

// sourceChecks test every kind of source that the other cluster cannot answer, and some that it
// can.
func (l *Lab) sourceChecks(p *plan.Plan) []Check {
	rome := &p[0]
	u := rome.Seen(rome.UnknownSource())
	node := &rome.Nodes[0]
	from := func(host string, local, want netip.Addr) *probe.Ends {
		e := l.PairOf(p, host, "milan/pod2")
		e.Local, e.WantSource = local, want
		return e
	}
	client := from("rome/client", rome.Client, u)
	if p.Is6() {
		client.Size = probe.SmallMTU // no router fragments the replies
	}
	var checks []Check
	for _, c := range []struct {
		name string
		e    *probe.Ends
	}{
		{"source podcidr .1", from("rome/node1", node.PodCIDR.Addr(), rome.Seen(node.PodCIDR.Addr()))},
		{"source node", from("rome/node1", node.Underlay, u)},
		{"source internal", from("rome/node1", node.Internal, u)},
		{"source outside", client},
		{"source behind pod", from("rome/pod1", rome.BehindFirst, u)},
	} {
		checks = append(checks, Check{c.name, c.e.Path(), c.e.CheckSource})
	}
	return append(checks, Check{"ping outside", client.Path(), client.CheckPing})
}

// mappingChecks reach an outside host by its external address, and the other way round.
func (l *Lab) mappingChecks(p *plan.Plan) []Check {
	var checks []Check
	for i := range p {
		c, peer := &p[i], &p[1-i]
		pod := l.HostOf(p, peer.Name+"/"+peer.Nodes[i].PodName)
		host := l.Host(c.Name + "/client").At(c.Mapped)
		in := &probe.Ends{From: pod, To: host, Target: c.Seen(c.MappedAs), WantSource: peer.Seen(pod.Address)}
		out := &probe.Ends{From: host, To: pod, Local: c.Mapped, Target: peer.Seen(pod.Address),
			WantSource: c.Seen(c.MappedAs)}
		checks = append(checks, Check{"mapped host, to", in.Path(), in.CheckSource}, Check{"mapped host, from",
			out.Path(), out.CheckSource})
	}
	return checks
}

// count formats how often each text was seen.
func count(seen map[string]int) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(seen)) {
		all = append(all, fmt.Sprintf("%s %d", name, seen[name]))
	}
	return strings.Join(all, ", ")
}

func (l *Lab) fragmentChecks(p *plan.Plan) []Check {
	e := l.PairOf(p, "rome/pod1", "milan/pod2")
	e.Local, e.WantSource = p[0].BehindFirst, p[0].Seen(p[0].UnknownSource())
	return []Check{{"fragment orders", e.Path(), e.CheckFragmentOrders}}
}
