package udp

import "net/netip"

// Conn is the part of a Socket that tunnels use; see there for the methods. Open returns it, so
// that a process can be given its sockets, or a network other than the kernel's.
type Conn interface {
	LocalAddr() netip.AddrPort
	Receive(messages []Message) (n int, err error)
	NewSender() Sender
	Wake()
	Poll()
	GSO(to netip.Addr) bool
	SetMark(mark uint32) error
	Stats() Stats
	Close() error
}

// Sender sends on a Conn for one goroutine.
type Sender interface {
	// Send sends all trains in order and returns how many datagrams the kernel accepted. It blocks
	// while the send buffer is full. A datagram that the kernel refuses is dropped and counted by
	// its Reason, and the rest is still sent: a short count means undeliverable datagrams, not a
	// failed batch.
	//
	// The error is nil if everything was accepted, net.ErrClosed after Close, else the errno of the
	// first datagram refused.
	Send(trains []Train) (sent int, err error)
}

// Open is Listen, or the function in o that replaces it.
func Open(network string, addr netip.AddrPort, o Options) (Conn, error) {
	if o.Open != nil {
		return o.Open(network, addr)
	}
	s, err := Listen(network, addr, o)
	if err != nil {
		return nil, err
	}
	return s, nil
}
