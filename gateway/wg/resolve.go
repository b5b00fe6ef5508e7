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

// How often the peer's endpoint is resolved: at once until the first answer, after each unanswered
// handshake, and slowly while there is no session and no attempt.
const (
	resolveRetry    = 5 * time.Second // at least device.RekeyTimeout of wireguard-go, between two handshakes
	resolveInterval = time.Minute
	// SessionLifetime is how long keys serve after their handshake (WireGuard paper, Section 6.5:
	// Reject-After-Time).
	SessionLifetime = device.RejectAfterTime
	// lostTime is how long after the last message a peer that owes an answer is taken for lost
	// (WireGuard paper, Section 6.5).
	lostTime = device.KeepaliveTimeout + device.RekeyTimeout
)

// FollowEndpoint resolves the configured endpoint and updates the device when it changes. It keeps
// an address that is still among the answers as long as the peer answers there, and the endpoint of
// a working session, which may have roamed. If a peer that has roamed is lost, it tries the name's
// addresses and the peer's last one in turn: the name may now lead to another gateway that has
// replaced the peer.
func (d *Device) FollowEndpoint(ctx context.Context) {
	again := true // resolve even if there is a session
	var calls calls
	var resolved time.Time
	for {
		s, _ := d.PeerStats()
		now := time.Now()
		vain := calls.vain(s.LastHandshake, d.bind.admission.handshakes.sentInitiations.Load())
		lost := calls.lost(s.Received, now)
		dead := now.Sub(s.LastHandshake) > SessionLifetime
		if again || vain || dead && now.Sub(resolved) >= resolveInterval {
			again, resolved = false, now
			if dead && !s.LastHandshake.IsZero() {
				d.comeHome(s.Endpoint)
			}
			err := d.updateEndpoint(ctx, vain, lost)
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

// calls keeps how many handshakes were started, and how much the peer has sent.
type calls struct {
	made         time.Time // time of the last completed handshake
	before, last uint64    // how many were started before it, and until the last check
	received     uint64    // bytes until the last check
	heard        time.Time // when received last grew
}

// vain reports whether, since the last check, a handshake was started that was not the first since
// the last completed one: WireGuard starts another only if it gets no answer.
func (c *calls) vain(made time.Time, begun uint64) bool {
	if !made.Equal(c.made) {
		c.made, c.before = made, begun
	}
	grown := begun != c.last
	c.last = begun
	return grown && begun-c.before > 1
}

// lost reports whether the peer has sent nothing for lostTime. received is the total of bytes that
// it has sent.
func (c *calls) lost(received uint64, now time.Time) bool {
	if received != c.received {
		c.received, c.heard = received, now
	}
	return now.Sub(c.heard) >= lostTime
}

// comeHome forgets the resolved endpoint if the device uses another one: a peer that roamed, and
// whose session has ended, may be back at its name's address.
func (d *Device) comeHome(at string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.roamed = roaming{}
	if at != d.endpoint.String() {
		d.endpoint = netip.AddrPort{}
	}
}

// roaming is the address of a peer that had left its name's addresses, and the session that it had
// there.
type roaming struct {
	at   netip.AddrPort
	made time.Time
}

// updateEndpoint gives the device an address of the endpoint. vain: the current one does not
// answer. lost: the peer has sent nothing either.
func (d *Device) updateEndpoint(ctx context.Context, vain, lost bool) error {
	s, err := d.PeerStats()
	if err != nil {
		return nil // the device is closed
	}
	at, _ := netip.ParseAddrPort(s.Endpoint)
	d.mu.Lock()
	p, current := d.peer, d.endpoint
	if at.IsValid() && current.IsValid() && at != current {
		d.roamed = roaming{at, s.LastHandshake}
		vain = vain && lost // a working session stays where it is
	}
	roamed := d.roamed
	d.mu.Unlock()
	if p.PublicKey == (wgkey.Key{}) {
		return nil // SetPeer requests another check
	}
	all, err := resolve(ctx, p.Endpoint)
	if err != nil {
		return err
	}
	names := len(all)
	if vain {
		current = at
		if roamed.at.IsValid() && roamed.made.Equal(s.LastHandshake) {
			all = append(all, roamed.at)
		}
	}
	next := choose(all, current, vain)
	if next == current {
		return nil
	}
	if err := d.setEndpoint(&p, next, slices.Index(all, next) < names); err != nil {
		return err
	}
	if !vain { // otherwise addresses may alternate as long as the peer is away
		d.options.Log.WithField("endpoint", next).Info("peer endpoint set")
	}
	return nil
}

// setEndpoint sets p's address in the device and starts a handshake, unless there is a session. It
// does nothing if p is no longer the peer. named: the address is one of the endpoint's.
func (d *Device) setEndpoint(p *Peer, ep netip.AddrPort, named bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p.PublicKey != d.peer.PublicKey || p.Endpoint != d.peer.Endpoint {
		return nil // SetPeer requests another lookup
	}
	was := d.endpoint
	d.endpoint = ep
	fresh := d.device.LookupPeer(device.NoisePublicKey(p.PublicKey)) == nil
	err := d.addPeer()
	if !named {
		d.endpoint = was
	}
	if err != nil {
		return err
	}
	d.greet()
	if fresh {
		d.hurry()
	}
	return nil
}

// tests replace lookup
var lookup = net.DefaultResolver.LookupNetIP

// resolve returns the addresses of endpoint (host:port), in the order in which they are to be
// called.
func resolve(ctx context.Context, endpoint string) (all []netip.AddrPort, err error) {
	host, service, err := net.SplitHostPort(endpoint)
	if err != nil {
		return nil, err
	}
	port, err := strconv.ParseUint(service, 10, 16)
	if err != nil {
		return nil, err
	}
	addrs, err := lookup(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	if len(addrs) == 0 {
		return nil, fmt.Errorf("%s has no address", host)
	}
	for _, a := range interleave(addrs) {
		all = append(all, netip.AddrPortFrom(a, uint16(port)))
	}
	return all, nil
}

// choose returns current if it is among all, or the one after it if a handshake to it was in vain;
// otherwise the first.
func choose(all []netip.AddrPort, current netip.AddrPort, vain bool) netip.AddrPort {
	switch at := slices.Index(all, current); {
	case at < 0:
		return all[0]
	case vain:
		return all[(at+1)%len(all)]
	}
	return current
}

// interleave alternates the families of addresses and otherwise keeps their order: if one family
// does not work, the other may (RFC 8305, Section 4). The first address stays first: the resolver
// puts what this machine reaches best there (RFC 6724).
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
