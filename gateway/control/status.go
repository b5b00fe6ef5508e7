package control

import (
	"net/netip"
	"time"
)

// Status is how a gateway does.
type Status struct {
	Cluster       string            `json:"cluster"` // "" under Liqo, which does not tell
	Peer          string            `json:"peer"`
	Role          string            `json:"role"` // client or server
	Version       Version           `json:"version"`
	PID           int               `json:"pid"`
	Started       time.Time         `json:"started"`
	UptimeSeconds float64           `json:"uptimeSeconds"`
	MTU           int               `json:"mtu"` // of inner packets
	Findings      []Finding         `json:"findings"`
	Resources     *Resources        `json:"resources,omitempty"` // of a gateway that learns from a cluster's resources
	Tunnel        Tunnel            `json:"tunnel"`
	Nodes         []Node            `json:"nodes"`
	Table         Table             `json:"table"`
	Outbound      Traffic           `json:"outbound"` // to the peer
	Inbound       Traffic           `json:"inbound"`  // from the peer
	Refused       []Refusal         `json:"refused"`  // the last, newest first
	Sockets       map[string]Socket `json:"sockets"`
	Memory        Memory            `json:"memory"`
	// The configuration file and the SHA-256 of its text when it was read; absent where there is none.
	ConfigFile string `json:"configFile,omitempty"`
	ConfigSum  string `json:"configSHA256,omitempty"`
}

// Version says which build of culvert a program is.
type Version struct {
	Version  string `json:"version"`            // of the module; "(devel)" outside a repository
	Revision string `json:"revision,omitempty"` // commit
	Time     string `json:"time,omitempty"`     // of the commit, RFC 3339
	Modified bool   `json:"modified"`           // the tree had changes that are in no commit
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// A Finding is something that is the case, with its reason and what to do about it.
type Finding struct {
	Level string `json:"level"` // warning, or info
	Cause string `json:"cause"` // its name
	Kind  string `json:"kind"`  // what Of names: peer, node, …
	Of    string `json:"of"`
	Text  string `json:"text"`
}

// Resources is what a gateway makes of the resources that it learns from.
type Resources struct {
	Gateway string    `json:"gateway"` // namespace/name
	Ready   bool      `json:"ready"`   // all have been read
	Waiting []string  `json:"waiting"` // for what is not there, or is refused
	LeftOut []LeftOut `json:"leftOut"`
}

// A LeftOut is a resource that is not obeyed.
type LeftOut struct {
	Resource string `json:"resource"` // kind/namespace/name
	Reason   string `json:"reason"`   // begins with the field
}

// Tunnel is the WireGuard tunnel to the peer.
type Tunnel struct {
	Leg
	State            string     `json:"state"`                // up; stale: no handshake for so long that its keys are void; down: never one
	Endpoint         string     `json:"endpoint"`             // where messages go; "" = nowhere yet
	Configured       string     `json:"configured,omitempty"` // wireguard.endpoint; a peer that roams is elsewhere
	ListenPort       int        `json:"listenPort"`
	PublicKey        string     `json:"publicKey"` // ours
	LastHandshake    *time.Time `json:"lastHandshake,omitempty"`
	HandshakeSeconds *float64   `json:"handshakeSeconds,omitempty"` // since then
	ReceivedBytes    uint64     `json:"receivedBytes"`
	SentBytes        uint64     `json:"sentBytes"`
	Trains           bool       `json:"trains"` // UDP_SEGMENT is used
	TrainsLost       uint64     `json:"trainsLost"`
	Path             Path       `json:"path"`
	Check            *Check     `json:"check,omitempty"` // the connection check; absent where none is made
}

// Leg is the way to a node or to the peer, and back. How far that is, ARP requests to the node
// tell; for the peer the connection check, or else pings while there is traffic.
type Leg struct {
	LastReceivedSeconds *float64 `json:"lastReceivedSeconds,omitempty"` // since the last packet from there that was sent on; absent: none
	LastSentSeconds     *float64 `json:"lastSentSeconds,omitempty"`     // since the last packet that was sent there
	RTTSeconds          *float64 `json:"rttSeconds,omitempty"`          // there and back; absent where nothing tells
	Requests            int      `json:"requests"`                      // the last of those that measure it
	RequestsLost        int      `json:"requestsLost"`                  // of them
}

// Check is the connection check, by which Liqo's gateways ask each other.
type Check struct {
	State    string `json:"state"` // connecting, connected or error
	Sent     uint64 `json:"sent"`
	Answered uint64 `json:"answered"`
	Asked    uint64 `json:"asked"` // by the peer, and answered
}

// Node is a node and the Geneve or VXLAN tunnel to it.
type Node struct {
	Leg
	Name            string         `json:"name"`
	State           string         `json:"state"` // up; silent: not heard for a minute; unresolved: it has not answered ARP
	Underlay        netip.Addr     `json:"underlay"`
	Address         netip.Addr     `json:"address"`
	VNI             uint32         `json:"vni"`
	Encap           string         `json:"encap"` // geneve or vxlan; auto: not heard yet
	PodCIDRs        []netip.Prefix `json:"podCIDRs"`
	MAC             string         `json:"mac,omitempty"`
	SilenceSeconds  *float64       `json:"silenceSeconds,omitempty"` // since the last frame from it
	ReceivedPackets uint64         `json:"receivedPackets"`          // inner ones
	ReceivedBytes   uint64         `json:"receivedBytes"`
	SentPackets     uint64         `json:"sentPackets"`
	SentBytes       uint64         `json:"sentBytes"`
	HeldPackets     int            `json:"heldPackets"` // that wait for its MAC address
	Trains          bool           `json:"trains"`
	TrainsLost      uint64         `json:"trainsLost"`
	Path            Path           `json:"path"`
}

// Path is what probes have told of a way there and back.
type Path struct {
	MTU    int    `json:"mtu,omitempty"`    // the largest inner packet that passes; absent while no probe has been answered
	OneWay bool   `json:"oneWay,omitempty"` // of the way there alone; the end answers no ping, which would tell of the way back
	Narrow string `json:"narrow,omitempty"` // where those of the configured mtu vanish: on the way "to", "from", or "to or from" there; absent where they pass
}

// Table is the table of connections.
type Table struct {
	Connections int  `json:"connections"`
	Unreplied   int  `json:"unreplied"` // of them
	Max         int  `json:"max"`
	Pressed     bool `json:"pressed"` // so full that what is not answered lives 30 s only
	Ports       int  `json:"ports"`   // source ports and identifiers that keep connections apart
	// Of them, those towards the remote address and port that has most, and how many it may have.
	BusiestPorts    int `json:"busiestPorts"`
	BusiestPortsMax int `json:"busiestPortsMax"`

	Created      uint64 `json:"created"`
	Restored     uint64 `json:"restored"` // left by the gateway before
	Expired      uint64 `json:"expired"`
	Evicted      uint64 `json:"evicted"`      // their configuration had gone
	EarlyDropped uint64 `json:"earlyDropped"` // made room for others
	Deleted      uint64 `json:"deleted"`      // by command
}

// Traffic is what became of the inner packets of one direction.
type Traffic struct {
	Received   uint64 `json:"received"`
	Forwarded  uint64 `json:"forwarded"`
	Delivered  uint64 `json:"delivered"`
	Untracked  uint64 `json:"untracked"`  // of the forwarded: without a connection
	Asymmetric uint64 `json:"asymmetric"` // of the forwarded: came from another node than answers go to
	Drops      []Drop `json:"drops"`      // reasons that there were
}

// A Drop is a reason for which packets were dropped.
type Drop struct {
	Reason  string  `json:"reason"`
	Packets uint64  `json:"packets"`
	Rate    float64 `json:"rate"`             // packets per second, over the last 10 to 20 s
	Means   string  `json:"means"`            // in a sentence
	Remedy  string  `json:"remedy,omitempty"` // what to do; "" = nothing
}

// A Refusal is an example of packets that were dropped. Of those of one second and reason,
// the gateway looks at the first; the others are counted with it.
type Refusal struct {
	Time        time.Time `json:"time"` // of the last
	Direction   string    `json:"direction"`
	Reason      string    `json:"reason"`
	From        string    `json:"from,omitempty"` // name of a node; tunnel is the peer; "" = a stranger
	Protocol    string    `json:"protocol,omitempty"`
	Source      string    `json:"source,omitempty"` // address, and port if it has one; of a stranger, the outer ones
	Destination string    `json:"destination,omitempty"`
	Packets     uint64    `json:"packets"`
}

// Socket is a UDP socket.
type Socket struct {
	ReceivedBytes uint64            `json:"receivedBytes"`
	SentBytes     uint64            `json:"sentBytes"`
	Overflows     *uint64           `json:"overflows,omitempty"` // datagrams lost since the receive buffer was full; absent where the kernel does not tell
	SendDrops     map[string]uint64 `json:"sendDrops,omitempty"` // datagrams that the kernel refused, by reason
	ReceiveBuffer int               `json:"receiveBuffer"`       // bytes granted
	SendBuffer    int               `json:"sendBuffer"`
	GRO           bool              `json:"gro"`
	GSO           bool              `json:"gso"`
	RefusedTrains uint64            `json:"refusedTrains"`
}

// Memory is what the process has and may have, in bytes.
type Memory struct {
	Resident  uint64 `json:"resident"`  // 0 where the kernel does not tell
	Heap      uint64 `json:"heap"`      // in use by Go objects, with pages of them that nobody has touched yet: may be more than Resident
	HeapLimit int64  `json:"heapLimit"` // aim of Go's collector; 0 = none
}
