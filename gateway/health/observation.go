package health

import (
	"net/netip"
	"time"
)

// An Observation is what the gateway has counted, read at about one instant. Counters are
// totals since the start.
type Observation struct {
	Peer      Peer
	Nodes     []Node
	Paths     []Path
	Sockets   []Socket
	Gateway   netip.Addr            // its address for nodes
	Port      uint16                // of the nodes' tunnels
	Remote    func(netip.Addr) bool // of the remote cluster, as it is seen here; nil = nobody
	MSS, Fits int                   // what TCP segments are cut to, and what fits; MSS 0 = the same
	Signs     []Sign                // since the last observation, as are drops and strangers
	Drops     []Drop
	Strangers []Stranger
}

// Peer is the peer and the tunnel to it.
type Peer struct {
	Name       string
	Role       string         // ours
	Configured string         // wireguard.endpoint; "" = none
	Endpoint   netip.AddrPort // where messages go; the zero AddrPort = nowhere yet
	ListenPort uint16
	PublicKey  string // ours
	Unknown    bool   // its public key is not known yet, so that there is none
	NameError  string // why Configured has no address; "" = it has

	Handshake          int64      // when the last was made, in any unit; 0 = none
	SentHandshakes     uint64     // initiations sent
	ReceivedHandshakes uint64     // initiations that came with our public key
	SentAnswers        uint64     // responses and cookies sent
	ReceivedAnswers    uint64     // responses and cookies that came
	ReceivedBytes      uint64     // of messages of its session
	Knock              Knock      // what became of a datagram to Endpoint
	Initiator          netip.Addr // who sent an initiation since the last observation
	ReceivedPackets    uint64     // out of the tunnel
	Pings              Pings      // by the connection check, or while packets pass
	TrainsLost         bool       // trains do not arrive at it
}

// Pings are requests through the tunnel that the peer's gateway answers.
type Pings struct {
	RTT            time.Duration // of the last one; 0 = nothing tells
	Requests, Lost int           // the last ones, and how many of them had no answer
	Sent           uint64        // all of them
	Missed         int           // since the last answer; 0 where there never was one
}

// Node is a node and the tunnel to it.
type Node struct {
	Name              string
	Underlay, Address netip.Addr
	VNI               uint32
	Encap             string
	ARP               bool          // the tunnel has ARP, or neighbour discovery where there is no IPv4
	Answered          bool          // that has told its MAC address
	Asked             int           // requests since it last did
	Silence           time.Duration // since the last frame of it; meaningless before the first
	Known             bool          // there was a frame
	Received, Sent    uint64        // inner packets
	// Of them, those for and of the gateway itself.
	LocalReceived, LocalSent uint64
	Requests, Lost           int // the last of those requests, and how many of them had no answer
	Knock                    Knock
	TrainsLost               bool // trains do not arrive at it
}

// Knock is what this machine's kernel says of a datagram to somebody who does not answer.
type Knock uint8

// What it may say. Silence is most: a firewall, or one who listens and keeps quiet.
const (
	KnockSilent    Knock = iota
	KnockRefused         // ICMP port unreachable
	KnockNobody          // no such machine on the link, or ICMP host unreachable
	KnockNoRoute         // no route
	KnockForbidden       // a firewall of this machine
)

// SignKind is what a datagram shows of a fault of the node that it came from.
type SignKind uint8

// Kinds of signs.
const (
	SignUnknownNode SignKind = iota // no node has its source and VNI
	SignEncap                       // another encapsulation
	SignInner                       // IP in place of frames, or frames in place of IP
	SignSender                      // ARP of another sender than the node's address
	SignTarget                      // ARP for another target than the gateway's address
)

// A Sign is one such datagram.
type Sign struct {
	Kind    SignKind
	Node    string         // "" = unknown
	Source  netip.AddrPort // outer
	VNI     uint32
	Address netip.Addr // of ARP: the sender's or the target's
}

// A Drop is a reason for which packets are dropped.
type Drop struct {
	Reason              string
	Inbound             bool   // it came from the tunnel
	Node                string // that it came from
	Total               uint64 // packets
	Source, Destination netip.Addr
	Owner               string // node whose pods Source belongs to; "" = none
	Remote              bool   // Source is of the gateway or of the remote cluster, as seen here
	Local               bool   // Destination is a pod of the local cluster
	Tunnel              bool   // Source is our own tunnel address
	Rule                string // that dropped it
}

// StrangerKind is what a stranger does.
type StrangerKind uint8

// Kinds of strangers, on WireGuard's port.
const (
	StrangerWithoutKey StrangerKind = iota // handshakes for another public key
	StrangerWithData
	StrangerTooFast
	StrangerWithNoise
)

// A Stranger is somebody who has sent what was not wanted.
type Stranger struct {
	Kind    StrangerKind
	Address netip.Addr
}
