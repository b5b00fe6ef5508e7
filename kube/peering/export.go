package peering

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"culvert/gateway/config"
	"culvert/gateway/exports"
	"culvert/gateway/node/services"
	"culvert/kube/objects"
	"culvert/kube/service"
	"culvert/nat/rules"
)

// LabelExport is the label of a Service that peers may use, with the value "true".
const LabelExport = "culvert/export"

// maxBackends limits the endpoints of the ports of all exported Services together: a writer of
// EndpointSlices must not use up the gateway's memory.
const maxBackends = 1 << 16

// maxPorts limits the ports of all Services with LabelExport together, those of a peer as well.
const maxPorts = 500

// maxLabel is the maximum length of a Service's name (RFC 1035, Section 2.3.4).
const maxLabel = 63

// An exported is a Service with LabelExport.
type exported struct {
	*service.Front
	refused string
}

// readExported returns nil for a Service that must not be exported.
func readExported(u *unstructured.Unstructured) *exported {
	value := u.GetLabels()[LabelExport]
	if value == "false" {
		return nil
	}
	e := &exported{Front: service.ReadFront(objects.Of(kindService, u))}
	switch e.refused = e.Refused; {
	case value != "true":
		e.refused = fmt.Sprintf("metadata.labels[%s]: %q is neither true nor false", LabelExport, value)
	case e.refused == "" && len(e.nameThere()) > maxLabel:
		e.refused = fmt.Sprintf(
			"metadata.name: %s is its name in the other cluster, and has %d characters; at most %d are possible",
			e.nameThere(), len(e.nameThere()), maxLabel)
	}
	return e
}

// nameThere returns the Service's name in the other cluster.
func (e *exported) nameThere() string { return importName(e.Meta.Name, e.Meta.Namespace) }

func importName(name, namespace string) string { return name + "-" + namespace }

// ports returns how many ports of the Service can be served.
func (e *exported) ports() int { return max(len(e.Ports(nil, false)), len(e.Ports(nil, true))) }

// ExportStatus is the address of the external CIDR that stands for a Service. It does not change
// while the Service is exported. Of a Service of both families, it is the one of IPv4, and that of
// IPv6 has the same number in the other external CIDR.
type ExportStatus struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Address   string `json:"address"`
}

func (s *ExportStatus) key() string { return s.Namespace + "/" + s.Name }

// exportTo gives each exported Service an address, and serves those whose address the API server
// already has.
func (g *Gateway) exportTo(d *Plan) {
	if !g.exportsKnown {
		return
	}
	held, stored, assigned := map[string]uint32{}, map[string]uint32{}, map[string]uint32{}
	taken := map[uint32]bool{0: true} // it stands for unknown sources
	for i := range g.peering.Status.Exports {
		s := &g.peering.Status.Exports[i]
		n := g.good.exportNumber(s.Address)
		stored[s.key()] = n
		if e := g.exported[s.key()]; e != nil && e.refused == "" && g.good.exportAddress(e, n).IsValid() && !taken[n] {
			held[s.key()], taken[n] = n, true
		}
	}
	d.Exports = []*exports.Service{}
	chosen := g.chosenExports(d, held)
	for _, e := range g.exported { // those that others displace give up their addresses
		key := e.Meta.Namespace + "/" + e.Meta.Name
		if n, ok := held[key]; ok && !slices.Contains(chosen, e) {
			delete(held, key)
			delete(taken, n)
		}
	}
	endpoints := newShares[*exported](maxBackends)
	for _, e := range chosen {
		key := e.Meta.Namespace + "/" + e.Meta.Name
		n := held[key]
		if n == 0 {
			if n = freeNumber(g.good.exportRoom(), key, taken); !g.good.exportAddress(e, n).IsValid() {
				g.externalFull(d, e)
				continue
			}
			taken[n] = true
		}
		assigned[key] = n
		if stored[key] == n && g.slices.known(e.serviceName()) {
			n := 0
			for _, s := range g.slicesOf(e) {
				n += s.Len()
			}
			endpoints.add(e, e.Meta.Namespace, n*e.ports())
		}
	}
	for _, e := range endpoints.inTurn() {
		if !g.serveExport(d, e, assigned[e.Meta.Namespace+"/"+e.Meta.Name], g.slicesOf(e)) {
			g.slices.count(e.serviceName())
		}
	}
	// Who compares two plans sees what a Service has, not its turn.
	slices.SortStableFunc(d.Services, func(a, b config.Service) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(d.Exports, byName)
	for i, s := range d.Exports { // an Exchange takes another address for a change
		if k, ok := slices.BinarySearchFunc(g.told, s, byName); ok && reflect.DeepEqual(g.told[k], s) {
			d.Exports[i] = g.told[k]
		}
	}
	g.told = d.Exports
	d.Status.Exports, g.assigned = nil, map[service.Name]bool{}
	for _, key := range slices.Sorted(maps.Keys(assigned)) {
		e := g.exported[key]
		g.assigned[e.serviceName()] = true
		at := g.good.exportAddress(e, assigned[key]).First().String()
		d.Status.Exports = append(d.Status.Exports, ExportStatus{e.Meta.Namespace, e.Meta.Name, at})
	}
}

func byName(a, b *exports.Service) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}

func (g *Gateway) slicesOf(e *exported) (all []*service.Slice) {
	for _, s := range g.slices.of(e.serviceName()) {
		all = append(all, s.Slice)
	}
	return all
}

// serviceName returns the Service's name in this cluster.
func (e *exported) serviceName() service.Name {
	return service.Name{Namespace: e.Meta.Namespace, Name: e.Meta.Name}
}

// exportNumber returns the number of an exported Service's address in its external CIDR; 0: it is
// in none.
func (p *Peering) exportNumber(address string) (n uint32) {
	a, err := netip.ParseAddr(address)
	if err != nil {
		return 0
	}
	for _, c := range p.External {
		if n, ok := offset(c, a); ok {
			return n
		}
	}
	return 0
}

// exportAddress returns the addresses with a number in the external CIDRs of a Service's families;
// none for 0.
func (p *Peering) exportAddress(of *exported, n uint32) (a rules.Pair) {
	for _, c := range p.External {
		if at := nth(c, n); n > 0 && of.Has(c.Addr().Is6()) && c.Contains(at) {
			a.Set(at)
		}
	}
	return a
}

// smallestExternal returns the external CIDR with the fewest addresses; invalid: there is none.
func (p *Peering) smallestExternal() (least netip.Prefix) {
	for _, c := range p.External {
		if !least.IsValid() || c.Addr().BitLen()-c.Bits() < least.Addr().BitLen()-least.Bits() {
			least = c
		}
	}
	return least
}

// exportRoom returns the first number that an exported Service cannot have: each external CIDR has
// those before it. The one of IPv6 may have more addresses than anybody needs.
func (p *Peering) exportRoom() uint32 {
	if c := p.smallestExternal(); c.IsValid() {
		return 1 << min(c.Addr().BitLen()-c.Bits(), 24)
	}
	return 1
}

// externalFull records that a Service has no address.
func (g *Gateway) externalFull(d *Plan, e *exported) {
	d.ExternalFull = true
	var lacks []string
	for i, family := range []string{"IPv4", "IPv6"} {
		if e.Has(i == 1) {
			lacks = append(lacks, family)
		}
	}
	why := fmt.Sprintf("%s has no address left", g.good.smallestExternal())
	if !slices.ContainsFunc(g.good.External, func(c netip.Prefix) bool { return e.Has(c.Addr().Is6()) }) {
		why = "missing, one of " + strings.Join(lacks, " or ") + "; exported Services have their addresses from it"
	}
	d.exportFault(e, "spec.local.externalCIDR of Peering %s: %s", g.self.Name, why)
}

// chosenExports returns the Services to export. Of two with one name in the other cluster, one that
// has an address comes first, then the older one. Ports and addresses are divided among namespaces:
// the Service comes next with which its namespace would have least of what it has most of.
func (g *Gateway) chosenExports(d *Plan, held map[string]uint32) (all []*exported) {
	keys := slices.SortedFunc(maps.Keys(g.exported), func(a, b string) int {
		x, y := g.exported[a].Meta, g.exported[b].Meta
		return cmp.Or(cmp.Compare(rank(held[a] == 0), rank(held[b] == 0)), x.Created.Compare(y.Created),
			strings.Compare(a, b))
	})
	owners, total, addresses := map[string]string{}, 0, int(g.good.exportRoom())-1
	shares := newShares[*exported](maxPorts, max(addresses, 1))
	for _, key := range keys {
		e := g.exported[key]
		if e.refused != "" {
			d.exportFault(e, "%s", e.refused)
			continue
		}
		if other := owners[e.nameThere()]; other != "" {
			d.exportFault(e, "metadata.name: in the other cluster it would be %s, as %s is", e.nameThere(), other)
			continue
		}
		owners[e.nameThere()] = key
		shares.add(e, e.Meta.Namespace, e.ports(), 1)
	}
	for _, e := range shares.inTurn() {
		if n := e.ports(); total+n > maxPorts {
			d.exportFault(e, "spec.ports: %d ports are exported already, and at most %d may be, which namespaces share",
				total, maxPorts)
			continue
		} else if addresses > 0 && len(all) == addresses { // without any, each Service says so
			g.externalFull(d, e)
			continue
		} else {
			total += n
		}
		for _, wrong := range e.Wrong {
			d.exportFault(e, "%s", wrong)
		}
		all = append(all, e)
	}
	return all
}

// Shares put Services in an order in which no namespace takes from another what it has less of.
type shares[S any] struct {
	most []int            // of each resource
	had  map[string][]int // by namespace
	all  []part[S]
}

type part[S any] struct {
	of   S
	part float64 // the largest part of a resource that the namespace has with this Service
}

func newShares[S any](most ...int) *shares[S] { return &shares[S]{most: most, had: map[string][]int{}} }

// add adds a Service that needs n of each resource. Of one namespace, those that are added first
// come first.
func (s *shares[S]) add(of S, namespace string, n ...int) {
	had := s.had[namespace]
	if had == nil {
		had = make([]int, len(s.most))
		s.had[namespace] = had
	}
	x := part[S]{of: of}
	for i := range n {
		had[i] += n[i]
		x.part = max(x.part, float64(had[i])/float64(s.most[i]))
	}
	s.all = append(s.all, x)
}

// inTurn returns the Services in order.
func (s *shares[S]) inTurn() (all []S) {
	slices.SortStableFunc(s.all, func(a, b part[S]) int { return cmp.Compare(a.part, b.part) })
	for _, x := range s.all {
		all = append(all, x.of)
	}
	return all
}

// exportFault records a fault of an exported Service.
func (d *Plan) exportFault(e *exported, format string, args ...any) {
	d.ExportFaults = append(d.ExportFaults, fmt.Sprintf("%s %s/%s: ", kindService, e.Meta.Namespace, e.Meta.Name)+
		fmt.Sprintf(format, args...))
}

// freeNumber returns a number below room that is not taken; 0: there is none. The search starts at
// a point derived from the Service's name alone, so that most Services get the same address again
// after the status is lost, for example by restoring a backup.
func freeNumber(room uint32, key string, taken map[uint32]bool) uint32 {
	h := fnv.New32a()
	h.Write([]byte(key))
	for first, i := h.Sum32()%room, uint32(0); i < room && i <= uint32(len(taken)); i++ {
		if n := (first + i) % room; !taken[n] {
			return n
		}
	}
	return 0
}

// A sliceIndex has the EndpointSlices of wanted Services by namespace/name and by Service.
type sliceIndex struct {
	table[*slice]
	services map[service.Name]table[*slice]
	wanted   map[service.Name]bool
	listing  map[service.Name]bool // of these, those whose EndpointSlices are not all known yet
	counted  map[service.Name]bool // those with so many endpoints that only their number is kept
}

func newSliceIndex() *sliceIndex {
	return &sliceIndex{table[*slice]{}, map[service.Name]table[*slice]{}, map[service.Name]bool{},
		map[service.Name]bool{},
		map[service.Name]bool{}}
}

// want forgets the Services that are not among all, and reports whether others are there that must
// be begun.
func (x *sliceIndex) want(all map[service.Name]bool) (more bool) {
	for name := range x.wanted {
		if !all[name] {
			x.forget(name)
		}
	}
	return len(x.wanted) < len(all)
}

func (x *sliceIndex) forget(name service.Name) {
	for key := range x.services[name] {
		x.set(key, nil)
	}
	delete(x.wanted, name)
	delete(x.listing, name)
	delete(x.counted, name)
}

// count keeps of a Service's endpoints their number alone.
func (x *sliceIndex) count(name service.Name) {
	if x.counted[name] {
		return
	}
	x.counted[name] = true
	for key, s := range maps.Clone(x.services[name]) {
		x.set(key, s)
	}
}

// begin makes a Service wanted, before its EndpointSlices are listed.
func (x *sliceIndex) begin(name service.Name) {
	if !x.wanted[name] {
		x.wanted[name], x.listing[name] = true, true
	}
}

// known reports whether all EndpointSlices of a Service are here.
func (x *sliceIndex) known(name service.Name) bool { return x.wanted[name] && !x.listing[name] }

// began returns what to do when the EndpointSlices of the Services that are wanted now have been
// listed.
func (x *sliceIndex) began() func() {
	now := slices.Collect(maps.Keys(x.wanted))
	return func() {
		for _, name := range now {
			delete(x.listing, name)
		}
	}
}

func (x *sliceIndex) set(key string, s *slice) {
	if s != nil && !x.wanted[s.Of] {
		s = nil
	}
	if s != nil && x.counted[s.Of] {
		s = &slice{Slice: s.Count()}
	}
	if was := x.table[key]; was != nil {
		if x.services[was.Of].set(key, nil); len(x.services[was.Of]) == 0 {
			delete(x.services, was.Of)
		}
	}
	if x.table.set(key, s); s == nil {
		return
	}
	if x.services[s.Of] == nil {
		x.services[s.Of] = table[*slice]{}
	}
	x.services[s.Of].set(key, s)
}

func (x *sliceIndex) of(name service.Name) (all []*slice) {
	for _, key := range slices.Sorted(maps.Keys(x.services[name])) {
		all = append(all, x.services[name][key])
	}
	return all
}

// serveExport serves a Service at its address of each family. Clients get its ready endpoints of
// that family; without any they are refused. It returns false if there are too many. Once there are
// no longer, they are listed again.
func (g *Gateway) serveExport(d *Plan, e *exported, number uint32, endpoints []*service.Slice) bool {
	n := 0
	for _, s := range endpoints {
		n += s.Len()
	}
	if n *= e.ports(); n > maxBackends-d.backends {
		d.exportFault(e,
			"its ports have %d endpoints, and those of other Services %d; at most %d may be exported, which namespaces share", n, d.backends, maxBackends)
		return false
	}
	if g.slices.counted[e.serviceName()] {
		g.slices.forget(e.serviceName())
		return true
	}
	told := &exports.Service{Namespace: e.Meta.Namespace, Name: e.Meta.Name, Type: exports.Labelled,
		Endpoints: []exports.Group{{}}}
	for _, c := range g.good.External {
		if at := nth(c, number); e.Has(at.Is6()) && !c.Contains(at) {
			d.exportFault(e, "spec.local.externalCIDRs of Peering %s: %s has no address number %d, as the other one has",
				g.self.Name, c, number)
		}
	}
	for at := range g.good.exportAddress(e, number).All() {
		told.Endpoints[0].Addresses = append(told.Endpoints[0].Addresses, exports.Endpoint{IP: at})
		told.Ports = nil // they are the same in each family
		for _, p := range e.Ports(endpoints, at.Is6()) {
			told.Ports = append(told.Ports,
				exports.Port{Name: p.Label, Protocol: protocolNames[p.Protocol], Port: p.Port})
			d.Services = append(d.Services, config.Service{
				Name: e.nameThere(), Address: rules.PairOf(at), Port: p.Port, Protocol: p.Protocol,
				Affinity: p.Affinity, AffinityTimeout: p.AffinityTimeout, ProxyProtocol: p.ProxyProtocol,
				Backends: g.backends(d, e, p.Endpoints),
			})
		}
	}
	d.Exports = append(d.Exports, told)
	return true
}

// backends returns the endpoints that are pods in the Peering's CIDRs, or have a node's own
// address.
func (g *Gateway) backends(d *Plan, e *exported, all []services.Endpoint) (backends []config.Backend) {
	var wrong []netip.Addr
	for _, x := range all {
		b := config.Backend{Address: x.Address, Port: x.Port, Weight: x.Weight}
		if !slices.ContainsFunc(g.good.Pods, func(p netip.Prefix) bool { return p.Contains(x.Address) }) {
			i := slices.IndexFunc(d.Nodes, func(n config.Node) bool { return g.holders[x.Address] == n.Name })
			if i < 0 {
				wrong = append(wrong, x.Address)
				continue
			}
			b.Via = d.Nodes[i].Name
		}
		backends = append(backends, b)
	}
	if len(wrong) > 0 {
		d.exportFault(e,
			"its endpoint %s is neither in spec.local.podCIDRs of Peering %s nor the address of a node that is connected%s",
			wrong[0], g.self.Name, more(len(wrong)))
	}
	d.backends += len(backends)
	return backends
}
