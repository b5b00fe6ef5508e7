package verify

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"culvert/gateway/config"
	"culvert/kube/peering"
	"culvert/kube/verify/probe"
)

// shut reports whether the far end's gateway keeps the path shut: a pod is no export.
func (p *Path) shut() bool {
	return (p.Kind == KindPods || p.Kind == KindNodePort) && p.to.Peering.Admit == config.AdmitExports
}

// notAdmitted stands for the answer on a path that is shut.
const notAdmitted = "not admitted"

// admission judges what passes on paths that should be shut.
func (j *judge) admission(s *Side, passes []string) {
	if len(passes) > 0 {
		name := s.Peering.Metadata.Name
		j.wrong(s.name(),
			"packets reach pods that are not exported (%s), although spec.admit of Peering %s is Exports: see whether culvert status there "+
				"says what is admitted, and else upgrade the gateway: %s", firstOf(passes), name,
			s.kubectl("-n %s exec deploy/culvert-%s -- culvert status", peering.GatewayNamespace, name))
	}
}

// inside judges paths that do not leave their cluster.
func (j *judge) inside() {
	said := map[string]bool{}
	for _, p := range j.paths {
		if p.Kind == KindInside && p.Error != "" && !said[p.from.name()] {
			said[p.from.name()] = true
			j.wrong(p.from.name(),
				"a pod on node %s does not reach one on node %s of its own cluster%s (%s): see what the CNI says, or which "+
					"policy for the whole cluster keeps pods apart; culvert has no part in it", p.fromNode,
				p.toNode, p.by(), p.Error)
		}
	}
}

// answers judges paths between the clusters that got no answer.
func (j *judge) answers(a, b *Side) {
	failed, tried := map[string]int{}, map[string]int{}
	all, none := 0, 0
	for _, p := range j.paths {
		if p.Kind != KindPods {
			continue
		}
		all++
		for _, end := range []string{p.From, p.To} {
			tried[end]++
			if p.Error != "" {
				failed[end]++
			}
		}
		if p.Error != "" {
			none++
		}
	}
	if none == 0 || j.apart {
		return
	}
	for _, s := range []*Side{a, b} {
		for _, n := range s.Peering.Status.Nodes {
			at := s.of(n.Name)
			if tried[at] > 0 && failed[at] == tried[at] && !j.blamed[at] &&
				(none < all || !j.elsewhere(s, failed, tried)) && j.closed(s, n, none == all) {
				j.blamed[at] = true
			}
		}
	}
	said := map[string]bool{}
	status := a.kubectl("-n %s exec deploy/culvert-%s -- culvert status", peering.GatewayNamespace,
		a.Peering.Metadata.Name)
	explained := func(p *Path) bool { return j.blamed[p.From] || j.blamed[p.To] }
	if none == all && !slices.ContainsFunc(j.paths, func(p Path) bool { return p.Kind == KindPods && explained(&p) }) {
		j.wrong("",
			"no pod reaches one of the other cluster, although the gateways reach each other: see what they drop, and why: %s, and the same in %s",
			status, b.name())
		j.apart = true
		return
	}
	j.silent = silent(j.paths)
	for i := range j.paths {
		p := &j.paths[i]
		if p.Kind != KindPods || p.Error == "" || explained(p) {
			continue
		}
		if !j.silent[p.Family] {
			j.wrong("", "no answer on the way from %s (%s)", p.name(), p.Error)
		} else if !said[p.Family] {
			said[p.Family] = true
			j.wrong("", "no pod reaches one of the other cluster%s (%s), although the other family passes: does a firewall "+
				"drop it on the nodes, or a gateway, which says why: %s, and the same in %s", p.by(), p.Error, status,
				b.name())
		}
	}
}

// silent returns the families, where two are tried, in which no path between pods has an answer.
func silent(paths []Path) map[string]bool {
	all := map[string]bool{}
	for i := range paths {
		if p := &paths[i]; p.Kind == KindPods && p.Family != "" {
			before, tried := all[p.Family]
			all[p.Family] = p.Error != "" && (before || !tried)
		}
	}
	return all
}

// elsewhere reports whether several nodes of s have no working path, so that none of them alone is
// to blame.
func (j *judge) elsewhere(s *Side, failed, tried map[string]int) bool {
	other := 0
	for at := range tried {
		if failed[at] == tried[at] && j.of(at) == s {
			other++
		}
	}
	return other > 1
}

// of returns the side of a place.
func (j *judge) of(place string) *Side {
	for _, p := range j.paths {
		switch place {
		case p.From:
			return p.from
		case p.To:
			return p.to
		}
	}
	return nil
}

// closed reports what blocks the path between a node and its gateway, on which nothing passes.
// unsure: the fault may be on another node's path instead, so only certain causes are reported.
func (j *judge) closed(s *Side, n peering.Assigned, unsure bool) bool {
	t, _ := s.tunnel(n.Name, s.Peering.Metadata.Name)
	address := ""
	if t != nil {
		if address = t.Remote; s.gatewayNode() == n.Name {
			address = cmp.Or(t.Local, t.Remote)
		}
	}
	at, _ := netip.ParseAddr(address)
	for _, pod := range s.gateways(s.Peering.Metadata.Name) {
		for _, inbound := range []bool{true, false} {
			if names := refusing(s.Policies, pod.Labels, inbound, config.DefaultGenevePort, genevePort,
				at); len(names) > 0 {
				j.policy(s, names, inbound, config.DefaultGenevePort, fmt.Sprintf("node %s (%s)", n.Name, address))
				return true
			}
		}
	}
	if unsure {
		return false
	}
	j.wrong(s.name(),
		"nothing passes between node %s and the gateway on node %s: is UDP %d open both ways between %s and the gateway's pod? VNI %d has to be "+
			"the one at both ends", n.Name, cmp.Or(s.gatewayNode(), "?"), config.DefaultGenevePort,
		cmp.Or(address, "the node"), n.VNI)
	return true
}

// sources judges the source addresses that servers have seen.
func (j *judge) sources() {
	type sent struct {
		from *Side
		v6   bool
	}
	masqueraded := map[sent]map[string]string{} // by node: the address seen instead
	for i := range j.paths {
		p := &j.paths[i]
		if p.Error != "" || p.Want == "" || p.Seen == p.Want || p.Kind == KindName {
			continue
		}
		switch {
		case (p.Kind == KindPods || p.Kind == KindService) && p.Seen == p.unknown.String():
			of := sent{p.from, p.v6}
			if masqueraded[of] == nil {
				masqueraded[of] = map[string]string{}
			}
			masqueraded[of][p.fromNode] = p.Seen
		case p.Kind == KindNodePort:
			j.wrong(p.to.name(),
				"a pod on node %s sees %s where %s uses a NodePort of %s; it should see %s, which stands for what is no pod", p.toNode, p.Seen, p.from.name(), p.via, p.Want)
		case p.Kind == KindInside:
			j.wrong(p.to.name(),
				"a pod on node %s sees %s as %s, although both are in one cluster; it should see %s: see what the cluster's own network masquerades on node %s",
				p.toNode, p.from.of(p.fromNode), p.Seen, p.Want, p.fromNode)
		default:
			j.wrong(p.to.name(),
				"a pod on node %s sees %s as %s; it should see %s: do spec.local and spec.remote of both Peerings name the same CIDRs?", p.toNode, p.from.of(p.fromNode), p.Seen, p.Want)
		}
	}
	for _, of := range slices.SortedFunc(maps.Keys(masqueraded), func(x, y sent) int {
		return cmp.Or(cmp.Compare(x.from.name(), y.from.name()), cmp.Compare(familyOf(x.v6), familyOf(y.v6)))
	}) {
		s, seen := of.from, masqueraded[of]
		nodes := slices.Sorted(maps.Keys(seen))
		why := "the exception from the CNI's masquerade is missing or without effect"
		for _, n := range nodes {
			if _, p := s.tunnel(n, s.Peering.Metadata.Name); p != nil && p.Message != "" {
				why = p.Message
			}
		}
		table := "ip"
		if of.v6 {
			table = "ip6"
		}
		on := "node "
		if len(nodes) > 1 {
			on = "nodes "
		}
		j.wrong(s.name(),
			"packets of pods on %s leave with the node's address: %s sees %s, which stands for what is no pod. %s; see nft list table %s culvert there, "+
				"and under CNIs in docs/kubernetes.md what yours needs", on+firstOf(nodes), s.Peering.Peer,
			seen[nodes[0]], upper(why), table)
	}
}

func upper(text string) string {
	if text == "" || text[0] < 'a' || text[0] > 'z' {
		return text
	}
	return string(text[0]-'a'+'A') + text[1:]
}

// tooBig is ICMP for a packet that is too large, by whether it is that of IPv6.
var tooBig = map[bool]string{
	false: `"fragmentation needed" (type 3, code 4)`, true: `of IPv6, "packet too big" (type 2)`,
}

// sizes judges the largest packets that pass.
func (j *judge) sizes(a, b *Side) {
	least, small, all := 0, []string{}, 0
	mute := []*Path{}
	for i := range j.paths {
		p := &j.paths[i]
		if p.Kind != KindPods || p.Size == nil {
			continue
		}
		all++
		switch {
		case p.Size.Largest < p.most():
			small = append(small, p.name())
			if least == 0 || p.Size.Largest < least {
				least = p.Size.Largest
			}
		case p.Size.Above == probe.Vanished:
			mute = append(mute, p)
		}
	}
	where := firstOf(small)
	if len(small) == all {
		where = "on every way: look between the gateways"
	}
	mtu := max(a.Peering.MTU, b.Peering.MTU)
	switch {
	case len(small) > 0 && least == 0:
		j.wrong("", "not even small packets with DF pass, though TCP does (%s): does a firewall drop UDP?", where)
	case len(small) > 0 && least < peering.MinMTU6 && slices.ContainsFunc(j.paths, func(p Path) bool { return p.v6 }):
		j.wrong("",
			"packets of more than %d bytes do not pass (%s), and IPv6 needs %d: repair the network there, or leave IPv6 out of both Peerings",
			least, where, peering.MinMTU6)
	case len(small) > 0:
		j.wrong("",
			"packets of more than %d bytes do not pass (%s), and the Peerings say %d: repair the network there, or set spec.mtu of both to %d or less",
			least, where, mtu, least)
	case len(mute) > 0:
		j.wrong("",
			"a sender of %d bytes is not told that this is too much (%s): something drops ICMP %s, and large transfers hang",
			mute[0].Size.Largest+1, mute[0].name(), tooBig[mute[0].v6])
	}
	if a.Peering.MTU != b.Peering.MTU {
		j.wrong("", "spec.mtu is %d in %s and %d in %s; make them the same", a.Peering.MTU, a.name(),
			b.Peering.MTU, b.name())
	}
}

// rest reports the faults of paths that no other finding explains.
func (j *judge) rest() {
	for i := range j.paths {
		p := &j.paths[i]
		if p.Error != "" {
			if p.Kind == KindNodePort && p.Error != noService && !j.silent[p.Family] && !j.apart &&
				!j.blamed[p.From] && !j.blamed[p.To] && !j.blamed[p.from.of(p.via)] {
				j.wrong(p.from.name(),
					"%s: %s, although pods reach each other: see what kube-proxy, or what stands for it, says on node %s", p.name(), p.Error, cmp.Or(p.via, p.fromNode))
			}
			continue
		}
		if u := p.UDP; u != nil && u.Answered < u.Sent-fewDatagrams {
			j.wrong("", "%s: %d of %d datagrams were lost twice: look for a full or faulty link", p.name(),
				u.Sent-u.Answered, u.Sent)
		}
		if p.Bulk != nil && p.Bulk.Error != "" && (p.Size == nil || p.Size.Largest >= p.most()) {
			j.wrong("", "%s: many bytes do not arrive: %s", p.name(), p.Bulk.Error)
		}
	}
}
