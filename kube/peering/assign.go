package peering

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"culvert/gateway/config"
	"culvert/gateway/wgkey"
	"culvert/geneve"
	"culvert/nat/rules"
)

// assign gives each Node a VNI and an internal address. Assigned ones stay as long as the Peering's
// internal CIDRs do.
func (g *Gateway) assign(d *Plan) []Assigned {
	p := g.good
	have := map[string]Assigned{}
	vnis, addresses := map[uint32]bool{}, map[rules.Pair]bool{}
	for _, a := range g.peering.Status.Nodes {
		at, ok := p.NodeAddress(a.Address)
		if g.nodes[a.Name] == nil || a.VNI == 0 || a.VNI > maxVNI || vnis[a.VNI] || !ok || addresses[at] {
			continue
		}
		have[a.Name], vnis[a.VNI], addresses[at] = a, true, true
	}
	all := []Assigned{}
	next, room := uint32(0), p.room()
	for _, name := range slices.Sorted(maps.Keys(g.nodes)) {
		if a, ok := have[name]; ok {
			all = append(all, a)
			continue
		}
		a, ok := Assigned{Name: name}, false
		for !ok && next < room {
			next++
			at, _ := p.nthNode(next + 1)
			a.VNI, a.Address = next, at.First().String()
			ok = !vnis[a.VNI] && !addresses[at]
		}
		if !ok {
			d.fault("", "%s: %v has no address left for node %s", p.internalField(0), p.Internal[0], name)
			continue
		}
		all = append(all, a)
	}
	return all
}

// room returns how many nodes the internal CIDRs have addresses for: all but the network's, the
// gateway's and the last one.
func (p *Peering) room() uint32 {
	room := uint32(maxVNI)
	for _, c := range p.Internal {
		if bits := c.Addr().BitLen() - c.Bits(); bits < 24 {
			room = min(room, 1<<bits-3)
		}
	}
	return room
}

// maxVNI is the largest VNI of a Geneve header (RFC 8926, Section 3.4).
const maxVNI = 1<<24 - 1

// connect configures the gateway's ends of the tunnels. A node is connected only once the API
// server has its assignment, so that no other gateway or agent uses a different one.
func (g *Gateway) connect(d *Plan) {
	stored := map[string]Assigned{}
	for _, a := range g.peering.Status.Nodes {
		stored[a.Name] = a
	}
	pods := g.podsOf(d)
	g.hold()
	g.disputes(d)
	assigned := make(map[string]bool, len(d.Status.Nodes))
	for _, a := range d.Status.Nodes {
		assigned[a.Name] = true
		if rules.ReservedName(a.Name) {
			d.fault(kindNode+" "+a.Name, "metadata.name: %q is a name of the gateway's own", a.Name)
			d.lacks(a.Name, "its name is one of the gateway's own")
			continue
		}
		if stored[a.Name] != a {
			d.lacks(a.Name, "its assignment is being written")
			continue
		}
		underlay, missing, fault := g.way(a.Name)
		if fault != "" {
			d.fault(KindTunnelNode+" "+a.Name, "%s", fault)
			missing = KindTunnelNode + ": " + fault
		}
		if missing != "" {
			d.lacks(a.Name, missing)
		}
		if !underlay.IsValid() {
			continue
		}
		address, _ := g.good.NodeAddress(a.Address) // assign has made it
		d.Nodes = append(d.Nodes, config.Node{Name: a.Name, VNI: geneve.VNI(a.VNI), Underlay: underlay,
			Address: address, PodCIDRs: pods[a.Name]})
	}
	for name := range g.nodes {
		if !assigned[name] {
			d.lacks(name, "spec.internalCIDR has no address left")
		}
	}
	slices.Sort(d.Unready)
	if g.good.PublicKey == (wgkey.Key{}) {
		d.Waiting = append(d.Waiting, "the peer's key: spec.publicKey")
	}
}

// disputes records which nodes list an address that another one had first.
func (g *Gateway) disputes(d *Plan) {
	for name, n := range g.nodes {
		for i, a := range n.addresses {
			// nodes may share others, such as an ExternalIP
			if has := g.holders[a]; has != name && g.tunnels[has].uses(a) {
				d.dispute(name)
				d.fault(kindNode+" "+name, "status.addresses[%d]: %s is of node %s, which had it first", i, a, has)
			}
		}
	}
}

// way returns the address at which the gateway reaches a node's agent, invalid if there is none.
// missing says why no packets pass, fault what is wrong with the TunnelNode instead.
func (g *Gateway) way(name string) (underlay netip.Addr, missing, fault string) {
	t := g.tunnels[name]
	switch {
	case t == nil:
		return underlay, "its agent has not told its address: is culvert node --kube running there?", ""
	case t.fault != "":
		return underlay, "", t.fault
	case !t.ready[g.self.Name]:
		missing = cmp.Or(t.messages[g.self.Name], "its agent has not connected it yet")
	}
	underlay, other, field := t.remote, t.local, "spec.remote"
	if name == g.self.Node {
		underlay, other, field = t.local, t.remote, "spec.local"
	}
	if !underlay.IsValid() {
		// An agent reports the address that the active gateway needs, which may be on another node
		// than this one. Without the node, a standby would refuse the connections that it must take
		// over.
		missing = KindTunnelNode + ": no " + field + " yet"
		if underlay = other; !other.IsValid() {
			return underlay, missing, ""
		}
	}
	if has := g.otherOwner(name, underlay); has != "" {
		return netip.Addr{}, "", fmt.Sprintf("%s: %s is of node %s", field, underlay, has)
	}
	if !g.self.sends(underlay) { // the whole configuration would be refused because of it
		return netip.Addr{}, "", fmt.Sprintf("%s: the gateway's pod has no address of the family of %s", field,
			underlay)
	}
	return underlay, missing, ""
}

// otherOwner returns another node to which an address belongs according to its Node; "" = none.
func (g *Gateway) otherOwner(of string, a netip.Addr) string {
	if name, ok := g.holders[a]; ok {
		if name == of {
			return ""
		}
		return name
	}
	has := func(name string) bool {
		return slices.ContainsFunc(g.nodes[name].pods, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	if g.good.FollowPods || has(of) { // elsewhere Nodes do not tell where pods are
		return ""
	}
	other := ""
	for name := range g.nodes {
		if has(name) && (other == "" || name < other) { // always names the same one of two
			other = name
		}
	}
	return other
}
