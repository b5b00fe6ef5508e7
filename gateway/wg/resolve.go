package wg

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"golang.zx2c4.com/wireguard/device"

	"culvert/gateway/wgkey"
)

// How often the peer's endpoint is resolved: at once until the first answer, after each unanswered handshake, and slowly while there is no session
// and no attempt.
const (
	resolveRetry    = 5 * time.Second // at least device.RekeyTimeout of wireguard-go, between two handshakes
	resolveInterval = time.Minute
	// SessionLifetime is how long keys serve after their handshake (WireGuard paper, Section 6.5: Reject-After-Time).
	SessionLifetime = device.RejectAfterTime
)

// FollowEndpoint resolves the configured endpoint and updates the device when it changes. It keeps an address that is still among the answers as long
// as the peer answers there, and the endpoint of a working session, which may have roamed.
func (d *Device) FollowEndpoint(ctx context.Context) {
	again := true // resolve even if there is a session
	var calls calls
	var resolved time.Time
	for {
		s, _ := d.PeerStats()
		now := time.Now()
		vain := calls.vain(s.LastHandshake, d.bind.admission.handshakes.sentInitiations.Load())
		dead := now.Sub(s.LastHandshake) > SessionLifetime
		if again || vain || dead && now.Sub(resolved) >= resolveInterval {
			again, resolved = false, now
			if dead && !s.LastHandshake.IsZero() {
				d.comeHome(s.Endpoint)
			}
			err := d.updateEndpoint(ctx, vain)
			if ctx.Err() != nil {
				return
			}
			d.unresolved.Store(nil)
			if err != nil {
				d.unresolved.Store(&err)
				again = true
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-d.retarget:
			again = true
		case <-time.After(resolveRetry):
		}
	}
}

// calls are the started handshakes.
type calls struct {
	made         time.Time // time of the last completed handshake
	before, last uint64    // how many were started before it, and until the last check
}

// vain reports whether a handshake was started since the last check that is not the first since the last completed one: WireGuard starts another only
// without an answer.
func (c *calls) vain(made time.Time, begun uint64) bool {
	if !made.Equal(c.made) {
		c.made, c.before = made, begun
	}
	grown := begun != c.last
	c.last = begun
	return grown && begun-c.before > 1
}

// comeHome forgets the resolved endpoint if the device uses another one: a peer that roamed, and whose session has ended, may be back at its name's
// address.
func (d *Device) comeHome(at string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if at != d.endpoint.String() {
		d.endpoint = netip.AddrPort{}
	}
}

// updateEndpoint gives the device an address of the endpoint. vain: the current one does not answer.
func (d *Device) updateEndpoint(ctx context.Context, vain bool) error {
	d.mu.Lock()
	p, current := d.peer, d.endpoint
	d.mu.Unlock()
	if p.PublicKey == (wgkey.Key{}) {
		return nil // SetPeer requests another check
	}
	if s, err := d.PeerStats(); err == nil && s.Endpoint != current.String() {
		vain = false // it has roamed, and is called at an address that is not the name's
	}
	next, err := resolve(ctx, p.Endpoint, current, vain)
	if err != nil || next == current {
		return err
	}
	if err := d.setEndpoint(&p, next); err != nil {
		return err
	}
	if !vain { // otherwise addresses may alternate as long as the peer is away
		d.options.Log.WithField("endpoint", next).Info("peer endpoint set")
	}
	return nil
}

// setEndpoint sets p's address in the device and starts a handshake, unless there is a session. It does nothing if p is no longer the peer.
func (d *Device) setEndpoint(p *Peer, ep netip.AddrPort) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p.PublicKey != d.peer.PublicKey || p.Endpoint != d.peer.Endpoint {
		return nil // SetPeer requests another lookup
	}
	d.endpoint = ep
	if err := d.addPeer(); err != nil {
		return err
	}
	d.greet()
	return nil
}

// tests replace lookup
var lookup = net.DefaultResolver.LookupNetIP

// resolve returns an address of endpoint (host:port).
func resolve(ctx context.Context, endpoint string, current netip.AddrPort, vain bool) (netip.AddrPort, error) {
	host, service, err := net.SplitHostPort(endpoint)
	if err != nil {
		return netip.AddrPort{}, err
	}
	port, err := strconv.ParseUint(service, 10, 16)
	if err != nil {
		return netip.AddrPort{}, err
	}
	addrs, err := lookup(ctx, "ip", host)
	if err != nil {
		return netip.AddrPort{}, err
	}
	if len(addrs) == 0 {
		return netip.AddrPort{}, fmt.Errorf("%s has no address", host)
	}
	return netip.AddrPortFrom(choose(interleave(addrs), current.Addr(), vain), uint16(port)), nil
}

// choose returns current if it is among addrs, or the one after it if a handshake to it was in vain; otherwise the first.
func choose(addrs []netip.Addr, current netip.Addr, vain bool) netip.Addr {
	switch at := slices.Index(addrs, current); {
	case at < 0:
		return addrs[0]
	case vain:
		return addrs[(at+1)%len(addrs)]
	}
	return current
}

// interleave alternates the families of addresses and otherwise keeps their order: if one family does not work, the other may (RFC 8305, Section 4).
// The first address stays first: the resolver puts what this machine reaches best there (RFC 6724).
func interleave(addrs []netip.Addr) (turns []netip.Addr) {
	var families [2][]netip.Addr // the first address's, and the other
	for _, a := range addrs {
		a = a.Unmap()
		f := &families[0]
		if a.Is4() != addrs[0].Unmap().Is4() {
			f = &families[1]
		}
		*f = append(*f, a)
	}
	for i := range addrs {
		for _, f := range families {
			if i < len(f) {
				turns = append(turns, f[i])
			}
		}
	}
	return turns
}
