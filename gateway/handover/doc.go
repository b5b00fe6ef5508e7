// Package handover moves a running gateway from one process to another: the messages between them,
// their order (table.go), and the layer between a tunnel and its socket meanwhile. It knows nothing
// of rules or configurations. Package lifecycle has what both sides do in a gateway, and package
// services for the Services of a node, which have neither a peer nor a relay.
//
//	old                                   new
//	         ◄── asks at the control socket, its configuration checked
//	Offer, with the sockets         ──►   opens everything, on them
//	Records, Standing               ──►   restores them
//	         ◄── Ready: it has a session with the peer of its own
//	Records of what has changed, until that is little
//	parks, and sends the rest
//	Records, Cut                    ──►   restores them
//	         ◄── Forwarding: from here on it reads the sockets
//	         ◄── Done, a second later
//	ends
//
// # The cut
//
// Both processes have the same sockets, and the kernel buffers packets while nobody reads. Before
// the cut, the new process's Conn is parked: it receives nothing from the socket and sends only
// what starts a session with the peer, because the old session's keys cannot leave WireGuard. The
// answers arrive at the old process, whose Conn passes them on.
//
// If the old process has sent a handshake message since the new one asked for its session, the peer
// may use a newer session, and the new process makes another one after the cut.
//
// After the cut the old process is parked. Until the peer learns of the new session, it sends in
// the old one; the new process passes such messages back, and the old one decrypts them and returns
// the packets. So nothing is lost if the peer answers within a second and no buffer overflows.
//
// # Who forwards
//
// One of the two forwards at any time; during the cut neither does. The old process stops before it
// sends Cut. It continues if the new one disappears before Done, or does not send Forwarding in
// time: the socket is then shut down, which tells the new process that it was too late.
package handover
