package rules

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"
)

// A routeSetKey names one table of a class.
type routeSetKey struct {
	class  class
	source netip.Prefix
}

// A routeDelta is how the offers for one prefix change.
type routeDelta struct{ add, remove []*routeOffer }

// policyChanges collects what a commit changes about routing.
type policyChanges map[routeSetKey]map[netip.Prefix]*routeDelta

func (c policyChanges) at(k routeSetKey, p netip.Prefix) *routeDelta {
	set := c[k]
	if set == nil {
		set = map[netip.Prefix]*routeDelta{}
		c[k] = set
	}
	d := set[p]
	if d == nil {
		d = &routeDelta{}
		set[p] = d
	}
	return d
}

func (c policyChanges) add(r *policyRoutes) {
	for _, o := range r.offers {
		d := c.at(routeSetKey{r.class, r.source}, o.at)
		d.add = append(d.add, o)
	}
}

func (c policyChanges) remove(r *policyRoutes) {
	for _, o := range r.offers {
		d := c.at(routeSetKey{r.class, r.source}, o.at)
		d.remove = append(d.remove, o)
	}
}

// settle drops what is removed and added again: it stays.
func (c policyChanges) settle() {
	for k, set := range c {
		for p, d := range set {
			d.add = slices.DeleteFunc(d.add, func(o *routeOffer) bool {
				i := slices.Index(d.remove, o)
				if i >= 0 {
					d.remove = slices.Delete(d.remove, i, i+1)
				}
				return i >= 0
			})
			if len(d.add)+len(d.remove) == 0 {
				delete(set, p)
			}
		}
		if len(set) == 0 {
			delete(c, k)
		}
	}
}

// inherit lets p, which comes in place of old, keep the policy rules and offers of old as far as they say the same: what has not
// changed stays in the tables.
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

// same reports whether r and o, of two pieces of one key, differ in nothing but a priority that follows from other rules.
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

// with returns the policy after changes.
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

// withOffers returns the table after changes, nil if it is empty.
func withOffers(t *routeTable, changes map[netip.Prefix]*routeDelta) *routeTable {
	t, fresh := forChanges(t, len(changes))
	put := func(p netip.Prefix, c routeCell) {
		switch {
		case len(c.offers) == 0 && fresh:
			t.Delete(p)
		case len(c.offers) == 0:
			t = t.DeletePersist(p)
		case fresh:
			t.Insert(p, c)
		default:
			t = t.InsertPersist(p, c)
		}
	}
	prefixes := make([]netip.Prefix, 0, len(changes))
	for p, d := range changes {
		old, _ := t.Get(p)
		put(p, routeCell{offers: d.apply(old.offers)})
		prefixes = append(prefixes, p)
	}
	// Wider ones first, so that what they hand down is right when their subnets are settled.
	slices.SortFunc(prefixes, func(a, b netip.Prefix) int { return cmp.Compare(a.Bits(), b.Bits()) })
	for _, p := range prefixes {
		var below []netip.Prefix
		for q := range t.Subnets(p) {
			below = append(below, q)
		}
		slices.SortFunc(below, func(a, b netip.Prefix) int { return cmp.Compare(a.Bits(), b.Bits()) })
		for _, q := range below {
			c, _ := t.Get(q)
			best := c.offers[0]
			if q.Bits() > 0 {
				wider, ok := t.LookupPrefix(netip.PrefixFrom(q.Addr(), q.Bits()-1))
				if ok && wider.best != nil && wider.best.rule != best.rule && compareOffers(wider.best, best) < 0 {
					best = wider.best
				}
			}
			if best != c.best {
				put(q, routeCell{c.offers, best})
			}
		}
	}
	if t.Size() == 0 {
		return nil
	}
	return t
}

// forChanges returns the table to make n changes to: t or, if they are many, one that belongs to nobody else yet and is changed in place,
// which costs less than to share what remains.
func forChanges[V any](t *bart.Table[V], n int) (changing *bart.Table[V], fresh bool) {
	switch {
	case t == nil:
		return new(bart.Table[V]), true
	case n > t.Size()/16:
		return t.Clone(), true
	}
	return t, false
}

// apply returns offers after d, the first rule's first. It leaves offers as they are.
func (d *routeDelta) apply(offers []*routeOffer) []*routeOffer {
	var next []*routeOffer
	for _, o := range offers {
		if !slices.Contains(d.remove, o) {
			next = append(next, o)
		}
	}
	next = append(next, d.add...)
	slices.SortFunc(next, compareOffers)
	return next
}

// resolve gives rules without a priority of their own what the kernel gives them (fib_default_rule_pref): one less than the least that
// is there, in the order in which they are written. It reports those whose priority changes by it.
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
