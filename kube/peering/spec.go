package peering

import (
	"culvert/kube/objects"
)

// The kinds, and their API group and resources.
const (
	Group = "culvert.io"

	KindPeering    = "Peering"
	KindTunnelNode = "TunnelNode"
	kindNode       = "Node"
	kindPod        = "Pod"
	kindService    = "Service"
	kindSlice      = "EndpointSlice"
	kindSecret     = "Secret"

	// GatewayNamespace is the namespace of Peerings and gateways, NodeNamespace that of TunnelNodes
	// and agents, unless flags say otherwise.
	GatewayNamespace = "culvert"
	NodeNamespace    = "culvert-nodes"
)

// Spec is the spec of a Peering in the API. What has one value of each family has two fields, as
// podCIDR and podCIDRs of a Node: for one family the first is enough, and the list begins with it.
type Spec struct {
	Cluster       string     `json:"cluster"`
	Peer          string     `json:"peer"`
	Role          string     `json:"role"` // Server or Client
	PublicKey     string     `json:"publicKey,omitempty"`
	Endpoint      string     `json:"endpoint,omitempty"`
	MTU           int        `json:"mtu,omitempty"`
	PodsFrom      string     `json:"podsFrom,omitempty"` // Nodes or Pods
	InternalCIDR  string     `json:"internalCIDR,omitempty"`
	InternalCIDRs []string   `json:"internalCIDRs,omitempty"`
	Local         SpecLocal  `json:"local"`
	Remote        SpecRemote `json:"remote,omitzero"`   // missing until the peer has sent it, like PublicKey
	Imports       string     `json:"imports,omitempty"` // a namespace
	Admit         string     `json:"admit,omitempty"`   // All, as without it, or Exports
	// Services says which ServiceExports the peer hears of, and where its own go.
	Services SpecServices `json:"services,omitzero"`
}

// SpecServices is the namespaces in which two clusters have Services in common.
type SpecServices struct {
	Export []string `json:"export,omitempty"`
	Import []string `json:"import,omitempty"`
}

// Any reports whether they have any.
func (s SpecServices) Any() bool { return len(s.Export)+len(s.Import) > 0 }

// SpecLocal is what the peer may know about this cluster.
type SpecLocal struct {
	PodCIDRs      []string `json:"podCIDRs"`
	ExternalCIDR  string   `json:"externalCIDR,omitempty"`
	ExternalCIDRs []string `json:"externalCIDRs,omitempty"`
}

// SpecRemote is the other cluster's CIDRs.
type SpecRemote struct {
	PodCIDRs      []SpecRemap `json:"podCIDRs"`
	ExternalCIDR  *SpecRemap  `json:"externalCIDR,omitempty"`
	ExternalCIDRs []SpecRemap `json:"externalCIDRs,omitempty"`
}

// Internals returns the internal CIDRs, at most one of each family.
func (s *Spec) Internals() []string { return values(s.InternalCIDR, s.InternalCIDRs) }

// Externals returns the external CIDRs, at most one of each family.
func (s *SpecLocal) Externals() []string { return values(s.ExternalCIDR, s.ExternalCIDRs) }

// Externals returns the peer's external CIDRs, at most one of each family.
func (s *SpecRemote) Externals() []SpecRemap {
	one := SpecRemap{}
	if s.ExternalCIDR != nil {
		one = *s.ExternalCIDR
	}
	return values(one, s.ExternalCIDRs)
}

func values[V comparable](one V, all []V) []V {
	var none V
	if len(all) == 0 && one != none {
		return []V{one}
	}
	return all
}

// Fields returns the values of the two fields that have one value of each family.
func Fields[V any](all []V) (one V, list []V) {
	if len(all) > 0 {
		one = all[0]
	}
	if len(all) > 1 {
		list = all
	}
	return one, list
}

// SpecRemap is a CIDR of the other cluster, and the CIDR under which this one sees it; "" = the
// same.
type SpecRemap struct {
	CIDR  string `json:"cidr"`
	Remap string `json:"remap,omitempty"`
}

// Status is the status of a Peering.
type Status struct {
	PublicKey  string         `json:"publicKey,omitempty"` // of this cluster's gateway
	RTT        string         `json:"rtt,omitempty"`
	Message    string         `json:"message"`
	NodesReady string         `json:"nodesReady,omitempty"` // such as 2/3
	PodsSeenAs string         `json:"podsSeenAs,omitempty"` // how this cluster sees the peer's pods
	Active     *Active        `json:"active,omitempty"`
	Nodes      []Assigned     `json:"nodes,omitempty"`
	Exports    []ExportStatus `json:"exports,omitempty"`
	Conditions []*Condition   `json:"conditions,omitempty"`
	// Accepted is the spec that the gateway has. While the present one has a fault, it is the last
	// one without, with which a gateway or an agent that starts goes on.
	Accepted *Spec `json:"accepted,omitempty"`
}

// Active is where the gateway is.
type Active struct {
	Pod       string   `json:"pod"`
	Node      string   `json:"node"`
	Addresses []string `json:"addresses"`
	Term      int64    `json:"term"`
}

// Assigned is a node's end of the tunnel to the gateway.
type Assigned struct {
	Name    string `json:"name"`
	VNI     uint32 `json:"vni"`
	Address string `json:"address"`
	// Disputed is true while the node claims an address that another one had first. So the
	// gateway's next process knows who that was.
	Disputed bool `json:"disputed,omitempty"`
}

// A Condition is a Kubernetes condition.
type Condition = objects.Condition
