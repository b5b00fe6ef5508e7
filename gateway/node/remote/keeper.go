package remote

import (
	"cmp"
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

	checkInterval = 5 * time.Second        // between two looks at the kernel if it reports no change
	settleTime    = 100 * time.Millisecond // how long to wait for more changes after one
)

// A Peer is another cluster as this node sees it.
type Peer struct {
	Name          string
	Link          string         // device that leads to the gateway
	Gateway       netip.Addr     // the gateway's address on the link
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
	wake chan struct{}

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
}

// New returns a Keeper, which is inactive until Run.
func New(log logrus.FieldLogger) *Keeper {
	return &Keeper{log: log, wake: make(chan struct{}, 1), dropped: map[string]uint64{}, table: keepTables,
		list: mainTable, remove: netlink.RouteDel}
}

// NewGuard returns a Keeper that makes no routes, and only protects tunnels.
func NewGuard(log logrus.FieldLogger) *Keeper {
	k := New(log)
	k.list = func() ([]netlink.Route, error) { return nil, nil }
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
func (k *Keeper) Look() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// Run makes the kernel follow the desired state until ctx is done. Routes and the exception stay.
// It calls report whenever a Status changes.
func (k *Keeper) Run(ctx context.Context, report func([]Status)) {
	var beside sync.WaitGroup
	defer beside.Wait()
	beside.Go(func() {
		every := func(syscall.NetlinkMessage) bool { return true }
		rtnl.Listen(ctx, []uint{unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_LINK}, every, k.Look, func(err error) {
			k.log.WithError(err).Debug("meanwhile, routes are compared every few seconds")
		})
	})
	tick := time.NewTicker(checkInterval)
	defer tick.Stop()
	for {
		k.reconcile(report)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-k.wake:
			select {
			case <-ctx.Done():
				return
			case <-time.After(settleTime):
			}
		}
	}
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
	keep := map[string]bool{}
	for i := range desired {
		p := &desired[i]
		wanted, led, err := p.routes(table)
		carried := len(wanted) > 0
		for _, r := range wanted {
			if keep[key(&r)] = true; !carried || has(table, &r) {
				continue
			}
			if e := netlink.RouteReplace(&r); e != nil {
				carried, err = false, fmt.Errorf("add a route to %s through %s: %w", r.Dst, p.Link, e)
			}
		}
		all = append(all, Status{Name: p.Name, Err: err})
		if carried {
			for _, l := range p.Local {
				for _, r := range led {
					pairs = append(pairs, pair{from: l, to: r}, pair{from: r, to: l})
				}
				for _, s := range p.Services {
					if x := (pair{from: l, to: s}); !slices.Contains(pairs, x) {
						pairs = append(pairs, x)
					}
				}
			}
			if p.Pod.IsValid() {
				pairs = append(pairs, pair{netip.PrefixFrom(p.Pod, p.Pod.BitLen()),
					netip.PrefixFrom(netip.IPv4Unspecified(), 0), p.Port})
			}
		}
	}
	for _, r := range table {
		if r.Protocol == Protocol && !keep[key(&r)] {
			if e := k.remove(&r); e != nil && !errors.Is(e, unix.ESRCH) {
				err = errors.Join(err, fmt.Errorf("remove the route to %s, which is no longer wanted: %w", r.Dst, e))
			}
		}
	}
	return all, pairs, err
}

// key returns equal values for equal routes.
func key(r *netlink.Route) string { return fmt.Sprint(r.Dst, " ", r.Gw, " ", r.LinkIndex) }

// has reports whether a table has a route of this package.
func has(table []netlink.Route, r *netlink.Route) bool {
	return slices.ContainsFunc(table, func(have netlink.Route) bool {
		return have.Protocol == Protocol && key(&have) == key(r)
	})
}

// mainTable returns the kernel's IPv4 routes of the main table, without default routes.
func mainTable() (all []netlink.Route, err error) {
	table, err := rtnl.List(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_MAIN},
			netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("remote: read the kernel's routes: %w", err)
	}
	return slices.DeleteFunc(table, func(r netlink.Route) bool {
		if r.Dst == nil {
			return true
		}
		ones, _ := r.Dst.Mask.Size()
		return ones == 0
	}), nil
}

// routes returns the routes of a Peer, and the remote CIDRs to which they lead. err says which CIDR
// this node reaches in another way. A Peer that is new then gets no route; one that has routes
// keeps them, and gets no new one to such a CIDR.
func (p *Peer) routes(table []netlink.Route) (all []netlink.Route, led []netip.Prefix, err error) {
	link, err := netlink.LinkByName(p.Link)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil, nil, fmt.Errorf("there is no link %s yet", p.Link)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("look for %s: %w", p.Link, err)
	}
	if link.Attrs().Flags&net.FlagUp == 0 {
		return nil, nil, fmt.Errorf("link %s is down", p.Link)
	}
	index, gateway := link.Attrs().Index, ipNet(netip.PrefixFrom(p.Gateway, p.Gateway.BitLen()))
	all = append(all, netlink.Route{LinkIndex: index, Scope: netlink.SCOPE_LINK, Dst: gateway, Protocol: Protocol,
		Table: unix.RT_TABLE_MAIN})
	for _, c := range p.Remote {
		r := netlink.Route{
			LinkIndex: index, Dst: ipNet(c), Gw: p.Gateway.AsSlice(), Flags: int(netlink.FLAG_ONLINK),
			Protocol: Protocol, Table: unix.RT_TABLE_MAIN,
		}
		if why := conflict(c, table); why != nil {
			err = cmp.Or(err, why)
			if !has(table, &r) {
				continue
			}
		}
		all, led = append(all, r), append(led, c)
	}
	switch {
	case err == nil:
	case !has(table, &all[0]):
		return nil, nil, err
	case len(led) == len(p.Remote):
		err = fmt.Errorf("%w; meanwhile this node keeps the route", err)
	default:
		err = fmt.Errorf("%w; meanwhile this node goes on with the rest", err)
	}
	return all, led, err
}

// conflict returns why a prefix of another cluster may not be routed: this node has another
// program's route to addresses in it, or is itself in a network that overlaps it.
func conflict(c netip.Prefix, table []netlink.Route) error {
	for _, r := range table {
		to, _ := netip.AddrFromSlice(r.Dst.IP.To4())
		ones, _ := r.Dst.Mask.Size()
		other := netip.PrefixFrom(to, ones)
		if r.Protocol == Protocol || !other.Overlaps(c) || other.Bits() < c.Bits() && r.Scope != netlink.SCOPE_LINK {
			continue
		}
		return fmt.Errorf(
			"%s overlaps %s, to which this node has a route of its own; choose a remap that no node routes elsewhere",
			c, rtnl.Describe(&r))
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
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
	for _, r := range table {
		if r.Protocol != Protocol {
			continue
		}
		if e := netlink.RouteDel(&r); e != nil && !errors.Is(e, unix.ESRCH) {
			err = errors.Join(err, fmt.Errorf("remote: remove the route to %s: %w; remove it with: ip route del %s",
				r.Dst, e, rtnl.Describe(&r)))
			continue
		}
		removed = append(removed, "route "+rtnl.Describe(&r))
	}
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
