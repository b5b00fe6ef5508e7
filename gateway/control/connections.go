package control

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Connection is a tracked connection. Original is its first packet as it arrived, Reply the
// answer as it arrives; the translation is the difference.
type Connection struct {
	ID       uint64 `json:"id"`       // unique in this process
	Protocol string `json:"protocol"` // tcp, udp, sctp, icmp, icmpv6, or a number
	State    string `json:"state"`
	From     string `json:"from"` // name of the node that the first packet came from; "tunnel" is the peer
	To       string `json:"to"`
	Original Tuple  `json:"original"`
	Reply    Tuple  `json:"reply"`
	// what translates it: remap, unknown-source, service NAME, address EXTERNAL; proxy-protocol:
	// its server gets a header
	Uses    []string `json:"uses,omitempty"`
	Refused string   `json:"refused,omitempty"` // why its packets are dropped; "" = they are forwarded
	// RefusedReply is why its replies are dropped.
	RefusedReply string  `json:"refusedReply,omitempty"`
	Replied      bool    `json:"replied"`
	Mark         uint32  `json:"mark,omitempty"`
	IdleSeconds  float64 `json:"idleSeconds"` // since its last packet
	LeftSeconds  float64 `json:"leftSeconds"` // until it expires if no packet comes
	Sent         Volume  `json:"sent"`        // by its initiator
	Received     Volume  `json:"received"`    // by its initiator
}

// A Tuple is a packet's addresses. For ICMP, the identifier is in both ports.
type Tuple struct {
	Source          netip.Addr `json:"source"`
	SourcePort      uint16     `json:"sourcePort"`
	Destination     netip.Addr `json:"destination"`
	DestinationPort uint16     `json:"destinationPort"`
}

// Volume is the traffic in one direction.
type Volume struct {
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// Event is the start or the end of a connection.
type Event struct {
	Time time.Time `json:"time"`
	Kind string    `json:"event"` // new or ended; lost: Lost events were dropped for lack of room
	// Reason is why it ended: expired, evicted with its configuration, early-dropped for others in
	// a full table, or deleted.
	Reason     string      `json:"reason,omitempty"`
	Lost       uint64      `json:"lost,omitempty"`
	Connection *Connection `json:"connection,omitempty"`
}

// Deleted is the result of DELETE.
type Deleted struct {
	Connections int `json:"deleted"`
}

// A Filter selects connections, or packets by their connection; its zero fields select all.
type Filter struct {
	Addresses []netip.Prefix // each has an address of the connection, before or after translation
	Ports     []uint16       // each is a port of it, before or after translation, or its ICMP identifier
	Protocol  string         // tcp, udp, sctp, icmp, icmpv6 or a number
	Node      string         // node by which its packets come or go, or tunnel
	State     string
}

// IsZero reports whether f selects all.
func (f *Filter) IsZero() bool {
	return len(f.Addresses)+len(f.Ports) == 0 && f.Protocol == "" && f.Node == "" && f.State == ""
}

// Values returns f as query parameters.
func (f *Filter) Values() url.Values {
	v := make(url.Values)
	for _, p := range f.Addresses {
		v.Add("address", p.String())
	}
	for _, p := range f.Ports {
		v.Add("port", strconv.Itoa(int(p)))
	}
	for name, value := range map[string]string{"protocol": f.Protocol, "node": f.Node, "state": f.State} {
		if value != "" {
			v.Set(name, value)
		}
	}
	return v
}

// ParseFilter parses the parameters from Values. An address may be a prefix. A parameter that is
// neither a filter's nor in others is an error.
func ParseFilter(v url.Values, others ...string) (f Filter, err error) {
	var errs []error
	for name, values := range v {
		switch {
		case name == "address":
			for _, s := range values {
				p, err := parsePrefix(s)
				errs = append(errs, err)
				f.Addresses = append(f.Addresses, p)
			}
		case name == "port":
			for _, s := range values {
				n, err := strconv.ParseUint(s, 10, 16)
				if err != nil {
					errs = append(errs, fmt.Errorf("port: %q is no number from 0 to 65535", s))
				}
				f.Ports = append(f.Ports, uint16(n))
			}
		case len(values) != 1:
			errs = append(errs, fmt.Errorf("%s: given %d times", name, len(values)))
		case name == "protocol":
			f.Protocol = strings.ToLower(values[0])
			_, err := ProtocolNumber(f.Protocol)
			errs = append(errs, err)
		case name == "node":
			f.Node = values[0]
		case name == "state":
			f.State = values[0]
		case !slices.Contains(others, name):
			errs = append(errs, unknownParameter(name))
		}
	}
	return f, errors.Join(errs...)
}

func unknownParameter(name string) error {
	return fmt.Errorf("%s: unknown parameter: %s", name, otherVersion)
}

func parsePrefix(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil {
		return netip.PrefixFrom(a.WithZone(""), a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return p, fmt.Errorf("address: %q is neither an address nor a prefix", s)
	}
	return p.Masked(), nil
}

// Protocols are the protocols with names.
var Protocols = []string{"tcp", "udp", "sctp", "icmp", "icmpv6"}

var protocolNumbers = []uint8{6, 17, 132, 1, 58}

// ProtocolNumber returns a protocol's IANA number; "" has 0.
func ProtocolNumber(name string) (uint8, error) {
	if i := slices.Index(Protocols, name); i >= 0 {
		return protocolNumbers[i], nil
	}
	n, err := strconv.ParseUint("0"+name, 10, 8)
	if err != nil {
		return 0, fmt.Errorf("protocol: %q is neither %s nor a number", name, strings.Join(Protocols, ", "))
	}
	return uint8(n), nil
}

// ProtocolName returns a protocol's name, or else its number.
func ProtocolName(number uint8) string {
	if i := slices.Index(protocolNumbers, number); i >= 0 {
		return Protocols[i]
	}
	return strconv.Itoa(int(number))
}
