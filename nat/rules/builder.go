package rules

import (
	"errors"
	"fmt"
)

// maxRules caps a Ruleset.
const maxRules = 1 << 20

// A piece is the compiled form of one resource.
type piece struct {
	resource Resource
	origin   *origin
	chains   []chain
	routing  []*policyRoutes
	service  *Balancer
	facts    *linkFacts
	rules    int
	mentions []mention
}

// A mention is a device (by name) or a neighbour (by address) that a piece names, and the link it
// resolved to.
type mention struct {
	what any
	link Link
}

// A builder compiles one resource, and collects all its faults.
type builder struct {
	draft  *Draft
	piece  *piece
	rules  []rule              // of all chains of piece
	tests  []comparison        // of all rules of piece
	table  int32               // the one being compiled, by its index in resource; -1: resource stands for it
	old    map[string]*Counter // by path, of the piece that this one replaces
	faults []error
}

func (b *builder) fault(path, format string, args ...any) {
	b.faults = append(b.faults, fmt.Errorf("rules: %s: "+format, append([]any{path}, args...)...))
}

// compile returns the piece of a resource. Rules keep the counters that old, which may be nil, has
// for the same table, chain and name.
func (d *Draft) compile(key Key, r Resource, old *piece) (*piece, error) {
	b := builder{draft: d, piece: &piece{resource: r, origin: &origin{key, r.Order}}}
	if old != nil {
		b.old = make(map[string]*Counter, old.rules)
		for i := range old.chains {
			for j := range old.chains[i].rules {
				if r := &old.chains[i].rules[j]; r.counter != nil {
					b.old[r.path()] = r.counter
				}
			}
		}
	}
	tables := r.tables(&d.room)
	b.reserve(tables)
	addTables(&b, "table", tables, len(r.Tables), func(t *Table) string { return t.Name }, b.addTable)
	addTables(&b, "routing table", r.routing(&d.room), len(r.Routing), func(t *PolicyTable) string { return t.Name },
		b.addRouting)
	if r.Device != nil {
		b.piece.facts = newFacts(r.Device)
	}
	if r.Service != nil {
		b.piece.service = NewBalancer(*r.Service)
		b.piece.service.origin = b.piece.origin
	}
	if err := errors.Join(b.faults...); err != nil {
		return nil, err
	}
	return b.piece, nil
}

// addTables adds tables, which have different names. The first given ones are listed in the
// resource; it stands for the others.
func addTables[T any](b *builder, what string, tables []T, given int, name func(*T) string, add func(*T)) {
	names := newNames(len(tables))
	for i := range tables {
		t := &tables[i]
		if n := name(t); names.again(n) {
			b.fault(what+" "+n, "there is another table of this name")
		}
		if b.table = int32(i); i >= given {
			b.table = -1
		}
		add(t)
	}
}

// names are the names of one kind seen so far; nil while there is at most one.
type names map[string]struct{}

func newNames(n int) names {
	if n < 2 {
		return nil
	}
	return make(names, n)
}

// again reports whether a name was seen before.
func (s names) again(name string) bool {
	_, again := s[name]
	if s != nil {
		s[name] = struct{}{}
	}
	return again
}

// device returns the link of a device by name, unknownLink if there is none.
func (b *builder) device(name string) Link {
	if d := b.piece.resource.Device; d == nil || d.Name != name {
		switch name {
		case tunnelDevice:
			return Tunnel
		case firstNodeDevice:
			return firstNode
		}
	}
	return b.link(name)
}

// link returns the link of a device by name or of a neighbour by address, unknownLink if there is
// none.
func (b *builder) link(what any) Link {
	if d := b.piece.resource.Device; d != nil && (what == any(d.Name) || what == any(d.Address.V4) ||
		what == any(d.Address.V6)) {
		return d.Link
	}
	p := b.draft.link(what)
	b.piece.mentions = append(b.piece.mentions, mention{what, p})
	return p
}
