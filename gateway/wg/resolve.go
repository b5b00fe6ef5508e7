package wg

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"culvert/gateway/wgkey"
)

// How often the peer's endpoint is resolved: at once until the first answer, with each
// call in vain, and slowly while there is no session and nobody calls.
const (
	resolveRetry    = 5 * time.Second // no shorter than device.RekeyTimeout of wireguard-go, between two calls
	resolveInterval = time.Minute
	sessionLifetime = 180 * time.Second // device.RejectAfterTime
)

// FollowEndpoint resolves the configured endpoint and tells the device each time
// it changes. An address that is still among the answers is kept as long as it answers,
// and so is the endpoint of a working session, which may have roamed.
func (d *Device) FollowEndpoint(ctx context.Context) {
	again := true // resolve even if there is a session
	var calls calls
	var resolved time.Time
	for {
		s, _ := d.PeerStats()
		now := time.Now()
		vain := calls.vain(s.LastHandshake, d.bind.admission.talk.sentInitiations.Load())
		dead := now.Sub(s.LastHandshake) > sessionLifetime
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

// calls are the handshakes that are begun.
type calls struct {
	made         time.Time // the last handshake that was completed
	before, last uint64    // how many were begun before it, and at the last look
}

// vain reports whether one was begun since the last look, and is not the first since a
// handshake was completed: WireGuard begins another only if there is no answer.
func (c *calls) vain(made time.Time, begun uint64) bool {
	if !made.Equal(c.made) {
		c.made, c.before = made, begun
	}
	grown := begun != c.last
	c.last = begun
	return grown && begun-c.before > 1
}

// comeHome forgets the resolved endpoint if the device has another one: a peer that roamed,
// and whose session has ended, may be back where its name says.
func (d *Device) comeHome(at string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if at != d.endpoint.String() {
		d.endpoint = netip.AddrPort{}
	}
}

// updateEndpoint gives the device an address of the endpoint; vain: the one that it has
// does not answer.
func (d *Device) updateEndpoint(ctx context.Context, vain bool) error {
	d.mu.Lock()
	p, current := d.peer, d.endpoint
	d.mu.Unlock()
	if p.PublicKey == (wgkey.Key{}) {
		return nil // SetPeer asks for another look
	}
	if s, err := d.PeerStats(); err == nil && s.Endpoint != current.String() {
		vain = false // it has roamed, and is called where no address of the name is
	}
	next, err := resolve(ctx, p.Endpoint, current, vain)
	if err != nil || next == current {
		return err
	}
	if err := d.setEndpoint(&p, next); err != nil {
		return err
	}
	if !vain { // else addresses may take turns as long as the peer is away
		d.options.Log.WithField("endpoint", next).Info("peer endpoint set")
	}
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

// lookup is another one in tests.
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

// choose returns current if it is among addrs, or the one behind it if it was called in
// vain; else the first.
func choose(addrs []netip.Addr, current netip.Addr, vain bool) netip.Addr {
	switch at := slices.Index(addrs, current); {
	case at < 0:
		return addrs[0]
	case vain:
		return addrs[(at+1)%len(addrs)]
	}
	return current
}

// interleave has the families of addresses take turns, whose order is otherwise kept: what
// does not answer in one may in the other (RFC 8305, Section 4). The first stays, by which the resolver
// says what this machine reaches best (RFC 6724).
func interleave(addrs []netip.Addr) (turns []netip.Addr) {
	var families [2][]netip.Addr // that of the first address, and the other
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
