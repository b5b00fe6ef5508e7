package udp

import (
	"errors"
	"net/netip"
)

const (
	// MaxSegments is the number of datagrams in the longest train that every kernel with
	// UDP_SEGMENT accepts.
	MaxSegments = 64
	// MaxPayload is the size in bytes of the largest UDP payload over IPv4, and so of the longest
	// train.
	MaxPayload = 65535 - 20 - 8
	// BufferSize is the size in bytes of a Message's Buffer that holds anything the kernel may
	// deliver.
	BufferSize = 65536
	// DefaultSocketBuffer is the size in bytes requested if Options has none. It is enough for 64
	// full trains.
	DefaultSocketBuffer = 4 << 20
)

// ErrWoken is returned by Receive after Wake. It says nothing about the socket.
var ErrWoken = errors.New("udp: receiver woken")

// Options of Listen. The zero value is usable.
type Options struct {
	// ReceiveBuffer and SendBuffer are the sizes of the kernel's socket buffers in bytes (0:
	// DefaultSocketBuffer). With CAP_NET_ADMIN the process gets them in full, otherwise up to
	// net.core.rmem_max and wmem_max.
	ReceiveBuffer, SendBuffer int
	// NoGRO and NoGSO keep UDP_GRO and UDP_SEGMENT off even if the kernel has them.
	NoGRO, NoGSO bool
	// ZeroChecksums accepts datagrams over IPv6 without a checksum, as RFC 6935 allows for tunnels.
	// The owner must check their content and their sender (RFC 6936, Section 5).
	ZeroChecksums bool
	// Open, if not nil, opens the Conn that Open returns, instead of the kernel.
	Open func(network string, addr netip.AddrPort) (Conn, error)
}

// Message is one received datagram, or one train that the kernel has merged.
type Message struct {
	// Buffer receives the payload. It belongs to the caller; if it is smaller than BufferSize,
	// larger messages are lost.
	Buffer []byte
	// Data is the received part of Buffer: set by Receive, empty for a message that did not fit.
	Data []byte
	// SegmentSize is the size that the kernel reported with UDP_GRO, in bytes; 0 if it reported
	// none. It is not always the size of outer datagrams: see package geneve on inner trains.
	SegmentSize int
	// Source is the sender of all datagrams of the message. Its zone is a number.
	Source netip.AddrPort
	// Destination is our address to which they were sent; the zero Addr if the kernel does not
	// report it, or if it is link-local.
	Destination netip.Addr
	// TOS is the IPv4 type of service or the IPv6 traffic class: DSCP in the upper six bits, ECN in
	// the lower two.
	TOS uint8
}

// Train is what Send sends: one or more datagrams for one destination.
type Train struct {
	// Destination must be of a family that the socket has.
	Destination netip.AddrPort
	// Source is our address to send from, of the same family; the zero Addr leaves the choice to
	// the kernel. Send resets it to that when the kernel has refused it, because the address is no
	// longer ours.
	Source netip.Addr
	// SegmentSize is the size of each datagram in bytes; only the last may be shorter. 0: the train
	// is one datagram.
	SegmentSize int
	// Parts are the bytes of the train, one datagram after the other. Parts need not match
	// datagrams: the kernel gathers them. borrowed: until Send returns. At most MaxSegments
	// datagrams and MaxPayload bytes go out as one.
	Parts [][]byte
	// TOS is sent as the IPv4 type of service or the IPv6 traffic class.
	TOS uint8
	// Single requests single datagrams. Send sets it when the kernel has refused the train as one,
	// so that the owner of the destination can remember it.
	Single bool
	// Sent is set by Send: the number of the train's datagrams that the kernel accepted.
	Sent int
}

// size returns the number of bytes and the number of datagrams of t.
func (t *Train) size() (bytes, datagrams int) {
	for _, p := range t.Parts {
		bytes += len(p)
	}
	if t.SegmentSize <= 0 || bytes <= t.SegmentSize {
		return bytes, 1
	}
	return bytes, (bytes + t.SegmentSize - 1) / t.SegmentSize
}

// Reason says why the kernel did not accept a datagram.
type Reason uint8

// Reasons of Stats.SendDrops.
const (
	Unreachable  Reason = iota // no route, no address of that family here, or an ICMP error of an earlier datagram
	NoBuffer                   // a queue or the kernel's memory was full
	TooBig                     // larger than a UDP datagram or the device's MTU allows
	NotPermitted               // refused by a packet filter or a policy
	Invalid                    // an address of the other family, port 0, or an error without a name here
	numReasons
)

var reasonNames = [numReasons]string{"unreachable", "no-buffer", "too-big", "not-permitted", "invalid"}

// String returns the name of r in kebab-case, as used for labels of counters.
func (r Reason) String() string {
	if r < numReasons {
		return reasonNames[r]
	}
	return "unknown"
}

// Stats is a snapshot of a socket's counters since Listen and of what the kernel granted.
type Stats struct {
	ReceiveCalls, SendCalls uint64 // system calls, including receives that found nothing
	ReceivedMessages        uint64 // messages delivered, a merged train counting once
	ReceivedBytes           uint64
	Waits                   bool   // a message has arrived that nobody has received yet
	SentDatagrams           uint64 // datagrams that the kernel accepted, including each one of a train
	SentBytes               uint64
	Overflows               uint64 // datagrams the kernel dropped because the receive buffer was full; wraps at 2^32
	OverflowsKnown          bool   // Overflows comes from the kernel; false: unknown
	Truncated               uint64 // messages lost because their Buffer was too small
	ReceiveErrors           uint64 // pending errors of the socket that Receive skipped
	RefusedTrains           uint64 // trains that the kernel refused as one and that were sent as single datagrams
	SendDrops               [numReasons]uint64
	GRO, GSO                bool // UDP_GRO and, towards either family, UDP_SEGMENT are in use
	ReceiveBuffer           int  // bytes granted, in the unit of Options (the kernel books twice as much)
	SendBuffer              int
}
