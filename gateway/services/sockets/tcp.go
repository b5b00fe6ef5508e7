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
	idleParts   = 8 // an idle connection is seen late by this part of the time at most
)

// A session is a connection of TCP between a client and an endpoint.
type session struct {
	door             *door
	client, backend  netip.AddrPort
	toClient, toPeer *net.TCPConn
	active           atomic.Int64 // when a byte has passed, at the latest: nanoseconds since the Server began
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
	crowd := d.crowds[unix.IPPROTO_TCP]
	if reason := crowd.take(client.Addr()); reason != nat.ReasonNone {
		d.refuse(conn, reason)
		return
	}
	defer crowd.give(client.Addr())
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
	x.active.Store(int64(time.Since(x.door.began)))
	back := make(chan struct{})
	go func() {
		x.pump(x.toClient, x.toPeer)
		close(back)
	}()
	x.pump(x.toPeer, x.toClient)
	<-back
	x.toClient.Close()
	x.toPeer.Close()
}

// pump carries one way until it ends, and ends it for who receives. After an error, or when nothing passes either way for too long, both end.
//
// The deadline for reading comes round to see whether anything has passed: then nothing is lost, for it ends a splice between two chunks. That for
// writing ends the connection: who does not take anything for so long is gone.
func (x *session) pump(to, from *net.TCPConn) {
	idle := x.door.idle.tcp
	for {
		now := time.Now()
		from.SetReadDeadline(now.Add(idle / idleParts))
		to.SetWriteDeadline(now.Add(idle))
		n, err := io.Copy(to, from)
		passed := time.Since(x.door.began)
		if n > 0 {
			x.active.Store(int64(passed))
		}
		switch {
		case err == nil:
			if to.CloseWrite() != nil {
				x.reset()
			}
			return
		case !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(now) >= idle || passed-time.Duration(x.active.Load()) >= idle:
			x.reset()
			return
		}
	}
}

// plain returns an address without a zone, IPv4 as such.
func plain(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}
