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
	dialTries   = 3               // endpoints that a client waits for
	dialTimeout = 3 * time.Second // for each: a SYN is repeated after 1 s (RFC 6298, Section 2.1)
	acceptPause = 50 * time.Millisecond
	idleParts   = 8 // each way looks after this part of the time whether bytes have passed
	tcpClose    = 7 // TCP_CLOSE of include/net/tcp_states.h
)

// A session is a connection of TCP between a client and an endpoint.
type session struct {
	door             *door
	client, backend  netip.AddrPort
	toClient, toPeer *net.TCPConn
	active           atomic.Int64 // when a byte has passed, at the latest: nanoseconds since the Server began
	ended            atomic.Int32 // ways that have
}

// accept takes connections until the door is closed.
func (d *door) accept() {
	for {
		conn, err := d.listener.AcceptTCP()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // there are no more descriptors, or the client has gone
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

// carry takes a connection to an endpoint and carries it until it ends.
func (d *door) carry(conn *net.TCPConn) {
	client := plain(conn.RemoteAddr().(*net.TCPAddr).AddrPort())
	if reason := d.crowd.take(client.Addr()); reason != nat.ReasonNone {
		d.refuse(conn, reason)
		return
	}
	defer d.crowd.give(client.Addr())
	peer, backend, reason := d.connect(client)
	if reason != nat.ReasonNone {
		d.refuse(conn, reason)
		return
	}
	x := &session{door: d, client: client, backend: backend, toClient: conn, toPeer: peer}
	if !d.enter(x) {
		x.reset()
		return
	}
	defer d.leave(x)
	d.stats.created[unix.IPPROTO_TCP].Add(1)
	x.carry()
}

// connect opens a connection to an endpoint for a client, and tells the endpoint of him.
func (d *door) connect(client netip.AddrPort) (*net.TCPConn, netip.AddrPort, nat.Reason) {
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
func (d *door) refuse(conn *net.TCPConn, reason nat.Reason) {
	d.stats.refused[unix.IPPROTO_TCP].add(reason)
	conn.SetLinger(0)
	conn.Close()
}

// enter notes a session, for those who may end it. It returns false if that is due.
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
	return x.door.engine.Keeps(x.client, x.door.at, packet.TCP, x.backend)
}

// judge ends a session that may not go on.
func (x *session) judge() {
	if !x.kept() {
		x.reset()
	}
}

// reset ends a session for both ends at once.
func (x *session) reset() {
	for _, conn := range []*net.TCPConn{x.toClient, x.toPeer} {
		conn.SetLinger(0)
		conn.Close()
	}
}

// carry returns when both ways have ended.
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

// pass notes that bytes have passed, or an end.
func (x *session) pass() { x.active.Store(int64(time.Since(x.door.began))) }

// idle is how long nothing may pass.
func (x *session) idle() time.Duration {
	if x.ended.Load() > 0 {
		return min(x.door.idle.half, x.door.idle.tcp)
	}
	return x.door.idle.tcp
}

// pump carries one way until it ends, and ends it for who receives. After an error, or when nothing passes either way for too long, both end.
//
// The deadline for reading comes round to see whether anything has passed: then nothing is lost, for it ends a splice between two chunks. What has
// passed the other way since that one looked is not known yet, so a connection has one such time more. That for writing ends the connection: who
// does not take anything for so long is gone.
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
		case !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(now) >= idle || time.Since(x.door.began)-time.Duration(x.active.Load()) >= idle:
			x.reset()
			return
		}
	}
}

// end ends one way for who receives. When the other one has ended too, all has been said. Until then it waits for from, of which nothing is read
// any more: without that, nobody would miss it while the other end says nothing.
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

// gone waits until a connection has been reset or its other end is not there any more, which the kernel asks from time to time (net.Dialer.KeepAlive).
// It returns false when the connection has been closed here.
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

// plain returns an address without a zone, IPv4 as such.
func plain(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}
