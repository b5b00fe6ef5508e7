package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"culvert/gateway/node/rtnl"
	"culvert/gateway/unixsocket"
	"culvert/geneve/udp"
)

// resolveInterval is how often a gateway's host name is looked up again.
const resolveInterval = 10 * time.Second

// link is the node's end of the tunnel in one mode.
type link interface {
	mode() Mode
	// setRemote changes the outer address of the gateway.
	setRemote(netip.Addr) error
	// run moves packets until ctx is done, and returns an error if it must stop before.
	run(ctx context.Context, log logrus.FieldLogger) error
	// probe reports whether the gateway has sent back anything (small), and a packet of mtu bytes
	// (whole), since the last call, and sends new requests. One goroutine calls it while run runs.
	probe() (small, whole answer)
	// keep makes the link outlive close and this process.
	keep() error
	// close removes the link, with its address and its routes, unless it is kept.
	close() error
}

// Node is the running end of a tunnel at a node.
type Node struct {
	config *Config
	log    logrus.FieldLogger
	link   link
	remote atomic.Pointer[netip.Addr] // the gateway's outer address
	pace   pace
	unlock func()
}

// New makes the link, its address and its routes, or continues with those that were kept. After an
// error nothing new is left behind, unless the error says so.
func New(ctx context.Context, c *Config, log logrus.FieldLogger) (*Node, error) {
	unlock, err := lock(c.Interface)
	if err != nil {
		return nil, err
	}
	n := &Node{config: c, pace: usualPace, unlock: unlock}
	if err := n.open(ctx); err != nil {
		unlock()
		return nil, err
	}
	n.log = log.WithFields(logrus.Fields{"node": c.Name, "interface": c.Interface, "mode": n.link.mode(), "vni": c.VNI})
	if _, err := netip.ParseAddr(c.Gateway); err != nil { // a name, which LoadConfig does not resolve
		c.wayTo(*n.remote.Load(), func(path, format string, args ...any) {
			n.log.Warn(path + ": " + fmt.Sprintf(format, args...))
		})
	}
	n.log.WithFields(logrus.Fields{"remote": n.remote.Load(), "mtu": c.MTU, "routes": len(c.Routes)}).Info("link is up")
	return n, nil
}

func (n *Node) open(ctx context.Context) error {
	kind := kept(n.config)
	if kind == "" {
		if err := removeLeftover(n.config.Interface); err != nil {
			return err
		}
	}
	remote, err := n.config.resolve(ctx, netip.Addr{})
	if err != nil {
		return err
	}
	n.remote.Store(&remote)
	if kind != "" {
		n.link, err = takeLink(n.config, kind, remote)
	} else {
		n.link, err = openLink(n.config, remote)
	}
	if err != nil {
		return err
	}
	err = n.config.configure()
	if err == nil && n.config.KeepLinks {
		err = n.link.keep()
	}
	if err != nil {
		return errors.Join(err, n.link.close())
	}
	return nil
}

// Run serves the tunnel until ctx is done and then removes what New made, unless it is kept. It is
// called once.
func (n *Node) Run(ctx context.Context) error {
	defer n.unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var beside sync.WaitGroup
	beside.Go(func() { n.follow(ctx) })
	beside.Go(func() { n.watch(ctx) })
	beside.Go(func() { n.keepRoutes(ctx) })
	err := n.link.run(ctx, n.log)
	cancel()
	beside.Wait()
	err = errors.Join(err, n.link.close())
	if n.config.KeepLinks && !errors.Is(err, errRemoved) {
		n.log.WithField("remedy", "to remove it: ip link del "+n.config.Interface).Info("link is kept")
	} else {
		n.log.Info("link is removed")
	}
	return err
}

// Carrier returns the device that this process reads, and the counters of the socket to the
// gateway. ok is false if the kernel carries the packets.
func (n *Node) Carrier() (device string, socket func() udp.Stats, ok bool) {
	l, ok := n.link.(*tunLink)
	if !ok {
		return "", nil, false
	}
	return n.config.Interface, l.hub.Socket, true
}

// errRemoved is the error of a node whose link somebody else has removed.
var errRemoved = errors.New("removed by somebody else")

// openLink makes the link. Mode auto uses the first kind that the kernel has.
func openLink(c *Config, remote netip.Addr) (l link, err error) {
	modes := []Mode{c.Mode}
	if c.Mode == Auto {
		modes = []Mode{Geneve, VXLAN, TUN}
	}
	for _, mode := range modes {
		if mode == TUN {
			l, err = openTUN(c, remote)
		} else {
			l, err = openKernel(c, mode, remote)
		}
		if !errors.Is(err, errors.ErrUnsupported) {
			break
		}
	}
	return l, err
}

// follow resolves the gateway's host name every resolveInterval and sets the tunnel's remote
// address to the result. If the gateway is given by address, it returns at once.
func (n *Node) follow(ctx context.Context) {
	if _, err := netip.ParseAddr(n.config.Gateway); err == nil {
		return
	}
	tick := time.NewTicker(resolveInterval)
	defer tick.Stop()
	remote, failing := *n.remote.Load(), false
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		next, err := n.config.resolve(ctx, remote)
		if err == nil && next != remote {
			err = n.link.setRemote(next)
		}
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !failing: // once, until it works again
			n.log.WithError(err).WithField("remote", remote).Warn("gateway's address is not updated")
		case err == nil && next != remote:
			n.log.WithFields(logrus.Fields{"from": remote, "to": next}).Info("gateway has moved")
			remote = next
			n.remote.Store(&next)
		}
		failing = err != nil
	}
}

// resolve returns the gateway's address of the node's family: current while the name still has it,
// else the lowest, so that all nodes choose the same.
func (c *Config) resolve(ctx context.Context, current netip.Addr) (netip.Addr, error) {
	if a, err := netip.ParseAddr(c.Gateway); err == nil {
		return a, nil
	}
	ctx, cancel := context.WithTimeout(ctx, resolveInterval)
	defer cancel()
	network := "ip4"
	if c.Underlay.Is6() {
		network = "ip6"
	}
	list, err := net.DefaultResolver.LookupNetIP(ctx, network, c.Gateway)
	if err != nil {
		return netip.Addr{},
			fmt.Errorf("gateway.underlay: %w; check the name, this node's DNS, and that the name has an %s address, like underlay", err, family(c.Underlay))
	}
	for i, a := range list {
		list[i] = a.Unmap()
	}
	if slices.Contains(list, current) {
		return current, nil
	}
	return slices.MinFunc(list, netip.Addr.Compare), nil
}

// lock makes sure that no other running node in this network namespace owns the interface.
func lock(name string) (unlock func(), err error) {
	unlock, err = unixsocket.Hold(lockPrefix + name)
	if errors.Is(err, unixsocket.ErrHeld) {
		return nil, fmt.Errorf(
			"interface: %s belongs to a culvert node that is running; stop it or choose another name; %s is held by %s",
			name, lockPrefix+name, rtnl.NameHolder(lockPrefix+name))
	}
	return unlock, err
}

// lockPrefix, followed by an interface, is the name that a running node holds.
const lockPrefix = "culvert-node-"
