package sockets

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/vishvananda/netlink"

	"culvert/gateway/node/services"
	"culvert/integration/need"
)

// The tests run in a network namespace of their own, in which one link has the addresses of all
// hosts.
func TestMain(m *testing.M) { need.TestsInNamespace(m) }

// Hosts, by family. Endpoints a and b are on this node, c is elsewhere.
var (
	nodeAt    = [2]string{"172.18.0.2", "fd18::2"}
	endpointA = [2]string{"10.244.1.5", "fd24:1::5"}
	endpointB = [2]string{"10.244.1.6", "fd24:1::6"}
	endpointC = [2]string{"10.244.2.5", "fd24:2::5"}
	pod       = [2]string{"10.244.2.9", "fd24:2::9"}
	outside   = [2]string{"198.51.100.9", "2001:db8::9"}
	stranger  = [2]string{"198.51.100.10", "2001:db8:1::9"}
)

func needHosts(t *testing.T) {
	t.Helper()
	need.Namespace(t)
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	need.NoError(t, err)
	hosts := [][2]string{nodeAt, endpointA, endpointB, endpointC, pod, outside, stranger}
	for _, host := range hosts {
		for _, address := range host {
			a := netip.MustParseAddr(address)
			ip := &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
			if err := netlink.AddrReplace(lo, &netlink.Addr{IPNet: ip, Flags: syscall.IFA_F_NODAD}); err != nil {
				t.Fatal(address, err)
			}
		}
	}
	// A kernel delivers to a new IPv6 address only after a moment. A connection before that fails,
	// and is retried a second later.
	for _, host := range hosts {
		for _, address := range host {
			need.Eventually(t, patience, address, func() error {
				routes, err := netlink.RouteGet(net.ParseIP(address))
				if err == nil && (len(routes) != 1 || routes[0].Type != syscall.RTN_LOCAL) {
					err = fmt.Errorf("routes %v", routes)
				}
				return err
			})
		}
	}
}

func quiet() *logrus.Logger {
	log := logrus.New()
	log.SetOutput(io.Discard)
	return log
}

// config returns a Service at node port 30080 of both families.
func config(protocol uint8, change func(*services.Service), endpoints ...[2]string) *services.Config {
	s := services.Service{Name: "web", Protocol: protocol, Port: 80, NodePort: 30080}
	for _, e := range endpoints {
		for _, address := range e {
			node := "n1"
			if e == endpointC {
				node = "n2"
			}
			s.Endpoints = append(s.Endpoints, services.Endpoint{Address: netip.MustParseAddr(address),
				Port: 8080, Node: node})
		}
	}
	if change != nil {
		change(&s)
	}
	c := &services.Config{
		Mode: services.Sockets, Node: "n1", Ports: defaultPorts, MTU: services.DefaultMTU,
		Services: []services.Service{s},
		Pods:     []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd24::/16")},
	}
	for _, address := range nodeAt {
		c.Addresses = append(c.Addresses, netip.MustParseAddr(address))
	}
	return c
}

// serving serves c until the end of the test.
func serving(t *testing.T, c *services.Config, change ...func(*idleTimes, *int)) *Server {
	t.Helper()
	idle, most := defaultIdle, 64
	for _, f := range change {
		f(&idle, &most)
	}
	s, err := newServer(c, false, quiet(), idle, most)
	need.NoError(t, err)
	stop, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		<-stop
		s.stop()
	}()
	go func() { ended <- s.Run(s.ctx) }()
	t.Cleanup(func() {
		close(stop)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if tcp, udp, streams := s.tcpLimit.count(), s.all.count(), s.all.streams.count(); tcp+udp+streams != 0 {
			t.Errorf("%d connections of TCP and %d of UDP, %d streams, are left", tcp, udp, streams)
		}
	})
	return s
}

// tolerating is serving with a tolerant server, which ends when end is called.
func tolerating(t *testing.T, c *services.Config) (s *Server, end func()) {
	t.Helper()
	s, err := New(c, true, quiet())
	need.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- s.Run(t.Context()) }()
	return s, func() {
		s.stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// lose takes an address from the machine until the end of the test.
func lose(t *testing.T, address string) {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.AddrDel(lo, &netlink.Addr{IPNet: netlink.NewIPNet(net.ParseIP(address))})
	}
	need.NoError(t, err)
	t.Cleanup(func() { needHosts(t) })
}

// listening passes TCP connections at an endpoint to serve.
func listening(t *testing.T, at string, serve func(*net.TCPConn)) {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(at, "8080"))
	need.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				serve(c.(*net.TCPConn))
			}()
		}
	}()
}

// naming makes endpoints send their addresses over TCP, and then echo.
func naming(t *testing.T, endpoints ...[2]string) {
	t.Helper()
	for _, e := range endpoints {
		for _, address := range e {
			listening(t, address, func(c *net.TCPConn) {
				fmt.Fprintf(c, "%-40s", address)
				io.Copy(c, c)
			})
		}
	}
}

const patience = 20 * time.Second

// dial connects from a host's address to the node port of its family.
func dial(t *testing.T, network, from string) (net.Conn, error) {
	t.Helper()
	return dialPort(t, network, from, "30080")
}

// dialPort is dial for another node port: tests that mostly wait have one each, and run in
// parallel.
func dialPort(t *testing.T, network, from, port string) (net.Conn, error) {
	t.Helper()
	a := netip.MustParseAddr(from)
	to := nodeAt[0]
	if a.Is6() {
		to = nodeAt[1]
	}
	d := net.Dialer{Timeout: patience}
	if network == "tcp" {
		d.LocalAddr = &net.TCPAddr{IP: a.AsSlice()}
	} else {
		d.LocalAddr = &net.UDPAddr{IP: a.AsSlice()}
	}
	c, err := d.Dial(network, net.JoinHostPort(to, port))
	if err == nil {
		c.SetDeadline(time.Now().Add(patience))
		t.Cleanup(func() { c.Close() })
	}
	return c, err
}
