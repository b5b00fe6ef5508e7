package lifecycle

import (
	"fmt"
	"math"
	"net"
	"net/netip"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"culvert/gateway/handover"
	"culvert/gateway/seats"
	"culvert/geneve/udp"
)

// lentSocket is a UDP socket that another process may get, with its name in metrics.
type lentSocket struct {
	name   string
	socket *udp.Socket // nil: not of the kernel
	conn   *handover.Conn
}

// Mute makes the sockets of a tunnel, geneve or wireguard, send nothing and discard what arrives,
// counted as path.DropStandby; or ends that. It also applies to sockets that are opened later.
func (life *Life) Mute(tunnel string, on bool) {
	if life.muted == nil {
		life.muted = make(map[string]bool)
	}
	life.muted[tunnel] = on
	for _, l := range life.lent {
		if strings.TrimSuffix(l.name, "6") == tunnel {
			life.applyMute(tunnel, l.conn)
		}
	}
}

func (life *Life) applyMute(tunnel string, conn *handover.Conn) {
	if !life.muted[tunnel] {
		conn.Own()
		return
	}
	conn.Mute(func(datagrams int) {
		of := life.path.Inbound()
		if tunnel == "geneve" {
			of = life.path.Outbound()
		}
		of.Discard(datagrams)
	})
}

// Lend returns o with an Open function whose sockets can be handed to another process; see package
// handover. The first socket is called name, the second name6.
func (life *Life) Lend(name string, o udp.Options) udp.Options {
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
		if l.socket, err = life.taken.socket(own, at.Port(), plain); l.socket != nil {
			conn = l.socket
		} else if err == nil {
			if conn, err = udp.Open(network, at, plain); err == nil {
				l.socket, _ = conn.(*udp.Socket)
			}
		}
		if err != nil {
			return nil, err
		}
		l.conn = handover.NewConn(conn)
		life.taken.hold(&l)
		life.lent = append(life.lent, l)
		if life.muted[name] {
			life.applyMute(name, l.conn)
		}
		return l.conn, nil
	}
	return o
}

// relay returns r for a socket of WireGuard, nil for another one.
func (l *lentSocket) relay(r *handover.Relay) *handover.Relay {
	if l.name == "geneve" {
		return nil
	}
	return r
}

// tunnelSockets returns WireGuard's sockets.
func (life *Life) tunnelSockets() (all []*handover.Conn) {
	for _, l := range life.lent {
		if l.name != "geneve" {
			all = append(all, l.conn)
		}
	}
	return all
}

// openFiles returns the files that a process that takes over needs and that only one process can
// open.
func (life *Life) openFiles() (all []handover.Opened) {
	for _, l := range life.lent {
		port := fmt.Sprint(l.conn.LocalAddr().Port())
		if l.socket == nil {
			all = append(all, handover.Opened{Socket: handover.Socket{Name: l.name, At: port}})
		} else {
			all = append(all, handover.Open(l.name, port, l.socket))
		}
	}
	for name, l := range life.listeners() {
		all = append(all, handover.Open(name, l.at, l.Listener.(syscall.Conn)))
	}
	if dir := life.keeper.Dir; dir != nil {
		all = append(all, handover.Open("lock", "", dir.LockFile()))
	}
	return all
}

// listenAt is a listener, and the field of the configuration with its address.
type listenAt struct {
	net.Listener
	at string
}

// listeners returns the open listeners by name.
func (life *Life) listeners() map[string]listenAt {
	all := make(map[string]listenAt)
	for name, l := range life.Listeners() {
		if s, ok := l.(*seats.Listener); ok {
			l = s.Listener
		}
		at := l.Addr().String()
		c, _ := life.Current.Get()
		switch name {
		case "metrics":
			at = c.Metrics
		case "health":
			at = c.Health
		}
		all[name] = listenAt{l, at}
	}
	return all
}

// keepFiles says whether the files of Unix sockets are left to another process. If not, clients see
// this process as their owner.
func (life *Life) keepFiles(leave bool) {
	for _, l := range life.listeners() {
		if u, ok := l.Listener.(*net.UnixListener); ok {
			u.SetUnlinkOnClose(!leave)
			if !leave {
				claim(u)
			}
		}
	}
}

// claim makes the kernel name this process to clients, because SO_PEERCRED names the last caller of
// listen(2) (unix(7)), which may have exited.
func claim(l syscall.Conn) {
	if raw, err := l.SyscallConn(); err == nil {
		// at most net.core.somaxconn, as package net has it
		raw.Control(func(fd uintptr) { unix.Listen(int(fd), math.MaxUint16) })
	}
}
