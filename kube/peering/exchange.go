package peering

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"culvert/gateway/config"
	"culvert/gateway/exports"
	"culvert/kube"
	"culvert/kube/mcs"
)

const (
	listsWait = 5 * time.Second  // at the start, for the lists of exported objects
	silence   = 10 * time.Second // after which a peer that does not acknowledge is reported

	// If a peer keeps sending different lists, one is read this often.
	hearInterval = 5 * time.Second
	hearBurst    = 10

	// While others keep exporting other Services, EndpointSlices are listed this often.
	relistInterval = time.Second
	selectorLimit  = 4096 // bytes of a label selector, which is part of a URL
)

// A serviceExchange tells the peer which Services this cluster exports, and writes those that the
// peer exports. Its goroutines are separate from GatewaySource.Run, so that neither a slow API
// server nor a slow peer delays the gateway's configuration.
type serviceExchange struct {
	source   *GatewaySource
	exchange *exports.Exchange
	imports  chan struct{} // there may be something to write
	news     chan struct{} // for PeerExports

	// Guarded by source.mu.
	services, slices map[string]*unstructured.Unstructured // that look imported by this Peering, by namespace/name
	heard            []*exports.Service                    // with LabelExport there
	known            bool
	fault            string   // of the peer's list
	refused          []string // exports of the peer that were refused or could not be written
	shared           int      // Services of ServiceExports of the peer
	unwritten        why      // PeerExports

	// For write only.
	hear     *rate.Limiter
	importer importer

	// For GatewaySource.Run only.
	began     time.Time
	follow    func(kube.Set) // made by start, as refollow
	refollow  func(kube.Set) // follows EndpointSlices in place of those so far
	following bool           // ServiceExports
	relists   *rate.Limiter
	connected bool
}

func newServiceExchange(source *GatewaySource) *serviceExchange {
	return &serviceExchange{
		source: source, imports: make(chan struct{}, 1), news: make(chan struct{}, 1),
		services: map[string]*unstructured.Unstructured{}, slices: map[string]*unstructured.Unstructured{},
		hear: rate.NewLimiter(rate.Every(hearInterval), hearBurst), importer: newImporter(source),
		relists: rate.NewLimiter(rate.Every(relistInterval), 1),
	}
}

// The names that keep sets of one kind apart.
const (
	setOthers         = "other Peering"
	setExported       = "Service to export"
	setImported       = "imported Service"
	setImportedSlices = "imported EndpointSlice"
)

// sets returns the sets to follow in any case. EndpointSlices are not among them, because most
// clusters have many.
//
// +checklocksignore: what it returns is called with mu held
func (x *serviceExchange) sets() []kube.Set {
	exported := into(setExported, "", table[*exported](x.source.state.exported), readExported)
	exported.Labels = LabelExport
	all := []kube.Set{exported}
	for set, objects := range map[string]map[string]*unstructured.Unstructured{setImported: x.services,
		setImportedSlices: x.slices} {
		w := into(set, "", table[*unstructured.Unstructured](objects),
			func(u *unstructured.Unstructured) *unstructured.Unstructured {
				if !IsImport(x.source.self.Name, set == setImported, u) {
					return nil
				}
				return u
			})
		w.Labels, w.Large = LabelImported+"="+x.source.self.Name, false
		all = append(all, w)
	}
	return all
}

// needs returns the sets that a plan requires, and follows the EndpointSlices of the Services that
// are exported. Exports are unknown without them. If the API server refuses to list them, the
// gateway stops waiting after listsWait and exports nothing. Once it has a plan, it waits for none.
//
// Preconditions: x.source.mu is held.
// +checklocksignore: its caller holds the lock by another name
func (x *serviceExchange) needs() (sets []string) {
	sets = []string{setExported}
	if x.began.IsZero() {
		x.began = x.source.now()
	}
	x.followExports()
	if x.source.loop.Complete(setExported) {
		x.followSlices()
	}
	if len(x.source.state.slices.wanted) > 0 {
		sets = append(sets, kindSlice)
	}
	x.source.state.exportsKnown = x.source.loop.Complete(sets...)
	if x.source.ready {
		return nil
	}
	if x.source.now().Sub(x.began) > listsWait {
		sets = slices.DeleteFunc(sets, func(set string) bool {
			return x.source.loop.Causes.Refuses("list " + paths[set].Resource)
		})
	}
	return sets
}

// followExports follows ServiceExports once the Peering lets the peer hear of some. A cluster need
// not know the kind.
//
// Preconditions: x.source.mu is held.
// +checklocksignore: its caller holds the lock by another name
func (x *serviceExchange) followExports() {
	g := x.source.state
	if g.good == nil || len(g.good.Services.Export) == 0 {
		g.sharesKnown, g.sharesRefused = true, false
		return
	}
	if !x.following {
		x.following = true
		x.follow(into(kindServiceExport, "", table[*mcs.Export](g.serviceExports), readServiceExport))
	}
	loop := x.source.loop
	whole := loop.Complete(kindServiceExport)
	g.sharesRefused = loop.Causes.Refuses("list " + paths[kindServiceExport].Resource)
	g.sharesKnown = (whole || g.sharesRefused) && loop.Complete(kindService)
}

// waits reports whether the first plan must wait for ServiceExports, because without them it would
// end the connections that spec.admit lets in for their sake.
//
// Preconditions: x.source.mu is held.
// +checklocksignore: its caller holds the lock by another name
func (x *serviceExchange) waits() bool {
	g := x.source.state
	if x.source.ready || g.peering == nil || g.good == nil || g.good.Admit != config.AdmitExports {
		return false
	}
	if g.shared == nil {
		g.share(&Plan{})
	}
	return g.shared == nil
}

// followSlices follows the EndpointSlices of the Services that have an address of the external CIDR
// or a ServiceExport, and forgets others: a cluster has many.
//
// Preconditions: x.source.mu is held.
// +checklocksignore: its caller holds the lock by another name
func (x *serviceExchange) followSlices() {
	g := x.source.state
	if g.assigned == nil && g.peering != nil && g.good != nil { // there was no plan yet
		g.exportsKnown = true
		g.exportTo(&Plan{})
		g.share(&Plan{})
	}
	wanted := maps.Clone(g.sharing)
	maps.Copy(wanted, g.assigned)
	if !g.slices.want(wanted) || !x.relists.AllowN(x.source.now(), 1) {
		return
	}
	names := map[string]bool{}
	for name := range wanted {
		g.slices.begin(name)
		names[name.Name] = true
	}
	w := into(kindSlice, "", g.slices, readSlice)
	// the index keeps what it wants in any case
	if in := strings.Join(slices.Sorted(maps.Keys(names)), ","); len(in) < selectorLimit {
		w.Labels = labelService + " in (" + in + ")"
	}
	w.Listed = g.slices.began()
	x.refollow(w)
}

// start starts the exchange with the peer of g, until ctx ends.
func (x *serviceExchange) start(ctx context.Context, tasks *sync.WaitGroup, g Running) {
	mtu := config.DefaultMTU
	if p := x.source.begun; p != nil {
		mtu = config.TunnelMTU(p.MTU)
	}
	const headers = 28 // of IPv4 and UDP
	x.exchange = exports.New(int(mtu) - headers)
	g.Exchange(x.exchange.Receive)
	x.follow = func(w kube.Set) { tasks.Go(func() { x.source.loop.Follow(ctx, w) }) }
	stop, ended := func() {}, make(chan struct{})
	close(ended)
	x.refollow = func(w kube.Set) {
		end, before := stop, ended
		var within context.Context
		within, stop = context.WithCancel(ctx)
		ended = make(chan struct{})
		done := ended
		tasks.Go(func() {
			defer close(done)
			end()
			<-before // what it knows is older
			x.source.loop.Follow(within, w)
		})
	}
	tasks.Go(func() { x.talk(ctx, g) })
	tasks.Go(func() { x.write(ctx, g) })
	tasks.Go(func() { x.writePeerExports(ctx, g) })
}

// talk sends datagrams when they are due.
func (x *serviceExchange) talk(ctx context.Context, g Running) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-x.exchange.Ready():
		case <-timer.C:
		}
		datagrams, next := x.exchange.Due(x.source.now())
		for _, b := range datagrams {
			g.Tell(b)
		}
		if !next.IsZero() {
			timer.Reset(next.Sub(x.source.now()))
		}
	}
}

// write writes the peer's exports, if this cluster imports them and g is the active gateway.
func (x *serviceExchange) write(ctx context.Context, g Running) {
	tick := time.NewTicker(kube.Tick)
	defer tick.Stop()
	changed := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-x.exchange.Changed():
			changed = true
			select {
			case x.news <- struct{}{}:
			default:
			}
		case <-x.imports:
		case <-tick.C:
		}
		if changed && x.hear.Allow() {
			changed = false
			all, fault, known := x.exchange.Heard()
			x.source.mu.Lock()
			x.fault, x.known = fault, known
			x.heard = slices.DeleteFunc(slices.Clone(all), func(s *exports.Service) bool {
				return s.Type != exports.Labelled
			})
			x.shared = len(all) - len(x.heard)
			x.source.mu.Unlock()
		}
		if g.Speaks() {
			x.importer.round(ctx, x)
		} else {
			clear(x.importer.gone) // another gateway has seen them come and go since
		}
	}
}

// rest forgets the peer's list: while another gateway is active, only that one hears of changes.
func (x *serviceExchange) rest() {
	x.connected = false
	x.source.mu.Lock()
	defer x.source.mu.Unlock()
	x.exchange.Forget()
	x.heard, x.fault, x.known, x.shared, x.unwritten = nil, "", false, 0, why{}
}

// tellPeer starts sending the exports of a plan.
func (x *serviceExchange) tellPeer(plan *Plan, check kube.Check) {
	now := check.State == kube.CheckConnected
	if now && !x.connected {
		x.exchange.Reached()
	}
	x.connected = now
	if plan.Exports != nil && plan.Shared != nil {
		x.exchange.Tell(slices.Concat(plan.Exports, plan.Shared))
	}
	select {
	case x.imports <- struct{}{}:
	default:
	}
}

// The conditions of a Peering about Services. They are present only if there is something to say.
const (
	Exported = "Exported"
	Imported = "Imported"
)

// setConditions returns all with the conditions about Services, or without those about which there
// is nothing to say.
func (x *serviceExchange) setConditions(plan *Plan, all []*Condition) []*Condition {
	if x.exchange == nil { // the gateway does not run yet
		return all
	}
	exported, imported := x.conditions(plan)
	for i, c := range []*Condition{exported, imported} {
		kind := [...]string{Exported, Imported}[i]
		if c != nil {
			all = x.source.set(plan, all, c)
			continue
		}
		all = without(all, kind)
	}
	return all
}

// conditions returns the conditions of both directions; nil: there is nothing to say.
func (x *serviceExchange) conditions(plan *Plan) (exported, imported *Condition) {
	x.source.mu.Lock()
	defer x.source.mu.Unlock()
	silent := x.connected && x.exchange.Unanswered(x.source.now()) > silence
	switch {
	case plan.ExternalFull:
		exported = &Condition{Type: Exported, Status: "False", Reason: "ExternalCIDRFull",
			Message: summary(plan.ExportFaults)}
	case len(plan.ExportFaults) > 0:
		exported = &Condition{Type: Exported, Status: "False", Reason: refusedExports,
			Message: summary(plan.ExportFaults)}
	case len(plan.Status.Exports)+len(plan.Shared) > 0 && silent:
		exported = &Condition{Type: Exported, Status: "False", Reason: "PeerSilent",
			Message: "the peer does not acknowledge the Services that are exported; does its gateway run this version of culvert?"}
	case len(plan.Status.Exports)+len(plan.Shared) > 0:
		exported = &Condition{Type: Exported, Status: "True", Reason: "AllServices"}
	}
	wanted := plan.Peering != nil && (plan.Peering.Imports != "" || len(plan.Peering.Services.Import) > 0)
	switch {
	case wanted && x.unwritten != (why{}):
		imported = &Condition{Type: Imported, Status: "False", Reason: x.unwritten.reason, Message: x.unwritten.message}
	case wanted && x.fault != "":
		imported = &Condition{Type: Imported, Status: "False", Reason: "Unreadable",
			Message: "the peer's list of Services is refused: " + x.fault}
	case wanted && len(x.refused) > 0:
		imported = &Condition{Type: Imported, Status: "False", Reason: "Refused", Message: summary(x.refused)}
	case wanted && !x.known:
		imported = &Condition{Type: Imported, Status: "Unknown", Reason: "NothingHeard"}
	case wanted:
		imported = &Condition{Type: Imported, Status: "True", Reason: "AllServices"}
	case len(x.heard) > 0:
		imported = &Condition{Type: Imported, Status: "False", Reason: notWanted,
			Message: fmt.Sprintf("the peer exports %d Services; spec.imports names the namespace for them",
				len(x.heard))}
	case x.shared > 0:
		imported = &Condition{Type: Imported, Status: "False", Reason: notWanted,
			Message: fmt.Sprintf("the peer exports %d Services; spec.services.import names the namespaces for them",
				x.shared)}
	}
	return exported, imported
}

// notWanted is a reason that is not a fault, and refusedExports one of Services' owners.
const (
	notWanted      = "NoNamespace"
	refusedExports = "Refused"
)

// faults returns the faults of exports and imports.
func (x *serviceExchange) faults(plan *Plan) []kube.Fault {
	x.source.mu.Lock()
	defer x.source.mu.Unlock()
	all := x.source.faults(plan, plan.ExportFaults)
	for _, text := range x.refused {
		all = append(all, x.source.fault(plan, thePeer, text))
	}
	if x.unwritten != (why{}) {
		all = append(all, x.source.fault(plan, kindPeerExports, x.unwritten.message))
	}
	if x.fault != "" && plan.Peering != nil && (plan.Peering.Imports != "" || len(plan.Peering.Services.Import) > 0) {
		all = append(all, x.source.fault(plan, thePeer, "the peer's list of Services is refused: "+x.fault))
	}
	return all
}

// ours returns the keys of imported objects, in order.
func ours(all map[string]*unstructured.Unstructured) []string { return slices.Sorted(maps.Keys(all)) }
