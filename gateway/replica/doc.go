// Package replica copies the connections of one gateway to another process, continuously, so that the other one can take its place and lose nothing.
//
// Each replica of a gateway has a Replica. All of them listen; one that lacks the table, such as a standby, follows another:
//
//	follower                                          source
//	TLS 1.3; both keys follow from WireGuard's private key
//	hello: version, configuration, name, clock  ──►
//	                                            ◄──   hello
//	                                            ◄──   facts: key of port choice, the peer's endpoint, what is known of nodes
//	                                            ◄──   blocks of package nat's Feed: first a full copy, then changes
//	                                            ◄──   mark: all that had changed before this time was sent
//	ack: the mark                               ──►
//	copy: begin again with a full copy          ──►
//	notice                                      ◄─►   of package replica's user
//
// A message is a byte for its kind, three for its length, and a body. A kind that is not known is skipped and counted, and so are fields of JSON and
// blocks of another version.
//
// A pass of the Feed begins each 50 ms, and its mark is acknowledged when the follower has restored what came before; the lag is the age of the oldest
// change that may not be acknowledged. While a pass takes long, the last mark is repeated each second. A follower that does not read stops the passes.
// Then the Feed gathers changes in bounded room, and if that overflows, a full copy follows. A follower that acknowledges nothing for 6 s loses its
// connection.
//
// # Who may connect
//
// Whoever has WireGuard's private key: source and follower have Ed25519 keys of their own, derived from it by HKDF (RFC 5869), and each end accepts only
// the other's. The name that a follower asks for in the clear (RFC 6066, Section 3) follows from the key as well, so most strangers cost no cryptography.
// Seats limit how many may try at a time, and a time limit how long.
package replica
