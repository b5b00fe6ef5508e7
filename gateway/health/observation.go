package health

import (
	"net/netip"
	"time"
)

// An Observation is the gateway's counters at about one instant. They are totals since the start.
type Observation struct {
	Peer      Peer
	Nodes     []Node
	Paths     []Path
	Sockets   []Socket
	CPU       CPU
	Gateway   netip.Addr            // its address for nodes
	Port      uint16                // of the nodes' tunnels
	Remote    func(netip.Addr) bool // whether an address is the remote cluster's, as seen here; nil = none is
	MSS, Fits int                   // size to which TCP segments are cut, and size that fits; MSS 0 = the same
	Signs     []Sign                // since the last observation, like drops and unknown senders
	Drops     []Drop
	Strangers []Stranger
}

// Peer is the peer and the tunnel to it.
type Peer struct {
	Name       string
	Role       string         // ours
	Configured string         // wireguard.endpoint; "" = none
	Endpoint   netip.AddrPort // destination of messages; the zero AddrPort = unknown
	ListenPort uint16
	PublicKey  string // ours
	Liqo       bool   // Liqo's resources configure the gateway, not a file
	Peering    bool   // a Peering does
	Unknown    bool   // its public key is not known yet, so there is no peer
	NameError  string // why Configured has no address; "" = it has

	Handshake          int64      // time of the last one, in any unit; 0 = none
	SentHandshakes     uint64     // initiations sent
	ReceivedHandshakes uint64     // initiations received with our public key
	SentAnswers        uint64     // responses and cookies sent
	ReceivedAnswers    uint64     // responses and cookies received
	ReceivedBytes      uint64     // of messages of its session
	Knock              Knock      // result of a datagram to Endpoint
	Initiator          netip.Addr // sender of an initiation since the last observation
	Outdated           time.Time  // what one said that WireGuard refused because it was no newer than one before
	ReceivedPackets    uint64     // out of the tunnel
	Pings              Pings      // from the connection check, or while packets pass
	TrainsLost         bool       // trains do not arrive there
}

// Pings are requests through the tunnel to the peer's gateway.
type Pings struct {
	RTT            time.Duration // of the last one; 0 = unknown
	Requests, Lost int           // the most recent ones, and how many had no answer
	Sent           uint64        // in all
	Missed         int           // since the last answer; 0 if there never was one
}

// Node is a node and the tunnel to it.
type Node struct {
	Name              string
	Underlay, Address netip.Addr
	VNI               uint32
	Encap             string
	ARP               bool          // the tunnel has ARP, or neighbour discovery where there is no IPv4
	Answered          bool          // ARP or neighbour discovery has confirmed its MAC address
	Asked             int           // requests since the last answer
	Silence           time.Duration // since its last frame; meaningless before the first
	Known             bool          // there was a frame
	Received, Sent    uint64        // inner packets
	// Of these, packets to and from the gateway itself.
	LocalReceived, LocalSent uint64
	Requests, Lost           int // the most recent of those requests, and how many had no answer
	Knock                    Knock
	TrainsLost               bool // trains do not arrive there
}

// Knock is what this machine's kernel reports about a datagram to a host that does not answer.
type Knock uint8

// The results. Silence is the most common: a firewall, or a listener that does not answer.
const (
	KnockSilent    Knock = iota
	KnockRefused         // ICMP port unreachable
	KnockNobody          // no such host on the link, or ICMP host unreachable
	KnockNoRoute         // no route
	KnockForbidden       // a firewall of this machine
)

// SignKind is the fault of a node that a datagram shows.
type SignKind uint8

// Kinds of signs.
const (
	SignUnknownNode SignKind = iota // no node has this source and VNI
	SignEncap                       // another encapsulation
	SignInner                       // IP instead of frames, or vice versa
	SignSender                      // ARP from another address than the node's
	SignTarget                      // ARP for another address than the gateway's
)

// A Sign is one such datagram.
type Sign struct {
	Kind    SignKind
	Node    string         // "" = unknown
	Source  netip.AddrPort // outer
	VNI     uint32
	Address netip.Addr // of ARP: the sender, or the target
}

// A Drop is a drop reason, with an example.
type Drop struct {
	Reason              string
	Inbound             bool   // arrived from the tunnel
	Node                string // from which it arrived
	Total               uint64 // packets
	Source, Destination netip.Addr
	Owner               string // node whose pods Source belongs to; "" = none
	Remote              bool   // Source is the gateway's or the remote cluster's, as seen here
	Local               bool   // Destination is a pod of the local cluster
	Tunnel              bool   // Source is our own tunnel address
	Rule                string // the rule that dropped it
}

// StrangerKind is what an unknown sender does.
type StrangerKind uint8

// Kinds of unknown senders to WireGuard's port.
const (
	StrangerWithoutKey StrangerKind = iota // handshakes for another public key
	StrangerWithData
	StrangerTooFast
	StrangerWithNoise
)

// A Stranger is an unknown sender of unwanted messages.
type Stranger struct {
	Kind    StrangerKind
	Address netip.Addr
}
