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

	"culvert/gateway/node/services"
)

// A listenSocket listens for clients of a Service, over TCP or UDP.
type listenSocket struct {
	*Server
	at      netip.AddrPort
	proxied atomic.Bool // endpoints get a PROXY protocol header
	tcp     *net.TCPListener
	udp     *net.UDPConn

	flowing sync.Mutex
	// +checklocks:flowing
	shut bool
	// UDP flows by client +checklocks:flowing
	flows map[netip.AddrPort]*flow
}

var names = map[uint8]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp"}

// open listens at p. holder names the process that occupies p.
func (s *Server) open(p *services.Place, holder func(*services.Place) string) (*listenSocket, error) {
	d := &listenSocket{Server: s, at: p.At, flows: map[netip.AddrPort]*flow{}}
	d.proxied.Store(p.ProxyProtocol)
	var err error
	if p.Protocol == unix.IPPROTO_TCP {
		d.tcp, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(p.At))
	} else {
		d.udp, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(p.At))
	}
	if err != nil {
		return nil, explain(p, err, holder)
	}
	return d, nil
}

// explain adds the reason why nothing listens at p, and a remedy.
func explain(p *services.Place, err error, holder func(*services.Place) string) error {
	at := fmt.Sprintf("services: %s: %s: %s/%s", p.Service, p.Field, p.At, names[p.Protocol])
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		by := holder(p)
		if by == "" {
			by = "a process of another user"
		}
		return fmt.Errorf("%s is in use by %s; stop that, or choose another port", at, by)
	case errors.Is(err, unix.EACCES):
		first := "1024"
		if b, err := os.ReadFile("/proc/sys/net/ipv4/ip_unprivileged_port_start"); err == nil {
			first = strings.TrimSpace(string(b))
		}
		return fmt.Errorf(
			"%s needs CAP_NET_BIND_SERVICE, as all ports below %s; sysctl -w net.ipv4.ip_unprivileged_port_start=%d, "+
				"or setcap cap_net_bind_service=+ep on this program, or choose another port", at, first, p.At.Port())
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return fmt.Errorf("%s is not an address of this machine; ip -br address shows all", at)
	case errors.Is(err, unix.EMFILE):
		return fmt.Errorf("%s: this process has no descriptor left; raise its limit (ulimit -n)", at)
	}
	return fmt.Errorf("%s: %w", at, err)
}

// serve accepts connections or packets until the socket is closed.
func (d *listenSocket) serve() {
	if d.tcp != nil {
		d.accept()
		return
	}
	d.receive()
}

// close closes the socket and its UDP flows. TCP connections continue.
func (d *listenSocket) close() {
	if d.tcp != nil {
		d.tcp.Close()
		return
	}
	d.udp.Close()
	d.flowing.Lock()
	d.shut = true // packets received earlier start no flow
	d.flowing.Unlock()
	d.end(func(*flow) bool { return true })
}
