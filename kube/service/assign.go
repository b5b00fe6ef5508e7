package service

import (
	"cmp"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"culvert/gateway/node/services"
	"culvert/kube"
	"culvert/kube/objects"
)

// A place is the address of a Service's port. The zero address stands for the node's own.
type place struct {
	netip.Addr
	port     uint16
	protocol uint8
}

// apiServer is the Service whose endpoints are the API server.
var apiServer = Name{"default", "kubernetes"}

// foreign returns addresses of other hosts, all of whose ports this node must be able to reach,
// each with a message: "" for other nodes, which serve Services at their own addresses.
func (s *State) foreign() map[netip.Addr]string {
	all := map[netip.Addr]string{}
	for _, x := range s.slices[apiServer] {
		for i := range x.endpoints {
			all[x.endpoints[i].address] = "is the API server's"
		}
	}
	for _, n := range s.others {
		for _, a := range n.addresses {
			all[a] = ""
		}
	}
	for _, a := range s.addresses() {
		delete(all, a)
	}
	return all
}

// compare orders the oldest first.
func (s *service) compare(o *service) int {
	return cmp.Or(s.meta.Created.Compare(o.meta.Created), strings.Compare(s.name.Namespace, o.name.Namespace),
		strings.Compare(s.name.Name, o.name.Name))
}

// assignPlaces gives each place to the oldest Service that wants it, and leaves out what this node
// cannot serve.
func (s *State) assignPlaces(c *services.Config) {
	order := slices.SortedFunc(maps.Values(s.services), (*service).compare)
	before := make(map[Name][]port, len(s.settled))
	for _, f := range s.settled {
		before[f.name] = f.ports
	}
	a := &assigner{c, map[place]Name{}, s.foreign(), s.taken}
	s.fronts = make([]*service, 0, len(order))
	for _, x := range order {
		f := a.assign(x)
		s.report(KindService, f.meta, f.wrong)
		s.fronts = append(s.fronts, f)
		if old, ok := before[f.name]; !ok || !reflect.DeepEqual(old, f.ports) {
			delete(s.served, f.name)
		}
	}
	s.settled = s.fronts
}

// An assigner gives each place to the first Service that wants it.
type assigner struct {
	config  *services.Config
	owners  map[place]Name
	foreign map[netip.Addr]string
	taken   map[netip.Addr]bool // see State
}

// assign returns what this node serves of a Service.
func (a *assigner) assign(x *service) *service {
	f := *x
	f.wrong, f.ports = slices.Clone(x.wrong), make([]port, 0, len(x.ports))
	for _, p := range x.ports {
		if a.assignPort(&f, &p) {
			f.ports = append(f.ports, p)
		}
	}
	slices.Sort(f.wrong)
	f.wrong = slices.Compact(f.wrong)
	return &f
}

// assignPort removes from a port of f what this node cannot serve, and reports whether clients
// reach the rest.
func (a *assigner) assignPort(f *service, p *port) bool {
	c := a.config
	if c.Mode == services.Sockets && p.Protocol == unix.IPPROTO_SCTP {
		f.wrong.add(p.field+".protocol", "SCTP is not served by sockets")
		return false
	}
	if slices.Contains(c.Addresses, p.ClusterIPs[0]) {
		f.wrong.add(p.clusterField, "%s is this node's own", p.ClusterIPs[0])
		return false
	}
	if len(a.keep(f, p, p.ClusterIPs, []string{p.clusterField})) == 0 {
		return false
	}
	p.ExternalIPs = a.keep(f, p, p.ExternalIPs, p.external)
	p.LoadBalancerIPs = a.keep(f, p, p.LoadBalancerIPs, p.balanced)
	own := netip.IPv6Unspecified()
	if p.v4 {
		own = netip.IPv4Unspecified()
	}
	switch n := p.NodePort; {
	case n == 0:
	case c.Reserves(n):
		f.wrong.add(p.field+".nodePort", "%d is one of services.clientPorts, %d-%d, of this node", n,
			c.Ports.First, c.Ports.Last)
		p.NodePort = 0
	case !a.take(f, p.field+".nodePort", place{own, n, p.Protocol}):
		p.NodePort = 0
	}
	return true
}

// keep returns those of some addresses, which fields name, at which this node serves a port of f.
func (a *assigner) keep(f *service, p *port, all []netip.Addr, fields []string) (kept []netip.Addr) {
	for i, at := range all {
		switch why, others := a.foreign[at]; {
		case others && why == "":
		case others:
			f.wrong.add(fields[i], "%s %s", at, why)
		case a.taken[at]:
			f.wrong.add(fields[i], "this node has another route to %s, or by it", at)
		case slices.ContainsFunc(a.config.Pods, func(pods netip.Prefix) bool { return pods.Contains(at) }):
			f.wrong.add(fields[i], "%s is one of services.pods", at)
		case a.take(f, fields[i], place{at, p.Port, p.Protocol}):
			kept = append(kept, at)
		}
	}
	return kept
}

// take gives a place to f, unless it has an owner.
func (a *assigner) take(f *service, field string, p place) bool {
	switch owner, taken := a.owners[p]; {
	case taken && owner == f.name:
		f.wrong.add(field, "port %d is there twice", p.port)
		return false
	case taken:
		f.wrong.add(field, "port %d is also that of %s, which is older", p.port, owner)
		return false
	}
	a.owners[p] = f.name
	return true
}

// A report is a fault of an object.
type report struct {
	kind string
	meta objects.Metadata
	what faults
}

func (s *State) report(kind string, meta objects.Metadata, what faults) {
	key := kind + " " + Name{meta.Namespace, meta.Name}.String()
	if len(what) == 0 {
		delete(s.wrong, key)
		return
	}
	s.wrong[key] = report{kind, meta, what}
}

// apiVersions are the API versions of the kinds, for Events.
var apiVersions = map[string]string{KindService: "v1", KindSlice: "discovery.k8s.io/v1", KindNode: "v1"}

// Faults returns what is wrong with objects, in order. Preconditions: Config was called; the result
// may lack later changes.
func (s *State) Faults() (all []kube.Fault) {
	for _, key := range slices.Sorted(maps.Keys(s.wrong)) {
		w := s.wrong[key]
		if w.kind == KindSlice && s.services[s.owners[Name{w.meta.Namespace, w.meta.Name}]] == nil {
			continue // of a Service that another proxy serves
		}
		all = append(all, kube.Fault{Event: kube.Event{
			APIVersion: apiVersions[w.kind], Kind: w.kind, Metadata: w.meta, Message: strings.Join(w.what, "; "),
		}})
	}
	return all
}

// A Check is what a load balancer learns about a Service at its healthCheckNodePort, at addresses
// of one family.
type Check struct {
	Name
	V4        bool
	Port      uint16
	Endpoints int // number of addresses of ready endpoints on this node
}

// Checks returns the checks of all Services. Preconditions: Config was called since the last
// change.
func (s *State) Checks() (all []Check) {
	for _, f := range s.fronts {
		for _, v4 := range []bool{true, false} {
			if f.healthCheck != 0 && slices.ContainsFunc(f.ports, func(p port) bool { return p.v4 == v4 }) {
				all = append(all, Check{f.name, v4, f.healthCheck, s.readyHere(f, v4)})
			}
		}
	}
	return all
}

// readyHere counts the addresses of a Service's ready endpoints on this node, for any port.
func (s *State) readyHere(f *service, v4 bool) int {
	ready := map[netip.Addr]bool{}
	for _, x := range s.slices[f.name] {
		for i := range x.endpoints {
			if e := &x.endpoints[i]; e.ready && e.local && e.address.Is4() == v4 && len(x.ports) > 0 {
				ready[e.address] = true
			}
		}
	}
	return len(ready)
}
