package exports

import (
	"net/netip"
	"slices"
	"time"
)

// A Service is one that a cluster exports, with its endpoints, as the peers' clusters hear of it.
// Its fields are in JSON as in the resource kind PeerExports. Whoever reads a peer's must judge
// whether names and addresses are acceptable.
type Service struct {
	Namespace   string    `json:"namespace"`
	Name        string    `json:"name"`
	Type        string    `json:"type"`                 // ClusterSetIP, Headless or Labelled
	Created     time.Time `json:"created,omitzero"`     // when it was exported, in seconds
	Families    []string  `json:"ipFamilies,omitempty"` // IPv4, IPv6 or both; none: IPv4
	Ports       []Port    `json:"ports,omitempty"`
	Affinity    string    `json:"sessionAffinity,omitempty"`        // ClientIP, None or ""
	AffinityFor int32     `json:"sessionAffinitySeconds,omitempty"` // of ClientIP

	InternalTrafficPolicy string            `json:"internalTrafficPolicy,omitempty"` // Cluster, Local or ""
	TrafficDistribution   string            `json:"trafficDistribution,omitempty"`
	Labels                map[string]string `json:"labels,omitempty"` // those that are exported
	Annotations           map[string]string `json:"annotations,omitempty"`

	Endpoints []Group `json:"endpoints,omitempty"`
}

// The types of a Service. A Labelled one has the label culvert/export and one endpoint, an address
// of its cluster's external CIDR; PeerExports have none.
const (
	ClusterSetIP = "ClusterSetIP"
	Headless     = "Headless"
	Labelled     = "Labelled"
)

// Families returns the families in the format of Service.Families.
func Families(v4, v6 bool) []string {
	switch {
	case v4 && v6:
		return []string{"IPv4", "IPv6"}
	case v6:
		return []string{"IPv6"}
	}
	return nil
}

// Has reports whether the Service has addresses of a family.
func (s *Service) Has(v6 bool) bool {
	if v6 {
		return slices.Contains(s.Families, "IPv6")
	}
	return len(s.Families) == 0 || slices.Contains(s.Families, "IPv4")
}

// A Port is one port of a Service, or of its endpoints.
type Port struct {
	Name        string `json:"name,omitempty"`
	Protocol    string `json:"protocol"` // TCP, UDP or SCTP
	Port        uint16 `json:"port"`
	AppProtocol string `json:"appProtocol,omitempty"`
}

// A Group is endpoints of a Service that have the same ports. No two Groups of a Service have.
type Group struct {
	Ports     []Port     `json:"ports,omitempty"`
	Addresses []Endpoint `json:"addresses,omitempty"` // in the order of their addresses
}

// An Endpoint is an address at which a Service is served.
type Endpoint struct {
	IP    netip.Addr `json:"ip"`              // in the exporting cluster
	Host  string     `json:"host,omitempty"`  // name of the endpoint within its Service
	State string     `json:"state,omitempty"` // Ready, or one of the others
}

// The states of an Endpoint.
const (
	Ready       = "" // and serving, and not terminating
	NotReady    = "notReady"
	Serving     = "serving" // and terminating
	Terminating = "terminating"
)

// PeerExports is what a gateway has heard from its peer, as the resource kind has it beside
// metadata.
type PeerExports struct {
	Heard    time.Time `json:"heard,omitzero"` // when the list came; zero: none has come
	Services []Service `json:"services,omitempty"`
}
