// Package packet reads and writes the bytes of IPv4 and IPv6 packets: what a gateway that translates addresses needs of them. It keeps no
// state, and knows no configuration and no clock. Nothing on a packet's way allocates.
//
//	Packet.Parse          checks everything that the other methods rely on         packet.go, ipv4.go, ipv6.go, transport.go
//	Packet.Tuple          addresses and ports as words, to find a connection by    tuple.go
//	Packet.Segment        what a TCP header says; MSS and window scale             segment.go, options.go
//	Packet.Chunk          what an SCTP packet says; its checksum                   sctp.go
//	Packet.Rewrite        other addresses and ports, checksums by difference       rewrite.go, checksum.go
//	Packet.Lead           a PROXY protocol header in front of a TCP stream         proxy.go
//	Packet.Quoted         the packet that an ICMP error quotes, to be rewritten    icmp.go
//	Packet.AppendRefusal  the ICMP error or RST that a dropped packet deserves     refusal.go
//	Cutter                the packet with its checksum finished, or its segments,  cutter.go, fragmenter.go
//	                      datagrams or fragments
//
// A Packet is a view: it refers to the caller's bytes and never copies them. Parse is total, whatever the bytes; the other methods, unless
// they say otherwise, want a Packet in which Parse found no Fault, and panic or return nonsense without. A Packet and a Cutter belong to
// one goroutine.
//
// # Checksums
//
// A sender on the same machine leaves TCP and UDP checksums to a network card that the packet may never meet: the field holds the
// sum of the pseudo-header only. Such a checksum is partial. Rewrite keeps it so, and the Cutter finishes it. All other checksums are kept
// right by difference (RFC 1624; SCTP's by AdjustSCTP), so that a packet that arrives broken leaves broken.
//
// # Fragments
//
// Fragments are handled one by one. A later one, with a FragmentOffset above 0, shows no transport header: it has no ports,
// whatever its protocol.
package packet
