package services

import (
	"maps"
	"net/netip"
	"slices"
	"sort"
	"time"

	"golang.org/x/sys/unix"

	"culvert/gateway/sweep"
	"culvert/nat"
)

// findOrphans returns the addresses and ports at which TCP connections continue although no Service
// of c has them: their packets must still reach the device after a Service, a port or a node port
// is deleted. The same holds for the ports of endpoints that have left, where clients kept theirs.
// It reads the table in slices, with pauses for packets.
//
// +checklocks:s.mu
func (s *Server) findOrphans(c *Config) orphans {
	served := map[netip.AddrPort]bool{}
	for i := range c.Services {
		if p := &c.Services[i]; p.Protocol == unix.IPPROTO_TCP {
			for _, f := range p.frontends() {
				if served[netip.AddrPortFrom(f.address, f.port)] = true; !f.address.IsUnspecified() {
					continue
				}
				for _, a := range c.Addresses {
					if a.Is4() == f.address.Is4() {
						served[netip.AddrPortFrom(a, f.port)] = true
					}
				}
			}
		}
	}
	const burst = 1 << 4 // slices between two pauses
	left, ends := map[netip.AddrPort]bool{}, map[portOf]bool{}
	var list []nat.ConnInfo
	for at, more, n := nat.Cursor(0), true, 1; more; n++ {
		list, at, more = s.engine.Connections(at, &nat.ConnFilter{}, s.now(), list[:0])
		for i := range list {
			x := &list[i]
			to := netip.AddrPortFrom(x.Original.Destination(), x.Original.DestinationPort())
			if !x.Service || x.State == "closed" || x.State == "time-wait" {
				continue
			}
			if x.Original.Protocol == unix.IPPROTO_TCP && !served[to] {
				left[to] = true
			}
			if port := x.Reply.DestinationPort(); port < c.Ports.First || port > c.Ports.Last {
				ends[portOf{x.Reply.Protocol, x.Reply.SourcePort()}] = true
			}
		}
		if more && n%burst == 0 {
			time.Sleep(sweep.Pause)
		}
	}
	all := make([]netip.AddrPort, 0, len(left))
	for to := range left {
		all = append(all, to)
	}
	sort.Slice(all, func(i, j int) bool { return all[i].Compare(all[j]) < 0 })
	return orphans{all, slices.Collect(maps.Keys(ends))}
}

// gone returns the addresses, without ports, at which c has Services and next has none.
func (c *Config) gone(next *Config) (all []netip.AddrPort) {
	stay := map[netip.Addr]bool{}
	for i := range next.Services {
		for _, f := range next.Services[i].frontends() {
			stay[f.address] = true
		}
	}
	for i := range c.Services {
		for _, f := range c.Services[i].frontends() {
			if !stay[f.address] && !f.address.IsUnspecified() {
				all = append(all, netip.AddrPortFrom(f.address, 0))
			}
		}
	}
	return all
}
