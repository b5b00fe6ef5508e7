package objects

import (
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// The versions of culvert's own kinds, of Liqo's, and of those of multi-cluster Services.
const (
	Culvert      = "culvert.io/v1alpha1"
	Liqo         = "networking.liqo.io/v1beta1"
	Multicluster = "multicluster.x-k8s.io/v1beta1"
)

// The API resources that culvert reads and writes, except Liqo's.
var (
	ClusterRoleBindings = Resource("rbac.authorization.k8s.io/v1", "ClusterRoleBinding")
	ConfigMaps          = Resource("v1", "ConfigMap")
	DaemonSets          = Resource("apps/v1", "DaemonSet")
	Deployments         = Resource("apps/v1", "Deployment")
	EndpointSlices      = Resource("discovery.k8s.io/v1", "EndpointSlice")
	Events              = Resource("v1", "Event") // a gateway's role may write no others
	IPPools             = Resource("crd.projectcalico.org/v1", "IPPool")
	Leases              = Resource("coordination.k8s.io/v1", "Lease")
	Namespaces          = Resource("v1", "Namespace")
	NetworkPolicies     = Resource("networking.k8s.io/v1", "NetworkPolicy")
	Nodes               = Resource("v1", "Node")
	PeerExports         = Resource(Culvert, "PeerExports")
	Peerings            = Resource(Culvert, "Peering")
	Pods                = Resource("v1", "Pod")
	Reviews             = Resource("authorization.k8s.io/v1", "SelfSubjectAccessReview")
	RoleBindings        = Resource("rbac.authorization.k8s.io/v1", "RoleBinding")
	Roles               = Resource("rbac.authorization.k8s.io/v1", "Role")
	Secrets             = Resource("v1", "Secret")
	ServiceCIDRs        = Resource("networking.k8s.io/v1", "ServiceCIDR")
	ServiceExports      = Resource(Multicluster, "ServiceExport")
	ServiceImports      = Resource(Multicluster, "ServiceImport")
	Services            = Resource("v1", "Service")
	TunnelNodes         = Resource(Culvert, "TunnelNode")
)

// LiqoResource returns the API resource of one of Liqo's kinds.
func LiqoResource(kind string) schema.GroupVersionResource { return Resource(Liqo, kind) }

// Resource returns the API resource of a kind.
func Resource(apiVersion, kind string) schema.GroupVersionResource {
	plural := strings.TrimSuffix(strings.ToLower(kind), "s") + "s"
	if stem, ok := strings.CutSuffix(plural, "ys"); ok {
		plural = stem + "ies" // also of a PublicKey
	}
	return schema.FromAPIVersionAndKind(apiVersion, kind).GroupVersion().WithResource(plural)
}
