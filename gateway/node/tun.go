package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/tun"

	"culvert/gateway/node/carry"
	"culvert/geneve"
)

const tunnelID = 1 // of the endpoint's only tunnel

// tunLink connects a TUN device of this process to a geneve.Endpoint.
type tunLink struct {
	config   *Config
	device   tun.Device
	endpoint *geneve.Endpoint
	closing  atomic.Bool // from now on, errors of the device are expected
	echoes   *echoes
	asker    *geneve.Sender // for echoes
}

func openTUN(c *Config, remote netip.Addr) (link, error) {
	endpoint, err := geneve.Listen(geneve.Options{Listen: netip.AddrPortFrom(c.Underlay, c.Port)})
	if err != nil {
		switch {
		case errors.Is(err, unix.EADDRINUSE):
			return nil, fmt.Errorf(
				"port: UDP port %d is in use; stop what uses it or choose another port here and at the gateway: %w",
				c.Port, err)
		case errors.Is(err, unix.EADDRNOTAVAIL):
			return nil, fmt.Errorf("underlay: %s is no address of this node: %w", c.Underlay, err)
		}
		return nil, err
	}
	l := &tunLink{config: c, endpoint: endpoint, echoes: newEchoes(c), asker: endpoint.NewSender()}
	if err := l.setRemote(remote); err != nil {
		return nil, errors.Join(err, l.close())
	}
	device, err := carry.Open(c.Interface, c.MTU)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("interface: %w", err), l.close())
	}
	l.device = device
	return l, nil
}

func (l *tunLink) mode() Mode { return TUN }

func (l *tunLink) setRemote(remote netip.Addr) error {
	return l.endpoint.Apply([]geneve.Tunnel{{
		ID: tunnelID, VNI: geneve.VNI(l.config.VNI), Remote: remote, Encap: geneve.Geneve, Inner: geneve.Ethernet,
		Local: l.config.Address, Peer: l.config.GatewayAddress, Role: geneve.Node,
	}})
}

// run moves packets both ways until ctx is done or one direction fails.
func (l *tunLink) run(ctx context.Context, log logrus.FieldLogger) error {
	ctx, cancel := context.WithCancel(ctx)
	var probes sync.WaitGroup
	defer probes.Wait()
	defer cancel()
	probes.Go(func() { l.probeTrains(ctx, log) })
	ways := make(chan error, 2)
	go func() { ways <- l.toGateway() }()
	go func() { ways <- l.fromGateway() }()
	var err error
	running := 2
	select {
	case <-ctx.Done():
	case err = <-ways:
		running--
		if err == nil && ctx.Err() == nil {
			err = fmt.Errorf("node: %s was %w", l.config.Interface, errRemoved)
		}
	}
	// Both directions end when their source is closed.
	l.closing.Store(true)
	err = errors.Join(err, l.close())
	for range running {
		err = errors.Join(err, <-ways)
	}
	return err
}

// probeTrains checks once a second whether trains arrive at the gateway, and logs changes.
func (l *tunLink) probeTrains(ctx context.Context, log logrus.FieldLogger) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		carry.LogTrains(l.endpoint, func(uint16) logrus.FieldLogger { return log })
	}
}

// probe sends echo requests, bypassing the device.
func (l *tunLink) probe() (small, whole answer) {
	small, whole = l.echoes.last(smallEcho), l.echoes.last(wholeEcho)
	l.echoes.next()
	l.asker.Send(tunnelID, l.echoes.request(l.echoes.least()))
	l.asker.Send(tunnelID, l.echoes.request(l.config.MTU))
	l.asker.Flush()
	return small, whole
}

// toGateway sends what the node routes to the device.
func (l *tunLink) toGateway() error {
	err := carry.ToGateway(l.device, l.endpoint, tunnelID, carry.MaxPacket)
	if err == nil || errors.Is(err, os.ErrClosed) || l.closing.Load() {
		return nil
	}
	return fmt.Errorf("node: read from %s: %w", l.config.Interface, err)
}

// fromGateway gives what the gateway sends to the node's kernel.
func (l *tunLink) fromGateway() error {
	err := carry.FromGateways(l.endpoint, func(p *geneve.Packet) tun.Device {
		if l.echoes.answeredIn(p.Data) {
			return nil
		}
		return l.device
	})
	if err != nil {
		return fmt.Errorf("node: receive from the gateway: %w", err)
	}
	return nil
}

// close removes the device, and with it its address and routes, unless it is kept. It may be called
// again.
func (l *tunLink) close() error {
	var err error
	if l.device != nil {
		err = l.device.Close()
	}
	if closeErr := l.endpoint.Close(); !errors.Is(closeErr, net.ErrClosed) {
		err = errors.Join(err, closeErr)
	}
	if err != nil {
		return fmt.Errorf("node: close %s: %w", l.config.Interface, err)
	}
	return nil
}
