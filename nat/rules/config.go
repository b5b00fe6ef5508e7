package rules

import (
	"net/netip"
	"strings"
	"time"
)

// A Config describes how two clusters see each other, and what happens to the packets between them.
// Set.Replace makes resources from it and keeps no reference to it.
type Config struct {
	Nodes []Node
	// LocalPodCIDRs and LocalExternalCIDRs are the local cluster's own, as known to the remote
	// cluster's gateway.
	LocalPodCIDRs, LocalExternalCIDRs []netip.Prefix
	Remote                            []RemoteCIDR
	// FromTunnel and NotFromNodes, if not nil, replace Remote in the check of sources: where the
	// peer may send from, and where nodes may not. LocalPodCIDRs are then unused; the pods are the
	// addresses routed to nodes.
	FromTunnel, NotFromNodes []netip.Prefix `json:",omitempty"`
	// GatewayAddress is the gateway's internal address, TunnelAddress and PeerTunnelAddress are the
	// ends of the WireGuard tunnel. An address not known yet is the zero Addr, which no packet has.
	GatewayAddress, TunnelAddress, PeerTunnelAddress Pair
	MSSClamp                                         MSSClamp
	// UnknownSource is U, the source for packets from nodes whose own source the remote cluster
	// could not answer. The zero Addr turns it off for a family: such packets are dropped.
	UnknownSource Pair
	// Routes lead packets to nodes by longest prefix. The remote cluster's prefixes need none: they
	// follow from Remote.
	Routes    []Route
	Addresses []AddressMapping
	Services  []Service
	// Rules are the forward filter: the first match decides, the default is accept.
	Rules []FilterRule
	// Admit, if not nil, is what others may open connections to, besides Services. They may then
	// send nothing else but answers, and errors about connections.
	Admit []Endpoint `json:",omitzero"`
	// Firewall and Routing, if not nil, replace the tables that the fields above would generate. If
	// all tables are to be Put, both are empty.
	Firewall []Table
	Routing  []PolicyTable
	// Host, if not nil, makes this the Config of a node that serves Services.
	Host *Host `json:",omitempty"`
}

// ReservedName reports whether a node cannot have this name, because a generated table or the
// WireGuard tunnel uses it.
func ReservedName(name string) bool {
	return name == tunnelDevice || name == "gw-ext" || strings.HasSuffix(name, "-service-nodeport-routing") ||
		strings.HasSuffix(name, hostTableEnd)
}

// A Node is one node of the local cluster.
type Node struct {
	Link    Link
	Name    string
	Address Pair   // the node's internal address
	Device  string // what Firewall and Routing call the node's tunnel; "" means Name
}

// A RemoteCIDR is a pod CIDR or external CIDR of the remote cluster.
type RemoteCIDR struct {
	Real netip.Prefix
	// Remapped is the prefix under which the local cluster sees Real. It has the same length, or is
	// the zero Prefix for "unchanged".
	Remapped netip.Prefix
	External bool // an external CIDR
}

// Seen returns the prefix under which the local cluster sees the CIDR.
func (r RemoteCIDR) Seen() netip.Prefix {
	if r.Remapped.IsValid() {
		return r.Remapped
	}
	return r.Real
}

// A Route leads a prefix to a node.
type Route struct {
	Prefix netip.Prefix
	Link   Link
}

// An AddressMapping makes one address of a local external CIDR stand for a host to which the remote
// cluster has no route.
type AddressMapping struct {
	External, Internal netip.Addr
	Via                Link // the node by which Internal is reached; 0 means the first node
	ProxyProtocol      bool `json:",omitempty"` // as in Service, for all TCP connections
}

// A Service is an address and port of a local external CIDR, reached from outside links, that
// stands for several backends.
type Service struct {
	Name            string
	Address         netip.Addr
	Port            uint16
	Protocol        uint8 // IANA protocol number: TCP, UDP or SCTP
	Balance         Balance
	Affinity        Affinity
	AffinityTimeout time.Duration // 0 means 3 h
	OnRemoval       OnRemoval
	Backends        []Backend
	// ProxyProtocol makes new TCP connections to the backend start with a PROXY protocol header,
	// version 2.
	ProxyProtocol bool      `json:",omitempty"`
	Frontend      *Frontend `json:",omitempty"` // only for a Service that a Host serves
}

// A Backend is one of the hosts behind a Service.
type Backend struct {
	Address netip.Addr
	Port    uint16
	Weight  int  // 0 means 1
	Via     Link // as in AddressMapping, for backends without a route
	Local   bool `json:",omitempty"` // on the node of the Host
	// Eligibility says which new clients it gets.
	Eligibility Eligibility `json:",omitempty"`
}

// Eligibility says which new clients a Backend of a Host's Service gets. It does not affect its
// existing connections.
type Eligibility uint8

// The eligibilities.
const (
	EligibleAll   Eligibility = iota // clients under either traffic policy
	EligibleLocal                    // clients under the local traffic policy only
	EligibleNone                     // no new clients
)

// Balance is how a Service chooses a backend.
type Balance uint8

// The ways to balance.
const (
	BalanceRandom Balance = iota // weighted random
	BalanceHash                  // weighted consistent hash of the client's address and port
)

// Affinity is what keeps a client on its backend.
type Affinity uint8

// The kinds of affinity.
const (
	AffinityNone Affinity = iota
	AffinityClientIP
)

// OnRemoval is what happens to a backend's connections when it leaves its Service.
type OnRemoval uint8

// The choices.
const (
	// those of UDP end, and their next packets find another backend; others continue until they end
	RemovalKeep  OnRemoval = iota
	RemovalReset           // they end; TCP gets a RST
)

// A FilterRule accepts, drops or rejects packets that match all of its fields; a zero field matches
// everything.
type FilterRule struct {
	Name                string
	From                From
	Source, Destination []netip.Prefix // any of
	Protocol            uint8          // IANA protocol number
	Ports               []PortRange    // destination ports, any of
	Action              FilterAction
}

// From is the side from which a filter rule's packets come.
type From uint8

// The sides.
const (
	FromAnywhere From = iota
	FromLocal         // from a node
	FromRemote        // from the tunnel
)

// A PortRange is the ports First to Last, both included.
type PortRange struct{ First, Last uint16 }

// FilterAction is what a FilterRule does.
type FilterAction uint8

// The filter actions.
const (
	FilterAccept FilterAction = iota
	FilterDrop
	FilterReject // drop and tell the sender
)

// MSSClamp is the upper bound of the MSS option of SYN segments: MSSAuto, MSSOff, or the IPv4 MSS
// in bytes. IPv6 gets 20 bytes less.
type MSSClamp int

const (
	// MSSAuto derives the bound from the MTU: 40 bytes less for IPv4, 60 for IPv6.
	MSSAuto MSSClamp = 0
	// MSSOff leaves the option unchanged.
	MSSOff MSSClamp = -1
)
