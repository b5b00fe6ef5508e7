package control

import (
	"net/netip"
	"time"
)

// Status is the status of a gateway.
type Status struct {
	Cluster       string            `json:"cluster"` // "" under Liqo, whose resources do not say
	Peer          string            `json:"peer"`
	Role          string            `json:"role"` // client or server
	Version       Version           `json:"version"`
	PID           int               `json:"pid"`
	Started       time.Time         `json:"started"`
	UptimeSeconds float64           `json:"uptimeSeconds"`
	MTU           int               `json:"mtu"` // of inner packets
	Findings      []Finding         `json:"findings"`
	Resources     *Resources        `json:"resources,omitempty"` // of a gateway configured by a cluster's resources
	Replica       *Replica          `json:"replica,omitempty"`   // of a gateway with replicas
	Replication   *Replication      `json:"replication,omitempty"`
	Tunnel        Tunnel            `json:"tunnel"`
	Nodes         []Node            `json:"nodes"`
	Table         Table             `json:"table"`
	Admission     *Admission        `json:"admission,omitempty"` // absent: the peer may open all connections
	Outbound      Traffic           `json:"outbound"`            // to the peer
	Inbound       Traffic           `json:"inbound"`             // from the peer
	Refused       []Refusal         `json:"refused"`             // most recent examples, newest first
	Sockets       map[string]Socket `json:"sockets"`
	Memory        Memory            `json:"memory"`
	// The configuration file, and the SHA-256 of its text as read; absent without a file.
	ConfigFile string `json:"configFile,omitempty"`
	ConfigSum  string `json:"configSHA256,omitempty"`
}

// Admission is what the peer may open connections to.
type Admission struct {
	Exports  int `json:"exports"`
	Services int `json:"services"`
}

// Version identifies a build of culvert.
type Version struct {
	Version  string `json:"version"`            // of the module; "(devel)" outside a repository
	Revision string `json:"revision,omitempty"` // commit
	Time     string `json:"time,omitempty"`     // of the commit, RFC 3339
	Modified bool   `json:"modified"`           // built with uncommitted changes
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// A Finding is a current problem or notice, with its cause and remedy.
type Finding struct {
	Level string `json:"level"` // warning, or info
	Cause string `json:"cause"` // its name
	Kind  string `json:"kind"`  // the kind of thing that Of names: peer, node, …
	Of    string `json:"of"`
	Text  string `json:"text"`
}

// Replica is what a gateway with replicas knows of the election that decides which one forwards.
type Replica struct {
	Pod          string   `json:"pod"`
	Role         string   `json:"role"`                   // standby, active, static or silent; see docs/standby.md
	Why          string   `json:"why"`                    // the reason for the role, in words
	Changes      uint64   `json:"changes"`                // of its role since it started
	Lease        string   `json:"lease"`                  // namespace/name
	Holder       string   `json:"holder"`                 // of the Lease; "" is nobody, or unknown
	Term         int64    `json:"term"`                   // of the Lease: how often its holder has changed
	LeaseSeconds *float64 `json:"leaseSeconds,omitempty"` // since the Lease was seen to be renewed
	// for how long the Lease could not be read or renewed; absent while it can
	FailingSeconds *float64 `json:"failingSeconds,omitempty"`
}

// Resources summarises the resources that configure a gateway.
type Resources struct {
	Gateway string    `json:"gateway"` // namespace/name
	Ready   bool      `json:"ready"`   // all have been read
	Waiting []string  `json:"waiting"` // for resources that are missing or refused
	LeftOut []LeftOut `json:"leftOut"`
}

// A LeftOut is a resource that has no effect.
type LeftOut struct {
	Resource string `json:"resource"` // kind/namespace/name
	Reason   string `json:"reason"`   // begins with the field
}

// Tunnel is the WireGuard tunnel to the peer.
type Tunnel struct {
	Leg
	// up; stale: the last handshake is so old that its keys are void; down: there never was one
	State            string     `json:"state"`
	Endpoint         string     `json:"endpoint"`             // where messages go; "" = nowhere yet
	Configured       string     `json:"configured,omitempty"` // wireguard.endpoint; a roaming peer is elsewhere
	ListenPort       int        `json:"listenPort"`
	PublicKey        string     `json:"publicKey"` // ours
	Preshared        bool       `json:"preshared"` // handshakes need the pre-shared key
	LastHandshake    *time.Time `json:"lastHandshake,omitempty"`
	HandshakeSeconds *float64   `json:"handshakeSeconds,omitempty"` // since the last handshake
	ReceivedBytes    uint64     `json:"receivedBytes"`
	SentBytes        uint64     `json:"sentBytes"`
	Trains           bool       `json:"trains"` // UDP_SEGMENT is used
	TrainsLost       uint64     `json:"trainsLost"`
	Path             Path       `json:"path"`
	Check            *Check     `json:"check,omitempty"` // the connection check; absent if off
}

// Leg is the path to a node or to the peer, and back. ARP requests measure it for a node; for the
// peer the connection check, or else pings while there is traffic.
type Leg struct {
	// since the last forwarded packet from there; absent: none
	LastReceivedSeconds *float64 `json:"lastReceivedSeconds,omitempty"`
	LastSentSeconds     *float64 `json:"lastSentSeconds,omitempty"` // since the last packet sent there
	RTTSeconds          *float64 `json:"rttSeconds,omitempty"`      // round trip; absent if unknown
	Requests            int      `json:"requests"`                  // the most recent ones that measure it
	RequestsLost        int      `json:"requestsLost"`              // of them
}

// Check is the connection check between gateways, as in Liqo.
type Check struct {
	State    string `json:"state"` // connecting, connected or error
	Sent     uint64 `json:"sent"`
	Answered uint64 `json:"answered"`
	Asked    uint64 `json:"asked"` // by the peer, and answered
}

// Node is a node and the Geneve or VXLAN tunnel to it.
type Node struct {
	Leg
	Name string `json:"name"`
	// up; silent: not heard for a minute; unresolved: it has not answered ARP
	State           string         `json:"state"`
	Underlay        netip.Addr     `json:"underlay"`
	Address         netip.Addr     `json:"address"`   // in the tunnel; of two the IPv4 one
	Addresses       []netip.Addr   `json:"addresses"` // in the tunnel, of each family
	VNI             uint32         `json:"vni"`
	Encap           string         `json:"encap"` // geneve or vxlan; auto: not heard yet
	PodCIDRs        []netip.Prefix `json:"podCIDRs"`
	MAC             string         `json:"mac,omitempty"`
	SilenceSeconds  *float64       `json:"silenceSeconds,omitempty"` // since the last frame from it
	ReceivedPackets uint64         `json:"receivedPackets"`          // inner ones
	ReceivedBytes   uint64         `json:"receivedBytes"`
	SentPackets     uint64         `json:"sentPackets"`
	SentBytes       uint64         `json:"sentBytes"`
	HeldPackets     int            `json:"heldPackets"` // waiting for its MAC address
	Trains          bool           `json:"trains"`
	TrainsLost      uint64         `json:"trainsLost"`
	Path            Path           `json:"path"`
}

// Path is the result of path MTU probes.
type Path struct {
	MTU int `json:"mtu,omitempty"` // the largest inner packet that passes; absent until a probe was answered
	// MTU is known for the way there only, because the other end answers no pings
	OneWay bool `json:"oneWay,omitempty"`
	// where those of the configured mtu vanish: on the way "to", "from", or "to or from" there;
	// absent where they pass
	Narrow string `json:"narrow,omitempty"`
}

// Table is the connection table.
type Table struct {
	Connections int  `json:"connections"`
	Unreplied   int  `json:"unreplied"` // of them
	Max         int  `json:"max"`
	Pressed     bool `json:"pressed"` // so full that connections without an answer live only 30 s
	Ports       int  `json:"ports"`   // source ports and identifiers in use to tell connections apart
	// Those towards the remote address and port with the most, and their maximum.
	BusiestPorts    int `json:"busiestPorts"`
	BusiestPortsMax int `json:"busiestPortsMax"`

	Created      uint64 `json:"created"`
	Restored     uint64 `json:"restored"` // left by the previous gateway
	Expired      uint64 `json:"expired"`
	Evicted      uint64 `json:"evicted"`      // no longer admitted by the configuration
	EarlyDropped uint64 `json:"earlyDropped"` // evicted for others
	Deleted      uint64 `json:"deleted"`      // by command
}

// Traffic is the outcome for the inner packets of one direction.
type Traffic struct {
	Received   uint64 `json:"received"`
	Forwarded  uint64 `json:"forwarded"`
	Delivered  uint64 `json:"delivered"`
	Untracked  uint64 `json:"untracked"`  // of the forwarded packets: without a connection
	Asymmetric uint64 `json:"asymmetric"` // of the forwarded packets: from another node than the one that answers go to
	Dropped    uint64 `json:"dropped"`    // of the received packets
	// by reason, if any; also of datagrams that were no packets, and after packets were forwarded
	Drops []Drop `json:"drops"`
}

// A Drop is a drop reason with its counters.
type Drop struct {
	Reason  string  `json:"reason"`
	Packets uint64  `json:"packets"`
	Rate    float64 `json:"rate"`             // packets per second, over the last 10 to 20 s
	Means   string  `json:"means"`            // explanation, one sentence
	Remedy  string  `json:"remedy,omitempty"` // what to do; "" = nothing
}

// A Refusal is an example of dropped packets. Per second and reason, the gateway examines only the
// first packet; the others are counted with it.
type Refusal struct {
	Time        time.Time `json:"time"` // of the last one
	Direction   string    `json:"direction"`
	Reason      string    `json:"reason"`
	From        string    `json:"from,omitempty"` // name of a node; tunnel is the peer; "" = a stranger
	Protocol    string    `json:"protocol,omitempty"`
	Source      string    `json:"source,omitempty"` // address, and port if it has one; outer ones for an unknown sender
	Destination string    `json:"destination,omitempty"`
	Packets     uint64    `json:"packets"`
}

// Socket is a UDP socket.
type Socket struct {
	ReceivedBytes uint64 `json:"receivedBytes"`
	SentBytes     uint64 `json:"sentBytes"`
	// datagrams lost because the receive buffer was full; absent if unknown
	Overflows     *uint64           `json:"overflows,omitempty"`
	SendDrops     map[string]uint64 `json:"sendDrops,omitempty"` // datagrams that the kernel refused, by reason
	ReceiveBuffer int               `json:"receiveBuffer"`       // bytes granted
	SendBuffer    int               `json:"sendBuffer"`
	GRO           bool              `json:"gro"`
	GSO           bool              `json:"gso"`
	RefusedTrains uint64            `json:"refusedTrains"`
}

// Memory is the process's memory use and limits, in bytes.
type Memory struct {
	Resident uint64 `json:"resident"` // 0 if unknown
	// in use by Go objects, including pages not touched yet: may be more than Resident
	Heap      uint64 `json:"heap"`
	HeapLimit int64  `json:"heapLimit"` // target of Go's collector; 0 = none
}
