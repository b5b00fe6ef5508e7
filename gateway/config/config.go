package config

import (
	"net/netip"
	"time"

	"culvert/gateway/wgkey"
	"culvert/geneve"
	"culvert/nat"
	"culvert/nat/rules"
)

// Config is the desired state of one gateway: an immutable value that the YAML file, the Kubernetes
// source and the lab all produce. Apply publishes it.
//
// The comments give each field's path in the file; Validate uses the same paths in its errors. A
// field that is auto in the file is invalid until Remap has chosen its value.
type Config struct {
	Cluster string    // cluster: this cluster's ID
	Peer    string    // peer: the remote cluster's ID
	MTU     TunnelMTU // mtu: largest inner packet of both tunnels, bytes

	WireGuard WireGuard
	Geneve    Geneve
	Local     LocalNetwork
	Remote    []rules.RemoteCIDR // network.remote; Real equals Remapped where nothing is remapped

	// nat.unknownSource; without an address, packets from unknown sources of the family are dropped
	UnknownSource  rules.Pair
	Addresses      []AddressMapping   // nat.addresses
	Services       []Service          // nat.services
	Admit          Admit              `json:",omitzero"` // nat.admit
	Exports        []rules.Endpoint   `json:",omitzero"` // nat.exports, each once
	MaxConnections int                // nat.maxConnections; 0 = auto
	Rules          []rules.FilterRule // rules
	MSSClamp       rules.MSSClamp     // mssClamp

	// Given is for a source that provides its own rules piece by piece.
	Given Given

	ConnectionCheck ConnectionCheck // connectionCheck

	IPAM  IPAM   // ipam
	State string // state: folder for what outlives the process, "" = none

	Control string // control: path of the control socket; ControlAuto = its usual place, if it can be there; "" = off
	Metrics string // metrics: listen address, empty = off
	Health  string // listen address of /healthz and /readyz; empty = the same as Metrics
	Log     Log
	CPUs    int // cpus: threads that run Go code at once; 0 = the default

	File File // the file it was read from

	// Elected says that the gateway has replicas: it starts as a standby, and forwards when an
	// election says so.
	Elected bool

	Liqo    bool // Liqo's resources configure the gateway; metrics also have the names of Liqo's gateway
	Peering bool // a Peering configures the gateway

	// Warnings name what is valid but probably not meant, one line each.
	Warnings []string
}

// A File is a file from which a Config was read; the zero File is none.
type File struct {
	Path string   // absolute
	Sum  [32]byte // SHA-256 of the text as read; the file may have changed since
}

// Defaults of the configuration, the same as Liqo's.
const (
	DefaultMTU           TunnelMTU = 1340
	DefaultWireGuardPort           = 51840
	DefaultGenevePort              = 6091
	DefaultMetrics                 = "127.0.0.1:8082"
)

// LiqoConnectionCheck is Liqo's default.
var LiqoConnectionCheck = ConnectionCheck{Port: 12345, Interval: 2 * time.Second, Threshold: 5}

// ControlAuto lets the gateway choose the path of the control socket.
const ControlAuto = auto

// WireGuard is the external network's end: one tunnel to one peer.
type WireGuard struct {
	Role          Role
	PrivateKey    wgkey.Key
	PeerPublicKey wgkey.Key
	PresharedKey  wgkey.Key     `json:",omitzero"` // zero = none
	ListenPort    uint16        // 0 = any
	Endpoint      string        // host:port of the peer, client only
	Keepalive     time.Duration // 0 = off
	UAPI          bool          // serve the read-only wg(8) socket
}

// ConnectionCheck says how the gateway pings its peer. It answers the peer's pings in any case.
type ConnectionCheck struct {
	Port      uint16        // UDP port of both gateways; 0 = Liqo's
	Interval  time.Duration // between two pings; 0 = no pings
	Threshold int           // number of intervals for which the peer may be silent
}

// Geneve is the internal network's end: one tunnel per node.
type Geneve struct {
	ListenPort     uint16
	GatewayAddress rules.Pair // the gateway's internal address, the same on every VNI
	SourceCheck    nat.SourceCheck
	Nodes          []Node
}

// Node is one node of the local cluster and the tunnel to it.
type Node struct {
	Name     string
	Device   string // what given rules call the node's tunnel; "" means Name
	VNI      geneve.VNI
	Underlay netip.Addr     // outer address of the node's tunnel endpoint
	Address  rules.Pair     // the node's internal address
	PodCIDRs []netip.Prefix // where its pods are; in a Peering with podsFrom: Pods, the address of each pod
	Encap    geneve.Encap   // Auto: the encapsulation that the node uses first
	Inner    geneve.Inner
}

// Given says that no rules are generated from the other fields, and which sources packets may have
// if no CIDRs define them.
type Given struct {
	Rules        bool
	FromTunnel   []netip.Prefix // sources that the peer may use
	NotFromNodes []netip.Prefix // sources that nodes may not use
}

// LocalNetwork is the network behind this gateway.
type LocalNetwork struct {
	PodCIDRs      []netip.Prefix
	ExternalCIDRs []netip.Prefix
}

// AddressMapping is an address of a local external CIDR that stands for a host, or one for each of
// the host's families.
type AddressMapping struct {
	External, Internal rules.Pair
	Via                string // name of the node that leads to Internal; "" = the first
	ProxyProtocol      bool
}

// Service is an address and port of a local external CIDR that stands for several backends, or one
// address per family of the backends. The fields are those of rules.Service.
type Service struct {
	Name            string
	Address         rules.Pair
	Port            uint16
	Protocol        uint8
	Balance         rules.Balance
	Affinity        rules.Affinity
	AffinityTimeout time.Duration
	OnRemoval       rules.OnRemoval
	ProxyProtocol   bool
	Backends        []Backend
}

// Backend is one host behind a Service.
type Backend struct {
	Address netip.Addr
	Port    uint16
	Weight  int
	Via     string // as in AddressMapping, for a backend without a route
}

// Admit says what the peer may open connections to.
type Admit uint8

// The choices.
const (
	AdmitAll     Admit = iota
	AdmitExports       // only to Exports and Services
)

// Log selects what is logged, and the format.
type Log struct {
	Level  string // trace | debug | info | warning | error
	Format string // text | json
}

// Role says which end of the WireGuard tunnel this gateway is.
type Role uint8

// The server listens on a known port and learns its peer's endpoint; the client knows the server's
// endpoint.
const (
	Client Role = iota
	Server
)

// Tunnel addresses: for IPv4 the first /30 block of Liqo's 169.254.18.0/24 (liqo
// pkg/gateway/tunnel), for IPv6 the same as link-local addresses.
var (
	serverTunnelAddress = rules.PairOf(netip.MustParseAddr("169.254.18.1"), netip.MustParseAddr("fe80::a9fe:1201"))
	clientTunnelAddress = rules.PairOf(netip.MustParseAddr("169.254.18.2"), netip.MustParseAddr("fe80::a9fe:1202"))
)

func (r Role) String() string {
	if r == Server {
		return "server"
	}
	return "client"
}

// TunnelAddresses returns the two ends of the WireGuard tunnel, ours first.
func (r Role) TunnelAddresses() (own, peer rules.Pair) {
	if r == Server {
		return serverTunnelAddress, clientTunnelAddress
	}
	return clientTunnelAddress, serverTunnelAddress
}
