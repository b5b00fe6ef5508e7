package health

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sort"
)

// About paths.
var (
	NarrowPeer = cause("peer-path-mtu", Warning,
		"packets of more than {size} bytes vanish on the way {way} the peer ({address}), mtu is {mtu}; senders are kept to what passes",
		"let IP packets of {wire} bytes pass there, or set mtu: {size} in both clusters")
	NarrowNode = cause("node-path-mtu", Warning,
		"packets of more than {size} bytes vanish on the way {way} {node} ({address}), mtu is {mtu}; senders are kept to what passes",
		"let IP packets of {wire} bytes pass there, or set mtu: {size} in both clusters")
	PathWide = cause("path-mtu-restored", Note, "packets of mtu bytes pass to and from {node} again", "")
)

// A Path is a path to the peer or to a node, and back, that carries less than configured.
type Path struct {
	Kind       Kind
	Of         string     // name of the peer or node
	To         netip.Addr // outer address; the zero Addr: unknown
	Size       int        // the largest inner packet that passes
	Configured int        // mtu
	Wire       int        // size of the IP packets around those of Configured
	Way        string     // where larger ones vanish: on the way to it, from it, or either
}

type pathKey struct {
	kind Kind
	of   string
}

// paths holds what was logged about each.
type paths map[pathKey]Finding

func (p paths) judge(o *Observation) (changes []Finding) {
	narrow := make(map[pathKey]bool, len(o.Paths))
	for i := range o.Paths {
		x := &o.Paths[i]
		key, f := pathKey{x.Kind, x.Of}, x.finding()
		narrow[key] = true
		if p[key] != f {
			p[key] = f
			changes = append(changes, f)
		}
	}
	return append(changes, o.over(p, narrow, PathWide)...)
}

// over forgets what was logged about the ends that are not among those seen. It returns, for those
// that still exist, the cause of that.
func (o *Observation) over(said map[pathKey]Finding, seen map[pathKey]bool, c *Cause) (changes []Finding) {
	for key, f := range said {
		if seen[key] {
			continue
		}
		delete(said, key)
		if o.has(key) {
			changes = append(changes, findingOf(c, f.Kind, f.Of, "{node}", f.Of))
		}
	}
	return changes
}

// has reports whether the other end of a path still exists.
func (o *Observation) has(key pathKey) bool {
	return key.kind == OfPeer || slices.ContainsFunc(o.Nodes, func(n Node) bool { return n.Name == key.of })
}

func (x *Path) finding() Finding {
	c := NarrowNode
	if x.Kind == OfPeer {
		c = NarrowPeer
	}
	return findingOf(c, x.Kind, x.Of, "{node}", x.Of, "{address}", x.To.String(), "{size}", fmt.Sprint(x.Size), "{mtu}",
		fmt.Sprint(x.Configured),
		"{wire}", fmt.Sprint(x.Wire), "{way}", x.Way)
}

// findings returns the current findings.
func (p paths) findings() []Finding {
	all := slices.Collect(maps.Values(p))
	sort.Slice(all, func(i, j int) bool { return all[i].Text < all[j].Text })
	return all
}
