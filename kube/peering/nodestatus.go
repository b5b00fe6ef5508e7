package peering

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sort"

	"culvert/gateway/control"
	"culvert/gateway/node/links"
	"culvert/gateway/node/remote"
	"culvert/kube"
)

// Show adds to n which Peerings are refused, what others wait for, and what is wrong with those
// that are ready.
func (s *NodeSource) Show(n *control.NodeStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shown == nil {
		n.Waiting = append(n.Waiting, "the API server's lists of Peerings, Nodes and Services")
	}
	if refused := s.loop.Causes.Refused(); refused != "" {
		n.Waiting = append(n.Waiting, refused+": apply the manifest of this version (culvert kube template)")
	}
	for _, p := range s.shown {
		switch {
		case s.refused[p.Name] != "":
			n.LeftOut = append(n.LeftOut, control.LeftOut{Resource: KindPeering + "/" + s.peeringsNamespace + "/" +
				p.Name, Reason: p.Message})
		case !p.Ready:
			n.Waiting = append(n.Waiting, KindPeering+" "+p.Name+": "+p.Message)
		case p.Message != "":
			n.Findings = append(n.Findings, control.Finding{Level: "warning", Kind: KindPeering, Of: p.Name,
				Text: KindPeering + " " + p.Name + ": " + p.Message})
		}
	}
}

// status returns the state of each Peering on the node.
func (d *NodePlan) status(all []links.Status, routes []remote.Status) *NodeStatus {
	found := map[string]NodePeering{}
	for _, messages := range []map[string]string{d.Refused, d.Waiting} {
		for name, why := range messages {
			found[name] = NodePeering{Name: name, Message: why}
		}
	}
	for _, p := range d.Peers {
		n := NodePeering{Name: p.Peering}
		l := slices.IndexFunc(all, func(l links.Status) bool { return l.Link == p.Link })
		r := slices.IndexFunc(routes, func(r remote.Status) bool { return r.Name == p.Peering })
		switch {
		case l < 0 || all[l].State == links.Pending:
			n.Message = "the link is being made"
		case all[l].State != links.Carried:
			n.Message = cmp.Or(errorText(all[l].Err),
				fmt.Sprintf("%s is a link of the kernel's; remove it: ip link del %[1]s", p.Link.Name))
		case r < 0:
			n.Message = "the routes are being made"
		case routes[r].Err != nil:
			n.Message = routes[r].Err.Error()
		case p.Behind:
			n.Message = d.Refused[p.Peering]
		default:
			n.Ready, n.Message = true, cmp.Or(d.Refused[p.Peering], routes[r].Warning, all[l].Warning)
		}
		found[p.Peering] = n
	}
	st := &NodeStatus{Peerings: []NodePeering{}}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		n := found[name]
		n.Message = kube.Cut(n.Message, maxMessage)
		st.Peerings = append(st.Peerings, n)
	}
	for _, p := range st.Peerings {
		if p.Message != "" {
			st.Message = p.Name + ": " + p.Message
			break
		}
	}
	return st
}

// addRemoved adds the Peerings that are gone or refused but still have links or routes on the node.
// Uninstalling waits until there are none.
func (s *NodeSource) addRemoved(status *NodeStatus) {
	s.mu.Lock()
	allLinks, allRoutes := s.linkStatuses, s.routeStatuses // replaced as a whole
	s.mu.Unlock()
	add := func(name string) {
		if !slices.ContainsFunc(status.Peerings, func(p NodePeering) bool { return p.Name == name }) {
			status.Peerings = append(status.Peerings,
				NodePeering{Name: name, Message: "link, routes and exception are being removed"})
		}
	}
	for _, l := range allLinks {
		if l.Link.Of != "" { // otherwise an earlier run made it
			add(l.Link.Of)
		}
	}
	for _, r := range allRoutes {
		add(r.Name)
	}
	all := status.Peerings
	sort.Slice(all, func(i, j int) bool { return all[i].Name < all[j].Name })
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
