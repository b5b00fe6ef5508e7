package liqo

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sort"

	"culvert/nat/rules"
)

// A Site is what the resources say about the gateway and its surroundings, except rules and routes.
// It is consistent: contradictions are left out, and their resources are reported.
type Site struct {
	PeerPublicKey  [32]byte   // all zero: none yet
	GatewayAddress netip.Addr // invalid: none yet
	Nodes          []Node
	UnknownSource  netip.Addr // invalid: none yet
	// Remote pairs the remote cluster's real CIDRs with those under which the local one sees them.
	// It is used only to translate ICMP errors about packets without a connection.
	Remote []rules.RemoteCIDR
	// FromTunnel are the sources from which the peer may send, NotFromNodes those from which nodes
	// may not.
	FromTunnel, NotFromNodes []netip.Prefix
}

// A Node is one node of the local cluster and the tunnel to it.
type Node struct {
	Name, Device      string
	VNI               uint32
	Underlay, Address netip.Addr
}

// maxNodes is the maximum number of nodes of a gateway.
const maxNodes = 32768

// tunnelBlock is where Liqo has tunnel addresses; nothing else may overlap it.
var tunnelBlock = netip.MustParsePrefix("169.254.18.0/24")

// A derivation collects the Site and the obstacles to it.
type derivation struct {
	*State
	site    Site
	fault   map[rules.Key]string // of resources that are valid by themselves
	waiting []string
}

// derive derives the Site from all resources, and from nothing else.
func (s *State) derive() *derivation {
	d := &derivation{State: s, fault: map[rules.Key]string{}}
	d.peer()
	d.unknownSource()
	if name, f := d.fabric(); f != nil {
		d.site.GatewayAddress = f.address
		d.site.NotFromNodes = sortedPrefixes(f.remote)
		d.nodes(name)
	}
	d.remote()
	return d
}

// of returns the valid resources of a kind by creation time, namespace and name.
func (s *State) of(kind string) []*item {
	var all []*item
	for _, it := range s.items[kind] {
		if it.parsed != nil {
			all = append(all, it)
		}
	}
	slices.SortFunc(all, func(a, b *item) int { return compare(&a.meta, &b.meta) })
	return all
}

// peer uses the newest key.
func (d *derivation) peer() {
	keys := d.of(KindPublicKey)
	if len(keys) == 0 {
		d.waiting = append(d.waiting, "no PublicKey of cluster "+d.self.Remote)
		return
	}
	newest := keys[len(keys)-1]
	d.site.PeerPublicKey = newest.parsed.([32]byte)
	for _, k := range keys[:len(keys)-1] {
		d.fault[k.key] = fmt.Sprintf("spec.publicKey: PublicKey %s is newer and in use", newest.meta.Name)
	}
}

// fabric uses the first one.
func (d *derivation) fabric() (name string, f *fabric) {
	fabrics := d.of(KindFabric)
	if len(fabrics) == 0 {
		d.waiting = append(d.waiting, "no InternalFabric of cluster "+d.self.Remote)
		return "", nil
	}
	first := fabrics[0]
	for _, other := range fabrics[1:] {
		d.fault[other.key] = fmt.Sprintf("metadata.labels: InternalFabric %s is of cluster %s too, and older",
			first.meta.Name, d.self.Remote)
	}
	f = first.parsed.(*fabric)
	if f.address == d.site.UnknownSource {
		d.fault[first.key] = fmt.Sprintf("spec.interface.gateway.ip: %s is the unknown-source address too", f.address)
		return "", nil
	}
	if f.mtu != 0 && f.mtu != d.self.MTU {
		d.fault[first.key] = fmt.Sprintf("spec.mtu: %d is not the %d of --mtu, which stays", f.mtu, d.self.MTU)
	}
	return first.meta.Name, f
}

// unknownSource finds U in the rules that mark connections from it.
func (d *derivation) unknownSource() {
	for _, it := range d.of(KindFirewall) {
		if p := it.parsed.(*piece); p.unknown.IsValid() {
			d.site.UnknownSource = p.unknown
			return
		}
	}
	d.waiting = append(d.waiting, "no FirewallConfiguration "+nodePortTable)
}

// nodes uses the tunnels of a fabric whose nodes exist.
func (d *derivation) nodes(fabric string) {
	names, devices := map[string]rules.Key{}, map[string]rules.Key{}
	vnis, addresses := map[int64]rules.Key{}, map[netip.Addr]rules.Key{}
	taken := map[netip.Addr]string{d.site.UnknownSource: "the unknown-source address",
		d.site.GatewayAddress: "InternalFabric " + fabric + "'s spec.interface.gateway.ip"}
	for _, it := range d.of(KindTunnel) {
		t := it.parsed.(*tunnelSpec)
		key := rules.Key{Kind: KindNode, Name: t.Node.Name}
		node := d.items[KindNode][key]
		if t.Fabric.Name != fabric {
			d.fault[it.key] = fmt.Sprintf(
				"spec.internalFabricRef.name: %s is not %s, the InternalFabric of this gateway", t.Fabric.Name, fabric)
			continue
		}
		if other, ok := vnis[*t.ID]; ok {
			d.fault[it.key] = fmt.Sprintf("spec.id: %d is that of GeneveTunnel %s too", *t.ID, other.Name)
			continue
		}
		vnis[*t.ID] = it.key
		if other, ok := names[t.Node.Name]; ok {
			d.fault[it.key] = fmt.Sprintf("spec.internalNodeRef.name: GeneveTunnel %s leads to %s too",
				other.Name, t.Node.Name)
			continue
		}
		names[t.Node.Name] = it.key
		if node == nil || node.parsed == nil { // faults of an existing one have been reported
			d.waiting = append(d.waiting, fmt.Sprintf("GeneveTunnel %s: no InternalNode %s", it.meta.Name, t.Node.Name))
			continue
		}
		n := node.parsed.(*internalNode)
		var conflict faults
		claim(&conflict, devices, key, "spec.interface.gateway.name", n.device)
		claim(&conflict, addresses, key, "spec.interface.node.ip", n.address)
		if what, ok := taken[n.address]; ok {
			conflict.add("spec.interface.node.ip", "%s is %s too", n.address, what)
		}
		if len(conflict) == 0 && n.waiting != "" {
			d.waiting = append(d.waiting, fmt.Sprintf("InternalNode %s: %s", key.Name, n.waiting))
		}
		switch {
		case len(conflict) > 0:
			d.fault[key] = conflict.String()
		case !n.underlay.IsValid():
		case len(d.site.Nodes) == maxNodes:
			d.fault[it.key] = fmt.Sprintf("spec.internalNodeRef.name: a gateway takes at most %d nodes", maxNodes)
		default:
			d.site.Nodes = append(d.site.Nodes, Node{
				Name: key.Name, Device: n.device, VNI: uint32(*t.ID), Underlay: n.underlay, Address: n.address,
			})
		}
	}
	nodes := d.site.Nodes
	sort.Slice(nodes, func(i, j int) bool { return nodes[i].Name < nodes[j].Name })
}

// claim records that a node has a value that only one node may have.
func claim[T comparable](f *faults, of map[T]rules.Key, key rules.Key, field string, value T) {
	if other, ok := of[value]; ok {
		f.add(field, "%v is that of InternalNode %s too", value, other.Name)
		return
	}
	of[value] = key
}

// remote finds the CIDRs of the remote cluster in the routes to the tunnel and in the tables that
// translate them.
func (d *derivation) remote() {
	real := map[netip.Prefix]bool{}
	for _, it := range d.items[KindRoute] {
		if p, ok := it.parsed.(*piece); ok {
			for _, to := range p.toTunnel {
				real[to] = true
			}
		}
	}
	// not nil: nil would mean all
	d.site.FromTunnel = sortedPrefixes(slices.AppendSeq([]netip.Prefix{}, maps.Keys(real)))
	seen := map[netip.Prefix]netip.Prefix{}
	for _, it := range d.of(KindFirewall) {
		for _, m := range it.parsed.(*piece).remaps {
			if _, ok := seen[m.Real]; !ok {
				seen[m.Real] = m.Remapped
			}
		}
	}
	var taken []netip.Prefix
	free := func(p netip.Prefix) bool {
		return !slices.ContainsFunc(taken, p.Overlaps) && !p.Contains(d.site.GatewayAddress) &&
			!p.Contains(d.site.UnknownSource) &&
			!p.Overlaps(tunnelBlock) && !slices.ContainsFunc(d.site.Nodes, func(n Node) bool {
			return p.Contains(n.Address)
		})
	}
	for i, r := range d.site.FromTunnel {
		as, ok := seen[r]
		if !ok {
			as = r
		}
		among := slices.Contains(d.site.NotFromNodes, as)
		overlaps := i > 0 && slices.ContainsFunc(d.site.Remote, func(o rules.RemoteCIDR) bool {
			return o.Real.Overlaps(r)
		})
		if !among || overlaps || !free(as) || r.Overlaps(tunnelBlock) {
			continue
		}
		taken = append(taken, as)
		d.site.Remote = append(d.site.Remote, rules.RemoteCIDR{Real: r, Remapped: as})
	}
}

func sortedPrefixes(all []netip.Prefix) []netip.Prefix {
	all = slices.Clone(all)
	slices.SortFunc(all, netip.Prefix.Compare)
	return slices.Compact(all)
}

// The marks of connections by node of origin: Liqo's own are small.
const nodeMark = 1 << 24

// priorityReturn puts a routing rule after all others.
const priorityReturn = 1 << 30

// rules returns the rules that the gateway adds to those of resources. A source without a route
// back belongs to a node, or to a client of one whose CNI bypassed Liqo's rules for nodes: it gets
// U, and the answers go to that node. These rules run before those of resources, so that a mark
// from Liqo prevails.
func (s *Site) rules(self *Self) map[rules.Key]rules.Resource {
	if self.KeepUnknown {
		return nil
	}
	in := func(op rules.Op, device string) rules.Match {
		return rules.Match{Op: op, Dev: rules.Operand{Value: device, Position: rules.PositionIn}}
	}
	out := rules.Match{Op: rules.OpEqual, Dev: rules.Operand{Value: tunnelDevice, Position: rules.PositionOut}}
	unknown := rules.Rule{
		Name: "unknown-source", Action: rules.ActionRefuseSource,
		Match: []rules.Match{in(rules.OpNotEqual, tunnelDevice), out, {Op: rules.OpEqual, NoReturn: true}},
	}
	if u := s.UnknownSource; u.IsValid() {
		unknown.Action, unknown.To = rules.ActionSNAT, u.String()
		unknown.Match = append(unknown.Match, rules.Match{Op: rules.OpNotEqual, IP: rules.Operand{Value: u.String(),
			Position: rules.PositionSource}})
	}
	all := map[rules.Key]rules.Resource{
		{Kind: "Gateway", Namespace: self.Namespace, Name: self.Name}: {Order: -1, Tables: []rules.Table{{
			Name: "unknown-source", Family: rules.FamilyIPv4,
			Chains: []rules.Chain{
				{
					Name: "unknown-source", Type: rules.ChainNAT, Hook: rules.HookPostrouting,
					Priority: rules.PrioritySNAT + 1,
					Rules:    []rules.Rule{unknown},
				},
				{
					Name: "return", Type: rules.ChainFilter, Hook: rules.HookPrerouting, Priority: rules.PriorityFilter,
					Rules: []rules.Rule{{
						Name: "return", Match: []rules.Match{in(rules.OpEqual, tunnelDevice)},
						Action: rules.ActionMetaMarkFromCT, NoCounter: true,
					}},
				},
			},
		}}},
	}
	for _, n := range s.Nodes {
		mark := nodeMark | n.VNI
		all[rules.Key{Kind: KindNode, Name: n.Name}] = rules.Resource{
			Order: -1,
			Tables: []rules.Table{{
				Name: n.Name + "-return", Family: rules.FamilyIPv4,
				Chains: []rules.Chain{{
					Name: "return", Type: rules.ChainFilter, Hook: rules.HookForward, Priority: rules.PriorityFilter,
					Rules: []rules.Rule{{
						Name: n.Name, Match: []rules.Match{in(rules.OpEqual, n.Device), out},
						Action: rules.ActionCTMark, Value: mark, NoCounter: true,
					}},
				}},
			}},
			Routing: []rules.PolicyTable{{Name: n.Name + "-return", Rules: []rules.PolicyRule{{
				Mark: mark, Priority: priorityReturn,
				Routes: []rules.PolicyRoute{{Destination: netip.PrefixFrom(netip.IPv4Unspecified(), 0),
					Device: n.Device}},
			}}}},
		}
	}
	return all
}
