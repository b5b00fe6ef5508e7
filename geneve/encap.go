package geneve

import (
	"encoding/binary"
	"time"
)

// Encap is the encapsulation of a tunnel.
type Encap uint8

// Encapsulations. Auto is the one in which the other end is heard first: nodes whose kernel has no Geneve speak VXLAN.
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

// encapSilence is for how long nothing may have come from a peer in one encapsulation before it is heard in the other. It is far longer than
// a peer in use is silent (reachableTime), so that nobody who merely knows how to write the peer's address takes its tunnel over.
const encapSilence = 60 * time.Second

// encapOf tells the encapsulations of a datagram of at least headerLen bytes apart; Auto is neither. Both have the VNI at one place. Where
// Geneve has a protocol type, VXLAN has reserved bytes, which are sent as 0 (RFC 7348, Section 5); the I flag alone would not do,
// since a Geneve header with 32 bytes of options has the same bit set.
func encapOf(b []byte) Encap {
	switch {
	case b[0]&versionMask == 0 && known(binary.BigEndian.Uint16(b[2:])):
		return Geneve
	case b[0]&vxlanVNIFlag != 0:
		return VXLAN
	}
	return Auto
}

// speaker is a station and the encapsulation that it speaks: a MAC address in the lower 48 bits, 0 for none, and above it an Encap. One word
// has both, so that a sender reads them at once.
type speaker uint64

func newSpeaker(e Encap, m mac) speaker { return speaker(e)<<48 | speaker(m) }

func (s speaker) mac() mac     { return mac(s) & macBroadcast }
func (s speaker) encap() Encap { return Encap(s >> 48) }

// spoken returns the encapsulation that the other end speaks, Auto while nothing tells.
func (t *tunnel) spoken() Encap { return t.neighbour.load().encap() }

// either reports whether the other end may speak either encapsulation: it has not been heard yet, or not for encapSilence.
func (t *tunnel) either(now time.Duration) bool {
	return t.Encap == Auto && (t.spoken() == Auto || now-time.Duration(t.neighbour.lastHeard.Load()) >= encapSilence)
}

// EncapChange tells which encapsulation a tunnel's other end was found to speak. Was is Auto where it was not known before.
type EncapChange struct {
	Tunnel  uint16
	Is, Was Encap
}

// EncapChanges returns what has been found since the last call, of tunnels whose configuration leaves it open. It is to be called by one goroutine.
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
