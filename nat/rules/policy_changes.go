package rules

import (
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"
)

// A routeSetKey identifies one table of a class.
type routeSetKey struct {
	class  class
	source netip.Prefix
}

// policyChanges collects the routing changes of a commit.
type policyChanges map[routeSetKey][]change[*policyRoutes]

// An offerChange is a change of an offer, and the offer's prefix.
type offerChange struct {
	change[*routeOffer]
	at netip.Prefix
}

func (c policyChanges) add(r *policyRoutes, remove bool) {
	if len(r.offers) == 0 {
		return
	}
	k := routeSetKey{r.class, r.source}
	c[k] = append(c[k], change[*policyRoutes]{r, remove})
}

// inherit makes p, the successor of old, reuse the policy rules and offers of old that are
// unchanged: those stay in the tables.
func (p *piece) inherit(old *piece) {
	for i, r := range p.routing[:min(len(p.routing), len(old.routing))] {
		was := old.routing[i]
		if !was.same(r.policyRule) {
			continue
		}
		r.policyRule = was.policyRule
		there := make(map[lead]*routeOffer, len(was.offers))
		for _, o := range was.offers {
			there[o.lead()] = o
		}
		for i, o := range r.offers {
			if o.rule = r.policyRule; there[o.lead()] != nil {
				r.offers[i] = there[o.lead()]
			}
		}
	}
}

// same reports whether r and o, from two pieces of one key, differ at most in a priority derived
// from other rules.
func (r *policyRule) same(o *policyRule) bool {
	a, b := *r, *o
	a.origin, b.origin, a.priority, b.priority = nil, nil, 0, 0
	return a == b && r.origin.compare(o.origin) == 0
}

// sameRules reports whether two pieces have the same policy rules, whatever their routes.
func sameRules(p, o *piece) bool {
	var a, b []*policyRoutes
	if p != nil {
		a = p.routing
	}
	if o != nil {
		b = o.routing
	}
	return slices.EqualFunc(a, b, func(r, s *policyRoutes) bool { return r.policyRule == s.policyRule })
}

// with returns the successor of the policy after changes.
func (p policy) with(changes policyChanges) policy {
	next := map[class]*routes{}
	for k, set := range changes {
		r := next[k.class]
		if r == nil {
			r = &routes{}
			if old, ok := p.classes.get(k.class); ok {
				*r = *old
			}
			next[k.class] = r
		}
		if !k.source.IsValid() {
			r.all = withOffers(r.all, set)
			continue
		}
		if r.sources == nil {
			r.sources = new(bart.Table[*routeTable])
		}
		old, _ := r.sources.Get(k.source)
		if t := withOffers(old, set); t != nil {
			r.sources = r.sources.InsertPersist(k.source, t)
		} else if r.sources = r.sources.DeletePersist(k.source); r.sources.Size() == 0 {
			r.sources = nil
		}
	}
	classes, devices := make(map[class]**routes, len(next)), p.devices
	for k, r := range next {
		_, there := p.classes.get(k)
		stays := r.all != nil || r.sources != nil
		if classes[k] = nil; stays {
			classes[k] = &r
		}
		if k.link() != anyLink && there != stays {
			devices += map[bool]int{true: 1, false: -1}[stays]
		}
	}
	all := p.classes.with(classes)
	plain, _ := all.get(classOf(anyLink, 0))
	return policy{plain, all, devices}
}

// withOffers returns the successor of t after changes, nil if it is empty.
func withOffers(t *routeTable, rules []change[*policyRoutes]) *routeTable {
	if t == nil {
		t = new(routeTable)
	}
	cells := changedOffers(t, rules)
	e := editOf(t, len(cells))
	for _, c := range cells {
		if len(c.offers) == 0 {
			e.remove(c.at)
		} else {
			e.put(c.at, routeCell{c.offers, c.offers[0]}) // unless a wider prefix has a better one
		}
	}
	chooseBest(&e, cells)
	return e.end()
}

// offersAt are all offers of a prefix, in order.
type offersAt struct {
	at     netip.Prefix
	offers []*routeOffer
}

// changedOffers returns the prefixes of t whose offers change, wider ones first.
func changedOffers(t *routeTable, rules []change[*policyRoutes]) []offersAt {
	n := 0
	for _, r := range rules {
		n += len(r.of.offers)
	}
	room, changes := make([]offerChange, n), make([]*offerChange, 0, n)
	for _, r := range rules {
		for _, o := range r.of.offers {
			c := &room[len(changes)]
			*c = offerChange{change[*routeOffer]{o, r.remove}, o.at}
			changes = append(changes, c)
		}
	}
	slices.SortFunc(changes, func(a, b *offerChange) int { return comparePrefixes(a.at, b.at) })
	cells := make([]offersAt, 0, len(changes))
	var list []change[*routeOffer]
	for i := range changes {
		p := changes[i].at
		if list = append(list, changes[i].change); i+1 < len(changes) && changes[i+1].at == p {
			continue
		}
		old, _ := t.Get(p)
		if offers := changed(old.offers, list, compareOffers); !slices.Equal(offers, old.offers) {
			cells = append(cells, offersAt{p, offers})
		}
		list = list[:0]
	}
	return cells
}

// chooseBest chooses the best offers of changed prefixes and of their subnets. Wider prefixes come
// first, so that what they hand down is final when their subnets are processed.
func chooseBest(e *edit[routeCell], cells []offersAt) {
	var below []netip.Prefix
	for _, c := range cells {
		if below = below[:0]; c.at.IsSingleIP() {
			if len(c.offers) > 0 {
				below = append(below, c.at)
			}
		} else {
			for q := range e.t.Subnets(c.at) {
				below = append(below, q)
			}
			slices.SortFunc(below, comparePrefixes)
		}
		for _, q := range below {
			c, _ := e.t.Get(q)
			best := c.offers[0]
			if q.Bits() > 0 {
				wider, ok := e.t.LookupPrefix(netip.PrefixFrom(q.Addr(), q.Bits()-1))
				if ok && wider.best.rule != best.rule && compareOffers(wider.best, best) < 0 {
					best = wider.best
				}
			}
			if best != c.best {
				e.put(q, routeCell{c.offers, best})
			}
		}
	}
}

// resolve gives rules without a priority what the kernel would give them (fib_default_rule_pref):
// one less than the lowest existing one, in the order in which they are written. It reports those
// whose priority changes.
func resolve(all []*policyRoutes, changed func(r *policyRoutes, priority int)) {
	slices.SortFunc(all, func(r, o *policyRoutes) int { return compareWritten(r.policyRule, o.policyRule) })
	least := mainPriority
	for _, r := range all {
		priority := r.given
		if priority == 0 {
			priority = max(0, least-1)
		}
		least = min(least, priority)
		if priority != r.priority {
			changed(r, priority)
		}
	}
}
