package service

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"culvert/gateway/node/services"
	"culvert/kube/objects"
)

// Mode selects the Services to serve.
type Mode string

// The modes.
const (
	Labelled Mode = "labelled" // those with the label service.kubernetes.io/service-proxy-name: culvert
	All      Mode = "all"      // also those without that label
)

// A State holds the Services, the EndpointSlices and the Node of one node, and derives what the
// node serves. The order of objects does not matter.
type State struct {
	mode Mode
	self string           // name of the node
	base *services.Config // settings that no object has

	services map[Name]*service
	slices   map[Name]map[string]*slice // of each Service, by name
	owners   map[Name]Name              // of slices: the last known Service
	node     *node
	others   map[Name]*node  // the other nodes
	alive    map[string]bool // nodes that may announce addresses
	began    bool            // Config was called

	served  map[Name][]services.Service // with endpoints, for Services whose slices have not changed
	fronts  []*service                  // oldest first, without what older ones have; nil: must be assigned again
	settled []*service                  // the last fronts
	wrong   map[string]report           // pending reports
	taken   map[netip.Addr]bool         // refused by the node's kernel

	// For announce.go.
	unable  map[string][]netip.Prefix // by node: addresses that it cannot announce
	bidders map[string]bool           // eligible nodes when winners was computed
	winners map[lot]string            // chosen nodes; nil: must be computed again
	surplus []string                  // keys of wrong
}

// NewState returns the State of a node with configuration base, whose addresses, if any, replace
// the Node's.
func NewState(mode Mode, self string, base *services.Config) *State {
	return &State{
		mode: mode, self: self, base: base, services: map[Name]*service{}, slices: map[Name]map[string]*slice{},
		owners: map[Name]Name{},
		served: map[Name][]services.Service{}, wrong: map[string]report{}, taken: map[netip.Addr]bool{},
		others: map[Name]*node{}, unable: map[string][]netip.Prefix{},
	}
}

// parsed is an Object with its parsed parts.
type parsed struct {
	*objects.Object
	service *service // nil: not a Service, or not to be served
	slice   *slice   // likewise
	node    *node    // nil: not a Node
	wrong   faults   // of the node
}

// read parses an object for the node called self. It takes most of the time of Put, and needs no
// State.
func read(o *objects.Object, self string) parsed {
	r := parsed{Object: o}
	switch o.Kind {
	case KindService:
		r.service = readService(o)
	case KindSlice:
		r.slice = readSlice(o, self)
	case KindNode:
		r.node, r.wrong = readNode(o)
	}
	return r
}

// Put adds or replaces an object, and reports whether that changes anything.
func (s *State) Put(o *objects.Object) bool { return s.put(read(o, s.self)) }

func (s *State) put(r parsed) bool {
	o := r.Object
	at := Name{o.Metadata.Namespace, o.Metadata.Name}
	switch o.Kind {
	case KindService:
		next := r.service
		if next == nil || !s.serves(o) {
			return s.Delete(KindService, at)
		}
		old := s.services[at]
		if old != nil && old.equal(next) {
			return false
		}
		if old == nil || !maps.Equal(old.weights, next.weights) {
			delete(s.served, at)
		}
		s.services[at], s.fronts = next, nil
	case KindSlice:
		next := r.slice
		if next == nil || has(o, labelHeadless) {
			return s.Delete(KindSlice, at)
		}
		of := Name{at.Namespace, o.Metadata.Labels[labelService]}
		if was, ok := s.owners[at]; ok && was != of {
			s.Delete(KindSlice, at)
		}
		if old := s.slices[of][at.Name]; old != nil && old.equal(next) {
			return false
		}
		s.report(KindSlice, next.meta, next.wrong)
		if s.slices[of] == nil {
			s.slices[of] = map[string]*slice{}
		}
		s.slices[of][at.Name], s.owners[at] = next, of
		s.touch(of)
	case KindNode:
		next, wrong := r.node, r.wrong
		if o.Metadata.Name != s.self {
			old := s.others[at]
			if old != nil && reflect.DeepEqual(old, next) {
				return false
			}
			if s.others[at] = next; old == nil || !slices.Equal(old.addresses, next.addresses) {
				s.fronts = nil
			}
			return true
		}
		wrong = append(wrong, s.stay(next)...)
		s.report(KindNode, o.Metadata, wrong)
		if s.node != nil && reflect.DeepEqual(s.node, next) {
			return false
		}
		if s.node == nil || s.node.zone != next.zone {
			clear(s.served)
		}
		s.node, s.fronts = next, nil
	}
	return true
}

// equal reports whether two versions of a Service are served alike.
func (s *service) equal(o *service) bool {
	return s.meta.UID == o.meta.UID && s.first == o.first && s.local == o.local &&
		s.meta.Created.Equal(o.meta.Created) && s.healthCheck == o.healthCheck &&
		maps.Equal(s.weights, o.weights) && slices.Equal(s.wrong, o.wrong) && reflect.DeepEqual(s.ports, o.ports)
}

// equal reports whether two versions of a slice are equivalent.
func (s *slice) equal(o *slice) bool {
	return slices.Equal(s.wrong, o.wrong) && slices.Equal(s.ports, o.ports) &&
		reflect.DeepEqual(s.endpoints, o.endpoints)
}

func has(o *objects.Object, label string) bool {
	_, ok := o.Metadata.Labels[label]
	return ok
}

func (s *State) serves(o *objects.Object) bool {
	by, labelled := o.Metadata.Labels[labelProxy]
	return !has(o, labelHeadless) && (labelled && by == ProxyName || !labelled && s.mode == All)
}

// touch records that endpoints of a Service have changed.
func (s *State) touch(of Name) {
	if delete(s.served, of); of == apiServer {
		s.fronts = nil
	}
}

// Delete removes an object, and reports whether that changes anything.
func (s *State) Delete(kind string, at Name) bool {
	delete(s.wrong, kind+" "+at.String())
	switch kind {
	case KindService:
		if s.services[at] == nil {
			return false
		}
		delete(s.services, at)
		delete(s.served, at)
		s.fronts = nil
	case KindSlice:
		of, ok := s.owners[at]
		if !ok {
			return false
		}
		delete(s.owners, at)
		s.touch(of)
		if delete(s.slices[of], at.Name); len(s.slices[of]) == 0 {
			delete(s.slices, of)
		}
	case KindNode: // a node whose own Node has gone for a moment continues
		if _, ok := s.others[at]; !ok {
			return false
		}
		delete(s.others, at)
		s.fronts = nil
	}
	return true
}

// Refuse leaves out addresses that the node's kernel routes elsewhere, and reports whether there
// are new ones.
func (s *State) Refuse(addresses []netip.Addr) (more bool) {
	for _, a := range addresses {
		more = more || !s.taken[a]
		s.taken[a] = true
	}
	s.fronts = nil
	return more
}

// Rebase changes the settings that no object has. After Config, it fails for changes that a node
// can only make at a restart, and then changes nothing.
func (s *State) Rebase(base *services.Config) error {
	if s.began {
		before, next := *s.base, *base
		before.Addresses, next.Addresses = s.addresses(), s.addressesOf(base)
		if err := before.Replaceable(&next); err != nil {
			return err
		}
	}
	s.base, s.fronts = base, nil
	return nil
}

// Forgive makes addresses refused by the kernel be tried again, and reports whether there are any.
func (s *State) Forgive() bool {
	if len(s.taken) == 0 {
		return false
	}
	clear(s.taken)
	s.fronts = nil
	return true
}

// metadata returns a Service's metadata.
func (s *State) metadata(n Name) (m objects.Metadata, ok bool) {
	if x := s.services[n]; x != nil {
		return x.meta, true
	}
	return m, false
}

// Waiting returns what is missing before anything can be served; "" if nothing.
func (s *State) Waiting() string {
	switch {
	case s.node == nil:
		return "the Node " + s.self
	case len(s.addresses()) == 0:
		return "an address of the Node " + s.self
	}
	return ""
}

func (s *State) addresses() []netip.Addr { return s.addressesOf(s.base) }

func (s *State) addressesOf(base *services.Config) []netip.Addr {
	if len(base.Addresses) > 0 || s.node == nil {
		return base.Addresses
	}
	return s.node.addresses
}

// stay keeps one address of each family that the Node had when Config was called: a node accepts
// others only at a restart. A missing address is still requested, and may exist.
func (s *State) stay(next *node) (wrong faults) {
	if !s.began || s.node == nil || len(s.base.Addresses) > 0 {
		return nil
	}
	addresses := slices.Clone(s.node.addresses)
	for _, a := range next.addresses {
		i := slices.IndexFunc(addresses, func(b netip.Addr) bool { return a.Is4() == b.Is4() })
		if i < 0 {
			wrong.add("status.addresses", "%s is of another family than those before it, and is used at a restart only",
				a)
			continue
		}
		addresses[i] = a
	}
	next.addresses = addresses
	return wrong
}

// Config returns what the node serves. Preconditions: Waiting returns "".
func (s *State) Config() *services.Config {
	c := *s.base
	c.Node, c.Addresses, s.began = s.self, s.addresses(), true
	if s.fronts == nil {
		s.assignPlaces(&c)
		s.SetUnable(s.self, s.lacks(&c))
	}
	n := 0
	for _, f := range s.fronts {
		n += len(f.ports)
	}
	c.Services = make([]services.Service, 0, n)
	for _, f := range s.fronts {
		c.Services = append(c.Services, s.serve(f)...)
	}
	c.Answers = s.answers(&c)
	return &c
}

// serve returns the ports of a Service with their endpoints.
func (s *State) serve(f *service) []services.Service {
	all, ok := s.served[f.name]
	if ok {
		return all
	}
	all = make([]services.Service, 0, len(f.ports))
	for i := range f.ports {
		p := &f.ports[i]
		x := p.Service
		x.Endpoints = choose(candidates(s.slices[f.name], p.name, p.Protocol, p.v4), s.self, s.node.zone, f.weights)
		all = append(all, x)
	}
	s.served[f.name] = all
	return all
}
