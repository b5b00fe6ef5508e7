package multicluster

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"culvert/gateway/exports"
	"culvert/kube"
	"culvert/kube/mcs"
	"culvert/kube/objects"
	"culvert/kube/peering"
)

// A View is what a cluster has of multi-cluster Services, for people.
type View struct {
	Cluster  string   `json:"cluster,omitempty"` // its ID
	Services []Viewed `json:"services"`
	Notes    []string `json:"notes,omitempty"` // what is wrong, or what is to be done first
}

// Viewed is one name.
type Viewed struct {
	Name      string    `json:"name"` // NAMESPACE/NAME
	Type      string    `json:"type,omitempty"`
	Addresses []string  `json:"addresses,omitempty"`  // in this cluster
	To        []string  `json:"exportedTo,omitempty"` // peers that hear of this cluster's ServiceExport
	Clusters  []Counted `json:"clusters"`             // that export it; the oldest export decides
	Notes     []string  `json:"notes,omitempty"`
}

// Counted is how many endpoints of a cluster are in the EndpointSlices here.
type Counted struct {
	Cluster string `json:"cluster"`
	Ready   int    `json:"ready"`
	All     int    `json:"all"`
}

// Look reads a cluster once. It takes what a Source follows, except the endpoints of Services: what
// is made of them counts.
func Look(ctx context.Context, client dynamic.Interface) (*View, error) {
	s := &Source{state: NewState(), namespace: peering.GatewayNamespace}
	lacks := ""
	for _, set := range s.sets() {
		if set.Name == setSlices {
			continue
		}
		err := kube.Each(ctx, client.Resource(set.Resource).Namespace(set.Namespace),
			metav1.ListOptions{LabelSelector: set.Labels}, func(u *unstructured.Unstructured) error {
				set.Read(u)(u.GetNamespace() + "/" + u.GetName())
				return nil
			})
		switch {
		case apierrors.IsNotFound(err):
			lacks = set.Name
		case err != nil:
			return nil, fmt.Errorf("list %s: %w", set.Resource.Resource, err)
		}
	}
	room, err := peering.ImportRoom(ctx, client)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", objects.ServiceCIDRs.Resource, err)
	}
	s.state.PutRoom(room)
	return s.state.view(lacks), nil
}

// view returns the View. lacks is a kind that the cluster does not have.
func (s *State) view(lacks string) *View {
	v := &View{Cluster: s.cluster, Services: []Viewed{}}
	inOrder := slices.SortedFunc(slices.Values(s.names()), func(a, b types.NamespacedName) int {
		return strings.Compare(a.String(), b.String())
	})
	for _, name := range inOrder {
		v.Services = append(v.Services, s.viewed(name))
	}
	shared := false
	for _, name := range slices.Sorted(maps.Keys(s.peerings)) {
		p := s.peerings[name]
		for _, text := range s.faults[name] {
			v.Notes = append(v.Notes, fmt.Sprintf("Peering %s: %s", name, text))
		}
		for kind, all := range map[string][]string{peering.Exported: p.Services.Export,
			peering.Imported: p.Services.Import} {
			shared = shared || len(all) > 0
			if c := p.Status.Condition(kind); len(all) > 0 && c != nil && c.Status == "False" {
				v.Notes = append(v.Notes, fmt.Sprintf("Peering %s: %s: %s", name, kind, c.Message))
			}
		}
	}
	slices.Sort(v.Notes)
	switch {
	case lacks == setPeerings || len(s.peerings) == 0:
		v.Notes = append(v.Notes, "it is joined with no cluster: culvert join")
	case lacks != "":
		v.Notes = append(v.Notes, fmt.Sprintf("it has no kind %s: culvert join with --services makes it, or culvert "+
			"multicluster crds | kubectl apply -f -", lacks))
	case !shared:
		v.Notes = append(v.Notes, "no Peering shares a namespace: culvert join with --services all, or with their names")
	case len(v.Services) == 0:
		v.Notes = append(v.Notes, `nothing is exported. To export Service web of namespace shop: kubectl -n shop create -f - `+
			`<<<'{"apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": "ServiceExport", "metadata": {"name": "web"}}'`)
	}
	return v
}

func (s *State) viewed(name types.NamespacedName) Viewed {
	v := Viewed{Name: name.String(), Clusters: []Counted{}}
	note := func(format string, args ...any) { v.Notes = append(v.Notes, fmt.Sprintf(format, args...)) }
	all := s.offers(task{name: name})
	var conflicts []conflict
	if len(all) > 0 {
		var merged exports.Service
		merged, conflicts = merge(all)
		v.Type = merged.Type
	}
	if e := s.exports[name]; e != nil {
		for _, c := range s.conditions(name, all, conflicts, time.Time{}) {
			if c.Type == "Ready" && c.Status != "True" {
				note("is not exported: %s", c.Message)
			}
		}
		for of, p := range s.peerings {
			_, ok := s.own(name)
			ok = ok && s.clashes[of] == "" && p.Exports(name.Namespace)
			if ok && (e.Peers == nil || slices.Contains(e.Peers, p.Peer)) {
				v.To = append(v.To, p.Peer)
			}
		}
		slices.Sort(v.To)
		_, ok := s.own(name)
		switch {
		case !ok || len(v.To) > 0:
		case e.Peers != nil:
			note("no peer hears of it: name one with which its namespace is shared in its annotation %s",
				mcs.AnnotationPeers)
		default:
			note("no peer hears of it: share its namespace by culvert join with --services")
		}
	}
	if len(conflicts) > 0 {
		reason, message := describe(all, conflicts)
		note("%s: %s", reason, message)
	}
	counted := map[string]*Counted{}
	for _, o := range all {
		counted[o.cluster] = &Counted{Cluster: o.cluster}
	}
	for _, v6 := range []bool{false, true} { // a pod may have an address of each
		of := map[string]*Counted{}
		for _, x := range s.ours.of[name] {
			if x.v6 != v6 {
				continue
			}
			if of[x.cluster] == nil {
				of[x.cluster] = &Counted{Cluster: x.cluster}
			}
			for _, e := range x.group.Addresses {
				if of[x.cluster].All++; e.State == exports.Ready {
					of[x.cluster].Ready++
				}
			}
		}
		for cluster, c := range of {
			if was := counted[cluster]; was == nil || c.All > was.All {
				counted[cluster] = c
			}
		}
	}
	for _, cluster := range slices.Sorted(maps.Keys(counted)) {
		v.Clusters = append(v.Clusters, *counted[cluster])
	}
	of := s.imports[name]
	switch {
	case len(all) == 0:
	case !s.namespaces[name.Namespace]:
		note("is not imported: this cluster has no namespace %s", name.Namespace)
	case of == nil:
		note("is not imported yet: does culvert multicluster run? kubectl -n %s get deployment culvert-multicluster",
			peering.GatewayNamespace)
	case !managed(of):
		note("%s", notOurs(name))
	default:
		var spec struct{ IPs []string }
		objects.ReadPart("spec", objects.PartOf(of, "spec"), &spec)
		v.Addresses = spec.IPs
		var status struct{ Conditions []objects.Condition }
		objects.ReadPart("status", objects.PartOf(of, "status"), &status)
		for _, c := range status.Conditions {
			if c.Type == "Ready" && c.Status == "False" {
				note("is not imported: %s", c.Message)
			}
		}
	}
	return v
}
