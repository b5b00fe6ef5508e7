// Package handover moves a running gateway from one process to another: what the two say to
// each other, and what stands between a tunnel and its socket meanwhile. It knows nothing of
// connections, rules or configurations; package gateway has both sides of the conversation.
//
//	old                                   new
//	         ◄── asks at the control socket, its configuration checked
//	Offer, with the sockets         ──►   opens everything, on them
//	Records                         ──►   restores them
//	         ◄── Ready: it has a session with the peer of its own
//	Records of what has changed, until that is little
//	parks, and sends the rest
//	Records, Cut                    ──►   restores them
//	         ◄── Forwarding: from here on it reads the sockets
//	         ◄── Done
//	ends
//
// # The cut
//
// Both processes have the same sockets, and the kernel keeps what comes while nobody reads.
// Before the cut a Conn of the new process is parked: it receives nothing from the socket and
// sends nothing, except what makes a session with the peer, since the keys of the old one
// cannot leave WireGuard. The answers come to the old process, whose Conn passes them on.
//
// A new process with another port greets from there, since it is to be known that the peer can be
// reached so. From the greeting on the peer may send to that port in the old session, as WireGuard has
// peers roam: the new process reads it and passes that back, before the cut and after it. After the cut it
// reads the port before as well.
//
// After the cut the old process is parked. What the peer has sent in the old session, up to
// the moment when it hears of the new one, the new process passes back; the old one decrypts
// it and returns the packets. So nothing is lost, as far as the peer answers within a second
// and there is room on the way.
//
// # Who forwards
//
// One of the two at any time, or neither for as long as the cut takes. The old process stops
// before it says Cut, and goes on if the new one is gone before Done, or has not said
// Forwarding in time: a socket that is shut says either that it came in time or, to the new
// process, that it did not.
package handover
