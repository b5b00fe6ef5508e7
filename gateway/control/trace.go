package control

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// TraceOptions select the packet to be explained: a described one, or those of a connection.
type TraceOptions struct {
	From        string // node, or tunnel; "" = the node whose pods have Source
	Protocol    string // tcp, udp, sctp, icmp, icmpv6 or a number
	Source      netip.AddrPort
	Destination netip.AddrPort // of the same family; ports are 0 for protocols without ports
	Flags       []string       // of TCP; none = syn
	Size        int            // bytes of the whole packet; 0 = no payload
	TTL         uint8          // 0 = 64
	DF          bool           // it may not be fragmented

	Connection uint64 // ID of a connection, of which a packet in each direction is explained; 0 = none
}

// A Trace explains what the gateway does with a packet, and why. It changes nothing.
type Trace struct {
	From       string      `json:"from"` // node, or tunnel
	Packet     TracePacket `json:"packet"`
	Steps      []TraceStep `json:"steps"`
	Verdict    string      `json:"verdict"`              // forward, drop, deliver or hold
	Reason     string      `json:"reason,omitempty"`     // drop reason
	Why        string      `json:"why,omitempty"`        // an explanation with a remedy
	Told       string      `json:"told,omitempty"`       // the error for its sender, subject to rate limits
	To         string      `json:"to,omitempty"`         // node, or tunnel
	MTU        int         `json:"mtu,omitempty"`        // to which it is fragmented, or which its sender is told
	Egress     string      `json:"egress,omitempty"`     // what happens there
	Asymmetric bool        `json:"asymmetric,omitempty"` // its connection expects another node
	// Sent are the outgoing packets: one, or the segments of a super-frame.
	Sent []TracePacket `json:"sent,omitempty"`
}

// A TracePacket is an inner packet.
type TracePacket struct {
	Protocol string `json:"protocol"`
	Tuple           // all zero for a malformed packet
	Length   int    `json:"length"`
	Bytes    []byte `json:"bytes"` // the whole packet, in base64
}

// A TraceStep is one entry or check that the gateway consulted.
type TraceStep struct {
	Kind   string `json:"kind"`           // decode, check, connection, rule, service, route or nearest
	Name   string `json:"name,omitempty"` // of a check, table/chain/rule, or the connection's ID
	Passed bool   `json:"passed"`         // the check allows the packet; the connection, rule or route matches it
	Detail string `json:"detail,omitempty"`
	// The source of a node, rule, service or route, as in Rule. For a Kubernetes resource, Field is
	// a field of it.
	Origin string `json:"origin,omitempty"`
	Field  string `json:"field,omitempty"`
	Place  string `json:"place,omitempty"`
	// From and To are the addresses it sees, which translations change on the path.
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
}

// TCPFlags are the flags' names, from the lowest bit on.
var TCPFlags = []string{"fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr"}

// Values returns o as query parameters.
func (o *TraceOptions) Values() url.Values {
	if o.Connection != 0 {
		return url.Values{"connection": {strconv.FormatUint(o.Connection, 10)}}
	}
	v := url.Values{"protocol": {o.Protocol}, "source": {addrPortText(o.Source)},
		"destination": {addrPortText(o.Destination)}}
	if o.From != "" {
		v.Set("from", o.From)
	}
	if len(o.Flags) > 0 {
		v.Set("flags", strings.Join(o.Flags, ","))
	}
	if o.Size > 0 {
		v.Set("size", strconv.Itoa(o.Size))
	}
	if o.TTL > 0 {
		v.Set("ttl", strconv.Itoa(int(o.TTL)))
	}
	if o.DF {
		v.Set("df", "true")
	}
	return v
}

// addrPortText omits a port of 0.
func addrPortText(a netip.AddrPort) string {
	if a.Port() == 0 {
		return a.Addr().String()
	}
	return a.String()
}

// ParseTrace parses the parameters from Values.
func ParseTrace(v url.Values) (o TraceOptions, err error) {
	var errs []error
	note := func(name, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: %w", name, fmt.Errorf(format, args...)))
	}
	for name, values := range v {
		value := values[0]
		switch {
		case len(values) != 1:
			note(name, "given %d times", len(values))
		case name == "connection":
			if o.Connection, err = strconv.ParseUint(value, 10, 64); err != nil || o.Connection == 0 || len(v) > 1 {
				note(name, "%q is no connection's ID; culvert connections lists them", value)
			}
		case name == "protocol":
			o.Protocol = strings.ToLower(value)
			_, err := ProtocolNumber(o.Protocol)
			errs = append(errs, err)
		case name == "source":
			if o.Source, err = parseEnd(value); err != nil {
				note(name, "%w", err)
			}
		case name == "destination":
			if o.Destination, err = parseEnd(value); err != nil {
				note(name, "%w", err)
			}
		case name == "from":
			o.From = value
		case name == "flags":
			for _, flag := range strings.Split(strings.ToLower(value), ",") {
				if !slices.Contains(TCPFlags, flag) {
					note(name, "%q is none of %s", flag, strings.Join(TCPFlags, ", "))
				}
				o.Flags = append(o.Flags, flag)
			}
		case name == "size":
			if o.Size, err = strconv.Atoi(value); err != nil || o.Size < 1 || o.Size > 0xffff {
				note(name, "%q is no number of bytes from 1 to 65535", value)
			}
		case name == "ttl":
			n, err := strconv.ParseUint(value, 10, 8)
			if o.TTL = uint8(n); err != nil || n == 0 {
				note(name, "%q is no number from 1 to 255", value)
			}
		case name == "df":
			if o.DF, err = parseBool(value); err != nil {
				note(name, "%w", err)
			}
		default:
			errs = append(errs, unknownParameter(name))
		}
	}
	if err := errors.Join(errs...); err != nil || o.Connection != 0 {
		return o, err
	}
	return o, o.describes()
}

// parseBool accepts only what Values writes.
func parseBool(s string) (bool, error) {
	if s != "true" && s != "false" {
		return false, fmt.Errorf("%q is neither true nor false", s)
	}
	return s == "true", nil
}

// parseEnd parses an address with an optional port.
func parseEnd(s string) (netip.AddrPort, error) {
	if a, err := netip.ParseAddr(s); err == nil {
		return netip.AddrPortFrom(a.WithZone("").Unmap(), 0), nil
	}
	a, err := netip.ParseAddrPort(s)
	if err != nil {
		return a, fmt.Errorf("%q is no address such as 10.0.1.5, 10.0.1.5:80 or [fd00::5]:80", s)
	}
	return netip.AddrPortFrom(a.Addr().WithZone("").Unmap(), a.Port()), nil
}

// firstEphemeral is the default source port of a described packet (RFC 6335, Section 6: dynamic
// ports).
const firstEphemeral = 49152

// describes completes the description of a packet, or returns its faults.
func (o *TraceOptions) describes() error {
	if err := o.missing(); err != nil {
		return err
	}
	number, err := ProtocolNumber(o.Protocol)
	if err != nil {
		return err
	}
	ports := number == 6 || number == 17 || number == 132
	switch is4 := o.Source.Addr().Is4(); {
	case is4 != o.Destination.Addr().Is4():
		return fmt.Errorf("destination: %s is of another family than source %s", o.Destination.Addr(), o.Source.Addr())
	case number == 1 && !is4:
		return errors.New("protocol: icmp is of IPv4; for these addresses it is icmpv6")
	case number == 58 && is4:
		return errors.New("protocol: icmpv6 is of IPv6; for these addresses it is icmp")
	case ports && o.Destination.Port() == 0:
		at := strings.TrimSuffix(o.Destination.String(), "0") // with brackets for IPv6
		return fmt.Errorf("destination: %s needs a port; write %sPORT", o.Protocol, at)
	case !ports && o.Source.Port()|o.Destination.Port() != 0:
		return fmt.Errorf("source, destination: %s has no ports; write addresses alone", o.Protocol)
	case number != 6 && len(o.Flags) > 0:
		return fmt.Errorf("flags: %s has none; tcp has", o.Protocol)
	case ports && o.Source.Port() == 0:
		o.Source = netip.AddrPortFrom(o.Source.Addr(), firstEphemeral)
	}
	return nil
}

// missing names what a description lacks.
func (o *TraceOptions) missing() error {
	var missing []string
	for _, f := range []struct {
		name  string
		there bool
	}{{"protocol", o.Protocol != ""}, {"source", o.Source.IsValid()}, {"destination", o.Destination.IsValid()}} {
		if !f.there {
			missing = append(missing, f.name)
		}
	}
	if missing == nil {
		return nil
	}
	return fmt.Errorf("%s: missing; describe a packet by protocol, source and destination", strings.Join(missing, ", "))
}

func serveTrace(s Source) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		o, err := ParseTrace(r.URL.Query())
		if err != nil {
			refuse(w, err)
			return
		}
		l := newLines(w)
		l.end(s.Trace(&o, func(t *Trace) bool { return l.line(t) }))
	}
}

// traceSource is a Source that can explain single packets.
type traceSource interface {
	// Trace calls yield for each explained packet.
	Trace(o *TraceOptions, yield func(*Trace) bool) error
}
