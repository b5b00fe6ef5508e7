package nat

// A Reason says why a packet was dropped. Its String is the label value of the drop counters.
type Reason uint8

// The reasons. The order is not part of any contract, the names are.
const (
	ReasonNone            Reason = iota
	ReasonMalformed              // a length, version or checksum is wrong, or an IPv6 packet too big is below 1280
	ReasonSourceRoute            // an IPv4 source route option or an IPv6 routing header with segments left
	ReasonBadSource              // a source that may not come from this link: see admits
	ReasonBadDestination         // multicast, broadcast, anycast, loopback or link-local
	ReasonToNode                 // from the tunnel to a node's own address, without a connection
	ReasonUnknownSource          // the source needs U, but unknownSource is off
	ReasonNoMapping              // from the tunnel to U or to an external address without a mapping
	ReasonNoRoute                // no node or tunnel leads to the destination
	ReasonTTLExceeded            // TTL or hop limit used up
	ReasonTooBig                 // larger than the MTU and may not be fragmented
	ReasonICMPUnrelated          // an ICMP error about a packet that did not pass here
	ReasonICMPType               // an ICMP message that a router does not forward
	ReasonPortExhausted          // no free source port for the reply tuple
	ReasonPortShare              // the source is at its share of the ports towards this destination
	ReasonTableFull              // the connection needs state and the table is at its cap
	ReasonConnectionShare        // the connection needs state and its source is at its share of the table
	ReasonFragment               // the first fragment is unknown
	ReasonFragmentOverlap        // fragments of one datagram overlap, or arrive twice
	ReasonFragmentLimit          // too many fragmented datagrams at once
	ReasonFiltered               // a rule with action drop
	ReasonRejected               // a rule with action reject
	ReasonNoBackend              // a service has no backend, or the connection's backend left
	// TCP in mid-stream without a connection, to a server that gets a PROXY protocol header
	ReasonMidStream
	ReasonNotAdmitted // from another cluster to what is not exported to it, or of such a connection; see admission.go

	reasons // the number of reasons
)

var reasonNames = [reasons]string{
	ReasonNone:            "none",
	ReasonMalformed:       "malformed",
	ReasonSourceRoute:     "source-route",
	ReasonBadSource:       "bad-source",
	ReasonBadDestination:  "bad-destination",
	ReasonToNode:          "to-node",
	ReasonUnknownSource:   "unknown-source",
	ReasonNoMapping:       "no-mapping",
	ReasonNoRoute:         "no-route",
	ReasonTTLExceeded:     "ttl-exceeded",
	ReasonTooBig:          "too-big",
	ReasonICMPUnrelated:   "icmp-unrelated",
	ReasonICMPType:        "icmp-type",
	ReasonPortExhausted:   "port-exhausted",
	ReasonPortShare:       "port-share",
	ReasonTableFull:       "table-full",
	ReasonConnectionShare: "connection-share",
	ReasonFragment:        "fragment",
	ReasonFragmentOverlap: "fragment-overlap",
	ReasonFragmentLimit:   "fragment-limit",
	ReasonFiltered:        "filtered",
	ReasonRejected:        "rejected",
	ReasonNoBackend:       "no-backend",
	ReasonMidStream:       "mid-stream",
	ReasonNotAdmitted:     "not-admitted",
}

// String returns the reason in kebab-case.
func (r Reason) String() string {
	if r < reasons {
		return reasonNames[r]
	}
	return "unknown"
}

// Reasons returns every drop reason.
func Reasons() []Reason {
	all := make([]Reason, 0, reasons-1)
	for r := ReasonNone + 1; r < reasons; r++ {
		all = append(all, r)
	}
	return all
}
