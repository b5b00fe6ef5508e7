package geneve

// Reason says what happened to a datagram or packet. Its String is the label value of the drop
// counter.
type Reason uint8

// Accepted is the zero Reason: not dropped. The others are in the order of the checks on a received
// datagram, followed by those on packets to be sent.
const (
	Accepted Reason = iota

	Truncated       // shorter than its headers, or longer than the receive buffer
	UnknownNode     // no tunnel has this VNI and this outer source
	WrongEncap      // Geneve to a VXLAN tunnel, or vice versa
	BadVersion      // Geneve version other than 0
	BadFlags        // VXLAN without the I flag
	BadOptions      // Geneve options whose lengths do not add up
	ControlPacket   // Geneve control message
	CriticalOption  // Geneve option that must be understood but is not
	UnknownProtocol // Geneve protocol type other than Ethernet, IPv4, IPv6
	WrongInner      // inner Ethernet in a tunnel that carries IP directly, or vice versa
	BadTrain        // merged by the kernel, but neither a train of datagrams nor one inner UDP train
	BadMAC          // inner source MAC is a group, zero or our own
	OtherMAC        // inner destination MAC is another host's
	Multicast       // inner group or broadcast frame that is neither ARP nor neighbour discovery
	// IPv6 neighbour discovery of a link that came up, router solicitation, multicast listener
	// report
	NeighbourDiscovery
	UnknownEtherType // inner frame that is neither IP nor ARP
	BadARP           // malformed ARP, or it contradicts its frame or claims our address
	OtherARP         // ARP about an address that is not ours
	ARPRate          // more ARP requests than we answer
	BadND            // malformed IPv6 neighbour discovery, or it contradicts its frame or claims our address
	OtherND          // IPv6 neighbour discovery about an address that is not ours
	NDRate           // more neighbour solicitations than we answer
	BadLength        // inner IP header with a wrong version or length
	ECN              // outer congestion mark on a packet that does not support marks

	UnknownTunnel // no tunnel has this ID (any more)
	BadPacket     // not IP, or its length field does not fit
	TooLong       // does not fit into a UDP datagram with the tunnel's headers
	HoldFull      // the neighbour is unknown and too many packets wait for it
	Unresolved    // the neighbour did not answer
	SendFailed    // the kernel refused the datagram; the socket's counters give the cause
	NumReasons
)

var reasonNames = [NumReasons]string{
	"accepted", "truncated", "unknown-node", "wrong-encap", "bad-version", "bad-flags", "bad-options", "control-packet",
	"critical-option", "unknown-protocol", "wrong-inner", "bad-train", "bad-mac", "other-mac", "multicast",
	"neighbour-discovery", "unknown-ethertype", "bad-arp", "other-arp", "arp-rate", "bad-nd", "other-nd", "nd-rate",
	"bad-length", "ecn",
	"unknown-tunnel", "bad-packet", "too-long", "hold-full", "unresolved", "send-failed",
}

// String returns the name of r in kebab-case.
func (r Reason) String() string {
	if r < NumReasons {
		return reasonNames[r]
	}
	return "unknown"
}
