package rules

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// A Draft holds uncommitted puts and deletes. The drafts of one Set have different keys.
type Draft struct {
	set     *Set
	network *network // nil: unchanged
	// readmitted are the Endpoints that Admit changes.
	readmitted []Endpoint
	changes    []keyChange  // in the order of their first Put or Delete, which is fastest to traverse in memory
	at         map[Key]int  // index in changes
	claims     map[any]*Key // nil: released
	rules      int          // by how many their number grows
	room       mappingRoom  // for the resource being compiled
}

// A keyChange is the change of one key.
type keyChange struct {
	key   Key
	piece *piece // nil: it is to be deleted
	old   *piece // what Commit finds, or nil
}

// change records the change of a key.
func (d *Draft) change(key Key, p *piece) {
	if i, ok := d.at[key]; ok {
		d.changes[i].piece = p
		return
	}
	d.at[key] = len(d.changes)
	d.changes = append(d.changes, keyChange{key: key, piece: p})
}

// Draft returns a new one. It counts towards limits until it is committed or discarded.
func (s *Set) Draft() *Draft {
	d := &Draft{set: s, at: map[Key]int{}, claims: map[any]*Key{}}
	s.drafts = append(s.drafts, d)
	return d
}

// Discard drops d.
func (d *Draft) Discard() {
	s := d.set
	s.rules -= d.rules
	s.drafts = slices.DeleteFunc(s.drafts, func(o *Draft) bool { return o == d })
}

// current returns the piece of key in d, or nil.
func (d *Draft) current(key Key) *piece {
	if i, ok := d.at[key]; ok {
		return d.changes[i].piece
	}
	return d.set.pieces[key]
}

// owner returns which key claims what, as seen by d.
func (d *Draft) owner(what any) (Key, bool) {
	if key, ok := d.claims[what]; ok {
		if key == nil {
			return Key{}, false
		}
		return *key, true
	}
	key, ok := d.set.claims[what]
	return key, ok
}

// taken returns which key claims what, as seen by d or another draft.
func (d *Draft) taken(what any) (Key, bool) {
	if key, ok := d.owner(what); ok {
		return key, true
	}
	for _, o := range d.set.drafts {
		if key := o.claims[what]; key != nil {
			return *key, true
		}
	}
	return Key{}, false
}

// link returns the link of a device by name or of a neighbour by address, unknownLink if there is
// none.
func (d *Draft) link(what any) Link {
	if key, ok := d.owner(what); ok {
		return d.current(key).resource.Device.Link
	}
	return unknownLink
}

// Empty reports whether nothing has been put or deleted.
func (d *Draft) Empty() bool { return len(d.changes) == 0 }

// Put makes r the resource of key, beside those of a Config. If r is wrong, the error names the
// field, and key keeps its resource. Tables may name devices and neighbours before they exist.
func (d *Draft) Put(key Key, r Resource) error {
	if key.configured() {
		return fmt.Errorf("rules: %s: resources of kind %s come from the configuration; use another kind",
			key, key.Kind)
	}
	if err := r.validate(key); err != nil {
		return err
	}
	return d.put(key, r)
}

// Delete removes the resource of key if Put made one.
func (d *Draft) Delete(key Key) {
	if !key.configured() {
		d.remove(key)
	}
}

// put is Put for a resource whose fields are valid.
func (d *Draft) put(key Key, r Resource) error {
	old := d.current(key)
	if old != nil && old.resource.equal(&r) {
		return nil
	}
	claims := r.claims()
	for _, what := range claims {
		if other, taken := d.taken(what); taken && other != key {
			return fmt.Errorf("rules: %s: %s is taken by %s", key, describe(what), other)
		}
	}
	counted := old
	if counted == nil {
		counted = d.set.pieces[key] // deleted and put again
	}
	p, err := d.compile(key, r.clone(), counted)
	if err != nil {
		return err
	}
	more := p.rules
	if old != nil {
		more -= old.rules
	}
	if d.set.rules+more > maxRules {
		return fmt.Errorf("rules: %s: more than %d rules in all; delete others first", key, maxRules)
	}
	if old != nil {
		d.remove(key)
	}
	if len(claims) > 0 {
		owner := key // a copy, so that keys of resources without claims stay off the heap
		for _, what := range claims {
			d.claims[what] = &owner
		}
	}
	d.change(key, p)
	d.add(p.rules)
	return nil
}

// remove removes the resource of key, if there is one.
func (d *Draft) remove(key Key) {
	if old := d.current(key); old != nil {
		for _, what := range old.resource.claims() {
			if _, committed := d.set.claims[what]; committed {
				d.claims[what] = nil
			} else {
				delete(d.claims, what)
			}
		}
		d.change(key, nil)
		d.add(-old.rules)
	}
}

func (d *Draft) add(rules int) {
	d.rules += rules
	d.set.rules += rules
}

// claims returns what only one resource may have: a device's name, link and neighbour addresses, a
// service's address.
func (r *Resource) claims() []any {
	var all []any
	if d := r.Device; d != nil {
		all = append(all, d.Name, d.Link)
		for a := range d.Address.All() {
			all = append(all, a)
		}
	}
	if r.Service != nil {
		all = append(all, addressOf(r.Service))
	}
	return all
}

func describe(what any) string {
	switch x := what.(type) {
	case string:
		return fmt.Sprintf("device %q", x)
	case Link:
		return fmt.Sprintf("device number %d", x)
	case serviceAddress:
		return fmt.Sprintf("address %s port %d", x.addr, x.port)
	}
	return fmt.Sprintf("address %s", what)
}

// recompile compiles pieces again that name devices which appeared, disappeared or moved.
func (d *Draft) recompile() {
	stale := map[Key]*piece{}
	look := func(key Key, p *piece) {
		if p != nil && slices.ContainsFunc(p.mentions, func(m mention) bool { return d.link(m.what) != m.link }) {
			stale[key] = p
		}
	}
	for _, c := range d.changes {
		look(c.key, c.piece)
	}
	for what := range d.claims {
		for p := range d.set.mentions[what] {
			look(p.origin.key, d.current(p.origin.key))
		}
	}
	for key, p := range stale {
		again, err := d.compile(key, p.resource, p)
		if err != nil {
			panic("rules: a resource was good and is not: " + err.Error()) // devices do not affect validity
		}
		d.change(key, again)
	}
}

// The kinds of resources that a Config stands for. Draft.Put may use all others.
const (
	kindNetwork  = "network"
	kindNode     = "node"
	kindFirewall = "firewall"
	kindRouting  = "routing"
	kindMapping  = "mapping"
	kindService  = "service"
)

// configured reports whether a resource of this key belongs to the Config.
func (k Key) configured() bool {
	switch k.Kind {
	case kindNetwork, kindNode, kindFirewall, kindRouting, kindMapping, kindService:
		return true
	}
	return false
}

// Replace returns a Draft in which the resources of c replace those of the previous Config, or all
// faults. Preconditions: c.Validate finds no fault.
func (s *Set) Replace(c *Config) (*Draft, error) {
	d := s.Draft()
	network := c.network()
	d.network = &network
	resources := c.resources()
	keep := make(map[Key]*Resource, len(resources))
	if len(s.pieces) == 0 { // all is new
		d.changes, d.at = make([]keyChange, 0, len(resources)), make(map[Key]int, len(resources))
	}
	var faults []error
	for i := range resources {
		r := &resources[i]
		if _, ok := keep[r.key]; ok {
			faults = append(faults, fmt.Errorf("rules: %s: there is another of this name", r.key))
		}
		keep[r.key] = &r.Resource
	}
	// Removals first: a device or an address may get another owner.
	for key, old := range s.pieces {
		if r := keep[key]; r == nil && key.configured() || r != nil && !slices.Equal(r.claims(),
			old.resource.claims()) {
			d.remove(key)
		}
	}
	for i := range resources {
		faults = append(faults, d.put(resources[i].key, resources[i].Resource))
	}
	if err := errors.Join(faults...); err != nil {
		d.Discard()
		return nil, err
	}
	return d, nil
}

// Amend returns a Draft in which services replace those of the same name, address, port and
// protocol in the previous Config, or all faults. A gateway's services can only have backends to
// which routes lead; pod reports these, and is nil if the Config is a Host's. The cost depends on
// the changes alone.
func (s *Set) Amend(services []Service, pod func(netip.Addr) bool) (*Draft, error) {
	d, k := s.Draft(), &checker{of: "config"}
	faults := make([]error, 0, len(services))
	for i := range services {
		x, path := &services[i], at("Services", i)
		key := Key{Kind: kindService, Name: x.key()}
		switch old := s.pieces[key]; {
		case old == nil || old.resource.Routing != nil || (s.committed.host == nil) != (pod != nil):
			faults = append(faults, fmt.Errorf("rules: %s: there is none to amend; replace the configuration", key))
			continue
		case pod == nil:
			x.validateFrontend(k, path)
		default:
			k.service(path, x)
			k.frontless(path, x)
			for j := range x.Backends {
				if b := &x.Backends[j]; b.Via != 0 || !pod(b.Address) {
					k.fault(fmt.Sprintf("%s.Backends[%d].Address", path, j),
						"no route leads to %s yet; replace the configuration", b.Address)
				}
			}
		}
		faults = append(faults, d.put(key, Resource{Order: orderMapping, Service: x}))
	}
	if err := errors.Join(append(k.faults, faults...)...); err != nil {
		d.Discard()
		return nil, err
	}
	return d, nil
}

// Reroute returns a Draft in which nodes of the previous Config have other prefixes; false if a
// link is not one of these nodes, or if tables of the Config route packets. Its cost depends on
// these nodes alone: a link's claim leads to its node's resource, which is compiled again.
func (s *Set) Reroute(prefixes map[Link][]netip.Prefix) (*Draft, bool) {
	d := s.Draft()
	for link, list := range prefixes {
		key := s.claims[link]
		p := s.pieces[key]
		if p == nil || key.Kind != kindNode || p.resource.Node == nil {
			d.Discard()
			return nil, false
		}
		r, node := p.resource, *p.resource.Node
		node.Prefixes = list
		if r.Node = &node; d.put(key, r) != nil {
			d.Discard()
			return nil, false
		}
	}
	return d, true
}
