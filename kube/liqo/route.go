package liqo

import (
	"fmt"
	"math"
	"net/netip"

	"culvert/nat/rules"
)

// routeSpec is the spec of a RouteConfiguration.
type routeSpec struct {
	Table struct {
		Name  string      `json:"name"`
		Rules []routeRule `json:"rules"`
		About any         `json:"targetRef"` // the object for which Liqo made it, as in the parts below
	} `json:"table"`
}

type routeRule struct {
	Destination string  `json:"dst"`
	Source      string  `json:"src"`
	In          string  `json:"iif"`
	Out         string  `json:"oif"`
	Mark        int64   `json:"fwmark"`
	Priority    int64   `json:"priority"`
	Routes      []route `json:"routes"`
	About       any     `json:"targetRef"`
}

// A route is a route of a table. A gateway ignores the source, a hint for packets of the host
// itself, and scope and onlink, which tell a kernel how to find the neighbour.
type route struct {
	Destination string `json:"dst"`
	Source      string `json:"src"`
	Via         string `json:"gw"`
	Device      string `json:"dev"`
	NextHops    []hop  `json:"nextHops"`
	Scope       any    `json:"scope"`
	OnLink      any    `json:"onlink"`
	About       any    `json:"targetRef"`
}

type hop struct {
	Via    string `json:"gw"`
	Device string `json:"dev"`
	Weight any    `json:"weight"` // of several next hops one is used
}

// table returns the spec's routing table. It must not be used if f has grown. If there are several
// next hops, the one to the tunnel whose other end is peer is used. ownNode: the routes lead by the
// gateway's own node, and those of a gateway on another node by that one.
func (s *routeSpec) table(peer netip.Addr, ownNode bool, f *faults) rules.PolicyTable {
	t := rules.PolicyTable{Name: s.Table.Name}
	if t.Name == "" {
		f.add("spec.table.name", "missing")
	}
	if len(s.Table.Rules) == 0 {
		f.add("spec.table.rules", "missing; a table needs at least one")
	}
	for i := range s.Table.Rules {
		from := &s.Table.Rules[i]
		path := fmt.Sprintf("spec.table.rules[%d]", i)
		r := rules.PolicyRule{In: device(from.In), Out: device(from.Out), Mark: uint32(from.Mark),
			Priority: int(from.Priority), Keep: ownNode}
		if from.Mark < 0 || from.Mark > math.MaxUint32 {
			f.add(path+".fwmark", "%d is no number from 0 to %d", from.Mark, uint32(math.MaxUint32))
		}
		if from.Priority < 0 || from.Priority > math.MaxUint32 {
			f.add(path+".priority", "%d is no number from 0 to %d", from.Priority, uint32(math.MaxUint32))
		}
		if from.Destination != "" {
			r.Destination = readPrefix(path+".dst", from.Destination, f)
		}
		if from.Source != "" {
			r.Source = readPrefix(path+".src", from.Source, f)
		}
		if d, s := r.Destination, r.Source; d.IsValid() && s.IsValid() && d.Addr().Is4() != s.Addr().Is4() {
			f.add(path+".src", "%s is of another family than dst %s", s, d)
		}
		for j := range from.Routes {
			r.Routes = append(r.Routes, from.Routes[j].route(fmt.Sprintf("%s.routes[%d]", path, j), peer, f))
		}
		t.Rules = append(t.Rules, r)
	}
	return t
}

func (r *route) route(path string, peer netip.Addr, f *faults) rules.PolicyRoute {
	out := rules.PolicyRoute{Device: device(r.Device)}
	if r.Destination == "" {
		f.add(path+".dst", "missing")
	} else {
		out.Destination = readPrefix(path+".dst", r.Destination, f)
	}
	if r.Source != "" {
		readAddress(path+".src", r.Source, f)
	}
	if r.Via != "" {
		out.Via = readAddress(path+".gw", r.Via, f)
	}
	if len(r.NextHops) == 0 {
		if r.Via == "" && r.Device == "" {
			f.add(path, "neither gw nor dev")
		}
		return out
	}
	if r.Via != "" || r.Device != "" {
		f.add(path+".nextHops", "beside gw or dev")
	}
	chosen := false
	for i := range r.NextHops {
		h := &r.NextHops[i]
		at := fmt.Sprintf("%s.nextHops[%d]", path, i)
		var via netip.Addr
		if h.Via != "" {
			via = readAddress(at+".gw", h.Via, f)
		} else if h.Device == "" {
			f.add(at, "neither gw nor dev")
		}
		ours := device(h.Device) == tunnelDevice || h.Device == "" && via == peer
		if i == 0 || ours && !chosen {
			out.Via, out.Device = via, device(h.Device)
		}
		chosen = chosen || ours
	}
	return out
}

// readPrefix parses a CIDR. It ignores host bits.
func readPrefix(path, value string, f *faults) netip.Prefix {
	p, err := netip.ParsePrefix(value)
	if err != nil || p.Addr().Is4In6() {
		f.add(path, "%q is no CIDR", value)
		return netip.Prefix{}
	}
	return p.Masked()
}

func readAddress(path, value string, f *faults) netip.Addr {
	a, err := netip.ParseAddr(value)
	if err != nil || !a.Is4() {
		f.add(path, "%q is no IPv4 address", value)
		return netip.Addr{}
	}
	return a
}

// toTunnel returns the destinations that the table routes to the peer.
func toTunnel(t *rules.PolicyTable, peer netip.Addr) []netip.Prefix {
	var all []netip.Prefix
	for i := range t.Rules {
		r := &t.Rules[i]
		if r.In == tunnelDevice || r.Out != "" {
			continue
		}
		for _, route := range r.Routes {
			if route.Device != tunnelDevice && (route.Device != "" || route.Via != peer) {
				continue
			}
			switch to, only := route.Destination, r.Destination; {
			case !only.IsValid() || only.Overlaps(to) && only.Bits() <= to.Bits():
				all = append(all, to)
			case only.Overlaps(to):
				all = append(all, only)
			}
		}
	}
	return all
}
