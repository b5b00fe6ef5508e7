package wg

import (
	"net/netip"
	"time"

	"golang.zx2c4.com/wireguard/device"
)

// Endpoint returns the peer's address; the zero AddrPort is unknown.
func (d *Device) Endpoint() (at netip.AddrPort) {
	if s, err := d.PeerStats(); err == nil {
		at, _ = netip.ParseAddrPort(s.Endpoint)
	}
	return at
}

// Local returns our address at which the peer was heard; the zero Addr is unknown.
func (d *Device) Local() (at netip.Addr) {
	if e := d.bind.admission.peer.Load(); e != nil {
		at = e.SrcIP()
	}
	return at
}

// Expect makes messages to the peer leave from local, until the peer is heard at another address.
// It must be called before Open.
func (d *Device) Expect(peer netip.AddrPort, local netip.Addr) {
	if peer.IsValid() && local.IsValid() {
		d.bind.admission.peer.Store(&endpoint{addr: peer, local: local})
	}
}

// Inside returns how many packets wireguard-go has received and not returned. For a while that
// includes dropped ones.
func (d *Device) Inside() int64 { return d.bind.out.inside() + d.bind.in.inside() }

func (w *window) inside() int64 { return max(0, w.handed.Load()-w.done.Load()) }

// Confirm sends the peer a keepalive in the newest session. A responder may not use a new
// session before the initiator has sent in it.
func (d *Device) Confirm() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.greet()
}

// Renew starts a handshake with the peer at once, which WireGuard allows only every
// device.RekeyTimeout. What the peer sends in the sessions before is still received, and nothing is
// sent in them: packets wait for the new session. Renew does nothing while the peer's answer to the
// last handshake becomes a session.
func (d *Device) Renew() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.device.LookupPeer(device.NoisePublicKey(d.peer.PublicKey)); p != nil {
		d.initiate(p)
	}
}

// answerTime is longer than wireguard-go needs to make a session from a response, on a busy machine
// too.
const answerTime = time.Second

// initiate is Renew for p. If an initiation began while wireguard-go reads the response to the one
// before, the session would get the keys of that one and the index of the new one. Nothing from the
// peer would arrive in it.
//
// Preconditions: d.mu is held.
// +checklocks:d.mu
func (d *Device) initiate(p *device.Peer) {
	s, err := d.PeerStats()
	if err != nil {
		return
	}
	if d.bind.admission.between(s.LastHandshake, p.ExpireCurrentKeypairs) {
		p.SendHandshakeInitiation(false)
	}
}

// between calls do, and returns true, unless a response that has come since the last session was
// made may still become a session. No response passes meanwhile.
func (a *admission) between(last time.Time, do func()) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.answered.After(last) && time.Since(a.answered) < answerTime {
		return false
	}
	do()
	return true
}
