// Package wg keeps a wireguard-go device fed and in bounds: one WireGuard tunnel to one
// peer. It knows how to move inner packets, and nothing of what they say.
//
// # The way of a packet
//
//	Path.Read ─► tun.go Read ─► wireguard-go encrypts ─► bind.go Send ─► the peer
//	Path.Write ◄─ tun.go Write ◄─ wireguard-go decrypts ◄─ bind.go receive ◄─ the peer
//
// device.go makes a Device of these; resolve.go follows the peer's host name; trains.go
// finds out whether trains reach the peer; talk.go counts who begins handshakes and who answers; uapi.go answers wg(8); stats.go and reason.go
// say what became of packets.
//
// # Bounds
//
// wireguard-go has a buffer of 64 KiB for each message in its queues, which hold 1024
// batches, and discards without a word. What bounds them: inflight.go data messages, in
// each direction; admission.go all others; small batches what waits for a session. What
// may not go in yet waits where it is: in the sockets' receive buffers.
//
// # Goroutines
//
// wireguard-go calls Read on one goroutine and, there being one peer, Write on one other.
// The bind receives on one goroutine of wireguard-go for each address family, and sends
// on any. A Device makes no goroutine but those of ServeUAPI.
//
// # What it does not do
//
// It has one peer, whose allowed IPs are all of IPv4 and IPv6: who takes the packets checks their
// sources. It neither reads nor sets the outer ECN bits.
package wg
