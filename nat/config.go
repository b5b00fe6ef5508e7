package nat

import (
	"time"

	"culvert/nat/rules"
)

// A Config says what an Engine does. New and Apply compile it and keep no reference to it.
type Config struct {
	rules.Config
	// MTU is the inner MTU of both tunnels in bytes.
	MTU int
	// SourceCheck says which sources the packets of a node may have.
	SourceCheck SourceCheck `json:",omitzero"`
	// MaxConnections caps the connection table; 0 means DefaultMaxConnections.
	MaxConnections int
	Timeouts       Timeouts
}

// given returns the source ports of a Host; the empty range means that c is not a Host's.
func (c *Config) given() rules.PortRange {
	if c.Host == nil {
		return rules.PortRange{}
	}
	return c.Host.Ports
}

// DefaultMaxConnections is the cap of the connection table unless the configuration gives one.
const DefaultMaxConnections = 1 << 18

// SourceCheck says which sources a node may send from.
type SourceCheck uint8

// The checks.
const (
	SourceCheckNode    SourceCheck = iota // refuse a packet whose source is routed to another node
	SourceCheckCluster                    // any node may send from any address of the local cluster
)

// Timeouts are the lifetimes of idle connections by state. A zero field means the default in
// parentheses: nf_conntrack's, except where a reason is given. docs/services.md compares them all.
type Timeouts struct {
	TCPSynSent     time.Duration // (120 s)
	TCPSynReceived time.Duration // (60 s)
	TCPEstablished time.Duration // (120 h; RFC 5382, Section 5, REQ-5: at least 2 h 4 min)
	TCPFinWait     time.Duration // (120 s)
	TCPCloseWait   time.Duration // (1 h; kube-proxy's, because one end may still wait for an answer)
	TCPLastAck     time.Duration // (30 s)
	TCPTimeWait    time.Duration // (120 s)
	TCPClosed      time.Duration // (10 s)
	UDP            time.Duration // (120 s; RFC 4787, Section 4.3, REQ-5)
	UDPStream      time.Duration // (120 s) after packets both ways
	ICMP           time.Duration // (60 s; RFC 5508, Section 3.2, REQ-2)
	SCTPOpening    time.Duration // (30 s)
	SCTP           time.Duration // (120 h)
	SCTPClosing    time.Duration // (10 s)
	Other          time.Duration // (600 s)
}
