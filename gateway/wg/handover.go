package wg

import "net/netip"

// Endpoint returns where the peer is; the zero AddrPort is nowhere yet.
func (d *Device) Endpoint() (at netip.AddrPort) {
	if s, err := d.PeerStats(); err == nil {
		at, _ = netip.ParseAddrPort(s.Endpoint)
	}
	return at
}

// Local returns the address of ours that the peer was heard at; the zero Addr is unknown.
func (d *Device) Local() (at netip.Addr) {
	if e := d.bind.admission.peer.Load(); e != nil {
		at = e.SrcIP()
	}
	return at
}

// Expect has what goes to the peer come from local, until the peer is heard at another address. It is to be called before Open.
func (d *Device) Expect(peer netip.AddrPort, local netip.Addr) {
	if peer.IsValid() && local.IsValid() {
		d.bind.admission.peer.Store(&endpoint{addr: peer, local: local})
	}
}

// Inside returns how many packets wireguard-go was given and has not given back. What it has
// discarded is among them for a while.
func (d *Device) Inside() int64 { return d.bind.out.inside() + d.bind.in.inside() }

func (w *window) inside() int64 { return max(0, w.handed.Load()-w.done.Load()) }

// Confirm sends the peer something in the newest session: the peer uses none that it began
// not itself before it has heard something in it.
func (d *Device) Confirm() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.greet()
}

// Renew forgets all sessions with the peer and begins a handshake with it, at once: of a
// peer that stays, wireguard-go allows that every device.RekeyTimeout only.
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
