package steer

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"culvert/gateway/node/rtnl"
)

const (
	// lasting is the protocol of this package's rules and routes, the kernel's own:
	// systemd-networkd removes rules and routes of all other protocols when it starts, including
	// the rule for the local table, without which the node is cut off.
	lasting = unix.RTPROT_KERNEL
	// tableID is the routing table with the routes to the device.
	tableID = 7091
	// answeredTable has the routes to the device for addresses for which the kernel answers ARP.
	answeredTable = 7092
	// actionNop is FR_ACT_NOP: a rule without effect, as a target of jumps.
	actionNop = 3
)

// The priorities of rules. Packets from the device jump over the rules that lead to it.
const (
	priorityOver      = 40 // to priorityOn
	priorityProbe     = 45
	priorityFront     = 50
	priorityOn        = 51 // target of priorityOver's goto; the kernel needs an existing rule there
	priorityLocal     = 98 // before 100, to which others move the local table
	priorityOverAgain = 105
	priorityBehind    = 110
	priorityAnswered  = 112
	priorityEnd       = 119
)

// A Steering knows the routes and rules to the device that are in the kernel. It belongs to a
// Server, whose mutex guards it.
type Steering struct {
	device   string
	index    int
	families []int
	routes   []netlink.Route
	rules    []netlink.Rule
	vip      *VIP // nil: not needed
	Made     int  // changes so far, not counting removals
}

func FamiliesOf(addresses []netip.Addr) (all []int) {
	for _, f := range []struct {
		family int
		of     func(netip.Addr) bool
	}{{unix.AF_INET, netip.Addr.Is4}, {unix.AF_INET6, netip.Addr.Is6}} {
		if slices.ContainsFunc(addresses, f.of) {
			all = append(all, f.family)
		}
	}
	return all
}

// New continues with what an earlier run left, and moves the rule of the local table behind
// this package's rules. before is the VIP device of the process that this one replaces; nil:
// there is none. After an error nothing has changed.
func New(device string, index int, families []int, before *VIP) (*Steering, error) {
	s := &Steering{device: device, index: index, families: families, vip: before}
	if err := s.alone(); err != nil {
		return nil, err
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		if slices.Contains(families, family) {
			continue
		}
		if err := errors.Join(removeSteers(family), restoreLocal(family)); err != nil &&
			!errors.Is(err, unix.EAFNOSUPPORT) {
			return nil, err
		}
	}
	for _, family := range families {
		if err := s.adopt(family); err != nil {
			return nil, err
		}
	}
	found := len(s.rules) > 0
	if err := s.MoveLocal(); err != nil {
		if !found {
			err = errors.Join(err, s.Close())
		}
		return nil, err
	}
	return s, nil
}

// adopt records what an earlier run left. apply later removes what is not wanted; the rest works
// all the time.
func (s *Steering) adopt(family int) error {
	rules, err := rulesOf(family)
	if err != nil {
		return err
	}
	for _, r := range rules {
		if isOwned(&r) {
			s.rules = append(s.rules, r)
		}
	}
	routes, err := s.routesOf(family)
	if err != nil {
		return err
	}
	for _, r := range routes {
		own := r.Dst == nil || r.Dst.IP.IsLinkLocalUnicast() || r.Dst.IP.IsMulticast() // the device's own
		if r.Protocol == lasting && (r.Table == tableID || r.Table == answeredTable ||
			r.Table == unix.RT_TABLE_MAIN && !own) {
			s.routes = append(s.routes, r)
		}
	}
	return nil
}

// routesOf lists the routes to the device in all tables, and those that end with this process.
func (s *Steering) routesOf(family int) (all []netlink.Route, err error) {
	devices := []int{s.index}
	if s.vip != nil {
		devices = append(devices, s.vip.index)
	}
	for _, index := range devices {
		routes, err := rtnl.List(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(family, &netlink.Route{LinkIndex: index},
				netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return nil, fmt.Errorf("services: list the routes of %s: %w", s.device, err)
		}
		all = append(all, routes...)
	}
	return all, nil
}

// alone returns an error if another process serves Services: its device exists, and is removed when
// it ends.
func (s *Steering) alone() error {
	list, err := rulesOf(netlink.FAMILY_ALL)
	if err != nil {
		return err
	}
	for i := range list {
		if r := &list[i]; isOwned(r) && r.IifName != "" && r.IifName != ownPackets && r.IifName != s.device {
			if _, err := netlink.LinkByName(r.IifName); err == nil {
				return fmt.Errorf("services: a culvert node serves Services by %s, or has left it to the next one; stop it and remove that with ip link del %[1]s, or use it",
					r.IifName)
			}
		}
	}
	return nil
}

// isOwned reports whether a rule belongs to this package, except for the rule of the local table.
func isOwned(r *netlink.Rule) bool {
	if r.Protocol != lasting {
		return false
	}
	switch r.Priority {
	case priorityFront, priorityBehind:
		return r.Table == tableID
	case priorityAnswered:
		return r.Table == answeredTable && (r.IPProto != 0 || r.IifName == ownPackets)
	case priorityProbe:
		return r.Table == unix.RT_TABLE_LOCAL && r.Src != nil
	case priorityOver:
		return r.Goto == priorityOn && r.IifName != ""
	case priorityOverAgain:
		return r.Goto == priorityEnd && r.IifName != ""
	case priorityOn, priorityEnd:
		same := on(r.Family, r.Priority)
		return Describe(r) == Describe(&same) // RuleList omits the type
	}
	return false
}

// removeSteers removes the rules that lead packets to a device, and then those that let packets
// from it pass.
func removeSteers(family int) error {
	if err := removeOwned(family, func(r *netlink.Rule) bool {
		return r.Table == tableID ||
			r.Table == answeredTable
	}); err != nil {
		return err
	}
	return removeOwned(family, func(*netlink.Rule) bool { return true })
}

// removeOwned removes rules made by this package.
func removeOwned(family int, which func(*netlink.Rule) bool) error {
	list, err := rulesOf(family)
	if err != nil {
		return err
	}
	var all []error
	for i := range list {
		if r := &list[i]; isOwned(r) && which(r) {
			if err := netlink.RuleDel(r); err != nil && !errors.Is(err, unix.ENOENT) {
				all = append(all, fmt.Errorf("services: remove the rule at %d: %w; remove it with: ip rule del pref %d",
					r.Priority, err, r.Priority))
			}
		}
	}
	return errors.Join(all...)
}

// Lead adds the rules for what endpoints send to clients that keep their ports. The engine must let
// none keep it before.
func (s *Steering) Lead(p *Plan) error {
	return s.addRules(s.steers(p, func(to *Match) bool { return to.Ends.First != 0 }))
}

// Apply makes the kernel lead the packets of p to the device, and no others. It adds before it
// removes.
func (s *Steering) Apply(p *Plan, sources func(family int) net.IP) error {
	if len(p.Answered) > 0 {
		if err := s.ensureVIP(); err != nil {
			return err
		}
	}
	routes, rules := s.wantedRoutes(p, sources), s.wantedRules(p)
	var first []netlink.Rule // before the routes that they bypass
	if p.Answers {
		first = answered()
	}
	if err := s.forgetRemoved(); err != nil {
		return err
	}
	if err := s.addRules(first); err != nil {
		return err
	}
	if err := s.addRoutes(routes, p.Spare); err != nil {
		return err
	}
	if err := s.addRules(rules); err != nil {
		return err
	}
	err := s.prune(routes, slices.Concat(first, rules))
	if len(p.Answered) == 0 {
		s.CloseVIP()
	}
	return err
}

// wantedRoutes returns the routes of p: those of each family's table, then those of addresses.
func (s *Steering) wantedRoutes(p *Plan, sources func(family int) net.IP) (routes []netlink.Route) {
	route := func(table int, to netip.Prefix) netlink.Route {
		family := familyOf(to)
		return netlink.Route{Family: family, LinkIndex: s.index, Table: table, Protocol: lasting, Src: sources(family),
			Dst: rtnl.IPNet(to)}
	}
	for _, family := range s.families {
		routes = append(routes, route(tableID, all(family)))
	}
	for _, to := range p.Routes {
		if slices.Contains(s.families, familyOf(to)) {
			routes = append(routes, route(unix.RT_TABLE_MAIN, to))
		}
	}
	for _, to := range p.Answered {
		routes = append(routes, route(answeredTable, to)) // routes for packets first
		r := route(unix.RT_TABLE_MAIN, to)
		r.LinkIndex = s.vip.index
		routes = append(routes, r)
	}
	return routes
}

// wantedRules returns the rules of p, except those that come before the routes.
func (s *Steering) wantedRules(p *Plan) (rules []netlink.Rule) {
	for _, family := range s.families {
		rules = append(rules, s.over(family, priorityOver, priorityOn), on(family, priorityOn),
			s.over(family, priorityOverAgain, priorityEnd), on(family, priorityEnd))
	}
	rules = append(rules, s.steers(p, func(*Match) bool { return true })...)
	if p.Probed && slices.Contains(s.families, unix.AF_INET6) {
		rules = append(rules, probe())
	}
	return rules
}

// steers returns the rules for those steers of p that which selects.
func (s *Steering) steers(p *Plan, which func(*Match) bool) (rules []netlink.Rule) {
	add := func(priority int, list []Match) {
		for i := range list {
			if to := &list[i]; slices.Contains(s.families, to.family()) && which(to) {
				rules = append(rules, to.rule(priority))
			}
		}
	}
	add(priorityFront, p.Front)
	add(priorityBehind, p.Behind)
	return rules
}

// addRules adds those of some rules that are not known.
func (s *Steering) addRules(rules []netlink.Rule) error {
	if len(rules) == 0 {
		return nil
	}
	known := map[string]bool{}
	for i := range s.rules {
		known[Describe(&s.rules[i])] = true
	}
	for i := range rules {
		r := &rules[i]
		what := Describe(r)
		if known[what] {
			continue
		}
		if err := netlink.RuleAdd(r); err != nil {
			return ruleError("add rule "+what, err)
		}
		s.Made++
		known[what] = true
		s.rules = append(s.rules, *r)
	}
	return nil
}

// addRoutes adds those of some routes that are not known, and replaces those with another source.
// It adds all that it can before it returns a ConflictError for the rest, but for those in spare.
func (s *Steering) addRoutes(routes []netlink.Route, spare map[netip.Prefix]bool) error {
	known := map[string]int{}
	for i := range s.routes {
		known[destination(&s.routes[i])] = i
	}
	var conflicts ConflictError
	hops := sync.OnceValues(nextHops)
	for i := range routes {
		r := &routes[i]
		to := destination(r)
		at, there := known[to]
		if there && s.routes[at].Equal(*r) {
			continue
		}
		add := netlink.RouteAdd
		if there {
			add = netlink.RouteReplace
		} else if a, one := oneHost(r.Dst); one && r.Table == unix.RT_TABLE_MAIN {
			routers, err := hops()
			if err != nil {
				return err
			}
			if routers[a] {
				conflicts.add(r.Dst, spare)
				continue
			}
		}
		if err := add(r); errors.Is(err, unix.EEXIST) {
			conflicts.add(r.Dst, spare)
			continue
		} else if err != nil {
			return fmt.Errorf("services: add route to %s through %s: %w", r.Dst, s.device, err)
		}
		s.Made++
		if there {
			s.routes[at] = *r
			continue
		}
		known[to] = len(s.routes)
		s.routes = append(s.routes, *r)
	}
	return conflicts.orNil()
}

// forgetRemoved forgets the routes and rules that the kernel no longer has, so that apply adds them
// again. When the address that is its source disappears, an IPv4 route is removed, and an IPv6
// route loses its source.
func (s *Steering) forgetRemoved() error {
	rulesThere, routesThere := map[string]bool{}, map[string]net.IP{}
	for _, family := range s.families {
		rules, err := rulesOf(family)
		if err != nil {
			return err
		}
		for i := range rules {
			rulesThere[Describe(&rules[i])] = true
		}
		routes, err := s.routesOf(family)
		if err != nil {
			return err
		}
		for i := range routes {
			routesThere[destination(&routes[i])] = routes[i].Src
		}
	}
	s.rules = slices.DeleteFunc(s.rules, func(r netlink.Rule) bool { return !rulesThere[Describe(&r)] })
	s.routes = slices.DeleteFunc(s.routes, func(r netlink.Route) bool {
		_, ok := routesThere[destination(&r)]
		return !ok
	})
	for i := range s.routes {
		s.routes[i].Src = routesThere[destination(&s.routes[i])]
	}
	return nil
}

// prune removes all routes and rules but these.
func (s *Steering) prune(routes []netlink.Route, rules []netlink.Rule) error {
	wanted := map[string]bool{}
	for i := range routes {
		wanted[destination(&routes[i])] = true
	}
	for i := range rules {
		wanted[Describe(&rules[i])] = true
	}
	var failed []error
	s.rules = slices.DeleteFunc(s.rules, func(r netlink.Rule) bool {
		what := Describe(&r)
		if wanted[what] {
			return false
		}
		if err := netlink.RuleDel(&r); err != nil && !errors.Is(err, unix.ENOENT) {
			failed = append(failed, ruleError("remove rule "+what, err))
		}
		return true
	})
	s.routes = slices.DeleteFunc(s.routes, func(r netlink.Route) bool {
		if wanted[destination(&r)] {
			return false
		}
		if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
			failed = append(failed, fmt.Errorf("services: remove route to %s: %w", r.Dst, err))
		}
		return true
	})
	return errors.Join(failed...)
}

// close removes the rules, and with the first of them every path to the device. Its routes
// disappear with the device.
func (s *Steering) Close() error {
	var failed []error
	for _, family := range s.families {
		failed = append(failed, removeSteers(family), restoreLocal(family))
	}
	s.rules, s.routes = nil, nil
	s.CloseVIP()
	return errors.Join(failed...)
}
