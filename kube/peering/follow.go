package peering

import (
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"culvert/kube"
	"culvert/kube/objects"
)

// paths are the API resources of the sets.
var paths = map[string]schema.GroupVersionResource{
	KindPeering: objects.Peerings, KindTunnelNode: objects.TunnelNodes, kindNode: objects.Nodes, kindPod: objects.Pods,
	kindService: objects.Services, kindSlice: objects.EndpointSlices, kindRole: objects.Roles,
	kindServiceCIDR: objects.ServiceCIDRs, kindServiceExport: objects.ServiceExports,
	kindPeerExports: objects.PeerExports, kindSecret: objects.Secrets,

	setOthers: objects.Peerings, setExported: objects.Services, setImported: objects.Services,
	setImportedSlices: objects.EndpointSlices,
}

// A kept holds the used part of each object, by key. Setting a zero V removes it.
type kept[V any] interface{ set(key string, v V) }

// A table holds objects from which nothing else is derived.
type table[V comparable] map[string]V

func (t table[V]) set(key string, v V) {
	var none V
	if t[key] = v; v == none {
		delete(t, key)
	}
}

// into returns a set of the objects of a kind. It keeps in all what read makes of each, unless that
// is zero. Objects of one namespace are kept by name, others by NAMESPACE/NAME.
func into[V comparable](name, namespace string, all kept[V], read func(*unstructured.Unstructured) V) kube.Set {
	var none V
	return kube.Set{Name: name, Resource: paths[name], Namespace: namespace, Large: true,
		Read: func(u *unstructured.Unstructured) func(string) {
			v := read(u)
			if v == none {
				return nil
			}
			return func(key string) {
				if namespace != "" {
					key = key[strings.IndexByte(key, '/')+1:]
				}
				all.set(key, v)
			}
		},
		Drop: func(within, name string) {
			if namespace == "" && within != "" {
				name = within + "/" + name
			}
			all.set(name, none)
		},
	}
}
