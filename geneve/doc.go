// Package geneve is the tunnel between a gateway and its nodes: Geneve (RFC 8926) or VXLAN (RFC 7348) over one UDP socket, with
// what real kernels do to it taken care of. It hands out inner IP packets and takes inner IP packets; everything below,
// the tunnel header, the inner Ethernet with its ARP and neighbour discovery, the trains of UDP_GRO and UDP_SEGMENT, stays inside.
//
// # Receiving
//
// A Receiver walks each datagram through these files:
//
//	udp.Socket.Receive   datagrams and merged trains      package udp
//	Receiver.open        which tunnel, which shape        receiver.go
//	encapOf              which encapsulation              encap.go
//	tunnel.header        tunnel header                    tunnel.go, header.go, option.go, vxlan.go
//	Endpoint.frame       inner Ethernet                   decap.go
//	neighbours           ARP, neighbour discovery         arp.go, nd.go, discover.go, neighbour.go
//	decapECN             congestion marks (RFC 6040)      ecn.go
//
// Accepted is only what comes from the outer address, with the VNI, in the encapsulation of a configured tunnel. No address of
// another host's underlay is ever learnt from a packet; of our own, the one that a node sends to is the one that it is answered from. Where the configuration leaves the encapsulation open, the first frame that is accepted tells
// it, until the peer has been silent in it for a minute. What is not accepted is counted under one Reason, without log or allocation.
//
// A message of the socket has one of four shapes: a single datagram; a train of datagrams merged by UDP_GRO; one datagram with a TCP
// super-frame of up to 64 KiB, from a sender on the same machine; and one datagram with an inner UDP train, whose UDP_GRO size is that
// of the inner payloads. To cut the last as if it were the second would read a pod's payload as tunnel headers: see Receiver.shape.
//
// # Sending
//
// A Sender copies each packet once, behind a prebuilt header, and sends what goes to one tunnel as one train (sender.go). Packets
// of a tunnel leave in the order in which they were given. While the neighbour's MAC address is unknown, a few packets wait.
//
// ProbeTrains finds out whether trains arrive at the other end (probe.go): some kernels drop or spoil them, and tell nobody.
//
// # Neighbours
//
// The inner Ethernet of a tunnel has two stations: we, with a MAC address derived from VNI and role, and the peer, whose
// address is learnt. ARP (RFC 826) or IPv6 neighbour discovery (RFC 4861) tells it for certain; as long as neither has, the source of the last accepted
// frame counts. A frame from another source than was told makes us ask again, and only silence makes it count: a second station behind a node's bridge
// does not divert the tunnel, a node that re-created its link is found at once. Requests go out in both encapsulations while
// nothing tells which of them the peer speaks. Packets of both families go to the same station, so it is asked for by ARP where the tunnel has IPv4
// addresses, else by neighbour discovery. Both are answered for our addresses, in all at most maxAnswers a second. Routers are neither looked for nor
// played: what a kernel link asks or reports besides is counted and dropped.
//
// # Goroutines and locks
//
// One goroutine uses the Receiver; each sending goroutine has a Sender of its own. Apply, Wake, Poll, Close and the counters are safe
// for all. The set of tunnels is an immutable snapshot behind an atomic pointer; the state of neighbours is
// guarded by one mutex (neighbour.go) which the packet path takes only while a MAC address is unknown, changes or is to be confirmed.
//
// # Not here
//
// Options and control messages of Geneve are understood by nobody here: options are skipped, or refuse the packet when critical. Nothing is
// fragmented or reassembled outside; checksums inside are not looked at.
package geneve
