package gateway

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"golang.zx2c4.com/wireguard/device"
)

// wireguard owns the WireGuard device: its keys, its one peer and the peer's
// endpoint. Allowed IPs are 0.0.0.0/0 as in Liqo; nat checks the sources.
type wireguard struct {
	*device.Device
	log *logrus.Entry

	mu        sync.Mutex
	peer      Key            // +checklocks:mu
	keepalive string         // +checklocks:mu; the UAPI line
	endpoint  netip.AddrPort // +checklocks:mu; target, resolved; zero before
	target    string         // +checklocks:mu; host:port as configured

	retarget chan struct{} // target has changed
}

func newWireGuard(d *device.Device, c *WireGuardConfig, log *logrus.Entry) (*wireguard, error) {
	w := &wireguard{Device: d, log: log, peer: c.PeerPublicKey, retarget: make(chan struct{}, 1)}
	err := w.set(
		"private_key="+c.PrivateKey.hex(),
		"listen_port="+strconv.Itoa(int(c.ListenPort)),
	)
	if err != nil {
		return nil, err
	}
	return w, w.setPeer(c)
}

// setPeer makes c's peer the only one. A peer that stays keeps its endpoint and
// its session. A client's keepalive begins with its endpoint: without one, the
// first handshake would fail and the next be held back for device.RekeyTimeout.
func (w *wireguard) setPeer(c *WireGuardConfig) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	moved := c.PeerPublicKey != w.peer && w.endpoint.IsValid()
	if c.PeerPublicKey != w.peer {
		if err := w.set("public_key="+w.peer.hex(), "remove=true"); err != nil {
			return err
		}
		w.peer = c.PeerPublicKey
	}
	if c.Endpoint != w.target {
		w.target = c.Endpoint
		select {
		case w.retarget <- struct{}{}:
		default:
		}
	}
	lines := []string{"public_key=" + c.PeerPublicKey.hex(), "replace_allowed_ips=true", "allowed_ip=0.0.0.0/0"}
	w.keepalive = "persistent_keepalive_interval=" + strconv.Itoa(int(c.Keepalive/time.Second))
	if c.Role == Server || w.endpoint.IsValid() {
		lines = append(lines, w.keepalive)
	}
	if moved {
		lines = append(lines, "endpoint="+w.endpoint.String())
	}
	return w.set(lines...)
}

// setEndpoint tells the device where the peer is and begins a handshake, unless
// there is a session.
func (w *wireguard) setEndpoint(ep netip.AddrPort) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.set("public_key="+w.peer.hex(), "update_only=true", "endpoint="+ep.String(), w.keepalive); err != nil {
		return err
	}
	w.endpoint = ep
	if p := w.LookupPeer(device.NoisePublicKey(w.peer)); p != nil {
		p.SendKeepalive()
	}
	return nil
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
	target, current := w.target, w.endpoint
	w.mu.Unlock()
	next, err := resolve(ctx, target, current)
	if err != nil || next == current {
		return err
	}
	if err := w.setEndpoint(next); err != nil {
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
	uapiTimeout = 5 * time.Second
	errnoPerm   = 1 // EPERM
)

func (w *wireguard) answerUAPI(conn net.Conn) {
	conn.SetDeadline(time.Now().Add(uapiTimeout))
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return
	}
	if line != "get=1\n" {
		fmt.Fprintf(conn, "errno=%d\n\n", errnoPerm)
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
