package udp

import "net/netip"

// Conn is what tunnels use of a Socket; the methods are described there. It is what Open returns, so that a process can be given its
// sockets, or another network than the kernel's.
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

// Sender is one goroutine's way to send on a Conn.
type Sender interface {
	// Send sends all trains in order and returns how many datagrams the kernel took. It blocks while the send buffer is full. A
	// datagram that the kernel refuses is dropped and counted by its Reason, and the rest is sent all the same: a short count means
	// undeliverable datagrams, not a failed batch.
	//
	// The error is nil when everything was taken, net.ErrClosed after Close, else the errno of the first datagram refused.
	Send(trains []Train) (sent int, err error)
}

// Open is Listen, or what o has in its place.
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
