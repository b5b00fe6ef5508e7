// Package packet reads and writes IPv4 and IPv6 packets, as far as a gateway that translates
// addresses needs it. It has no state, configuration or clock. Nothing on the packet path
// allocates.
//
//	Packet.Parse          checks everything that the other methods rely on        packet.go, transport.go
//	Packet.Tuple          addresses and ports as words, to find a connection by   tuple.go
//	Packet.Segment        what a TCP header says; MSS and window scale            segment.go, options.go
//	Packet.Chunk          what an SCTP packet says; its checksum                  sctp.go
//	Packet.Rewrite        other addresses and ports, checksums by difference      rewrite.go, checksum.go
//	Packet.Lead           a PROXY protocol header in front of a TCP stream        proxy.go
//	Packet.Quoted         the packet that an ICMP error quotes, to be rewritten   icmp.go
//	Packet.AppendRefusal  the ICMP error or RST that a dropped packet deserves    refusal.go
//	Cutter                the packet with its checksum finished, or its segments, cutter.go,
//	                      fragmenter.go datagrams or fragments
//
// A Packet is a view: it refers to the caller's bytes and never copies them. Parse accepts any
// bytes. Unless they say otherwise, the other methods need a Packet in which Parse found no Fault;
// they panic or return nonsense without. A Packet and a Cutter belong to one goroutine.
//
// # Checksums
//
// A sender on the same machine leaves TCP and UDP checksums to a network card that the packet may
// never meet: the field holds only the sum of the pseudo-header. Such a checksum is partial.
// Rewrite keeps it partial, and the Cutter completes it. All other checksums are adjusted by the
// difference (RFC 1624; SCTP's by AdjustSCTP), so a packet that arrives broken leaves broken.
//
// # Fragments
//
// Fragments are handled one by one. A later one, with a FragmentOffset above 0, shows no transport
// header: it has no ports, whatever its protocol.
package packet
