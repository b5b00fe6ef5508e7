package peering

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"culvert/gateway/config"
	"culvert/gateway/exports"
	"culvert/kube/mcs"
	"culvert/kube/service"
	"culvert/nat"
	"culvert/nat/rules"
)

// Self is what a gateway knows about itself.
type Self struct {
	Name, Namespace string // of its Peering
	Node, Pod       string
	Addresses       []netip.Addr // of the pod
	Elected         bool         // it has replicas, and an election says which one is active
}

// sends reports whether the pod has an address of the family of a.
func (s *Self) sends(a netip.Addr) bool {
	return slices.ContainsFunc(s.Addresses, func(own netip.Addr) bool { return own.Is4() == a.Is4() })
}

// A Gateway derives one gateway's desired state from all objects. It belongs to one goroutine.
type Gateway struct {
	self    Self
	peering *Peering // current version; nil if there is none
	// last version without faults, of an earlier gateway if this one has seen none; nil: there was
	// none
	good *Peering
	// why the current version does not replace good although it has no fault of its own
	refused    string
	nodes      map[string]*node
	nodesKnown bool // all Nodes are in nodes
	// The other Peerings of the namespace, and the Services of the cluster, which may have what a
	// change would take.
	others      map[string]*Peering
	services    map[string]*clusterIPs
	othersKnown bool // all are in both, or the API server does not let the gateway read them
	tunnels     map[string]*tunnelNode
	pods        *podIndex
	holders     map[netip.Addr]string // the Nodes that have listed an address first, and still do
	// Services with LabelExport, and EndpointSlices, by namespace/name.
	exported     map[string]*exported
	slices       *sliceIndex
	assigned     map[service.Name]bool // the Services that have an address by the last plan; nil: there was none
	exportsKnown bool                  // all exported Services are known
	told         []*exports.Service    // Exports of the last plan
	// ServiceExports and Services, by namespace/name, and what the last plan has made of them; nil:
	// nothing yet.
	serviceExports map[string]*mcs.Export
	offers         map[string]*offer
	shared         map[service.Name]*shared
	sharing        map[service.Name]bool // those whose EndpointSlices are needed
	sharesKnown    bool                  // all ServiceExports and Services are known, or none is followed
	sharesRefused  bool                  // the API server does not show ServiceExports
	admitted       []rules.Endpoint      // Admitted of the last plan
	term           int64                 // the term that this gateway has written; 0: none yet
	displaced      string                // the pod that was active before this one
}

// NewGateway returns the Gateway of a cluster without objects.
func NewGateway(self Self) *Gateway {
	return &Gateway{self: self, nodes: map[string]*node{}, tunnels: map[string]*tunnelNode{}, pods: newPodIndex(),
		holders: map[netip.Addr]string{}, others: map[string]*Peering{}, services: map[string]*clusterIPs{},
		exported: map[string]*exported{}, slices: newSliceIndex(),
		serviceExports: map[string]*mcs.Export{}, offers: map[string]*offer{}}
}

// put sets the current Peering; nil if it has gone.
func (g *Gateway) put(p *Peering) {
	if was := g.peering; was != nil && p != nil && was.Metadata.UID != p.Metadata.UID {
		g.good = nil // what was deleted, and made again, does not go on
	}
	g.peering = p
	g.judge()
}

// judge makes the current Peering the one that applies, if nothing is wrong with it. One that would
// take something of Nodes, Services or other Peerings does not replace what runs: agents refuse it
// for the same reason, and the two ends of a tunnel would differ. That holds also if the gateway
// before has refused it, so nothing applies before all Nodes are known. What the Peering has stays,
// whoever claims it.
func (g *Gateway) judge() {
	p := g.peering
	if g.refused = ""; p == nil || !g.nodesKnown {
		return
	}
	if g.good == nil {
		g.good = p.Accepted()
	}
	if len(p.Faults) > 0 {
		return
	}
	if g.good == nil || g.good.PublicKey != p.PublicKey || !slices.Equal(g.good.takes(), p.takes()) {
		if !g.othersKnown {
			return
		}
		all, had := inOrder(g.others), map[string]*Peering{p.Metadata.Name: g.good}
		for _, o := range all {
			had[o.Metadata.Name] = o.Accepted()
		}
		g.refused = cmp.Or(taken(p, g.good.takes(), nil, g.nodes, g.services), besides(p, p, all, had))
		if g.refused != "" {
			return
		}
	}
	g.good = p
}

// agree makes what the active gateway goes on with apply here, too: each may have heard of two
// claims in another order.
func (g *Gateway) agree() {
	if g.peering == nil {
		return
	}
	if p := g.peering.Accepted(); p != nil {
		g.good = p
	}
}

// readOther returns what a gateway uses of another Peering than its own.
func (g *Gateway) readOther(u *unstructured.Unstructured) *Peering {
	p := PeeringOf(u)
	if p.Metadata.Name == g.self.Name {
		return nil
	}
	p.Status = Status{Accepted: p.Status.Accepted}
	return p
}

// latecomers records who claims what the Peering has had before.
func (g *Gateway) latecomers(d *Plan) {
	g.good.fields(func(field string, c netip.Prefix) bool {
		had := fmt.Sprintf("%s of Peering %s, %s, which had it first", field, g.self.Name, c)
		for name, n := range g.nodes {
			if i := slices.IndexFunc(n.addresses, c.Contains); i >= 0 {
				d.fault(kindNode+" "+name, "status.addresses[%d]: %s is in %s; give the node an address elsewhere",
					i, n.addresses[i], had)
			}
			if i := slices.IndexFunc(n.pods, c.Overlaps); i >= 0 {
				d.fault(kindNode+" "+name, "spec.podCIDRs[%d]: %s overlaps %s; give the node a CIDR elsewhere",
					i, n.pods[i], had)
			}
		}
		for name, s := range g.services {
			if i := slices.IndexFunc(*s, c.Contains); i >= 0 {
				d.fault(kindService+" "+name, "spec.clusterIPs: %s is in %s; give the Service an address elsewhere",
					(*s)[i], had)
			}
		}
		return false
	})
}

// A Plan is what a gateway must do and report.
type Plan struct {
	Current *Peering // current version; nil: there is none
	Peering *Peering // the version that applies: Current, or the last one without faults; nil: none
	Ousted  bool     // another gateway has become active after this one
	Again   bool     // and this one has displaced that one before
	Nodes   []config.Node
	// Status is what the Peering's status should be, except for parts that only the running gateway
	// knows: keys, connection and conditions.
	Status Status
	// each begins with the path of a field, and before it with the kind and name of an object that
	// is not the Peering
	Faults  []string
	Waiting []string
	Unready []string // nodes through which no packets pass, each with the reason
	nodes   int      // how many there are, ready or not
	// disputed are the nodes that claim an address that another one had first.
	disputed map[string]bool
	unready  map[string]bool // the nodes of Unready

	Services []config.Service   // one for each exported port
	Exports  []*exports.Service // the same, for the peer; nil: they are not known
	Shared   []*exports.Service // those of ServiceExports, for the peer; nil: they are not known
	// Admitted is what the peer may open connections to beside Services, if it may not to all.
	Admitted []rules.Endpoint
	// parts of Services that are not exported, each with the Service and the path of a field
	ExportFaults []string
	ExternalFull bool // an exported Service has no address
	backends     int  // of Services
}

// Plan derives the plan from the objects. It remembers this gateway's term once the API server has
// it.
func (g *Gateway) Plan() *Plan {
	d := &Plan{disputed: map[string]bool{}, unready: map[string]bool{}}
	if d.Current = g.peering; g.peering == nil {
		g.good = nil
		d.Waiting = append(d.Waiting, fmt.Sprintf("Peering %s/%s", g.self.Namespace, g.self.Name))
		return d
	}
	d.Status = g.peering.Status
	g.judge()
	d.Faults = append(d.Faults, g.peering.Faults...)
	if g.refused != "" {
		d.Faults = append(d.Faults, g.refused)
	}
	d.Status.Active, d.Ousted = g.active()
	d.Again = d.Ousted && d.Status.Active.Pod == g.displaced
	if g.good == nil {
		return d
	}
	d.Peering = g.good
	d.Status.Accepted, d.Status.PodsSeenAs = &g.good.spec, g.good.podsSeenAs()
	own := len(d.Faults)
	d.Status.Nodes = g.assign(d)
	g.connect(d)
	g.latecomers(d)
	slices.Sort(d.Faults[own:]) // another order would be another status
	g.exportTo(d)
	if g.share(d); g.good.Admit == config.AdmitExports && d.Shared != nil {
		g.admitted = d.admitted()
	}
	d.Admitted = g.admitted
	for i := range d.Status.Nodes {
		d.Status.Nodes[i].Disputed = d.disputed[d.Status.Nodes[i].Name]
	}
	d.nodes = len(g.nodes)
	d.count()
	return d
}

// count sets how many of the nodes are ready.
func (d *Plan) count() { d.Status.NodesReady = fmt.Sprintf("%d/%d", d.nodes-len(d.Unready), d.nodes) }

// troubles adds the problems that the gateway itself has found on the way to nodes that are
// otherwise ready.
func (d *Plan) troubles(all map[string]string) {
	for _, n := range d.Nodes {
		if why := all[n.Name]; why != "" && !d.unready[n.Name] {
			d.lacks(n.Name, why)
		}
	}
	slices.Sort(d.Unready)
	if d.Peering != nil {
		d.count()
	}
}

// lacks records why no packets pass through a node.
func (d *Plan) lacks(node, why string) {
	d.unready[node] = true
	d.Unready = append(d.Unready, "node "+node+": "+why)
}

// fault records a fault of an object; "" is the Peering.
func (d *Plan) fault(of, format string, args ...any) {
	if of != "" {
		of += ": "
	}
	d.Faults = append(d.Faults, of+fmt.Sprintf(format, args...))
}

// dispute records that a node claims an address that another one had first.
func (d *Plan) dispute(node string) { d.disputed[node] = true }

// hadDisputes reports whether a node claimed an address that another one had first when the
// Peering's status was written.
func (g *Gateway) hadDisputes(node string) bool {
	return slices.ContainsFunc(g.peering.Status.Nodes, func(a Assigned) bool { return a.Name == node && a.Disputed })
}

// hold notes which Node has each address: the one that has listed it first, for as long as it lists
// it. A node writes its own list. Of several that are new, as when the gateway starts, a Node whose
// agent uses the address comes before others, and one that has disputed an address comes last.
func (g *Gateway) hold() {
	lists := map[netip.Addr][]string{}
	for name, n := range g.nodes {
		for _, a := range n.addresses {
			lists[a] = append(lists[a], name)
		}
	}
	maps.DeleteFunc(g.holders, func(a netip.Addr, name string) bool { return !slices.Contains(lists[a], name) })
	for a, names := range lists {
		if g.holders[a] != "" {
			continue
		}
		g.holders[a] = names[0]
		if len(names) > 1 {
			g.holders[a] = slices.MinFunc(names, func(i, k string) int {
				return cmp.Or(cmp.Compare(rank(g.hadDisputes(i)), rank(g.hadDisputes(k))),
					cmp.Compare(rank(!g.tunnels[i].uses(a)), rank(!g.tunnels[k].uses(a))),
					g.nodes[i].age(g.nodes[k]))
			})
		}
	}
}

// uses reports whether the agent of a node sends from an address; false for no agent.
func (t *tunnelNode) uses(a netip.Addr) bool { return t != nil && (t.local == a || t.remote == a) }

// active returns where the active gateway is. Nodes follow the highest term: a gateway that starts
// takes the next term, and an active one that sees another gateway with a higher term is ousted.
func (g *Gateway) active() (a *Active, ousted bool) {
	a = &Active{Pod: g.self.Pod, Node: g.self.Node, Term: 1, Addresses: []string{}}
	for _, four := range []bool{true, false} { // a node uses the first one that it can reach
		for _, addr := range g.self.Addresses {
			if addr.Is4() == four {
				a.Addresses = append(a.Addresses, addr.String())
			}
		}
	}
	was := g.peering.Status.Active
	switch {
	case was == nil:
	case was.Pod == a.Pod && was.Node == a.Node && slices.Equal(was.Addresses, a.Addresses):
		a.Term = max(was.Term, 1)
		g.term = a.Term
	case g.term != 0 && was.Term > g.term && was.Pod != a.Pod:
		return was, true
	default:
		a.Term, g.displaced = max(was.Term, g.term, 0)+1, was.Pod
	}
	return a, false
}

// Config returns base with the content of the plan.
func (d *Plan) Config(base *config.Config) *config.Config {
	c, p := *base, d.Peering
	c.WireGuard.PeerPublicKey, c.WireGuard.Endpoint = p.PublicKey, p.Endpoint
	c.Geneve.GatewayAddress = p.GatewayAddress()
	c.Geneve.SourceCheck = nat.SourceCheckNode
	c.Geneve.Nodes, c.Services = d.Nodes, d.Services
	c.Local = config.LocalNetwork{PodCIDRs: p.Pods, ExternalCIDRs: p.External}
	c.UnknownSource = p.UnknownSource()
	if c.Remote, c.Admit = p.Remote, p.Admit; c.Admit == config.AdmitExports {
		c.Exports = d.Admitted
	}
	return &c
}

// Base returns the part of a configuration that cannot change while the gateway runs.
func (p *Peering) Base(base *config.Config) *config.Config {
	c := *base
	c.Cluster, c.Peer, c.MTU, c.WireGuard.Role, c.Peering = p.Cluster, p.Peer, config.TunnelMTU(p.MTU), p.Role, true
	return &c
}
