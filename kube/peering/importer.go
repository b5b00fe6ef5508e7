package peering

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"culvert/gateway/exports"
	"culvert/kube"
	"culvert/kube/objects"
)

const (
	retryImports  = 5 * time.Second  // after the API server has refused a request
	retryConflict = 30 * time.Second // for an object that cannot be written as it is
	retryForeign  = 5 * time.Minute  // for a namespace other than that of spec.imports, in which nothing can be removed
	retryFull     = time.Minute      // after the API server had no ClusterIP left

	// An import without its export keeps its ClusterIP for holdTime, because the export may return:
	// clients may have the address.
	holdTime = 5 * time.Minute

	// A peer's imports may have one in addressShare of the cluster's ClusterIPs.
	addressShare   = 4
	rangesInterval = time.Minute // between two looks at the cluster's ServiceCIDRs

	// A peer that keeps changing its exports causes importWrites writes a second after an initial
	// burst, which is large enough to move a full list to another namespace.
	importWrites      = 1
	importWritesFirst = 6*exports.MaxServices + 100
)

// An importer makes the Services and EndpointSlices in one namespace match the peer's exports. It
// changes no object without LabelImported and this Peering's owner. From other namespaces, which
// spec.imports may have named before, it removes what it may and leaves the rest: whoever may write
// there can make objects that look like imports.
type importer struct {
	source *GatewaySource
	writes *rate.Limiter
	obeyed int64     // generation of the Peering; a new one resets writes
	again  time.Time // nothing is written before this time
	// Objects that are not tried again before a time, with the reason: imports to write, by name,
	// and objects to delete, by set and key.
	stuck map[string]stuck
	// Namespaces other than that of spec.imports in which nothing is removed before a time.
	foreign map[string]time.Time
	gone    map[string]time.Time // since when Services have not been wanted, by namespace/name
	full    time.Time            // no Service is created before this time, because no ClusterIP was left
	room    int                  // how many Services the peer's may be
	ranges  time.Time            // when room was last looked at
}

type stuck struct {
	until time.Time
	why   string
}

func newImporter(source *GatewaySource) importer {
	return importer{source: source, writes: newImportLimit(), stuck: map[string]stuck{},
		foreign: map[string]time.Time{}, gone: map[string]time.Time{}, room: exports.MaxServices}
}

func newImportLimit() *rate.Limiter { return rate.NewLimiter(importWrites, importWritesFirst) }

// A job is one pass over all imports.
type job struct {
	*importer
	ctx   context.Context
	now   time.Time
	x     *serviceExchange
	fault string // why the pass has stopped
	short int    // how many imports have no ClusterIP
	here  int    // how many Services are in the namespace of spec.imports
	// Copies from the start of the pass.
	services, slices map[string]*unstructured.Unstructured
	owner            *unstructured.Unstructured // of Services; nil: not requested yet
}

// round writes the differences.
func (m *importer) round(ctx context.Context, x *serviceExchange) {
	now, s := m.source.now(), m.source
	if now.Before(m.again) {
		return
	}
	s.mu.Lock()
	whole := s.loop.Complete(KindPeering, setImported, setImportedSlices)
	p, known, heard := s.state.good, x.known, x.heard
	if s.state.peering == nil || s.state.peering.Deleting {
		p = nil
	}
	if p != nil && p.Generation != m.obeyed {
		m.obeyed, m.writes = p.Generation, newImportLimit()
		clear(m.foreign)
	}
	j := &job{importer: m, ctx: ctx, now: now, x: x, services: maps.Clone(x.services), slices: maps.Clone(x.slices)}
	s.mu.Unlock()
	if !whole {
		return
	}
	namespace, want, faults := "", map[string]*imported{}, []string{}
	if p != nil && p.Imports != "" {
		if namespace = p.Imports; known {
			want, faults = p.imports(heard)
		}
	}
	j.look(namespace, want)
	j.remove(namespace, want, known)
	j.here = j.count(namespace)
	for _, name := range slices.Sorted(maps.Keys(want)) {
		j.have(namespace, want[name])
	}
	for name, stuck := range m.stuck {
		if deleted := strings.Contains(name, "/"); !deleted && want[name] == nil || deleted &&
			!now.Before(stuck.until) {
			delete(m.stuck, name)
			continue
		}
		faults = append(faults, stuck.why)
	}
	if j.fault != "" {
		m.again = now.Add(retryImports)
		faults = append(faults, j.fault)
	}
	slices.Sort(faults)
	switch {
	case j.short > 0 && now.Before(m.full):
		faults = slices.Insert(faults, 0,
			fmt.Sprintf("the cluster has no ClusterIP left for %d of the peer's Services: add a ServiceCIDR, or delete Services", j.short))
	case j.short > 0:
		faults = slices.Insert(faults, 0,
			fmt.Sprintf("%d of the peer's Services are not imported: they may have %d ClusterIPs, a quarter of the cluster's; add a ServiceCIDR",
				j.short, m.room))
	}
	s.mu.Lock()
	x.refused = slices.Compact(faults)
	s.mu.Unlock()
}

// look finds out how many Services there may be, if some are missing. Where the API server has no
// ServiceCIDRs to show, as before Kubernetes 1.33, only the length of the peer's list limits them.
func (j *job) look(namespace string, want map[string]*imported) {
	if j.missing(namespace, want) == 0 || j.now.Before(j.ranges.Add(rangesInterval)) {
		return
	}
	j.do("list", kindServiceCIDR, "", func(ctx context.Context) error {
		room, err := ImportRoom(ctx, j.source.loop.Client)
		if err == nil {
			j.ranges, j.room = j.now, room
		}
		return err
	})
}

// ImportRoom returns how many ClusterIPs the Services of a peer may have: a share of those that the
// cluster's ServiceCIDRs have, if the API server shows any.
func ImportRoom(ctx context.Context, client dynamic.Interface) (int, error) {
	list, err := client.Resource(objects.ServiceCIDRs).List(ctx, metav1.ListOptions{})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		return exports.MaxServices, nil
	case err != nil:
		return 0, err
	}
	if n := sizeOf(list.Items); n > 0 {
		return min(exports.MaxServices, max(n/addressShare, 1)), nil
	}
	return exports.MaxServices, nil
}

// count counts the Services in a namespace. Those elsewhere may be somebody else's, who must not
// take the peer's share.
func (j *job) count(namespace string) (n int) {
	for _, u := range j.services {
		if u.GetNamespace() == namespace {
			n++
		}
	}
	return n
}

func (j *job) missing(namespace string, want map[string]*imported) (n int) {
	for name := range want {
		if j.services[namespace+"/"+name] == nil {
			n++
		}
	}
	return n
}

// sizeOf returns how many IPv4 addresses ServiceCIDRs have together, at most 2^30; if they have
// none, how many of IPv6.
func sizeOf(all []unstructured.Unstructured) int {
	var ranges []netip.Prefix
	for i := range all {
		var spec struct{ CIDRs []netip.Prefix }
		if readPart(&all[i], "spec", &spec) {
			ranges = append(ranges, spec.CIDRs...)
		}
	}
	var four, six int
	for i, p := range ranges {
		within := func(k int, o netip.Prefix) bool {
			return o.Contains(p.Addr()) && (o.Bits() < p.Bits() || o.Bits() == p.Bits() && k < i)
		}
		counted := false
		for k, o := range ranges {
			counted = counted || within(k, o)
		}
		n := &four
		if p.Addr().Is6() {
			n = &six
		}
		if !counted {
			*n = min(*n+1<<min(p.Addr().BitLen()-p.Bits(), 30), 1<<30)
		}
	}
	return cmp.Or(four, six)
}

// held returns the Services that are not wanted and keep their ClusterIPs all the same: those that
// were wanted holdTime ago, except for the first ones that have gone if the peer's other Services
// need their room.
func (j *job) held(namespace string, want map[string]*imported) map[string]bool {
	maps.DeleteFunc(j.gone, func(key string, _ time.Time) bool {
		u := j.services[key]
		return u == nil || u.GetNamespace() != namespace || want[u.GetName()] != nil
	})
	for key, u := range j.services {
		if u.GetNamespace() == namespace && want[u.GetName()] == nil && j.gone[key].IsZero() {
			j.gone[key] = j.now
		}
	}
	held := map[string]bool{}
	if j.now.Before(j.full) {
		return held // others need their addresses
	}
	all := slices.SortedFunc(maps.Keys(j.gone), func(a, b string) int {
		return cmp.Or(j.gone[a].Compare(j.gone[b]), strings.Compare(a, b))
	})
	over := j.count(namespace) + j.missing(namespace, want) - j.room
	for i, key := range all {
		held[key] = i >= over && j.now.Before(j.gone[key].Add(holdTime))
	}
	return held
}

// remove deletes imports that are not wanted, and those in other namespaces. Without a list of the
// peer, all imports in the namespace are wanted.
func (j *job) remove(namespace string, want map[string]*imported, known bool) {
	held := map[string]bool{}
	if known {
		held = j.held(namespace, want)
	}
	for _, set := range []struct {
		kind string
		mine map[string]*unstructured.Unstructured
	}{{setImportedSlices, j.slices}, {setImported, j.services}} {
		for _, key := range ours(set.mine) {
			u := set.mine[key]
			at, foreign := u.GetNamespace(), u.GetNamespace() != namespace
			x := want[strings.TrimSuffix(u.GetName(), suffix6)]
			wanted := x.has(u.GetName())
			if set.kind == setImported {
				wanted = held[key] || x != nil && x.fits(u)
			}
			if !foreign && (!known || wanted) || u.GetDeletionTimestamp() != nil || j.now.Before(j.foreign[at]) ||
				j.now.Before(j.stuck[set.kind+" "+key].until) {
				continue
			}
			client, uid, refused := j.source.loop.Client.Resource(paths[set.kind]).Namespace(at), u.GetUID(), false
			if !j.do("delete", set.kind, at, func(ctx context.Context) error {
				err := client.Delete(ctx, u.GetName(),
					metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
				switch refused = isRefusal(err); {
				case apierrors.IsNotFound(err), apierrors.IsConflict(err):
					// it has gone or was replaced: the watch will say so
					return nil
				case refused && foreign:
					j.foreign[at] = j.now.Add(retryForeign)
					return nil
				case refused:
					j.stuck[set.kind+" "+key] = stuck{j.now.Add(retryConflict),
						fmt.Sprintf("%s is no longer wanted: %.300s", key, err.Error())}
					return nil
				}
				return err
			}) || refused {
				continue
			}
			j.store(set.kind, key, u, nil)
			delete(set.mine, key)
		}
	}
}

// isRefusal reports whether an API server has refused a request because of its object, so that
// others may succeed.
func isRefusal(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) ||
		apierrors.IsInternalError(err)
}

// have writes the Service and the EndpointSlices of an import, if they differ.
func (j *job) have(namespace string, x *imported) {
	if s, ok := j.stuck[x.name]; ok && j.now.Before(s.until) {
		return
	}
	key := namespace + "/" + x.name
	of := j.services[key]
	if of == nil || !x.sameService(of) {
		if of == nil && (j.now.Before(j.full) || j.here >= j.room) {
			j.short++
			return
		}
		owner := j.ownerIn(namespace)
		switch {
		case owner == nil:
		case of == nil:
			if of = j.put("create", setImported, x, x.service(j.source.self.Name, owner)); of != nil {
				j.here++
			}
		default:
			of = j.put("update", setImported, x, x.updated(of, owner))
		}
		if owner == nil || of == nil {
			return
		}
	}
	for at := range x.at.All() {
		if j.slice(of, x, at.Is6()) == nil {
			return
		}
	}
	delete(j.stuck, x.name)
}

// ownerIn returns the Role by which the gateway writes to a namespace, and which owns the objects
// that it writes there; nil if there is none.
func (j *job) ownerIn(namespace string) *unstructured.Unstructured {
	if j.owner != nil {
		return j.owner
	}
	j.do("get", kindRole, namespace, func(ctx context.Context) (err error) {
		j.owner, err = j.source.loop.Client.Resource(paths[kindRole]).Namespace(namespace).Get(ctx,
			ImportRole(j.source.self.Name), metav1.GetOptions{})
		return err
	})
	return j.owner
}

func (j *job) slice(of *unstructured.Unstructured, x *imported, v6 bool) *unstructured.Unstructured {
	have := j.slices[of.GetNamespace()+"/"+sliceName(x.name, v6)]
	switch {
	case have == nil:
		return j.put("create", setImportedSlices, x, x.slice(j.source.self.Name, of, v6))
	case !x.sameSlice(have):
		return j.put("update", setImportedSlices, x, x.fill(have))
	}
	return have
}

// put creates or updates an object of an import. If that fails, it records why and returns nil.
func (j *job) put(verb, set string, x *imported, u *unstructured.Unstructured) (stored *unstructured.Unstructured) {
	client := j.source.loop.Client.Resource(paths[set]).Namespace(u.GetNamespace())
	u.Object["apiVersion"], u.Object["kind"] = "v1", kindService // objects of a list lack these
	if set == setImportedSlices {
		u.Object["apiVersion"], u.Object["kind"] = "discovery.k8s.io/v1", kindSlice
	}
	ok := j.do(verb, set, u.GetNamespace(), func(ctx context.Context) (err error) {
		if verb == "create" {
			stored, err = client.Create(ctx, u, metav1.CreateOptions{})
		} else {
			stored, err = client.Update(ctx, u, metav1.UpdateOptions{})
		}
		at := fmt.Sprintf("%s %s/%s, for the peer's %s", u.GetKind(), u.GetNamespace(), u.GetName(), x.of)
		switch {
		case apierrors.IsAlreadyExists(err):
			j.stuck[x.name] = stuck{j.now.Add(retryConflict),
				at +
					": another one is there that culvert has not made; delete it, or name another namespace in spec.imports"}
		case apierrors.IsInternalError(err) && strings.Contains(err.Error(), "range is full"):
			j.full = j.now.Add(retryFull)
			j.short++
		case isRefusal(err):
			j.stuck[x.name] = stuck{j.now.Add(retryConflict), fmt.Sprintf("%s: %.300s", at, err.Error())}
		case apierrors.IsConflict(err), verb == "update" && apierrors.IsNotFound(err): // the watch brings the change
		default:
			return err
		}
		stored = nil
		return nil
	})
	if !ok || stored == nil {
		return nil
	}
	was := j.services
	if set == setImportedSlices {
		was = j.slices
	}
	j.store(set, kube.KeyOf(stored), was[kube.KeyOf(stored)], stored)
	return stored
}

// store keeps the answer to a request, unless the watch has delivered a newer version meanwhile: a
// watch delivers each version only once.
func (j *job) store(set, key string, was, is *unstructured.Unstructured) {
	j.source.mu.Lock()
	defer j.source.mu.Unlock()
	all := table[*unstructured.Unstructured](j.x.services)
	if set == setImportedSlices {
		all = j.x.slices
	}
	if all[key] == was {
		all.set(key, is)
		j.source.loop.Made(set, key)
	}
}

// do makes one request, unless an earlier one of the pass has failed.
func (j *job) do(verb, set, namespace string, request func(context.Context) error) bool {
	if j.fault != "" || j.ctx.Err() != nil {
		return false
	}
	if !j.writes.Allow() {
		j.fault = "the peer changes its exports all the time: what changes is written later"
		return false
	}
	ctx, cancel := context.WithTimeout(j.ctx, writeTimeout)
	defer cancel()
	err := request(ctx)
	j.source.loop.Causes.Log(ctx, verb, paths[set].Resource, err)
	switch {
	case err == nil:
		return true
	case set == kindRole && (apierrors.IsForbidden(err) || apierrors.IsNotFound(err)):
		j.fault = fmt.Sprintf("spec.imports: the gateway may not write to namespace %s; culvert kube template --peering %s --imports NAMESPACE prints the rights", namespace, j.source.self.Name)
	case apierrors.IsNotFound(err):
		j.fault = fmt.Sprintf("spec.imports: namespace %s is not there; make it", namespace)
	default:
		j.fault = "cannot write the peer's exports: requests to the API server fail"
	}
	return false
}
