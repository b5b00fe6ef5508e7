package peering

import (
	"cmp"
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"culvert/gateway/config"
	"culvert/gateway/node/links"
	"culvert/gateway/node/remote"
	"culvert/gateway/wgkey"
	"culvert/geneve"
	"culvert/kube/objects"
	"culvert/nat/rules"
)

// A Node derives the links and routes of one node from all objects. It belongs to one goroutine.
type Node struct {
	name     string
	api      []netip.Addr // addresses by which this node reaches the API server
	peerings map[string]*Peering
	accepted map[string]*Peering // what each Peering said when this node last had nothing against it
	nodes    map[string]*node
	services map[string]*clusterIPs
}

// NewNode returns the Node called name in a cluster without objects.
func NewNode(name string, api []netip.Addr) *Node {
	return &Node{name: name, api: api, peerings: map[string]*Peering{}, accepted: map[string]*Peering{},
		nodes: map[string]*node{}, services: map[string]*clusterIPs{}}
}

// clusterIPs are the addresses of a Service inside the cluster.
type clusterIPs []netip.Addr

func readService(u *unstructured.Unstructured) *clusterIPs {
	read, _ := objects.ReadService(objects.Of(kindService, u)) // the API server has checked it
	var s clusterIPs
	for _, ip := range read.Spec.ClusterIPs {
		if a, err := objects.ParseAddr(ip); err == nil { // a headless one has "None"
			s = append(s, a)
		}
	}
	if len(s) == 0 {
		return nil
	}
	return &s
}

// A NodePlan is what a node must have for each Peering.
type NodePlan struct {
	Peers []NodePeer
	// Refused are the Peerings that this node does not apply as they are, and Waiting the
	// incomplete ones, each with the reason.
	Refused, Waiting map[string]string
}

// A NodePeer is what a node has for one Peering.
type NodePeer struct {
	Peering string
	Here    bool // the gateway is on this node
	Behind  bool // this node refuses what the gateway has, and goes on with something else
	Link    links.Link
	Routes  remote.Peer
}

// Plan derives the plan from the objects. A user who may write Peerings controls where packets of
// this node go. So Plan refuses any Peering that would take addresses that the cluster itself uses.
// Of a Peering that it refuses, the node goes on with what it had before.
func (n *Node) Plan() *NodePlan {
	d := &NodePlan{Refused: map[string]string{}, Waiting: map[string]string{}}
	maps.DeleteFunc(n.accepted, func(name string, _ *Peering) bool { return n.peerings[name] == nil })
	all, had := inOrder(n.peerings), map[string]*Peering{}
	for _, p := range all {
		if had[p.Metadata.Name] = n.accepted[p.Metadata.Name]; !n.knows(p) { // the agent has just started
			had[p.Metadata.Name] = p.Accepted()
		}
	}
	for _, p := range all {
		name := p.Metadata.Name
		if p.Deleting {
			continue
		}
		first := had[name].takes()
		if !n.knows(p) { // what the spec does not say is the word of a gateway alone
			first = slices.DeleteFunc(first, func(c netip.Prefix) bool { return !slices.Contains(p.takes(), c) })
		}
		takes := func(v *Peering) string {
			return cmp.Or(taken(v, first, n.api, n.nodes, n.services), besides(v, p, all, had))
		}
		fault := p.Fault()
		why := cmp.Or(fault, takes(p))
		if why == "" {
			n.accepted[name] = p
		} else {
			former, goesOn := p.former(had[name], takes)
			if d.Refused[name] = why + goesOn; former == nil {
				continue
			}
			p = former
		}
		peer, missing := n.peer(p)
		if missing != "" {
			if why == "" {
				d.Waiting[name] = missing
			}
			continue
		}
		gateway := p.Accepted()
		peer.Behind = why != "" && fault == "" && (gateway == nil || !slices.Equal(gateway.takes(), p.takes()))
		d.Peers = append(d.Peers, peer)
	}
	return d
}

// knows reports whether this node itself has accepted a version of a Peering.
func (n *Node) knows(p *Peering) bool {
	was := n.accepted[p.Metadata.Name]
	return was != nil && was.Metadata.UID == p.Metadata.UID
}

// former returns what a node goes on with while it refuses a Peering: what the Peering was before,
// but for remote CIDRs that are not its own. It is nil if nothing is left. goesOn says so. takes
// returns what a version takes of others.
func (p *Peering) former(was *Peering, takes func(*Peering) string) (former *Peering, goesOn string) {
	if was == nil {
		return nil, ""
	}
	former = new(*was)
	former.Status, former.Remote = p.Status, nil
	if takes(former) != "" { // it has something that no CIDR of the peer can do without
		return nil, ""
	}
	for _, r := range was.Remote {
		one := *former
		if one.Remote = []rules.RemoteCIDR{r}; takes(&one) == "" {
			former.Remote = append(former.Remote, r)
		}
	}
	switch len(former.Remote) {
	case 0:
		return nil, ""
	case len(was.Remote):
		return former, "; meanwhile this node goes on with what the Peering said before"
	}
	return former, "; meanwhile this node goes on with the rest"
}

// pods returns addresses that a pod on this node and one elsewhere may have, of IPv4 if they may;
// invalid if the Nodes do not say.
func (n *Node) pods() (here, elsewhere netip.Addr) {
	for _, name := range slices.Sorted(maps.Keys(n.nodes)) {
		at := &elsewhere
		if name == n.name {
			at = &here
		}
		for _, c := range n.nodes[name].pods {
			if (!at.IsValid() || at.Is6() && c.Addr().Is4()) && c.Bits() <= c.Addr().BitLen()-2 {
				*at = nth(c, 2)
			}
		}
	}
	return here, elsewhere
}

// age compares the ages of two Peerings; the older one comes first.
func (p *Peering) age(o *Peering) int {
	return cmp.Or(p.Metadata.Created.Compare(o.Metadata.Created), strings.Compare(p.Metadata.Name, o.Metadata.Name))
}

// inOrder returns Peerings, the oldest first.
func inOrder(all map[string]*Peering) []*Peering {
	return slices.SortedFunc(maps.Values(all), (*Peering).age)
}

// fields visits the CIDRs of a Peering that become addresses and routes of nodes, with their
// fields.
func (p *Peering) fields(visit func(field string, c netip.Prefix) (stop bool)) {
	for i, c := range p.Internal {
		if visit(p.internalField(i), c) {
			return
		}
	}
	for i, r := range p.Remote {
		if visit(p.remoteField(i), r.Remapped) {
			return
		}
	}
}

// takes returns all that fields visits; nothing for nil.
func (p *Peering) takes() (all []netip.Prefix) {
	if p == nil {
		return nil
	}
	p.fields(func(_ string, c netip.Prefix) bool {
		all = append(all, c)
		return false
	})
	return all
}

// taken returns which of the cluster's own addresses a Peering would take; "" = none. Those that
// Nodes and Services claim in the CIDRs first are not their own: the Peering has had these before.
func taken(p *Peering, first []netip.Prefix, api []netip.Addr, nodes map[string]*node,
	services map[string]*clusterIPs) (why string) {
	p.fields(func(field string, c netip.Prefix) bool {
		of := func(a netip.Addr, format string, args ...any) {
			if why == "" && c.Contains(a) {
				why = fmt.Sprintf("%s: %s contains %s, %s", field, c, a, fmt.Sprintf(format, args...))
			}
		}
		for _, a := range api {
			of(a, "an address of the API server")
		}
		if why == "" && within(first, c) {
			return false
		}
		for _, name := range slices.Sorted(maps.Keys(nodes)) {
			other := nodes[name]
			for _, a := range other.addresses {
				of(a, "an address of node %s", name)
			}
			for _, pods := range other.pods {
				if why == "" && c.Overlaps(pods) {
					why = fmt.Sprintf("%s: %s overlaps %s, the pods of node %s", field, c, pods, name)
				}
			}
		}
		service := ""
		for key, s := range services {
			if slices.ContainsFunc(*s, c.Contains) && (service == "" || key < service) {
				service = key
			}
		}
		if service != "" {
			at := *services[service]
			of(at[slices.IndexFunc(at, c.Contains)], "the address of Service %s", service)
		}
		if why != "" {
			why += another(field)
		}
		return why != ""
	})
	return why
}

// another is what to do about a CIDR that something else has.
func another(field string) string {
	if strings.HasPrefix(field, "spec.internalCIDR") {
		return "; choose a CIDR that nothing uses"
	}
	return "; choose a remap that nothing uses"
}

// besides returns what a Peering, or a former version of it, would take of others; "" = nothing.
// now is its present version, and had says what each was when it was accepted last. Who has
// something keeps it until it gives it up. What two Peerings have is the older one's, and so is
// what neither has yet.
func besides(p, now *Peering, others []*Peering, had map[string]*Peering) (why string) {
	for _, o := range others {
		if o.Metadata.Name == now.Metadata.Name || o.Deleting {
			continue
		}
		was := had[o.Metadata.Name]
		// first says why something is the other one's; "" = it is not. mine and theirs report
		// whether a version has it.
		first := func(mine, theirs func(*Peering) bool) string {
			a, b := standing(had[now.Metadata.Name], now, mine), standing(was, o, theirs)
			switch {
			case b > a:
				return "had it first"
			case b == a && o.age(now) < 0:
				return "is older"
			}
			return ""
		}
		for _, v := range []*Peering{was, o} {
			if v == nil || len(v.Faults) > 0 {
				continue
			}
			key := func(v *Peering) bool { return v.PublicKey == p.PublicKey }
			if p.PublicKey != (wgkey.Key{}) && key(v) {
				if why := first(key, key); why != "" {
					return fmt.Sprintf("spec.publicKey: Peering %s has it too, and %s; give the key of this one's peer",
						o.Metadata.Name, why)
				}
			}
			p.fields(func(field string, c netip.Prefix) bool {
				v.fields(func(other string, taken netip.Prefix) bool {
					if !c.Overlaps(taken) {
						return false
					}
					has := func(c netip.Prefix) func(*Peering) bool {
						return func(v *Peering) bool { return within(v.takes(), c) }
					}
					if is := first(has(c), has(taken)); is != "" {
						why = fmt.Sprintf("%s: %s overlaps %s of Peering %s (%s), which %s%s", field, c, other,
							o.Metadata.Name, taken, is, another(field))
					}
					return why != ""
				})
				return why != ""
			})
			if why != "" {
				return why
			}
		}
	}
	return ""
}

// standing compares claims to something that Peerings would have: one has it and wants it (3), has
// it (2), or wants it (1).
func standing(was, now *Peering, has func(*Peering) bool) (n int) {
	if was != nil && has(was) {
		n = 2
	}
	if len(now.Faults) == 0 && has(now) {
		n++
	}
	return n
}

// peer returns what this node needs for a Peering without faults, or what is missing.
func (n *Node) peer(p *Peering) (peer NodePeer, missing string) {
	i := slices.IndexFunc(p.Status.Nodes, func(a Assigned) bool { return a.Name == n.name })
	if i < 0 {
		return peer, "status.nodes: this node is not there yet; the gateway assigns its address"
	}
	a := p.Status.Nodes[i]
	address, ok := p.NodeAddress(a.Address)
	if !ok || a.VNI == 0 || a.VNI > maxVNI {
		return peer, fmt.Sprintf("status.nodes[%d]: VNI %d and address %q are none of spec.internalCIDR %s", i, a.VNI,
			a.Address, strings.Join(p.spec.Internals(), ", "))
	}
	active := p.Status.Active
	if active == nil || len(active.Addresses) == 0 {
		return peer, "status.active: there is no gateway yet"
	}
	var gateway netip.Addr
	used := 0
	for i, text := range active.Addresses {
		at, err := netip.ParseAddr(text)
		if err != nil || !isHost(at) {
			return peer, fmt.Sprintf("status.active.addresses[%d]: %q is no address of a host", i, text)
		}
		if !gateway.IsValid() || !n.sends(gateway) && n.sends(at) {
			gateway, used = at, i
		}
	}
	if slices.ContainsFunc(p.Remote, func(r rules.RemoteCIDR) bool { return r.Remapped.Contains(gateway) }) {
		return peer, fmt.Sprintf("status.active.addresses[%d]: %s is an address of the other cluster", used, gateway)
	}
	l := links.Link{Of: p.Metadata.Name, Name: linkName(p.Metadata.Name), VNI: geneve.VNI(a.VNI), MTU: p.MTU,
		Remote: gateway, Address: geneve.Pair(address), Gateway: geneve.Pair(p.GatewayAddress())}
	peer = NodePeer{
		Peering: p.Metadata.Name, Here: active.Node == n.name, Link: l,
		Routes: remote.Peer{Name: p.Metadata.Name, Link: l.Name, Gateways: l.Gateway.All(), Local: p.Pods,
			Remote: p.Seen()},
	}
	if peer.Here {
		peer.Routes.Pod, peer.Routes.Port = gateway, config.DefaultGenevePort
	}
	return peer, ""
}

// sends reports whether this node has an address of the family of a, according to its Node.
func (n *Node) sends(a netip.Addr) bool {
	own := n.nodes[n.name]
	return own != nil && slices.ContainsFunc(own.addresses, func(has netip.Addr) bool { return has.Is4() == a.Is4() })
}

// linkName is the name of a Peering's device on nodes.
func linkName(peering string) string {
	const prefix, most = "cv-", 15 // IFNAMSIZ
	if len(prefix)+len(peering) <= most && !strings.ContainsAny(peering, "/: ") {
		return prefix + peering
	}
	sum := sha256.Sum256([]byte(peering))
	return prefix + strings.ToLower(base32.StdEncoding.EncodeToString(sum[:])[:most-len(prefix)])
}
