package wg

import "net/netip"

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

// Renew forgets all sessions with the peer and starts a handshake at once: for an unchanged peer,
// wireguard-go allows one only every device.RekeyTimeout.
func (d *Device) Renew() error {
	at := d.Endpoint()
	d.mu.Lock()
	defer d.mu.Unlock()
	if at.IsValid() {
		d.endpoint = at
	}
	if err := d.set("public_key="+hexKey(d.peer.PublicKey), "remove=true"); err != nil {
		return err
	}
	if err := d.addPeer(); err != nil {
		return err
	}
	d.greet()
	return nil
}
