package services

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus/hooks/test"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"culvert/gateway/node/rtnl"
	"culvert/gateway/node/services/steer"
	"culvert/integration/need"
)

func TestMain(m *testing.M) { need.TestsInNamespace(m) }

var both = []int{unix.AF_INET, unix.AF_INET6}

// table is the one with the routes to the device.
const table = 7091

// localRule returns a rule for the local table, as culvert makes it.
func localRule(priority int) *netlink.Rule {
	r := netlink.NewRule()
	r.Family, r.Priority, r.Table, r.Protocol = unix.AF_INET, priority, unix.RT_TABLE_LOCAL, unix.RTPROT_KERNEL
	return r
}

const (
	patient    = 20 * time.Second
	serverFile = `
addresses: [172.18.0.2, "fd18::2"]
pods: [10.244.0.0/16, "fd24::/16"]
serviceCIDRs: [10.96.0.0/12, "fd96::/112"]
serve:
- {name: web, clusterIP: [10.96.0.10, "fd96::10"], port: 80, nodePort: 30010, endpoints: [PA]}
- {name: dns, protocol: udp, clusterIP: [10.96.0.10, "fd96::10"], port: 80, nodePort: 30010, endpoints: [PA]}
`
	more = `- {name: more, clusterIP: [10.96.0.15, "fd96::15"], port: 80, nodePort: 30015, endpoints: [PC]}` + "\n"
)

// podAddresses are on this machine: their servers say first which pod they are, and echo over TCP.
var podAddresses = map[string][2]string{"pa": {"10.244.1.5", "fd24:1::5"}, "pc": {"10.244.1.6", "fd24:1::6"}}

// A node is this process's network, with a link, two pods and what Servers log.
type node struct {
	*testing.T
	lan  netlink.Link
	logs *test.Hook
}

func newNode(t *testing.T) *node {
	t.Helper()
	need.Namespace(t)
	tun, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	need.Kernel(t, "tun", err)
	tun.Close()
	upLoopback(t)
	n := &node{T: t, lan: addNetwork(t, "lan", "172.18.0.2/24", "fd18::2/64")}
	pods := addNetwork(t, "pods", "10.244.1.5/32", "10.244.1.6/32", "fd24:1::5/128", "fd24:1::6/128")
	t.Cleanup(func() {
		_, err := steer.RemoveRemains(true)
		need.NoError(t, errors.Join(err, netlink.LinkDel(n.lan), netlink.LinkDel(pods)))
	})
	for pod, addresses := range podAddresses {
		for _, a := range addresses {
			n.serve(pod, net.JoinHostPort(a, "8080"))
		}
	}
	need.Eventually(t, patient, "local routes to IPv6 addresses", func() error { // the kernel makes them later
		if is := n.kernelState(); strings.Count(is, "::2/128 ")+strings.Count(is, "fd24:1::") < 5 {
			return errors.New(is)
		}
		return nil
	})
	return n
}

// addNetwork makes a link with addresses.
func addNetwork(t *testing.T, name string, addresses ...string) netlink.Link {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.Flags = name, net.FlagUp
	link := netlink.NewVeth(attrs)
	link.PeerName = name + "peer"
	need.NoError(t, netlink.LinkAdd(link))
	for _, a := range addresses {
		need.NoError(t, netlink.AddrAdd(link, kernelAddress(t, a)))
	}
	return link
}

// kernelAddress returns an address with its network, which is usable at once.
func kernelAddress(t *testing.T, prefix string) *netlink.Addr {
	t.Helper()
	network, err := netlink.ParseIPNet(prefix)
	need.NoError(t, err)
	return &netlink.Addr{IPNet: network, Flags: unix.IFA_F_NODAD}
}

func upLoopback(t *testing.T) {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	need.NoError(t, err)
	if lo.Attrs().Flags&net.FlagUp == 0 {
		need.NoError(t, netlink.LinkSetUp(lo))
	}
}

func (n *node) serve(pod, at string) {
	n.Helper()
	l, err := net.Listen("tcp", at)
	need.NoError(n, err)
	p, err := net.ListenPacket("udp", at)
	need.NoError(n, err)
	n.Cleanup(func() { l.Close(); p.Close() })
	go func() {
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			go func() {
				defer conn.Close()
				conn.Write([]byte(pod))
				io.Copy(conn, conn)
			}()
		}
	}()
	go func() {
		for b := make([]byte, 100); ; {
			_, from, err := p.ReadFrom(b)
			if err != nil {
				return
			}
			p.WriteTo([]byte(pod), from)
		}
	}()
}

// config reads serverFile with old text replaced by new.
func (n *node) config(oldnew ...string) *Config {
	n.Helper()
	places := []string{"PA",
		`{address: 10.244.1.5, port: 8080, node: n1}, {address: "fd24:1::5", port: 8080, node: n1}`}
	places = append(places, "PC", strings.NewReplacer("::5", "::6", "1.5", "1.6").Replace(places[1]))
	c, err := parseText(n.T, strings.NewReplacer(places...).Replace(strings.NewReplacer(oldnew...).Replace(serverFile)))
	need.NoError(n, err)
	return c
}

// A running Server runs until stop is called.
type running struct {
	*Server
	ended chan error
	stop  func()
}

func (n *node) start(c *Config) *running {
	n.Helper()
	s, err := n.open(c)
	need.NoError(n, err)
	return n.run(s)
}

// open calls New with a new log.
func (n *node) open(c *Config) (*Server, error) {
	log, hook := test.NewNullLogger()
	n.logs = hook
	return New(c, false, log)
}

func (n *node) run(s *Server) *running {
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{Server: s, ended: make(chan error, 1)}
	go func() { r.ended <- s.Run(ctx) }()
	r.stop = func() {
		n.Helper()
		if ctx.Err() == nil {
			cancel()
			need.NoError(n, <-r.ended)
		}
	}
	n.Cleanup(r.stop)
	return r
}

// logged waits until a message, or its error, contains text.
func (n *node) logged(text string) {
	n.Helper()
	need.Eventually(n, patient, text, func() error {
		var all []string
		for _, e := range n.logs.AllEntries() {
			all = append(all, fmt.Sprint(e.Message, " ", e.Data))
		}
		if s := strings.Join(all, "\n"); !strings.Contains(s, text) {
			return errors.New(s)
		}
		return nil
	})
}

// A stream is a client's connection, and the pod that answers.
type stream struct {
	net.Conn
	who string
}

func dial(network, to string) (*stream, error) {
	conn, err := net.DialTimeout(network, to, patient)
	if err != nil {
		return nil, err
	}
	s := &stream{Conn: conn}
	if network == "udp" {
		_, err = conn.Write([]byte("?"))
	}
	if err == nil {
		s.who, err = s.hear()
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return s, nil
}

func (s *stream) hear() (string, error) {
	b := make([]byte, 100)
	s.SetDeadline(time.Now().Add(patient))
	n, err := s.Read(b)
	return string(b[:n]), err
}

// end closes a TCP connection from both sides, so that no Server keeps it.
func (s *stream) end() error {
	defer s.Close()
	if err := s.Conn.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	if rest, err := s.hear(); err != io.EOF {
		return fmt.Errorf("at the end: %q, %v", rest, err)
	}
	return nil
}

func (n *node) dial(network, to string) *stream {
	n.Helper()
	s, err := dial(network, to)
	need.NoError(n, err)
	n.Cleanup(func() { s.Close() })
	return s
}

// requireAnswer sends what a pod answers over UDP and echoes over TCP.
func (n *node) requireAnswer(when string, s *stream, want string) {
	n.Helper()
	_, err := s.Write([]byte("still"))
	if got, hearErr := s.hear(); err != nil || hearErr != nil || got != want {
		n.Errorf("%s: %q, want %q: %v, %v", when, got, want, err, hearErr)
	}
}

// requireServed asks at addresses over TCP.
func (n *node) requireServed(when, who string, at ...string) {
	n.Helper()
	for _, to := range at {
		if s, err := dial("tcp", to); err != nil {
			n.Errorf("%s: %s: %v", when, to, err)
		} else if err := s.end(); err != nil || s.who != who {
			n.Errorf("%s: %s: %s answers, want %s: %v", when, to, s.who, who, err)
		}
	}
}

// kernelRules describes all rules.
func kernelRules(t *testing.T) (all []string) {
	t.Helper()
	for _, family := range both {
		list, err := rtnl.List(func() ([]netlink.Rule, error) { return netlink.RuleList(family) })
		need.NoError(t, err)
		for i := range list {
			all = append(all, steer.Describe(&list[i]))
		}
	}
	slices.Sort(all)
	return all
}

// kernelState describes rules, routes and links, without link-local addresses.
func (n *node) kernelState() string {
	n.Helper()
	all := kernelRules(n.T)
	links, err := rtnl.List(netlink.LinkList)
	need.NoError(n, err)
	names := map[int]string{}
	for _, l := range links {
		a := l.Attrs()
		names[a.Index] = a.Name
		all = append(all, fmt.Sprintf("%s %s mtu %d", a.Name, a.Flags&net.FlagUp, a.MTU))
	}
	for _, family := range both {
		routes, err := rtnl.List(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(family, &netlink.Route{}, netlink.RT_FILTER_TABLE)
		})
		need.NoError(n, err)
		for _, r := range routes {
			if r.Dst == nil || !r.Dst.IP.IsLinkLocalUnicast() && !r.Dst.IP.IsMulticast() {
				all = append(all, fmt.Sprintf("%s dev %s src %s table %d", r.Dst, names[r.LinkIndex], r.Src, r.Table))
			}
		}
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

func (n *node) requireState(when, want string) {
	n.Helper()
	need.Eventually(n, patient, when, func() error {
		if is := n.kernelState(); is != want {
			return fmt.Errorf("there is\n%s\nwant\n%s", is, want)
		}
		return nil
	})
}

// address adds an address to the node's link, or removes it.
func (n *node) address(do func(netlink.Link, *netlink.Addr) error, prefix string) {
	n.Helper()
	need.NoError(n, do(n.lan, kernelAddress(n.T, prefix)))
}

// flush removes the routes of a table that lead to culvert1.
func (n *node) flush(table int, families ...int) {
	n.Helper()
	link, err := netlink.LinkByName("culvert1")
	need.NoError(n, err)
	for _, family := range families {
		routes, err := rtnl.List(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(family, &netlink.Route{LinkIndex: link.Attrs().Index, Table: table},
				netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE)
		})
		need.NoError(n, err)
		for _, r := range routes {
			need.NoError(n, netlink.RouteDel(&r))
		}
	}
}
