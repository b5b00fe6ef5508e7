package wg

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"golang.zx2c4.com/wireguard/device"

	"culvert/gateway/wgkey"
	"culvert/geneve/udp"
)

// Device is a wireguard-go device with one peer. It owns the device's keys, the peer and
// the peer's endpoint. Allowed IPs are 0.0.0.0/0 as in Liqo; who takes the packets checks
// their sources.
type Device struct {
	options Options
	bind    *bind
	probe   *peerProbe
	device  *device.Device // nil before Open

	mu sync.Mutex
	// as set last
	peer Peer // +checklocks:mu
	// peer.Endpoint, resolved; zero before
	endpoint netip.AddrPort // +checklocks:mu

	retarget chan struct{} // peer.Endpoint has changed
}

// Options are what a Device has for life.
type Options struct {
	PrivateKey    wgkey.Key
	ListenPort    uint16     // 0 = any
	MTU           int        // of inner packets
	ReceiveBuffer int        // bytes of each socket's; 0: the default
	Own, Peer     netip.Addr // tunnel addresses, between which trains are probed
	Log           *logrus.Entry
}

// Peer is the other end of the tunnel.
type Peer struct {
	PublicKey wgkey.Key
	Endpoint  string        // host:port, "" = the peer comes to us
	Keepalive time.Duration // 0 = off
}

// Path is where inner packets come from and go to. Its functions may be called as soon as
// Open is.
type Path struct {
	// Read fills bufs[i][offset:] with packets for the peer and sizes[i] with their lengths.
	// It returns how many, and blocks until there is one. Its only error is os.ErrClosed,
	// after Close: any other would end the WireGuard device.
	Read func(bufs [][]byte, sizes []int, offset int) (int, error)
	// Write takes packets of the peer, bufs[i][offset:].
	//
	// borrowed: bufs belong to wireguard-go again when Write returns.
	Write func(bufs [][]byte, offset int)
	// Send takes a copy of a packet of our own, for a Read to come.
	Send func(packet []byte)
	// Close ends Read. It may be called more than once.
	Close func()
}

// New makes a Device; it does nothing before Open.
func New(o Options) *Device {
	d := &Device{options: o, retarget: make(chan struct{}, 1)}
	d.bind = newBind(newWindow(), newWindow(), newGate(o.PrivateKey.Public()))
	d.bind.receiveBuffer = o.ReceiveBuffer
	d.probe = newPeerProbe(d.bind, o.Own, o.Peer)
	return d
}

// Open joins the device with the path of its packets. It opens no socket; Up does.
func (d *Device) Open(path Path, peer Peer) error {
	d.probe.send = path.Send
	d.device = device.NewDevice(newTunDevice(path, d.bind.out, d.bind.in, d.options.MTU), d.bind,
		&device.Logger{Verbosef: d.options.Log.Tracef, Errorf: d.options.Log.Warnf})
	err := d.set(
		"private_key="+hexKey(d.options.PrivateKey),
		"listen_port="+strconv.Itoa(int(d.options.ListenPort)),
	)
	if err != nil {
		return err
	}
	if ep, err := netip.ParseAddrPort(peer.Endpoint); err == nil {
		d.mu.Lock()
		d.endpoint = ep // nothing to resolve: the first packet finds the peer
		d.mu.Unlock()
	}
	return d.SetPeer(peer)
}

// Close ends the device. It may be called before Open, and more than once.
func (d *Device) Close() {
	if d.device != nil {
		d.device.Close()
	}
}

// Wait returns a channel that is closed when the device has ended.
func (d *Device) Wait() <-chan struct{} { return d.device.Wait() }

// Poll wakes the blocked receiver of the socket that the peer uses, if something has come.
func (d *Device) Poll() { d.bind.poll() }

// Port is the port that the sockets are bound to.
func (d *Device) Port() uint16 { return d.bind.port() }

// SetPeer makes p the only peer. A peer that stays keeps its session and its
// endpoint, which may have roamed. Another one gets an endpoint when FollowEndpoint has
// resolved it anew. Of a valid p it fails only when the device is closed.
func (d *Device) SetPeer(p Peer) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	old := d.peer
	d.peer = p
	first, another := old.PublicKey == (wgkey.Key{}), p.PublicKey != old.PublicKey
	if another || p.Endpoint != old.Endpoint {
		select {
		case d.retarget <- struct{}{}:
		default:
		}
	}
	switch {
	case first:
		return d.addPeer()
	case another:
		d.endpoint = netip.AddrPort{}
		if err := d.set("public_key="+hexKey(old.PublicKey), "remove=true"); err != nil {
			return err
		}
		return d.addPeer()
	case p.Keepalive != old.Keepalive:
		return d.set("public_key="+hexKey(p.PublicKey), "update_only=true", p.keepalive())
	}
	return nil
}

// hexKey is k as the WireGuard cross-platform configuration protocol writes it.
func hexKey(k wgkey.Key) string { return hex.EncodeToString(k[:]) }

// keepalive is the line of that protocol.
func (p *Peer) keepalive() string {
	return "persistent_keepalive_interval=" + strconv.Itoa(int(p.Keepalive/time.Second))
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

// greet begins a handshake where there is no session and an endpoint is known: after
// a restart, nothing else would tell the peer that its session is dead.
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

// addPeer tells the device all about the peer. One that we go to does not exist before
// its endpoint is known: a handshake for the first packet would fail, and hold back
// the next one for device.RekeyTimeout.
//
// Preconditions: d.mu is held.
// +checklocks:d.mu
func (d *Device) addPeer() error {
	if d.peer.Endpoint != "" && !d.endpoint.IsValid() {
		return nil
	}
	lines := []string{
		"public_key=" + hexKey(d.peer.PublicKey),
		d.peer.keepalive(),
	}
	if d.endpoint.IsValid() {
		lines = append(lines, "endpoint="+d.endpoint.String())
	}
	return d.set(append(lines, "replace_allowed_ips=true", "allowed_ip=0.0.0.0/0")...)
}

func (d *Device) set(lines ...string) error {
	if err := d.device.IpcSet(strings.Join(lines, "\n") + "\n"); err != nil {
		// The error of IpcSet names the key of the line, never a value.
		return fmt.Errorf("wg: %w", err)
	}
	return nil
}

// PeerStats is what the device knows of the peer.
type PeerStats struct {
	Endpoint       string
	LastHandshake  time.Time // zero: none
	Received, Sent uint64    // bytes of transport messages
}

// Peer returns what the device knows of the peer. It fails only when the device is closed.
func (d *Device) Peer() (PeerStats, error) {
	var s PeerStats
	text, err := d.device.IpcGet()
	if err != nil {
		return s, fmt.Errorf("wg: %w", err)
	}
	var sec, nsec int64
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		n, _ := strconv.ParseInt(value, 10, 64)
		switch key {
		case "endpoint":
			s.Endpoint = value
		case "last_handshake_time_sec":
			sec = n
		case "last_handshake_time_nsec":
			nsec = n
		case "rx_bytes":
			s.Received = uint64(n)
		case "tx_bytes":
			s.Sent = uint64(n)
		}
	}
	if sec != 0 || nsec != 0 {
		s.LastHandshake = time.Unix(sec, nsec)
	}
	return s, nil
}

// Stats are the counters of a Device.
type Stats struct {
	Outbound, Inbound [NumReasons]uint64 // packets dropped, to and from the peer
	Trains            bool               // are sent to the peer
	LostTrains        uint64             // how often trains to the peer were found lost
	ReceivePauses     uint64             // of a receiver, after an error that the kernel reported
	Sockets           []udp.Stats        // IPv4 first
}

// Stats returns the counters.
func (d *Device) Stats() Stats {
	s := Stats{
		Inbound:       d.bind.gate.dropped(),
		Trains:        d.bind.offload() && !d.probe.Lost(),
		LostTrains:    d.probe.losses.Load(),
		ReceivePauses: d.bind.receiveStops.Load(),
		Sockets:       d.bind.stats(),
	}
	s.Outbound[TunnelDiscard] = uint64(d.bind.out.gone.Load())
	s.Inbound[TunnelDiscard] = uint64(d.bind.in.gone.Load())
	return s
}

// Settle is called once a second: it counts what wireguard-go has discarded.
func (d *Device) Settle() {
	d.bind.out.settleIdle()
	d.bind.in.settleIdle()
}

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
		if s, _ := d.Peer(); again || time.Since(s.LastHandshake) > sessionLifetime {
			again = false
			if err := d.updateEndpoint(ctx); err != nil {
				if ctx.Err() != nil {
					return
				}
				d.options.Log.WithError(err).Warn("peer endpoint does not resolve; trying again")
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

// ServeUAPI answers the "get" of wg(8) on l and refuses its "set". The private
// key is left out of the answer.
func (d *Device) ServeUAPI(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			d.answerUAPI(conn)
		}()
	}
}

const (
	uapiTimeout    = 5 * time.Second
	maxUAPIRequest = 64 << 10
)

func (d *Device) answerUAPI(conn net.Conn) {
	conn.SetDeadline(time.Now().Add(uapiTimeout))
	// Read to the empty line that ends a request: closing a socket with unread bytes
	// in it would take the answer away from the other end.
	r := bufio.NewReader(io.LimitReader(conn, maxUAPIRequest))
	request, err := r.ReadString('\n')
	for line := request; line != "\n"; line, err = r.ReadString('\n') {
		if err != nil {
			return
		}
	}
	if request != "get=1\n" {
		fmt.Fprintf(conn, "errno=%d\n\n", -int64(syscall.EPERM)) // negative, as device.IPCError is
		return
	}
	text, err := d.device.IpcGet()
	var ipc *device.IPCError
	if errors.As(err, &ipc) {
		fmt.Fprintf(conn, "errno=%d\n\n", ipc.ErrorCode())
		return
	}
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "private_key=") && !strings.HasPrefix(line, "preshared_key=") {
			conn.Write([]byte(line))
		}
	}
	fmt.Fprint(conn, "errno=0\n\n")
}
