package rules

import (
	"net/netip"
	"strings"
	"time"
)

// A Config says what two clusters are to each other, and what is to become of the packets between them. It stands for the resources that
// Set.Replace makes of it; nothing of it is kept.
type Config struct {
	Nodes []Node
	// LocalPodCIDRs and LocalExternalCIDRs are the local cluster's own, as the remote cluster's gateway knows them.
	LocalPodCIDRs, LocalExternalCIDRs []netip.Prefix
	Remote                            []RemoteCIDR
	// FromTunnel and NotFromNodes, where not nil, stand in place of Remote in the check of sources: what the peer may send from, and
	// what nodes may not. LocalPodCIDRs then count for nothing; the pods are the addresses that routes lead to nodes.
	FromTunnel, NotFromNodes []netip.Prefix `json:",omitempty"`
	// GatewayAddress is the gateway's internal address, TunnelAddress and PeerTunnelAddress the ends of the WireGuard tunnel. What is not
	// known yet is the zero Addr, and no packet has it.
	GatewayAddress, TunnelAddress, PeerTunnelAddress Pair
	MSSClamp                                         MSSClamp
	// UnknownSource is U, the source that packets from nodes get whose own source the remote cluster could not answer. The zero
	// Addr turns it off for a family: such packets are dropped.
	UnknownSource Pair
	// Routes lead packets to nodes by longest prefix. What the remote cluster owns needs none: it follows from Remote.
	Routes    []Route
	Addresses []AddressMapping
	Services  []Service
	// Rules are the forward filter: the first match decides, the default is accept.
	Rules []FilterRule
	// Firewall and Routing, where not nil, stand in place of the tables that the fields above would generate. Where all tables are to be
	// put, both are empty.
	Firewall []Table
	Routing  []PolicyTable
	// Host, where not nil, makes this the Config of a node that serves Services.
	Host *Host `json:",omitempty"`
}

// ReservedName reports whether a node cannot have this name, because a generated table or the WireGuard tunnel has it.
func ReservedName(name string) bool {
	return name == tunnelDevice || name == "gw-ext" || strings.HasSuffix(name, "-service-nodeport-routing") || strings.HasSuffix(name, hostTableEnd)
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
	// Remapped is how the local cluster sees Real: of equal length, or the zero Prefix for "as it is".
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

// An AddressMapping lets one address of a local external CIDR stand for a host that the remote cluster has no route to.
type AddressMapping struct {
	External, Internal netip.Addr
	Via                Link // the node through which Internal is reached; 0 means the first node
	ProxyProtocol      bool `json:",omitempty"` // as in Service, for all connections of TCP
}

// A Service is one address and port of a local external CIDR, reached from outside links, that stands for several backends.
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
	// ProxyProtocol has new connections, of TCP, begin with a PROXY protocol header for the backend, version 2.
	ProxyProtocol bool      `json:",omitempty"`
	Frontend      *Frontend `json:",omitempty"` // of a Service that a Host serves, and of no other
}

// A Backend is one of the hosts behind a Service.
type Backend struct {
	Address netip.Addr
	Port    uint16
	Weight  int  // 0 means 1
	Via     Link // as in AddressMapping, for backends that no route leads to
	Local   bool `json:",omitempty"` // on the node of the Host
	// Standing says which new clients it gets.
	Standing Standing `json:",omitempty"`
}

// Standing is what a Backend of a Service that a Host serves is to new clients. Its connections go on whatever it is.
type Standing uint8

// The standings.
const (
	StandingChosen  Standing = iota // it gets those of either traffic policy
	StandingLocal                   // it gets those of the local traffic policy alone
	StandingLeaving                 // it gets none
)

// Balance is how a Service chooses a backend.
type Balance uint8

// The balances.
const (
	BalanceRandom Balance = iota // weighted random
	BalanceHash                  // weighted consistent hash of the client's address and port
)

// Affinity is what keeps a client on its backend.
type Affinity uint8

// The affinities.
const (
	AffinityNone Affinity = iota
	AffinityClientIP
)

// OnRemoval is what becomes of a backend's connections when it leaves its Service.
type OnRemoval uint8

// The choices.
const (
	RemovalKeep   OnRemoval = iota // they go on until they end
	RemovalReset                   // they end: TCP is told by RST
	RemovalEndUDP                  // those of UDP end, and their next packets find another backend; others go on
)

// A FilterRule accepts, drops or rejects packets that match all of its fields; a zero field matches everything.
type FilterRule struct {
	Name                string
	From                From
	Source, Destination []netip.Prefix // any of
	Protocol            uint8          // IANA protocol number
	Ports               []PortRange    // destination ports, any of
	Action              FilterAction
}

// From is the side that a filter rule's packets come from.
type From uint8

// The sides.
const (
	FromAnywhere From = iota
	FromLocal         // from a node
	FromRemote        // from the tunnel
)

// A PortRange holds the ports First to Last, both included.
type PortRange struct{ First, Last uint16 }

// FilterAction is what a FilterRule does.
type FilterAction uint8

// The filter actions.
const (
	FilterAccept FilterAction = iota
	FilterDrop
	FilterReject // drop and tell the sender
)

// MSSClamp is the upper bound that SYN segments get for their MSS option: MSSAuto, MSSOff, or the IPv4 MSS in bytes, of which
// IPv6 gets 20 less.
type MSSClamp int

const (
	// MSSAuto derives the bound from the MTU: 40 bytes less for IPv4, 60 for IPv6.
	MSSAuto MSSClamp = 0
	// MSSOff leaves the option alone.
	MSSOff MSSClamp = -1
)
