package gateway

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

	"culvert/gateway/config"
	"culvert/gateway/wgkey"
)

// wireguard owns the WireGuard device: its keys, its one peer and the peer's
// endpoint. Allowed IPs are 0.0.0.0/0 as in Liqo; nat checks the sources.
type wireguard struct {
	*device.Device
	log *logrus.Entry

	mu sync.Mutex
	// as set last
	config config.WireGuard // +checklocks:mu
	// config.Endpoint, resolved; zero before
	endpoint netip.AddrPort // +checklocks:mu

	retarget chan struct{} // config.Endpoint has changed
}

func newWireGuard(d *device.Device, c *config.WireGuard, log *logrus.Entry) (*wireguard, error) {
	w := &wireguard{Device: d, log: log, retarget: make(chan struct{}, 1)}
	if ep, err := netip.ParseAddrPort(c.Endpoint); err == nil {
		w.endpoint = ep // nothing to resolve: the first packet finds the peer
	}
	err := w.set(
		"private_key="+hexKey(c.PrivateKey),
		"listen_port="+strconv.Itoa(int(c.ListenPort)),
	)
	if err != nil {
		return nil, err
	}
	return w, w.setPeer(c)
}

// setPeer makes c's peer the only one. A peer that stays keeps its session and its
// endpoint, which may have roamed. Another one gets an endpoint when followEndpoint has
// resolved it anew. Of a valid c it fails only when the device is closed.
func (w *wireguard) setPeer(c *config.WireGuard) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	old := w.config
	w.config = *c
	first, another := old.PeerPublicKey == (wgkey.Key{}), c.PeerPublicKey != old.PeerPublicKey
	if another || c.Endpoint != old.Endpoint {
		select {
		case w.retarget <- struct{}{}:
		default:
		}
	}
	switch {
	case first:
		return w.addPeer()
	case another:
		w.endpoint = netip.AddrPort{}
		if err := w.set("public_key="+hexKey(old.PeerPublicKey), "remove=true"); err != nil {
			return err
		}
		return w.addPeer()
	case c.Keepalive != old.Keepalive:
		return w.set("public_key="+hexKey(c.PeerPublicKey), "update_only=true", keepalive(c))
	}
	return nil
}

// hexKey is k as the WireGuard cross-platform configuration protocol writes it.
func hexKey(k wgkey.Key) string { return hex.EncodeToString(k[:]) }

// keepalive is the line of that protocol.
func keepalive(c *config.WireGuard) string {
	return "persistent_keepalive_interval=" + strconv.Itoa(int(c.Keepalive/time.Second))
}

// setEndpoint tells the device where the peer of c is and begins a handshake, unless
// there is a session. It does nothing if c is not the peer any longer.
func (w *wireguard) setEndpoint(c *config.WireGuard, ep netip.AddrPort) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.PeerPublicKey != w.config.PeerPublicKey || c.Endpoint != w.config.Endpoint {
		return nil // setPeer has sent for another answer
	}
	w.endpoint = ep
	if err := w.addPeer(); err != nil {
		return err
	}
	w.greet()
	return nil
}

// greet begins a handshake where there is no session and an endpoint is known: after
// a restart, nothing else would tell the peer that its session is dead.
//
// Preconditions: w.mu is held.
// +checklocks:w.mu
func (w *wireguard) greet() {
	if p := w.LookupPeer(device.NoisePublicKey(w.config.PeerPublicKey)); p != nil && w.endpoint.IsValid() {
		p.SendKeepalive()
	}
}

// up starts the device.
func (w *wireguard) up() error {
	if err := w.Up(); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.greet()
	return nil
}

// addPeer tells the device all about the peer. A client's peer does not exist before
// its endpoint is known: a handshake for the first packet would fail, and hold back
// the next one for device.RekeyTimeout.
//
// Preconditions: w.mu is held.
// +checklocks:w.mu
func (w *wireguard) addPeer() error {
	if w.config.Role == config.Client && !w.endpoint.IsValid() {
		return nil
	}
	lines := []string{
		"public_key=" + hexKey(w.config.PeerPublicKey),
		keepalive(&w.config),
	}
	if w.endpoint.IsValid() {
		lines = append(lines, "endpoint="+w.endpoint.String())
	}
	return w.set(append(lines, "replace_allowed_ips=true", "allowed_ip=0.0.0.0/0")...)
}

func (w *wireguard) set(lines ...string) error {
	if err := w.IpcSet(strings.Join(lines, "\n") + "\n"); err != nil {
		// The error of IpcSet names the key of the line, never a value.
		return fmt.Errorf("gateway: wireguard: %w", err)
	}
	return nil
}

// peerStats is what the device knows of the peer.
type peerStats struct {
	Endpoint       string
	LastHandshake  time.Time // zero: none
	Received, Sent uint64    // bytes of transport messages
}

func (w *wireguard) stats() (peerStats, error) {
	var s peerStats
	text, err := w.IpcGet()
	if err != nil {
		return s, fmt.Errorf("gateway: wireguard: %w", err)
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

// How often the peer's endpoint is resolved: at once until the first answer, then
// slowly while the tunnel works and faster while it does not.
const (
	resolveRetry    = 5 * time.Second
	resolveInterval = time.Minute
	sessionLifetime = 180 * time.Second // device.RejectAfterTime
)

// followEndpoint resolves the configured endpoint and tells the device each time
// it changes. An address that is still among the answers is kept, and so is the
// endpoint of a working session, which may have roamed.
func (w *wireguard) followEndpoint(ctx context.Context) {
	again := true // resolve even if there is a session
	for {
		wait := resolveInterval
		if s, _ := w.stats(); again || time.Since(s.LastHandshake) > sessionLifetime {
			again = false
			if err := w.updateEndpoint(ctx); err != nil {
				if ctx.Err() != nil {
					return
				}
				w.log.WithError(err).Warn("peer endpoint does not resolve; trying again")
				again, wait = true, resolveRetry
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-w.retarget:
			again = true
		case <-time.After(wait):
		}
	}
}

func (w *wireguard) updateEndpoint(ctx context.Context) error {
	w.mu.Lock()
	c, current := w.config, w.endpoint
	w.mu.Unlock()
	next, err := resolve(ctx, c.Endpoint, current)
	if err != nil || next == current {
		return err
	}
	if err := w.setEndpoint(&c, next); err != nil {
		return err
	}
	w.log.WithField("endpoint", next).Info("peer endpoint set")
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

// serveUAPI answers the "get" of wg(8) on l and refuses its "set". The private
// key is left out of the answer.
func (w *wireguard) serveUAPI(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			w.answerUAPI(conn)
		}()
	}
}

const (
	uapiTimeout    = 5 * time.Second
	maxUAPIRequest = 64 << 10
)

func (w *wireguard) answerUAPI(conn net.Conn) {
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
	text, err := w.IpcGet()
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
