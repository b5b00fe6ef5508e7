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
	"time"

	"github.com/sirupsen/logrus"
	"golang.zx2c4.com/wireguard/device"
)

// wireguard owns the WireGuard device: its keys, its one peer and the peer's
// endpoint. Allowed IPs are 0.0.0.0/0 as in Liqo; nat checks the sources.
type wireguard struct {
	*device.Device
	log  *logrus.Entry
	peer Key
}

func newWireGuard(d *device.Device, c *WireGuardConfig, log *logrus.Entry) (*wireguard, error) {
	w := &wireguard{Device: d, log: log, peer: c.PeerPublicKey}
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
// its session.
func (w *wireguard) setPeer(c *WireGuardConfig) error {
	if c.PeerPublicKey != w.peer {
		if err := w.set("public_key="+w.peer.hex(), "remove=true"); err != nil {
			return err
		}
		w.peer = c.PeerPublicKey
	}
	return w.set(
		"public_key="+c.PeerPublicKey.hex(),
		"persistent_keepalive_interval="+strconv.Itoa(int(c.Keepalive/time.Second)),
		"replace_allowed_ips=true",
		"allowed_ip=0.0.0.0/0",
	)
}

func (w *wireguard) setEndpoint(ep netip.AddrPort) error {
	return w.set("public_key="+w.peer.hex(), "update_only=true", "endpoint="+ep.String())
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
func (w *wireguard) followEndpoint(ctx context.Context, endpoint string) {
	var current netip.AddrPort
	for {
		wait := resolveInterval
		s, _ := w.stats()
		if !current.IsValid() || time.Since(s.LastHandshake) > sessionLifetime {
			next, err := resolve(ctx, endpoint, current)
			switch {
			case ctx.Err() != nil:
				return
			case err != nil:
				w.log.WithError(err).WithField("endpoint", endpoint).Warn("peer endpoint does not resolve; trying again")
				wait = resolveRetry
			case next != current:
				if err := w.setEndpoint(next); err != nil {
					w.log.WithError(err).Error("peer endpoint refused")
					break
				}
				current = next
				w.log.WithField("endpoint", next).Info("peer endpoint set")
				// Do not wait for traffic or for a dead session's timers.
				w.SendKeepalivesToPeersWithCurrentKeypair()
				if p := w.LookupPeer(device.NoisePublicKey(w.peer)); p != nil {
					p.SendKeepalive()
				}
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
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
