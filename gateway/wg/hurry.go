package wg

import (
	"time"

	"golang.zx2c4.com/wireguard/device"
)

// hurryTime is how long a hurried handshake is waited for, the first time: longer than most round trips.
const hurryTime = 250 * time.Millisecond

// Hurry has a new peer's first handshake repeated after hurryTime, and again after pauses that double, until there is a session. WireGuard repeats one
// after device.RekeyTimeout (WireGuard paper, Section 6.4), which is too long for a gateway that takes the place of another one: beside a message that is
// lost, the peer discards an initiation within 20 ms of another gateway's, and one whose timestamp is not newer, which wireguard-go rounds to 16.8 ms.
func (d *Device) Hurry() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hurry(d.device.LookupPeer(device.NoisePublicKey(d.peer.PublicKey)), hurryTime)
}

// hurry looks after a while whether p has a session.
func (d *Device) hurry(p *device.Peer, after time.Duration) {
	if p == nil || after >= device.RekeyTimeout {
		return
	}
	time.AfterFunc(after, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		s, err := d.PeerStats()
		if err != nil || !s.LastHandshake.IsZero() || !d.endpoint.IsValid() || d.device.LookupPeer(device.NoisePublicKey(d.peer.PublicKey)) != p {
			return
		}
		p.ExpireCurrentKeypairs() // without this, another initiation is not sent before device.RekeyTimeout; packets that wait stay
		p.SendHandshakeInitiation(false)
		d.hurry(p, 2*after)
	})
}
