package sockets

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"culvert/gateway/services"
)

// A door is a socket that listens for clients of a Service: one of TCP or one of UDP.
type door struct {
	*Server
	at       netip.AddrPort
	proxied  atomic.Bool // endpoints get a PROXY protocol header
	listener *net.TCPListener
	socket   *net.UDPConn

	flowing sync.Mutex
	// +checklocks:flowing
	shut bool
	// of UDP, by clients
	// +checklocks:flowing
	flows map[netip.AddrPort]*flow
}

var names = map[uint8]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp"}

// open listens at p.
func (s *Server) open(p *services.Place) (*door, error) {
	d := &door{Server: s, at: p.At, flows: map[netip.AddrPort]*flow{}}
	d.proxied.Store(p.ProxyProtocol)
	var err error
	if p.Protocol == unix.IPPROTO_TCP {
		d.listener, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(p.At))
	} else {
		d.socket, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(p.At))
	}
	if err != nil {
		return nil, explain(p, err)
	}
	return d, nil
}

// explain says why nothing listens at p, and what to do.
func explain(p *services.Place, err error) error {
	at := fmt.Sprintf("services: %s: %s: %s/%s", p.Service, p.Field, p.At, names[p.Protocol])
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		by := services.ListenerAt(p.Protocol, p.At)
		if by == "" {
			by = "a process of another user"
		}
		return fmt.Errorf("%s is in use by %s; stop that, or choose another port", at, by)
	case errors.Is(err, unix.EACCES):
		first := "1024"
		if b, err := os.ReadFile("/proc/sys/net/ipv4/ip_unprivileged_port_start"); err == nil {
			first = strings.TrimSpace(string(b))
		}
		return fmt.Errorf("%s needs CAP_NET_BIND_SERVICE, as all ports below %s; sysctl -w net.ipv4.ip_unprivileged_port_start=%d, "+
			"or setcap cap_net_bind_service=+ep on this program, or choose another port", at, first, p.At.Port())
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return fmt.Errorf("%s is not an address of this machine; ip -br address shows all", at)
	case errors.Is(err, unix.EMFILE):
		return fmt.Errorf("%s: this process has no descriptor left; raise its limit (ulimit -n)", at)
	}
	return fmt.Errorf("%s: %w", at, err)
}

// serve takes what comes until the door is closed.
func (d *door) serve() {
	if d.listener != nil {
		d.accept()
		return
	}
	d.receive()
}

// close ends it, and what is of UDP. Connections of TCP go on.
func (d *door) close() {
	if d.listener != nil {
		d.listener.Close()
		return
	}
	d.socket.Close()
	d.flowing.Lock()
	d.shut = true // what was received before begins nothing
	d.flowing.Unlock()
	d.end(func(*flow) bool { return true })
}
