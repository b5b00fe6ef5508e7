package remote

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"culvert/gateway/node/rtnl"
)

const (
	// Protocol is the number of the routes of this package (rtnetlink's rtm_protocol).
	Protocol = 0x63

	checkInterval = 5 * time.Second // between two looks at the kernel if it reports no change
)

// A Peer is another cluster as this node sees it.
type Peer struct {
	Name          string
	Link          string         // device that leads to the gateway
	Gateways      []netip.Addr   // the gateway's addresses on the link, at most one of each family
	Local, Remote []netip.Prefix // this cluster's pods, the other cluster's addresses as this one sees them
	// Services are the cluster addresses of Services that this node serves by a device of its own.
	// Packets for the other cluster first leave through that device.
	Services []netip.Prefix
	// Pod is the gateway's own address if its pod is on this node: UDP packets that it sends to
	// Port of other nodes keep this source.
	Pod  netip.Addr
	Port uint16
}

// A Status is the state of a Peer.
type Status struct {
	Name    string
	Err     error  // why its addresses do not lead to the gateway
	Warning string // what is wrong although they lead there
}

// A Keeper keeps a node's routes to other clusters.
type Keeper struct {
	log  logrus.FieldLogger
	loop *rtnl.Loop

	mu      sync.Mutex
	desired []Peer   // +checklocks:mu
	told    bool     // +checklocks:mu
	tunnels []Tunnel // to protect; +checklocks:mu
	guarded []Tunnel // that are protected; +checklocks:mu
	// why not all are; "": no fault is known +checklocks:mu
	unguarded string
	// the kernel lacks what the rules need +checklocks:mu
	lacks bool
	// packets that former rules had counted, by chain +checklocks:mu
	dropped map[string]uint64

	// For Run only.
	statuses []Status
	failure  rtnl.Failure

	// Replaced by tests.
	table  func([]pair, []Tunnel) (map[string]uint64, error)
	list   func() ([]netlink.Route, error)
	remove func(*netlink.Route) error
	lead   func([]netip.Prefix) error
}

// New returns a Keeper, which is inactive until Run.
func New(log logrus.FieldLogger) *Keeper {
	every := func(syscall.NetlinkMessage) bool { return true }
	return &Keeper{log: log, loop: rtnl.NewLoop(every, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV4_RULE,
		unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV6_RULE, unix.RTNLGRP_LINK),
		dropped: map[string]uint64{}, table: keepTables, list: mainTable, remove: netlink.RouteDel,
		lead: lead}
}

// NewGuard returns a Keeper that makes no routes, and only protects tunnels.
func NewGuard(log logrus.FieldLogger) *Keeper {
	k := New(log)
	k.list = func() ([]netlink.Route, error) { return nil, nil }
	k.lead = func([]netip.Prefix) error { return nil }
	k.Apply(nil) // it is told of no peer
	return k
}

// Apply sets the desired peers. Nothing changes before the first call.
func (k *Keeper) Apply(peers []Peer) {
	k.mu.Lock()
	k.desired, k.told = slices.Clone(peers), true
	k.mu.Unlock()
	k.Look()
}

// Look makes Run compare the kernel with the desired state, for example when a link has appeared.
func (k *Keeper) Look() { k.loop.Wake() }

// Run makes the kernel follow the desired state until ctx is done. Routes and the exception stay.
// It calls report whenever a Status changes.
func (k *Keeper) Run(ctx context.Context, report func([]Status)) {
	k.loop.Run(ctx, checkInterval, func() (mended bool) {
		k.reconcile(report)
		return false // every route may be a desired change
	})
}

// reconcile makes the kernel match the desired state.
func (k *Keeper) reconcile(report func([]Status)) {
	k.mu.Lock()
	desired, told := k.desired, k.told
	k.mu.Unlock()
	if !told {
		return
	}
	table, err := k.list()
	if err != nil {
		k.logFailure(err)
		return
	}
	all, pairs, err := k.route(desired, table)
	k.logFailure(err)
	if err := k.keep(pairs); err != nil {
		for i := range all {
			if all[i].Err == nil {
				all[i].Warning = fmt.Sprintf("the node may masquerade packets of pods to the other cluster, which then come from an unknown source: "+
					"nftables refuses the exception (%v); except %v from masquerading in your CNI's settings", err,
					desired[i].Remote)
			}
		}
	}
	changed := !slices.EqualFunc(k.statuses, all, func(a, b Status) bool {
		return a.Name == b.Name && a.Warning == b.Warning && fmt.Sprint(a.Err) == fmt.Sprint(b.Err)
	})
	k.statuses = all
	if changed {
		report(slices.Clone(all))
	}
}

// logFailure logs an error that concerns no Peer.
func (k *Keeper) logFailure(err error) {
	switch {
	case !k.failure.Changed(err):
	case err == nil:
		k.log.Info("the kernel's routes to other clusters are as they should be again")
	default:
		k.log.WithError(err).Warn("the kernel's routes to other clusters cannot be kept; trying again")
	}
}

// route makes the routes of desired, and removes this package's other routes from the table. It
// returns a Status for each Peer, and the packets to except from masquerade. The error is about
// routes that belong to no Peer.
func (k *Keeper) route(desired []Peer, table []netlink.Route) (all []Status, pairs []pair, err error) {
	var keep []netlink.Route
	var led []netip.Prefix
	for i := range desired {
		p := &desired[i]
		have, err := p.keep(table)
		keep = append(keep, have...)
		for _, r := range have {
			led = append(led, rtnl.PrefixOf(&r))
		}
		all = append(all, Status{Name: p.Name, Err: err})
		if len(have) == 0 {
			continue
		}
		for _, l := range p.Local {
			for _, r := range have {
				if to := rtnl.PrefixOf(&r); r.Gw != nil && to.Addr().Is4() == l.Addr().Is4() {
					pairs = append(pairs, pair{from: l, to: to}, pair{from: to, to: l})
				}
			}
			for _, s := range p.Services {
				x := pair{from: l, to: s}
				if s.Addr().Is4() == l.Addr().Is4() && !slices.Contains(pairs, x) {
					pairs = append(pairs, x)
				}
			}
		}
		if p.Pod.IsValid() {
			own := netip.PrefixFrom(p.Pod, p.Pod.BitLen())
			pairs = append(pairs, pair{own, netip.PrefixFrom(p.Pod, 0).Masked(), p.Port})
		}
	}
	return all, pairs, errors.Join(rtnl.Prune(table, keep, ours, k.remove), k.lead(led))
}

func mainTable() ([]netlink.Route, error) { return rtnl.MainTable(netlink.FAMILY_ALL) }

func ours(r *netlink.Route) bool { return r.Protocol == Protocol }

// keep makes the routes of a Peer, and returns those that are there. err says which CIDR this node
// reaches in another way, or what else is wrong.
func (p *Peer) keep(table []netlink.Route) (have []netlink.Route, err error) {
	link, err := rtnl.FindLink(p.Link)
	if err != nil {
		return nil, err
	}
	if link == nil {
		return nil, fmt.Errorf("there is no link %s yet", p.Link)
	}
	if link.Attrs().Flags&net.FlagUp == 0 {
		return nil, fmt.Errorf("link %s is down", p.Link)
	}
	w := rtnl.Way{Link: p.Link, Index: link.Attrs().Index, Gateways: p.Gateways, To: p.Remote,
		Protocol: Protocol, Taken: conflict}
	have, _, errs := w.Keep(table)
	switch {
	case len(errs) == 0:
		return have, nil
	case len(have) == 0:
		return nil, errs[0]
	case len(have) == len(w.Routes()):
		return have, fmt.Errorf("%w; meanwhile this node keeps the route", errs[0])
	}
	return have, fmt.Errorf("%w; meanwhile this node goes on with the rest", errs[0])
}

// conflict returns why another cluster's prefix may not be routed: this node has another program's
// route to addresses in it, or is itself in a network that overlaps it.
func conflict(want *netlink.Route, table []netlink.Route) error {
	if want.Gw == nil {
		return nil // the route to the gateway
	}
	c := rtnl.PrefixOf(want)
	for _, r := range table {
		other := rtnl.PrefixOf(&r)
		if r.Protocol == Protocol || other.Bits() <= 0 || !other.Overlaps(c) ||
			other.Bits() < c.Bits() && !onLink(&r) {
			continue
		}
		return fmt.Errorf(
			"%s overlaps %s, to which this node has a route of its own; choose a remap that no node routes elsewhere",
			c, rtnl.Describe(&r))
	}
	return nil
}

// onLink reports whether a route leads to hosts of a network in which this node is. Routes of IPv6
// have no scope that says so.
func onLink(r *netlink.Route) bool {
	if r.Family == unix.AF_INET6 {
		return r.Type == unix.RTN_UNICAST && r.Gw == nil && len(r.MultiPath) == 0
	}
	return r.Scope == netlink.SCOPE_LINK
}

// SourceTo returns the address from which this node sends to another.
func SourceTo(to netip.Addr) (netip.Addr, error) {
	routes, err := netlink.RouteGet(to.AsSlice())
	if err != nil {
		return netip.Addr{}, fmt.Errorf("this node has no route to %s: %w", to, err)
	}
	for _, r := range routes {
		if a, ok := netip.AddrFromSlice(r.Src); ok {
			return a.Unmap(), nil
		}
	}
	return netip.Addr{}, fmt.Errorf("the kernel says no source address towards %s", to)
}

// Remove removes the routes and the table of this package, and returns what it has removed.
func Remove() (removed []string, err error) {
	table, err := mainTable()
	err = errors.Join(err, rtnl.Prune(table, nil, ours, func(r *netlink.Route) error {
		err := netlink.RouteDel(r)
		if err == nil {
			removed = append(removed, "route "+rtnl.Describe(r))
		}
		return err
	}))
	err = errors.Join(err, lead(nil))
	for i := range families {
		there, e := families[i].remove()
		if there {
			removed = append(removed, "nftables table "+families[i].name())
		}
		if i == 0 || there { // a kernel without IPv6 has no such table
			err = errors.Join(err, e)
		}
	}
	return removed, err
}
