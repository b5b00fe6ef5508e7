// Package sockets makes a node serve Services by sockets that listen, where there is neither CAP_NET_ADMIN nor a TUN device.
//
//	client ─ node's address:port ─► socket ─ io.Copy ─► socket ─ node's routes ─► endpoint
//
// It is a proxy: endpoints see the node's address, and the client's by the PROXY protocol only. Which endpoint a client gets is the choice of
// a nat.Engine that carries no packets: who asks, the traffic policies, source ranges, weights and affinity are the same as with a TUN device.
//
// # TCP
//
// A client whose endpoint does not answer gets another one, up to dialTries. Bytes go from socket to socket within the kernel (splice), and
// each way ends by itself; who has ended his is still missed when he goes. What cannot be served is reset: the kernel has accepted it before
// anybody could be asked. A connection lives on when its endpoint leaves the Service.
//
// # UDP
//
// Each client has a socket of its own towards its endpoint, for as long as packets pass. It ends with the endpoint's place in the Service: the
// client's next packet finds another.
//
// # Bounds
//
// Connections of either protocol are bounded by the descriptors that this process may have, and a source gets no more than are free (crowd.go).
// Over UDP, where only time tells that a connection has ended, those that need their places least make room for new ones (yield.go).
package sockets
