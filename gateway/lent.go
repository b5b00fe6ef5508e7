package gateway

import (
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"culvert/gateway/handover"
	"culvert/gateway/seats"
	"culvert/geneve/udp"
)

// lentSocket is a UDP socket by its name in metrics.
type lentSocket struct {
	name   string
	socket *udp.Socket // nil: not of the kernel
	conn   *handover.Conn
}

// lend makes the opener of a tunnel's sockets, which another process can have; see package
// handover. name is that of the first, of the second it is followed by 6.
func (g *Gateway) lend(name string, o udp.Options) udp.Options {
	plain := o
	plain.ZeroChecksums = name == "geneve" // as package geneve asks of the sockets that it opens
	o.Open = func(network string, at netip.AddrPort) (udp.Conn, error) {
		own := name
		if network == "udp6" && name != "geneve" {
			own += "6"
		}
		l := lentSocket{name: own}
		var conn udp.Conn
		var err error
		shared := false // with the process before
		if l.socket, err = g.taken.socket(own, at.Port(), plain); l.socket != nil {
			shared, conn = true, l.socket
		} else if err == nil {
			if conn, err = udp.Open(network, at, plain); err == nil {
				l.socket, _ = conn.(*udp.Socket)
				shared = l.socket == nil && g.taken.has(own, at.Port())
			}
		}
		if err != nil {
			return nil, err
		}
		l.conn = handover.NewConn(conn)
		g.taken.hold(&l, shared)
		g.lent = append(g.lent, l)
		return l.conn, nil
	}
	return o
}

// tunnelSockets returns those of WireGuard.
func (g *Gateway) tunnelSockets() (all []*handover.Conn) {
	for _, l := range g.lent {
		if l.name != "geneve" {
			all = append(all, l.conn)
		}
	}
	return all
}

// An openFile is something that another process can have.
type openFile struct {
	handover.Socket
	file syscall.Conn // nil: it is of a network of the caller's, where both open it
}

// openFiles returns all that a process which takes over needs and only one can open.
func (g *Gateway) openFiles() (all []openFile) {
	for _, l := range g.lent {
		o := openFile{Socket: handover.Socket{Name: l.name, At: fmt.Sprint(l.conn.LocalAddr().Port())}}
		if l.socket != nil {
			o.file = l.socket
		}
		all = append(all, o)
	}
	for name, l := range g.listeners() {
		all = append(all, openFile{handover.Socket{Name: name, At: l.at}, l.Listener.(syscall.Conn)})
	}
	if lock := g.keeper.lockFile(); lock != nil {
		all = append(all, openFile{handover.Socket{Name: "lock"}, lock})
	}
	return all
}

// listenAt is a listener, and the field of the configuration that says where it is.
type listenAt struct {
	net.Listener
	at string
}

// listeners returns those that are open, by name.
func (g *Gateway) listeners() map[string]listenAt {
	g.mu.Lock()
	c := g.config
	g.mu.Unlock()
	all := make(map[string]listenAt)
	add := func(name string, l net.Listener, at string) {
		if s, ok := l.(*seats.Listener); ok && s != nil {
			l = s.Listener
		} else if ok {
			return
		}
		if l != nil {
			all[name] = listenAt{l, at}
		}
	}
	add("metrics", g.metrics.listener, c.Metrics)
	add("health", g.health.listener, c.Health)
	add("control", g.control.listener, "")
	add("uapi", g.uapi, "")
	for _, name := range []string{"control", "uapi"} {
		if l, ok := all[name]; ok {
			all[name] = listenAt{l.Listener, l.Addr().String()}
		}
	}
	return all
}

// keepFiles says whether the files of Unix sockets are left to another process. If not, who connects is told that they are this one's.
func (g *Gateway) keepFiles(leave bool) {
	for _, l := range g.listeners() {
		if u, ok := l.Listener.(*net.UnixListener); ok {
			u.SetUnlinkOnClose(!leave)
			if !leave {
				claim(u)
			}
		}
	}
}

// claim has the kernel name this process to who connects: SO_PEERCRED is of the last listen(2) (unix(7)), and the other process may be gone.
func claim(l syscall.Conn) {
	if raw, err := l.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) { unix.Listen(int(fd), math.MaxUint16) }) // at most net.core.somaxconn, as package net has it
	}
}

// duplicate returns another descriptor of what is open.
func duplicate(c syscall.Conn) (fd int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	if e := raw.Control(func(own uintptr) { fd, err = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0) }); e != nil {
		return -1, e
	}
	return fd, os.NewSyscallError("fcntl", err)
}
