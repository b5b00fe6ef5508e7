package wg

// Reason is why a packet was dropped on its way through WireGuard.
type Reason uint8

// Reasons. All but the first are about incoming messages.
const (
	// TunnelDiscard: WireGuard dropped it. Outbound: no session with the peer, or a full queue.
	// Inbound: a forged or replayed message, or one without a session. Counted a second late.
	TunnelDiscard Reason = iota
	// NotWireGuard: a datagram to WireGuard's port that is not a WireGuard message.
	NotWireGuard
	// BadMAC1: a handshake message from a sender that does not know our public key.
	BadMAC1
	// HandshakeRate: more handshake messages, cookies or keepalives than are processed from one
	// address, or from all addresses except the peer's.
	HandshakeRate
	// StrangerData: a data message from another address than the peer's, at a higher rate than a
	// moving peer needs.
	StrangerData

	NumReasons
)

var reasonNames = [NumReasons]string{
	TunnelDiscard: "tunnel-discard",
	NotWireGuard:  "not-wireguard",
	BadMAC1:       "bad-mac1",
	HandshakeRate: "handshake-rate",
	StrangerData:  "stranger-data",
}

func (r Reason) String() string { return reasonNames[r] }
