package rules

import (
	"net/netip"

	"github.com/gaissmai/bart"

	"culvert/nat/packet"
)

// A Link names where a packet comes from or goes to. The caller chooses the numbers and keeps them
// stable.
type Link = packet.Link

// Tunnel is the outside link of the WireGuard tunnel that a Config is about.
const Tunnel = packet.FirstOutside

// linkFacts are what a Ruleset knows about a link. For an inside link, only that it exists.
type linkFacts struct {
	own, peer Pair
	sources   bart.Lite
}

var inside linkFacts

func newFacts(d *Device) *linkFacts {
	if !d.Link.Outside() {
		return &inside
	}
	p := &linkFacts{own: d.Own, peer: d.Address}
	for _, s := range d.Sources {
		p.sources.Insert(s)
	}
	return p
}

// HasLink reports whether a resource has the link.
func (r *Ruleset) HasLink(l Link) bool { return r.links.get(l) != nil }

// Own returns the gateway's addresses on an outside link; there may be none.
func (r *Ruleset) Own(l Link) Pair {
	if p := r.links.get(l); p != nil {
		return p.own
	}
	return Pair{}
}

// Admits reports whether an address may send from an outside link.
func (r *Ruleset) Admits(in Link, source netip.Addr) bool {
	p := r.links.get(in)
	return p != nil && (p.sources.Contains(source) || p.peer.Has(source))
}

// A byLink finds values in pages by the two bytes of a link. It is immutable.
type byLink[V any] struct{ pages *[256]*[256]*V }

func (m byLink[V]) get(l Link) *V {
	if m.pages == nil || m.pages[l>>8] == nil {
		return nil
	}
	return m.pages[l>>8][l&0xff]
}

// with returns the successor of m after changes, nil meaning removal. It shares the pages of all
// other links.
func (m byLink[V]) with(changes map[Link]*V) byLink[V] {
	if len(changes) == 0 {
		return m
	}
	pages, own := new([256]*[256]*V), [256]bool{}
	if m.pages != nil {
		*pages = *m.pages
	}
	for l, v := range changes {
		page := &pages[l>>8]
		if !own[l>>8] {
			own[l>>8] = true
			old := *page
			if *page = new([256]*V); old != nil {
				**page = *old
			}
		}
		(*page)[l&0xff] = v
	}
	return byLink[V]{pages}
}
