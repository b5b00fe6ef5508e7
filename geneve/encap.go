package geneve

import (
	"encoding/binary"
	"time"
)

// Encap is the encapsulation of a tunnel.
type Encap uint8

// Encapsulations. Auto is whichever the other end uses first: nodes whose kernel has no Geneve use
// VXLAN.
const (
	Auto Encap = iota
	Geneve
	VXLAN
)

// String returns the name of e as configurations write it.
func (e Encap) String() string {
	if e > VXLAN {
		return "unknown"
	}
	return [...]string{"auto", "geneve", "vxlan"}[e]
}

// encapSilence is how long a peer must be silent in one encapsulation before another is accepted.
// It is far longer than a peer in use is silent (reachableTime), so that an attacker who can forge
// the peer's address cannot take over its tunnel.
const encapSilence = 60 * time.Second

// encapOf returns the encapsulation of a datagram of at least headerLen bytes; Auto is neither.
// Both have the VNI in the same place. Where Geneve has a protocol type, VXLAN has reserved bytes,
// which are sent as 0 (RFC 7348, Section 5). The I flag alone would not do, because a Geneve header
// with 32 bytes of options has the same bit set.
func encapOf(b []byte) Encap {
	switch {
	case b[0]&versionMask == 0 && known(binary.BigEndian.Uint16(b[2:])):
		return Geneve
	case b[0]&vxlanVNIFlag != 0:
		return VXLAN
	}
	return Auto
}

// speaker is a peer's MAC address and encapsulation: a MAC address in the lower 48 bits, 0 for
// none, and above it an Encap. They share a word so that a sender reads both at once.
type speaker uint64

func newSpeaker(e Encap, m mac) speaker { return speaker(e)<<48 | speaker(m) }

func (s speaker) mac() mac     { return mac(s) & macBroadcast }
func (s speaker) encap() Encap { return Encap(s >> 48) }

// spoken returns the encapsulation that the other end uses, Auto if unknown.
func (t *tunnel) spoken() Encap { return t.neighbour.load().encap() }

// either reports whether the other end may use either encapsulation: it has not been heard yet, or
// not for encapSilence.
func (t *tunnel) either(now time.Duration) bool {
	return t.Encap == Auto && (t.spoken() == Auto || now-time.Duration(t.neighbour.lastHeard.Load()) >= encapSilence)
}

// EncapChange reports which encapsulation a tunnel's other end was found to use. Was is Auto if it
// was unknown before.
type EncapChange struct {
	Tunnel  uint16
	Is, Was Encap
}

// EncapChanges returns the changes since the last call, for tunnels whose configuration leaves the
// encapsulation open. Only one goroutine may call it.
func (e *Endpoint) EncapChanges() (changes []EncapChange) {
	for _, t := range e.table.Load().ids {
		if t == nil {
			continue
		}
		if spoken := t.spoken(); spoken != t.told {
			changes = append(changes, EncapChange{Tunnel: t.ID, Is: spoken, Was: t.told})
			t.told = spoken
		}
	}
	return changes
}
