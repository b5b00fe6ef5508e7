package sockets

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"culvert/nat"
	"culvert/nat/packet"
)

const (
	dialTries   = 3               // endpoints tried for a client
	dialTimeout = 3 * time.Second // for each: a SYN is repeated after 1 s (RFC 6298, Section 2.1)
	acceptPause = 50 * time.Millisecond
	idleParts   = 8 // each direction checks after this fraction of the time whether bytes have passed
	tcpClose    = 7 // TCP_CLOSE of include/net/tcp_states.h
)

// A session is a TCP connection between a client and an endpoint.
type session struct {
	socket           *listenSocket
	client, backend  netip.AddrPort
	toClient, toPeer *net.TCPConn
	active           atomic.Int64 // time of the last byte, possibly later: nanoseconds since the Server began
	ended            atomic.Int32 // directions that have ended
}

// accept accepts connections until the socket is closed.
func (d *listenSocket) accept() {
	for {
		conn, err := d.tcp.AcceptTCP()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // no descriptors are left, or the client has gone
			d.stats.acceptFailures.Add(1)
			select {
			case <-d.ctx.Done():
				return
			case <-time.After(acceptPause):
			}
		default:
			d.beside.Go(func() { d.carry(conn) })
		}
	}
}

// carry connects a client to an endpoint and carries the connection until it ends.
func (d *listenSocket) carry(conn *net.TCPConn) {
	client := plain(conn.RemoteAddr().(*net.TCPAddr).AddrPort())
	if reason := d.tcpLimit.take(client.Addr()); reason != nat.ReasonNone {
		d.refuse(conn, reason)
		return
	}
	defer d.tcpLimit.give(client.Addr())
	peer, backend, reason := d.connect(client)
	if reason != nat.ReasonNone {
		d.refuse(conn, reason)
		return
	}
	x := &session{socket: d, client: client, backend: backend, toClient: conn, toPeer: peer}
	if !d.enter(x) {
		x.reset()
		return
	}
	defer d.leave(x)
	d.stats.createdOf(unix.IPPROTO_TCP).Add(1)
	x.carry()
}

// connect opens a connection to an endpoint for a client, and sends the PROXY header if configured.
func (d *listenSocket) connect(client netip.AddrPort) (*net.TCPConn, netip.AddrPort, nat.Reason) {
	dialer := net.Dialer{Timeout: dialTimeout}
	var failed []netip.AddrPort
	for range dialTries {
		backend, reason := d.engine.Choose(client, d.at, packet.TCP, failed, d.now())
		if reason != nat.ReasonNone {
			return nil, backend, reason
		}
		conn, err := dialer.DialContext(d.ctx, "tcp", backend.String())
		if err == nil && d.proxied.Load() {
			header := packet.NewProxyHeader(client, d.at)
			if _, err = conn.Write(header.Bytes()); err != nil {
				conn.Close()
			}
		}
		if err == nil {
			return conn.(*net.TCPConn), backend, nat.ReasonNone
		}
		if d.ctx.Err() != nil {
			break
		}
		d.stats.failures.Add(1)
		failed = append(failed, backend)
	}
	return nil, netip.AddrPort{}, nat.ReasonNoBackend
}

// refuse resets a connection.
func (d *listenSocket) refuse(conn *net.TCPConn, reason nat.Reason) {
	d.stats.refusedOf(unix.IPPROTO_TCP).of(reason).Add(1)
	conn.SetLinger(0)
	conn.Close()
}

// enter registers a session so that it can be ended. It returns false if it must end at once.
func (s *Server) enter(x *session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil || !x.kept() {
		return false
	}
	s.sessions[x] = struct{}{}
	return true
}

func (s *Server) leave(x *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, x)
}

func (x *session) kept() bool {
	return x.socket.engine.Keeps(x.client, x.socket.at, packet.TCP, x.backend)
}

// judge ends a session that may not continue.
func (x *session) judge() {
	if !x.kept() {
		x.reset()
	}
}

// reset resets both connections of a session at once.
func (x *session) reset() {
	for _, conn := range []*net.TCPConn{x.toClient, x.toPeer} {
		conn.SetLinger(0)
		conn.Close()
	}
}

// carry returns when both directions have ended.
func (x *session) carry() {
	x.pass()
	back := make(chan struct{})
	go func() {
		x.pump(x.toClient, x.toPeer)
		close(back)
	}()
	x.pump(x.toPeer, x.toClient)
	<-back
}

// pass records that bytes have passed, or an end.
func (x *session) pass() { x.active.Store(int64(time.Since(x.socket.began))) }

// idle is how long the session may be idle.
func (x *session) idle() time.Duration {
	if x.ended.Load() > 0 {
		return min(x.socket.idle.half, x.socket.idle.tcp)
	}
	return x.socket.idle.tcp
}

// pump copies one direction until its sender closes it, and then half-closes it towards the
// receiver. After an error, or when neither direction carries anything for too long, both
// directions close.
//
// The read deadline expires to check whether anything has passed. It interrupts a splice between
// two chunks, so no byte is lost. The other direction reports at most one interval late, so allow
// one more. The write deadline closes the connection: a receiver that takes nothing for so long is
// gone.
func (x *session) pump(to, from *net.TCPConn) {
	for {
		look := x.idle() / idleParts
		idle := x.idle() + look
		now := time.Now()
		from.SetReadDeadline(now.Add(look))
		to.SetWriteDeadline(now.Add(idle))
		n, err := io.Copy(to, from)
		if n > 0 || err == nil {
			x.pass()
		}
		switch {
		case err == nil:
			x.end(to, from)
			return
		case !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(now) >= idle ||
			time.Since(x.socket.began)-time.Duration(x.active.Load()) >= idle:
			x.reset()
			return
		}
	}
}

// end half-closes towards the receiver. If the other direction is still open, it then waits for the
// sender's socket to die, which nothing else would notice.
func (x *session) end(to, from *net.TCPConn) {
	last := x.ended.Add(1) == 2
	if to.CloseWrite() != nil {
		x.reset()
		return
	}
	if last {
		x.toClient.Close()
		x.toPeer.Close()
		return
	}
	from.SetReadDeadline(time.Time{})
	if gone(from) && x.ended.Load() < 2 {
		x.reset()
	}
}

// gone waits until a connection was reset or its other end has disappeared, which the kernel checks
// from time to time (net.Dialer.KeepAlive). It returns false if the connection was closed here.
func gone(c *net.TCPConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	return raw.Read(func(fd uintptr) bool {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		return err == nil && info.State == tcpClose
	}) == nil
}

// plain returns an address without a zone, and IPv4 unmapped.
func plain(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}
