package wg

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"golang.zx2c4.com/wireguard/device"

	"culvert/gateway/wgkey"
	"culvert/geneve/udp"
)

// Device is a wireguard-go device with one peer. It owns the keys, the peer and the peer's
// endpoint. Allowed IPs are 0.0.0.0/0, as in Liqo, and ::/0; the receiver of the packets checks
// their sources.
type Device struct {
	options Options
	bind    *bind
	probe   *peerProbe
	pings   pings
	device  *device.Device // nil before Open

	mu sync.Mutex
	// as last set
	peer Peer // +checklocks:mu
	// peer.Endpoint, resolved; zero before
	endpoint netip.AddrPort // +checklocks:mu
	// where the peer was last found to have roamed
	roamed roaming // +checklocks:mu

	retarget   chan struct{}         // signals that peer.Endpoint has changed
	unresolved atomic.Pointer[error] // why peer.Endpoint has no address; nil = it has one
}

// Options are fixed for the Device's life.
type Options struct {
	PrivateKey wgkey.Key
	ListenPort uint16 // 0 = any
	MTU        int    // of inner packets
	Sockets    udp.Options
	Own, Peer  netip.Addr // tunnel addresses, for train probes
	Log        *logrus.Entry
}

// Peer is the other end of the tunnel.
type Peer struct {
	PublicKey wgkey.Key
	// Preshared is mixed into handshakes; zero = none. A handshake succeeds only if the peer has
	// the same.
	Preshared wgkey.Key
	Endpoint  string // host:port, "" = the peer comes to us
	// its last known address from before this process: used until Endpoint or the peer provides a
	// better one
	Last      netip.AddrPort
	Keepalive time.Duration // 0 = off
}

// Path is the source and destination of inner packets. Its functions may be called as soon as Open
// is called.
type Path struct {
	// Read fills bufs[i][offset:] with packets for the peer and sizes[i] with their lengths. It
	// returns their number, and blocks until there is one. Its only error is os.ErrClosed, after
	// Close: any other would end the WireGuard device.
	Read func(bufs [][]byte, sizes []int, offset int) (int, error)
	// Write consumes packets from the peer, bufs[i][offset:].
	//
	// borrowed: bufs belong to wireguard-go again when Write returns.
	Write func(bufs [][]byte, offset int)
	// Send queues a copy of our own packet for a later Read.
	Send func(packet []byte)
	// Close ends Read. It may be called more than once.
	Close func()
}

// New makes a Device, which is inactive before Open.
func New(o Options) *Device {
	d := &Device{options: o, retarget: make(chan struct{}, 1)}
	d.bind = newBind(newWindow(), newWindow(), newAdmission(o.PrivateKey.Public()))
	d.bind.sockets = o.Sockets
	d.probe = newPeerProbe(d.bind, o.Own, o.Peer)
	return d
}

// Open connects the device with its Path. It opens no socket; Up does.
func (d *Device) Open(path Path, peer Peer) error {
	d.probe.send = path.Send
	d.device = device.NewDevice(newTunDevice(path, d.bind, d.options.MTU), d.bind,
		newDeviceLogger(d.options.Log, &d.bind.admission.handshakes))
	err := d.set(
		"private_key="+hexKey(d.options.PrivateKey),
		"listen_port="+strconv.Itoa(int(d.options.ListenPort)),
	)
	if err != nil {
		return err
	}
	return d.SetPeer(peer)
}

// newDeviceLogger makes wireguard-go log about the device. Its messages about the peer, which come
// every 5 s while the peer is absent, are debug messages: Talk and PeerStats show the same.
func newDeviceLogger(log *logrus.Entry, heard *handshakeStats) *device.Logger {
	verbose := func(format string, args ...any) {
		heard.hear(format, args)
		log.Tracef(format, args...)
	}
	return &device.Logger{Verbosef: verbose, Errorf: func(format string, args ...any) {
		if strings.HasPrefix(format, "%v - ") {
			log.Debugf(format, args...)
		} else {
			log.Warnf(format, args...)
		}
	}}
}

// Close ends the device. It may be called before Open, and more than once.
func (d *Device) Close() {
	if d.device == nil {
		return
	}
	d.mu.Lock()
	d.unhurried()
	d.mu.Unlock()
	d.device.Close()
}

// Wait returns a channel that is closed when the device has ended.
func (d *Device) Wait() <-chan struct{} { return d.device.Wait() }

// Poll wakes the blocked receiver of the peer's socket, if data has arrived.
func (d *Device) Poll() { d.bind.poll() }

// Port is the sockets' port.
func (d *Device) Port() uint16 { return d.bind.port() }

// SetPeer makes p the only peer; without a public key there is none. A peer that stays keeps its
// session and its endpoint, which may have roamed. A new one gets its endpoint at once if Endpoint
// is an address or Last is set, otherwise when FollowEndpoint has resolved the name. Another
// pre-shared key is used from the next handshake on; a session lives as long as it would without.
// For a valid p, SetPeer fails only when the device is closed.
func (d *Device) SetPeer(p Peer) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	old := d.peer
	d.peer = p
	another := p.PublicKey != old.PublicKey
	if another || p.Endpoint != old.Endpoint {
		select {
		case d.retarget <- struct{}{}:
		default:
		}
	}
	switch {
	case another:
		d.pings.reset()
		if old.PublicKey != (wgkey.Key{}) {
			if err := d.set("public_key="+hexKey(old.PublicKey), "remove=true"); err != nil {
				return err
			}
		}
		if d.endpoint, _ = netip.ParseAddrPort(p.Endpoint); !d.endpoint.IsValid() {
			d.endpoint = p.Last
		}
		if err := d.addPeer(); err != nil {
			return err
		}
		d.greet()
		d.hurry()
	case p.PublicKey != (wgkey.Key{}) && (p.Keepalive != old.Keepalive || p.Preshared != old.Preshared):
		err := d.set("public_key="+hexKey(p.PublicKey), "update_only=true", p.preshared(), p.keepalive())
		if err == nil && p.Preshared != old.Preshared {
			d.retry()
		}
		return err
	}
	return nil
}

// retry hurries a handshake if the peer has no session: it may have had none for long, for want of
// the new pre-shared key.
//
// Preconditions: d.mu is held.
// +checklocks:d.mu
func (d *Device) retry() {
	if s, err := d.PeerStats(); err == nil && time.Since(s.LastHandshake) > SessionLifetime {
		d.greet()
		d.hurry()
	}
}

// hexKey is k in the format of the WireGuard cross-platform configuration protocol.
func hexKey(k wgkey.Key) string { return hex.EncodeToString(k[:]) }

// preshared is a line of the same protocol.
func (p *Peer) preshared() string { return "preshared_key=" + hexKey(p.Preshared) }

// keepalive is a line of the same protocol.
func (p *Peer) keepalive() string {
	return "persistent_keepalive_interval=" + strconv.Itoa(int(p.Keepalive/time.Second))
}

// greet starts a handshake if there is no session and the endpoint is known: after a restart,
// nothing else would tell the peer that its session is dead.
//
// Preconditions: d.mu is held.
// +checklocks:d.mu
func (d *Device) greet() {
	if p := d.device.LookupPeer(device.NoisePublicKey(d.peer.PublicKey)); p != nil && d.endpoint.IsValid() {
		p.SendKeepalive()
	}
}

// Up opens the sockets and starts the device.
func (d *Device) Up() error {
	if err := d.device.Up(); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.greet()
	return nil
}

// addPeer configures the peer in the device. A peer with a configured endpoint is added only once
// the endpoint is resolved: before, a handshake for the first packet would fail and delay the next
// one by device.RekeyTimeout.
//
// Preconditions: d.mu is held.
// +checklocks:d.mu
func (d *Device) addPeer() error {
	if d.peer.PublicKey == (wgkey.Key{}) || d.peer.Endpoint != "" && !d.endpoint.IsValid() {
		return nil
	}
	lines := []string{
		"public_key=" + hexKey(d.peer.PublicKey),
		d.peer.preshared(),
		d.peer.keepalive(),
	}
	if d.endpoint.IsValid() {
		lines = append(lines, "endpoint="+d.endpoint.String())
	}
	return d.set(append(lines, "replace_allowed_ips=true", "allowed_ip=0.0.0.0/0", "allowed_ip=::/0")...)
}

func (d *Device) set(lines ...string) error {
	if err := d.device.IpcSet(strings.Join(lines, "\n") + "\n"); err != nil {
		// The error of IpcSet names the key of the line, never a value.
		return fmt.Errorf("wg: %w", err)
	}
	return nil
}
