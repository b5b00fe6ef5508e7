package nat

import (
	"maps"
	"net/netip"

	"culvert/nat/rules"
)

// Reroute replaces the Routes of some nodes' links, and changes nothing else: in the surroundings,
// for the source check, and in the rules, which route packets. Its cost depends on these links
// alone. It returns false, and changes nothing, in cases that need Prepare: if a prefix is invalid
// or another link's, if a link is not a node's, or if tables of the Config route packets. An
// earlier Prepared that was not committed becomes invalid.
func (e *Engine) Reroute(routes map[Link][]netip.Prefix) bool {
	e.apply.Lock()
	defer e.apply.Unlock()
	next := *e.current()
	if next.surroundings = next.rerouted(routes); next.surroundings == nil {
		return false
	}
	e.unprepare()
	draft, ok := e.set.Reroute(routes)
	if ok {
		e.publish(&next, draft, false)
	}
	return ok
}

// rerouted returns s with the routes of some links replaced; nil if a prefix is invalid or another
// link's.
func (s *surroundings) rerouted(routes map[Link][]netip.Prefix) *surroundings {
	next := &surroundings{s.nodes, maps.Clone(s.routes), s.homes, s.nodeAddresses}
	for link, prefixes := range routes { // first, because a prefix may move from one of the links to another
		for _, p := range missing(s.routes[link], prefixes) {
			next.homes = next.homes.DeletePersist(p)
		}
	}
	for link, prefixes := range routes {
		next.routes[link] = append([]netip.Prefix(nil), prefixes...)
		for _, p := range missing(prefixes, s.routes[link]) {
			if _, taken := next.homes.Get(p); taken || !p.IsValid() || p != p.Masked() || p.Addr().Is4In6() {
				return nil
			}
			next.homes = next.homes.InsertPersist(p, link)
		}
	}
	return next
}

// Admit replaces some Endpoints of Config.Admit by others, or returns all faults and changes
// nothing. Its cost depends on these alone. An earlier Prepared that was not committed becomes
// invalid.
func (e *Engine) Admit(withdrawn, added []rules.Endpoint) error {
	e.apply.Lock()
	defer e.apply.Unlock()
	e.unprepare()
	draft, err := e.set.Admit(withdrawn, added)
	if err != nil {
		return err
	}
	next := *e.current()
	e.publish(&next, draft, false)
	return nil
}

// missing returns the elements of a list that are not in another.
func missing(list, of []netip.Prefix) (all []netip.Prefix) {
	there := make(map[netip.Prefix]bool, len(of))
	for _, p := range of {
		there[p] = true
	}
	for _, p := range list {
		if !there[p] {
			all = append(all, p)
		}
	}
	return all
}
