package wg

// Reason is why a packet was dropped on its way through WireGuard.
type Reason uint8

// Reasons. Those but the first are of messages that come in.
const (
	// TunnelDiscard: handed to WireGuard, which discarded it. Outbound: no session
	// with the peer, or its queue was full. Inbound: a message that was forged, a
	// replay or of no session. Counted a second late.
	TunnelDiscard Reason = iota
	// NotWireGuard: came to WireGuard's port and is no message of WireGuard.
	NotWireGuard
	// BadMAC1: a handshake message of someone who does not know our public key.
	BadMAC1
	// HandshakeRate: more handshake messages, cookies or keepalives than are looked
	// at from one address, or from all addresses together that are not the peer's.
	HandshakeRate
	// StrangerData: a data message from another address than the peer's, faster than
	// a peer that moves needs.
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
