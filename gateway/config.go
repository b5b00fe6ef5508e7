package gateway

import (
	"maps"
	"net/netip"
	"time"

	"culvert/geneve"
	"culvert/nat"
)

// Config is the desired state of one gateway: an immutable value that the YAML
// file, the Kubernetes source and the lab all produce. Apply publishes it.
//
// The comments give the path of each field in the file; Validate uses the same
// paths in its errors. What the file calls auto is invalid until Remap has chosen it.
type Config struct {
	Cluster string    // cluster: this cluster's ID
	Peer    string    // peer: the remote cluster's ID
	MTU     TunnelMTU // mtu: largest inner packet of both tunnels, bytes

	WireGuard WireGuardConfig
	Geneve    GeneveConfig
	Local     LocalNetwork
	Remote    []nat.RemoteCIDR // network.remote; Real equals Remapped where nothing is remapped

	UnknownSource  netip.Addr       // nat.unknownSource; the zero Addr drops unknown sources
	Addresses      []AddressMapping // nat.addresses
	Services       []Service        // nat.services
	MaxConnections int              // nat.maxConnections; 0 = auto
	Rules          []nat.FilterRule // rules
	MSSClamp       nat.MSSClamp     // mssClamp

	IPAM  IPAMConfig // ipam
	State string     // state: folder of what outlives the process, "" = none

	Metrics string // metrics: listen address, empty = off
	Log     LogConfig

	// Warnings are about what the file may mean but probably does not, one line each.
	Warnings []string
}

// WireGuardConfig is the external network's end: one tunnel to one peer.
type WireGuardConfig struct {
	Role          Role
	PrivateKey    Key
	PeerPublicKey Key
	ListenPort    uint16        // 0 = any
	Endpoint      string        // host:port of the peer, client only
	Keepalive     time.Duration // 0 = off
	UAPI          bool          // serve the read-only wg(8) socket
}

// GeneveConfig is the internal network's end: one tunnel per node.
type GeneveConfig struct {
	ListenPort     uint16
	GatewayAddress netip.Addr // the gateway's internal address, the same on every VNI
	SourceCheck    nat.SourceCheck
	Nodes          []Node
}

// Node is one node of the local cluster and the tunnel to it.
type Node struct {
	Name     string
	VNI      geneve.VNI
	Underlay netip.Addr // outer address of the node's tunnel endpoint
	Address  netip.Addr // the node's internal address
	PodCIDRs []netip.Prefix
	Encap    geneve.Encap
	Inner    geneve.Inner
}

// LocalNetwork is what lies behind this gateway.
type LocalNetwork struct {
	PodCIDRs      []netip.Prefix
	ExternalCIDRs []netip.Prefix
}

// AddressMapping is one address of a local external CIDR that stands for a host.
type AddressMapping struct {
	External, Internal netip.Addr
	Via                string // name of the node that leads to Internal; "" = the first
}

// Service is one address and port of a local external CIDR that stands for
// several backends. The fields are those of nat.Service.
type Service struct {
	Name            string
	Address         netip.Addr
	Port            uint16
	Protocol        uint8
	Balance         nat.Balance
	Affinity        nat.Affinity
	AffinityTimeout time.Duration
	OnRemoval       nat.OnRemoval
	Backends        []Backend
}

// Backend is one host behind a Service.
type Backend struct {
	Address netip.Addr
	Port    uint16
	Weight  int
	Via     string // as in AddressMapping, for a backend that no route leads to
}

// LogConfig chooses what is logged and how.
type LogConfig struct {
	Level  string // trace | debug | info | warning | error
	Format string // text | json
}

// Role says which end of the WireGuard tunnel this gateway is.
type Role uint8

// The server listens on a known port and learns its peer's endpoint; the client
// knows the server's endpoint.
const (
	Client Role = iota
	Server
)

// Tunnel addresses, the first /30 block of Liqo's 169.254.18.0/24 (liqo
// pkg/gateway/tunnel).
var (
	serverTunnelAddress = netip.AddrFrom4([4]byte{169, 254, 18, 1})
	clientTunnelAddress = netip.AddrFrom4([4]byte{169, 254, 18, 2})
)

func (r Role) String() string {
	if r == Server {
		return "server"
	}
	return "client"
}

// tunnelAddresses returns the two ends of the WireGuard tunnel, ours first.
func (r Role) tunnelAddresses() (own, peer netip.Addr) {
	if r == Server {
		return serverTunnelAddress, clientTunnelAddress
	}
	return clientTunnelAddress, serverTunnelAddress
}

// ports gives each node its nat.Port. A node keeps its port for as long as its
// name stays in the configuration, because connections remember ports.
type ports struct {
	byName map[string]nat.Port
	next   nat.Port
}

func (p *ports) clone() ports { return ports{maps.Clone(p.byName), p.next} }

func (p *ports) assign(nodes []Node) map[string]nat.Port {
	inUse := make(map[nat.Port]bool, len(nodes))
	assigned := make(map[string]nat.Port, len(nodes))
	for _, n := range nodes {
		if port, ok := p.byName[n.Name]; ok {
			assigned[n.Name] = port
			inUse[port] = true
		}
	}
	for _, n := range nodes {
		if _, ok := assigned[n.Name]; ok {
			continue
		}
		for {
			p.next = p.next%maxNodes + 1
			if !inUse[p.next] {
				break
			}
		}
		assigned[n.Name] = p.next
		inUse[p.next] = true
	}
	p.byName = assigned
	return assigned
}

// natConfig is the part of c that decides about packets.
func (c *Config) natConfig(ports map[string]nat.Port, budget Budget) *nat.Config {
	own, peer := c.WireGuard.Role.tunnelAddresses()
	nc := &nat.Config{
		LocalPodCIDRs:      c.Local.PodCIDRs,
		LocalExternalCIDRs: c.Local.ExternalCIDRs,
		Remote:             c.Remote,
		GatewayAddress:     c.Geneve.GatewayAddress,
		SourceCheck:        c.Geneve.SourceCheck,
		TunnelAddress:      own,
		PeerTunnelAddress:  peer,
		MTU:                int(c.MTU),
		MSSClamp:           c.MSSClamp,
		UnknownSource:      c.UnknownSource,
		Rules:              c.Rules,
		MaxConnections:     c.MaxConnections,
	}
	if nc.MaxConnections == 0 {
		nc.MaxConnections = budget.Connections
	}
	for _, m := range c.Addresses {
		nc.Addresses = append(nc.Addresses, nat.AddressMapping{External: m.External, Internal: m.Internal, Via: ports[m.Via]})
	}
	for _, s := range c.Services {
		ns := nat.Service{
			Name: s.Name, Address: s.Address, Port: s.Port, Protocol: s.Protocol,
			Balance: s.Balance, Affinity: s.Affinity, AffinityTimeout: s.AffinityTimeout, OnRemoval: s.OnRemoval,
		}
		for _, b := range s.Backends {
			ns.Backends = append(ns.Backends, nat.Backend{Address: b.Address, Port: b.Port, Weight: b.Weight, Via: ports[b.Via]})
		}
		nc.Services = append(nc.Services, ns)
	}
	for _, n := range c.Geneve.Nodes {
		port := ports[n.Name]
		nc.Nodes = append(nc.Nodes, nat.Node{Port: port, Name: n.Name, Address: n.Address})
		nc.Routes = append(nc.Routes, nat.Route{Prefix: netip.PrefixFrom(n.Address, n.Address.BitLen()), Port: port})
		for _, cidr := range n.PodCIDRs {
			nc.Routes = append(nc.Routes, nat.Route{Prefix: cidr, Port: port})
		}
	}
	return nc
}

// tunnels is the part of c that the Geneve endpoint needs; a tunnel's ID is its
// node's nat.Port.
func (c *Config) tunnels(ports map[string]nat.Port) []geneve.Tunnel {
	var ts []geneve.Tunnel
	for _, n := range c.Geneve.Nodes {
		ts = append(ts, geneve.Tunnel{
			ID:     uint16(ports[n.Name]),
			VNI:    n.VNI,
			Remote: n.Underlay,
			Encap:  n.Encap,
			Inner:  n.Inner,
			Local:  c.Geneve.GatewayAddress,
			Peer:   n.Address,
			Role:   geneve.Gateway,
		})
	}
	return ts
}
