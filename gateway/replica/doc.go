// Package replica continuously copies the connections of one gateway to another process, so that
// the other process can replace it and lose nothing.
//
// Each replica of a gateway has a Replica. All of them listen; one that lacks the table, such as a
// standby, follows another:
//
//	follower                                          source
//	TLS 1.3; both keys follow from WireGuard's private key
//	hello: version, configuration, name, clock  ──►
//	                                            ◄──   hello
//	                                            ◄──   facts: key of port choice, the peer's endpoint, nodes
//	                                            ◄──   blocks of package nat's Feed: first a full copy, then changes
//	                                            ◄──   mark: all that had changed before this time was sent
//	ack: the mark                               ──►
//	copy: begin again with a full copy          ──►
//	notice                                      ◄─►   of package replica's user
//
// A message is a byte for its kind, three for its length, and a body. Unknown kinds are skipped and
// counted; so are unknown fields of JSON and blocks of another version.
//
// A pass of the Feed starts every 50 ms. The follower acknowledges its mark once it has restored
// everything before it. The lag is the age of the oldest change that may not be acknowledged yet.
// During a long pass, the last mark is repeated every second. If a follower does not read, the
// passes stop. The Feed then collects changes in bounded room; if that overflows, a full copy
// follows. A follower that acknowledges nothing for 6 s loses its connection.
//
// # Who may connect
//
// Only a holder of WireGuard's private key may connect: source and follower have Ed25519 keys of
// their own, derived from that key by HKDF (RFC 5869), and each end accepts only the other's. The
// server name that a follower sends in the clear (RFC 6066, Section 3) is derived from the key as
// well, so most strangers cost no cryptography. Seats limit how many may try at a time, and
// timeouts how long. A connection that has not sent this name loses its seat to a source that has
// none, so that slow strangers of many networks do not keep a replica out.
package replica
