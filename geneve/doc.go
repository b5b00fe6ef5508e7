// Package geneve is the tunnel between a gateway and its nodes: Geneve (RFC 8926) or VXLAN (RFC
// 7348) over one UDP socket, as real kernels speak it. Its interface is inner IP packets; tunnel
// headers, inner Ethernet with ARP and neighbour discovery, and trains (UDP_GRO, UDP_SEGMENT) stay
// inside.
//
// # Receiving
//
// A Receiver takes each datagram through these files:
//
//	udp.Socket.Receive   datagrams and merged trains      package udp
//	Receiver.open        which tunnel, which shape        receiver.go
//	encapOf              which encapsulation              encap.go
//	tunnel.header        tunnel header                    tunnel.go, header.go, option.go, vxlan.go
//	Endpoint.frame       inner Ethernet                   decap.go
//	neighbours           ARP, neighbour discovery         arp.go, nd.go, discover.go, neighbour.go
//	decapECN             congestion marks (RFC 6040)      ecn.go
//
// Only datagrams from the outer address, with the VNI, and in the encapsulation of a configured
// tunnel are accepted. The underlay address of a peer is never learnt from a packet. If we have
// several underlay addresses, a node gets replies from the one it sends to. If the configuration
// leaves the encapsulation open, the first accepted frame determines it, until the peer has not
// used it for a minute. Every other datagram is counted under one Reason, without log or
// allocation.
//
// A message of the socket has one of four shapes: a single datagram; a train of datagrams merged by
// UDP_GRO; one datagram with a TCP super-frame of up to 64 KiB, from a sender on the same machine;
// and one datagram with an inner UDP train, whose UDP_GRO size is that of the inner payloads.
// Cutting the last kind like the second would interpret a pod's payload as tunnel headers: see
// Receiver.shape.
//
// # Sending
//
// A Sender copies each packet once, behind a prebuilt header, and sends the packets of one tunnel
// as trains (sender.go), in the order in which they were given. While the neighbour's MAC address
// is unknown, a few packets wait.
//
// ProbeTrains finds out whether trains arrive at the other end (probe.go), because some kernels
// silently drop or corrupt them.
//
// # Neighbours
//
// The inner Ethernet of a tunnel has two hosts: ourselves, with a MAC address derived from VNI and
// role, and the peer, whose address is learnt. ARP (RFC 826) or IPv6 neighbour discovery (RFC 4861)
// confirms it; until then the source of the last accepted frame is used. A frame from another
// source makes us ask again, and the new source counts only if the old one stays silent. So another
// host behind a node's bridge does not divert the tunnel, and a node that re-created its link is
// found at once. Requests go out in both encapsulations while the peer's is unknown. Packets of
// both families go to the same MAC address, so ARP asks for it if the tunnel has IPv4 addresses,
// otherwise neighbour discovery does. Requests for our addresses are answered, at most maxAnswers a
// second. A gateway in a pod asks from other ports (Options.Aside) until it is answered. The
// endpoint neither solicits nor advertises routers; other messages of a kernel link are counted and
// dropped.
//
// # Goroutines and locks
//
// One goroutine uses the Receiver; each sending goroutine has a Sender of its own. Any goroutine
// may call Apply, Wake, Poll, Close and the counters. The set of tunnels is an immutable snapshot
// behind an atomic pointer; the state of neighbours is guarded by one mutex (neighbour.go) which
// the packet path takes only while a MAC address is unknown, changes or needs confirmation.
//
// # Not here
//
// No Geneve options or control messages are supported: options are skipped, and a critical one
// refuses the packet. Outer packets are neither fragmented nor reassembled; inner checksums are not
// verified.
package geneve
