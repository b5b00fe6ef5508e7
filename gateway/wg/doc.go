// Package wg runs a wireguard-go device within bounds: one WireGuard tunnel to one peer. It moves
// inner packets without interpreting them.
//
// # A packet's path
//
//	Path.Read ─► tun.go Read ─► wireguard-go encrypts ─► bind.go Send ─► the peer
//	Path.Write ◄─ tun.go Write ◄─ wireguard-go decrypts ◄─ bind.go receive ◄─ the peer
//
// device.go combines these into a Device; resolve.go follows the peer's host name; trains.go finds
// out whether trains reach the peer; handshakes.go counts handshake messages; uapi.go answers
// wg(8); stats.go and reason.go count the outcomes of packets.
//
// # Bounds
//
// wireguard-go has a buffer of 64 KiB for each message in its queues, which hold 1024 batches, and
// drops silently. So inflight.go limits data messages, in each direction; admission.go limits all
// others; small batches limit what waits for a session. Messages that may not enter yet wait in the
// sockets' receive buffers.
//
// # Goroutines
//
// wireguard-go calls Read on one goroutine and, there being one peer, Write on one other. The bind
// receives on one goroutine of wireguard-go for each address family, and sends on any. A Device
// starts goroutines only in ServeUAPI.
//
// # What it does not do
//
// The only peer's allowed IPs are all of IPv4 and IPv6, so the receiver of the packets must check
// their sources.
//
// It neither reads nor sets the outer ECN bits. A Bind sends what is encrypted, without a word
// about the packet inside (device/send.go, RoutineSequentialSender: peer.SendBuffers), and
// RoutineSequentialReceiver in device/receive.go leaves out the endpoints, in which a Bind could
// say what it has received, when it calls Write of the tun.Device. So the outer field is Not-ECT,
// as in compatibility mode (RFC 6040, Section 4.1): routers between the gateways drop packets where
// they would mark them, and what the inner field says crosses unchanged, with the rest of the
// traffic class.
package wg
