package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"culvert/gateway/node/carry"
	"culvert/geneve"
)

// tunLink is a TUN device of this process.
type tunLink struct {
	config *Config
	hub    *carry.Hub
	device *carry.Device
	echoes *echoes
	asker  *geneve.Sender // for echoes
}

func openTUN(c *Config, remote netip.Addr) (link, error) {
	l := &tunLink{config: c, echoes: newEchoes(c)}
	l.hub = carry.NewHub(netip.AddrPortFrom(c.Underlay, c.Port), l.echoes.answeredIn)
	var err error
	if l.device, err = l.hub.Add(c.Interface, c.MTU, carry.MaxPacket, l.tunnel(remote)); err != nil {
		l.hub.Close()
		switch {
		case errors.Is(err, unix.EADDRINUSE):
			return nil, fmt.Errorf("port: %w", err)
		case errors.Is(err, unix.EADDRNOTAVAIL):
			return nil, fmt.Errorf("underlay: %s is no address of this node: %w", c.Underlay, err)
		case errors.Is(err, unix.EBUSY):
			return nil, fmt.Errorf("interface: %w, or choose another name", err)
		}
		return nil, fmt.Errorf("node: %w", err)
	}
	l.asker = l.hub.Endpoint().NewSender()
	return l, nil
}

func (l *tunLink) mode() Mode { return TUN }

func (l *tunLink) tunnel(remote netip.Addr) geneve.Tunnel {
	return geneve.Tunnel{VNI: geneve.VNI(l.config.VNI), Remote: remote, Encap: geneve.Geneve, Inner: geneve.Ethernet,
		Local: l.config.Address, Peer: l.config.GatewayAddress, Role: geneve.Node}
}

func (l *tunLink) setRemote(remote netip.Addr) error { return l.hub.Change(l.device, l.tunnel(remote)) }

// run waits until ctx is done, the device is gone or packets cannot be carried. Once a second it
// tests whether trains arrive at the gateway.
func (l *tunLink) run(ctx context.Context, log logrus.FieldLogger) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-l.hub.Failed():
			return fmt.Errorf("node: %w", err)
		case <-l.device.Ended():
			if err := l.device.Err(); err != nil {
				return fmt.Errorf("node: read from %s: %w", l.config.Interface, err)
			}
			return fmt.Errorf("node: %s was %w", l.config.Interface, errRemoved)
		case <-tick.C:
			l.hub.LogTrains(log)
		}
	}
}

// probe sends echo requests, bypassing the device.
func (l *tunLink) probe() (small, whole answer) {
	small, whole = l.echoes.last(smallEcho), l.echoes.last(wholeEcho)
	l.echoes.next()
	l.asker.Send(l.device.ID, l.echoes.request(l.echoes.least()))
	l.asker.Send(l.device.ID, l.echoes.request(l.config.MTU))
	l.asker.Flush()
	return small, whole
}

// close removes the device, and with it its address and routes, unless it is kept.
func (l *tunLink) close() error {
	l.hub.Close()
	return nil
}
