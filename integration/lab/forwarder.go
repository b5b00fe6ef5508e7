package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"culvert/integration/lab/netns"
	"culvert/integration/lab/plan"
)

// forwarder is a service's entry point on a node, like kube-proxy's NodePort, but in user space so
// that no lab needs a firewall tool: it accepts TCP connections and opens another to the target for
// each.
type forwarder struct {
	node     *netns.Host
	target   netip.AddrPort
	entrance netip.AddrPort // where it listens

	// keepClient is externalTrafficPolicy Local: the second connection has the source address and
	// port of the first. Otherwise it has the node's own.
	keepClient bool
	// header returns what the target gets before the client's bytes, or is nil.
	header func(client, entrance netip.AddrPort) []byte

	listener net.Listener
	undo     func() error
	running  sync.WaitGroup

	mu      sync.Mutex
	sources []netip.AddrPort // local ends of the second connections
	err     error            // the first one
}

// transparentTable holds the route by which a node receives packets to its clients as its own.
const transparentTable = 100

// start listens. The caller calls close.
func (f *forwarder) start(ctx context.Context, client netip.Addr) (err error) {
	if f.keepClient {
		if err := f.node.Do(func() error { return f.takeReplies(client) }); err != nil {
			return fmt.Errorf("%s: replies to %s: %w", f.node.Name, client, err)
		}
	}
	if f.listener, err = f.node.At(f.entrance.Addr()).ListenTCP(f.entrance.Port()); err != nil {
		return errors.Join(err, f.close())
	}
	f.running.Go(func() {
		for {
			conn, err := f.listener.Accept()
			if err != nil {
				return
			}
			f.running.Go(func() {
				err := f.forward(ctx, conn.(*net.TCPConn))
				if err != nil && ctx.Err() == nil {
					f.fail(err)
				}
			})
		}
	})
	return nil
}

// takeReplies routes packets from the tunnel to the client to this host.
func (f *forwarder) takeReplies(client netip.Addr) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	all, family := plan.Everywhere, unix.AF_INET
	if client.Is6() {
		all, family = plan.Everywhere6, unix.AF_INET6
	}
	route := &netlink.Route{LinkIndex: lo.Attrs().Index, Table: transparentTable, Dst: netns.IPNet(all),
		Type: unix.RTN_LOCAL, Scope: unix.RT_SCOPE_HOST}
	if err := netlink.RouteAdd(route); err != nil {
		return err
	}
	rule := netlink.NewRule()
	rule.IifName, rule.Table, rule.Family = TunnelLink, transparentTable, family
	rule.Dst = netns.IPNet(netip.PrefixFrom(client, client.BitLen()))
	f.undo = func() error { return errors.Join(netlink.RuleDel(rule), netlink.RouteDel(route)) }
	return netlink.RuleAdd(rule)
}

// forward serves one client.
func (f *forwarder) forward(ctx context.Context, client *net.TCPConn) error {
	defer client.Close()
	from := client.RemoteAddr().(*net.TCPAddr).AddrPort()
	var local netip.AddrPort
	var prepare func(int) error
	if f.keepClient {
		local = from
		prepare = func(fd int) error {
			if from.Addr().Is6() {
				return unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_TRANSPARENT, 1)
			}
			return unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, CheckTimeout)
	defer cancel()
	second, err := f.node.DialFrom(ctx, netns.Over("tcp", f.target.Addr()), local, f.target, prepare)
	if err != nil {
		return fmt.Errorf("%s: connect for %s: %w", f.node.Name, from, err)
	}
	defer second.Close()
	stop := context.AfterFunc(ctx, func() {
		client.Close()
		second.Close()
	})
	defer stop()
	target := second.(*net.TCPConn)
	f.mu.Lock()
	f.sources = append(f.sources, target.LocalAddr().(*net.TCPAddr).AddrPort())
	f.mu.Unlock()
	if f.header != nil {
		if _, err := target.Write(f.header(from, f.entrance)); err != nil {
			return err
		}
	}
	back := make(chan error, 1)
	go func() { back <- pass(client, target) }()
	return errors.Join(pass(target, client), <-back)
}

// pass copies one direction to its end, and then closes it.
func pass(to, from *net.TCPConn) error {
	if _, err := io.Copy(to, from); err != nil {
		return err
	}
	return to.CloseWrite()
}

func (f *forwarder) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = err
	}
}

// close waits for all connections, which their clients have ended, and returns the first error.
func (f *forwarder) close() error {
	if f.listener != nil {
		f.listener.Close()
	}
	f.running.Wait()
	err := f.err
	if f.undo != nil {
		err = errors.Join(err, f.node.Do(f.undo))
	}
	return err
}

// proxyV1 is what HAProxy sends with send-proxy (HAProxy's proxy-protocol.txt,
// section 2.1).
func proxyV1(client, entrance netip.AddrPort) []byte {
	family := "TCP4"
	if client.Addr().Is6() {
		family = "TCP6"
	}
	return fmt.Appendf(nil, "PROXY %s %s %s %d %d\r\n", family, client.Addr(), entrance.Addr(), client.Port(),
		entrance.Port())
}

// proxyV2 is what HAProxy sends with send-proxy-v2 (section 2.2): signature,
// version 2 and command PROXY, TCP over IPv4 or IPv6, length, addresses, ports.
func proxyV2(client, entrance netip.AddrPort) []byte {
	family, length := byte(0x11), byte(12)
	if client.Addr().Is6() {
		family, length = 0x21, 36
	}
	b := append([]byte("\r\n\r\n\x00\r\nQUIT\n"), 0x21, family, 0, length)
	b = append(append(b, client.Addr().AsSlice()...), entrance.Addr().AsSlice()...)
	return append(b, byte(client.Port()>>8), byte(client.Port()), byte(entrance.Port()>>8), byte(entrance.Port()))
}
