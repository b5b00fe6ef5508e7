package wg

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	"culvert/gateway/wgkey"
)

// How often the peer's endpoint is resolved: at once until the first answer, then
// slowly while the tunnel works and faster while it does not.
const (
	resolveRetry    = 5 * time.Second
	resolveInterval = time.Minute
	sessionLifetime = 180 * time.Second // device.RejectAfterTime
)

// FollowEndpoint resolves the configured endpoint and tells the device each time
// it changes. An address that is still among the answers is kept, and so is the
// endpoint of a working session, which may have roamed.
func (d *Device) FollowEndpoint(ctx context.Context) {
	again := true // resolve even if there is a session
	for {
		wait := resolveInterval
		if s, _ := d.PeerStats(); again || time.Since(s.LastHandshake) > sessionLifetime {
			again = false
			err := d.updateEndpoint(ctx)
			if ctx.Err() != nil {
				return
			}
			d.unresolved.Store(nil)
			if err != nil {
				d.unresolved.Store(&err)
				again, wait = true, resolveRetry
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-d.retarget:
			again = true
		case <-time.After(wait):
		}
	}
}

func (d *Device) updateEndpoint(ctx context.Context) error {
	d.mu.Lock()
	p, current := d.peer, d.endpoint
	d.mu.Unlock()
	if p.PublicKey == (wgkey.Key{}) {
		return nil // SetPeer asks for another look
	}
	next, err := resolve(ctx, p.Endpoint, current)
	if err != nil || next == current {
		return err
	}
	if err := d.setEndpoint(&p, next); err != nil {
		return err
	}
	d.options.Log.WithField("endpoint", next).Info("peer endpoint set")
	return nil
}

// setEndpoint tells the device where p is and begins a handshake, unless there is a
// session. It does nothing if p is not the peer any longer.
func (d *Device) setEndpoint(p *Peer, ep netip.AddrPort) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p.PublicKey != d.peer.PublicKey || p.Endpoint != d.peer.Endpoint {
		return nil // SetPeer has sent for another answer
	}
	d.endpoint = ep
	if err := d.addPeer(); err != nil {
		return err
	}
	d.greet()
	return nil
}

// resolve returns the address of endpoint (host:port): current if it is among the
// answers, else the first.
func resolve(ctx context.Context, endpoint string, current netip.AddrPort) (netip.AddrPort, error) {
	host, service, err := net.SplitHostPort(endpoint)
	if err != nil {
		return netip.AddrPort{}, err
	}
	port, err := strconv.ParseUint(service, 10, 16)
	if err != nil {
		return netip.AddrPort{}, err
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return netip.AddrPort{}, err
	}
	var first netip.AddrPort
	for _, a := range addrs {
		ap := netip.AddrPortFrom(a.Unmap(), uint16(port))
		if ap == current {
			return current, nil
		}
		if !first.IsValid() {
			first = ap
		}
	}
	if !first.IsValid() {
		return first, fmt.Errorf("%s has no address", host)
	}
	return first, nil
}
