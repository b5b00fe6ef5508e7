package fabric

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sort"
	"strings"
	"time"

	"culvert/gateway/node/links"
	"culvert/geneve"
	"culvert/kube"
	"culvert/kube/liqo"
	"culvert/kube/objects"
	"culvert/nat/rules"
)

// maxVNI is the largest VNI of a Geneve header (RFC 8926, Section 3.4).
const maxVNI = 1<<24 - 1

// patience is how long one of two resources that belong together may be missing: Liqo creates one
// after the other.
const patience = 15 * time.Second

// faultOf returns a fault of a resource. message begins with the path of a field.
func faultOf(kind string, of objects.Metadata, message string) kube.Fault {
	return kube.Fault{Event: kube.Event{Kind: kind, Metadata: of, Message: message}}
}

// A resource is one object, with its own fault if it has one.
type resource struct {
	meta     objects.Metadata
	deleting bool
	faults   []string
	seen     time.Time // when it was first read
}

type internalFabric struct {
	resource
	link    links.Link // without VNI and Address
	gateway netip.Addr // of the link
}

type tunnel struct {
	resource
	vni  geneve.VNI
	of   rules.Key // its InternalFabric
	node string
}

type internalNode struct {
	resource
	address netip.Addr
}

// kindPod is the kind of the pods of gateways that say by their label that they are active.
const kindPod = "Pod"

// A State derives the links of one node from Liqo's resources. It belongs to one goroutine at a
// time.
type State struct {
	node    string
	fabrics map[rules.Key]*internalFabric
	tunnels map[rules.Key]*tunnel
	nodes   map[rules.Key]*internalNode
	active  map[rules.Key]activePod // of kindPod, those that run
}

// An activePod says that it is the active pod of a gateway.
type activePod struct {
	address netip.Addr
	gateway string // name of the GatewayServer or GatewayClient
}

// labelGateway names the gateway of a pod.
const labelGateway = "networking.liqo.io/gateway-name"

// NewState returns the State of the node called name.
func NewState(node string) *State {
	return &State{node: node, fabrics: map[rules.Key]*internalFabric{}, tunnels: map[rules.Key]*tunnel{},
		nodes: map[rules.Key]*internalNode{}, active: map[rules.Key]activePod{}}
}

// Put adds or replaces a resource.
func (s *State) Put(o *objects.Object, now time.Time) {
	key := o.Key()
	r := resource{meta: o.Metadata, deleting: o.Deleting, seen: now}
	switch o.Kind {
	case liqo.KindFabric:
		if was := s.fabrics[key]; was != nil {
			r.seen = was.seen
		}
		s.fabrics[key] = readFabric(o, r)
	case liqo.KindTunnel:
		if was := s.tunnels[key]; was != nil {
			r.seen = was.seen
		}
		s.tunnels[key] = readTunnel(o, r)
	case liqo.KindNode:
		s.nodes[key] = readNode(o, r)
	case kindPod:
		delete(s.active, key)
		p, fault := objects.ReadPod(o)
		if a := r.host("status.podIP", p.Status.PodIP); len(r.faults) == 0 && fault == "" && !o.Deleting &&
			p.Status.Phase == "Running" {
			s.active[key] = activePod{a, o.Metadata.Labels[labelGateway]}
		}
	}
}

// gateway returns the address of the one pod that says that it is the active gateway of a tenant's
// namespace, as Liqo's controller finds it. That controller may be away when a gateway moves, often
// because it was on the same node, so what it has written is used only if no pod or more than one
// says so. A namespace has one InternalFabric; of several, the pod's is the one with the name of
// its gateway.
func (s *State) gateway(f *internalFabric) netip.Addr {
	var found []activePod
	for key, p := range s.active {
		if key.Namespace == f.meta.Namespace {
			found = append(found, p)
		}
	}
	if len(found) != 1 || found[0].address.Is4() != f.link.Remote.Is4() || found[0].gateway != f.meta.Name &&
		!s.alone(f) {
		return f.link.Remote
	}
	return found[0].address
}

// alone reports whether f is the only InternalFabric of its namespace.
func (s *State) alone(f *internalFabric) bool {
	for _, other := range s.fabrics {
		if other != f && other.meta.Namespace == f.meta.Namespace {
			return false
		}
	}
	return true
}

// Delete forgets a deleted resource.
func (s *State) Delete(key rules.Key) {
	switch key.Kind {
	case liqo.KindFabric:
		delete(s.fabrics, key)
	case liqo.KindTunnel:
		delete(s.tunnels, key)
	case liqo.KindNode:
		delete(s.nodes, key)
	case kindPod:
		delete(s.active, key)
	}
}

func (r *resource) read(field string, part []byte, to any) {
	if fault := objects.ReadPart(field, part, to); fault != "" {
		r.faults = append(r.faults, fault)
	}
}

func (r *resource) add(field, format string, args ...any) {
	r.faults = append(r.faults, field+": "+fmt.Sprintf(format, args...))
}

// host parses a host's address.
func (r *resource) host(field, value string) netip.Addr {
	if value == "" {
		r.add(field, "missing")
		return netip.Addr{}
	}
	a, err := netip.ParseAddr(value)
	if err != nil || a.Zone() != "" || a.Is4In6() {
		r.add(field, "%q is no address", value)
		return netip.Addr{}
	}
	if !a.IsGlobalUnicast() {
		r.add(field, "%s is no address of a host", a)
	}
	return a
}

func readFabric(o *objects.Object, r resource) *internalFabric {
	var spec struct {
		MTU       int    `json:"mtu"`
		GatewayIP string `json:"gatewayIP"`
		Interface struct {
			Gateway struct {
				IP string `json:"ip"`
			} `json:"gateway"`
			Node struct {
				Name string `json:"name"`
			} `json:"node"`
		} `json:"interface"`
	}
	r.read("spec", o.Spec, &spec)
	f := &internalFabric{link: links.Link{Name: spec.Interface.Node.Name, MTU: spec.MTU}}
	if len(r.faults) == 0 {
		f.link.Remote = r.host("spec.gatewayIP", spec.GatewayIP)
		f.gateway = r.host("spec.interface.gateway.ip", spec.Interface.Gateway.IP)
		f.link.Gateway = geneve.PairOf(f.gateway)
		if name := f.link.Name; name == "" || len(name) > 15 || name == "." || name == ".." ||
			strings.ContainsAny(name, "/: \t\n") {
			r.add("spec.interface.node.name", "%q is no name of a link; want 1 to 15 bytes", name)
		}
		if f.link.MTU < 576 || f.link.MTU > 65535 {
			r.add("spec.mtu", "%d is out of range; want 576 to 65535", f.link.MTU)
		}
	}
	f.resource = r
	return f
}

func readTunnel(o *objects.Object, r resource) *tunnel {
	var spec struct {
		ID     *int64 `json:"id"`
		Fabric struct {
			Name      string `json:"name"`
			Namespace string `json:"namespace"`
		} `json:"internalFabricRef"`
		Node struct {
			Name string `json:"name"`
		} `json:"internalNodeRef"`
	}
	r.read("spec", o.Spec, &spec)
	t := &tunnel{node: spec.Node.Name, of: rules.Key{Kind: liqo.KindFabric, Namespace: spec.Fabric.Namespace,
		Name: spec.Fabric.Name}}
	switch {
	case len(r.faults) > 0:
	case spec.ID == nil:
		r.add("spec.id", "missing")
	case *spec.ID < 0 || *spec.ID > maxVNI:
		r.add("spec.id", "%d is out of range; want 0 to %d", *spec.ID, maxVNI)
	default:
		t.vni = geneve.VNI(*spec.ID)
	}
	t.resource = r
	return t
}

func readNode(o *objects.Object, r resource) *internalNode {
	var spec struct {
		Interface struct {
			Node struct {
				IP string `json:"ip"`
			} `json:"node"`
		} `json:"interface"`
	}
	r.read("spec", o.Spec, &spec)
	n := &internalNode{}
	if len(r.faults) == 0 {
		n.address = r.host("spec.interface.node.ip", spec.Interface.Node.IP)
	}
	n.resource = r
	return n
}

// A Desired is the result of a State.
type Desired struct {
	Links []links.Link // by name
	// Origin is the InternalFabric of each link, by the link's name.
	Origin map[string]objects.Metadata
	Faults []kube.Fault
	// Waiting says what is missing before anything is known; "" if nothing.
	Waiting string
}

// Desired returns the links that the resources ask for at a time. A resource that is being deleted
// asks for none, because Liqo's agent deletes its device.
func (s *State) Desired(now time.Time) Desired {
	d := Desired{Origin: map[string]objects.Metadata{}}
	fault := func(kind string, r *resource, format string, args ...any) {
		d.Faults = append(d.Faults, faultOf(kind, r.meta, fmt.Sprintf(format, args...)))
	}
	var own *internalNode
	for _, n := range s.nodes {
		if n.meta.Name == s.node {
			own = n
		}
	}
	if own == nil {
		d.Waiting = "InternalNode " + s.node
	} else {
		for _, f := range own.faults {
			fault(liqo.KindNode, &own.resource, "%s", f)
		}
	}
	served := map[rules.Key]bool{}
	for _, key := range sorted(s.tunnels, func(t *tunnel) *resource { return &t.resource }) {
		t := s.tunnels[key]
		if t.node != s.node && len(t.faults) == 0 || t.deleting {
			continue
		}
		f := s.fabrics[t.of]
		switch {
		case len(t.faults) > 0:
			for _, text := range t.faults {
				fault(liqo.KindTunnel, &t.resource, "%s", text)
			}
		case f == nil && now.Sub(t.seen) >= patience:
			fault(liqo.KindTunnel, &t.resource, "spec.internalFabricRef: there is no InternalFabric %s/%s",
				t.of.Namespace, t.of.Name)
		case f == nil || f.deleting || len(f.faults) > 0 || own == nil || len(own.faults) > 0:
		case served[t.of]:
			fault(liqo.KindTunnel, &t.resource,
				"spec.internalNodeRef: an older GeneveTunnel leads from this node to InternalFabric %s/%s",
				t.of.Namespace, t.of.Name)
		case d.Origin[f.link.Name].Name != "":
			served[t.of] = true
			first := d.Origin[f.link.Name]
			fault(liqo.KindFabric, &f.resource, "spec.interface.node.name: %s is the name of InternalFabric %s/%s",
				f.link.Name, first.Namespace, first.Name)
		case own.address.Is4() != f.gateway.Is4():
			served[t.of] = true
			fault(liqo.KindFabric, &f.resource,
				"spec.interface.gateway.ip: %s and this node's %s are of different families",
				f.gateway, own.address)
		default:
			served[t.of] = true
			l := f.link
			l.VNI, l.Address, l.Remote = t.vni, geneve.PairOf(own.address), s.gateway(f)
			d.Links = append(d.Links, l)
			d.Origin[l.Name] = f.meta
		}
	}
	for _, key := range sorted(s.fabrics, func(f *internalFabric) *resource { return &f.resource }) {
		f := s.fabrics[key]
		for _, text := range f.faults {
			fault(liqo.KindFabric, &f.resource, "%s", text)
		}
		if !served[key] && !f.deleting && len(f.faults) == 0 && own != nil && now.Sub(f.seen) >= patience &&
			!s.leads(key) {
			fault(liqo.KindFabric, &f.resource, "there is no GeneveTunnel from node %s to it", s.node)
		}
	}
	sort.Slice(d.Links, func(i, j int) bool { return d.Links[i].Name < d.Links[j].Name })
	return d
}

// leads reports whether a GeneveTunnel of this node, valid or not, refers to a fabric.
func (s *State) leads(fabric rules.Key) bool {
	for _, t := range s.tunnels {
		if t.of == fabric && (t.node == s.node || len(t.faults) > 0) {
			return true
		}
	}
	return false
}

// sorted returns keys by the age of their resources, oldest first.
func sorted[R any](all map[rules.Key]R, of func(R) *resource) []rules.Key {
	return slices.SortedFunc(maps.Keys(all), func(a, b rules.Key) int {
		x, y := of(all[a]).meta, of(all[b]).meta
		if c := x.Created.Compare(y.Created); c != 0 {
			return c
		}
		return strings.Compare(a.String(), b.String())
	})
}
