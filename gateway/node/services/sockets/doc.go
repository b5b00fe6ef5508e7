// Package sockets makes a node serve Services by listening sockets, for nodes with neither
// CAP_NET_ADMIN nor a TUN device.
//
//	client ─ node's address:port ─► socket ─ io.Copy ─► socket ─ node's routes ─► endpoint
//
// It is a proxy: endpoints see the node's address, and the client's only by the PROXY protocol. A
// nat.Engine that carries no packets chooses the endpoint, so traffic policies, source ranges,
// weights and affinity work as with a TUN device.
//
// # TCP
//
// A client whose endpoint does not answer gets another one, up to dialTries. Bytes go from socket
// to socket within the kernel (splice), and each direction ends separately; a peer that has
// half-closed is still noticed when it disappears. A connection that cannot be served is reset,
// because the kernel has already accepted it. A connection survives when its endpoint leaves the
// Service.
//
// # UDP
//
// Each client has its own socket towards its endpoint, as long as packets pass. The socket is
// closed when the endpoint leaves the Service; the client's next packet gets another endpoint.
//
// # Bounds
//
// The descriptors that this process may have limit the connections of either protocol, and a source
// gets no more than are free (limiter.go). Over UDP, where only time shows that a connection has
// ended, the flows that need their place least are evicted for new ones (yield.go).
package sockets
