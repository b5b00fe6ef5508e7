package links

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.zx2c4.com/wireguard/tun"

	"culvert/gateway/node/carry"
	"culvert/gateway/node/rtnl"
	"culvert/geneve"
)

// A carrier moves the packets of one device. Set.Run makes, owns and closes it. One goroutine runs
// its toGateway; the one that receives for all links writes to its device.
type carrier struct {
	name   string
	link   Link   // as configured at the endpoint; only Set.Run uses it
	id     uint16 // of the tunnel
	index  int    // of the device
	room   int    // bytes of the largest packet that can be read
	device tun.Device
	ended  chan struct{} // closed when the device is no longer read
}

// openCarrier makes or takes over the device of a link. It is persistent when openCarrier returns.
func openCarrier(l Link, id uint16) (c *carrier, err error) {
	device, err := carry.Open(l.Name, l.MTU)
	if err != nil {
		return nil, fmt.Errorf("links: %w", err)
	}
	c = &carrier{name: l.Name, link: l, id: id, device: device, room: l.MTU, ended: make(chan struct{})}
	made, err := netlink.LinkByName(l.Name)
	if err == nil {
		c.index = made.Attrs().Index
		err = rtnl.KeepTUN(device.File(), l.Name, Group, true)
	}
	if err == nil {
		err = configure(made, &l)
	}
	if err != nil {
		device.Close()
		return nil, err
	}
	return c, nil
}

// toGateway sends packets that the machine routes to the device, until the device is closed or
// deleted, or its MTU is raised by others.
func (c *carrier) toGateway(e *geneve.Endpoint) {
	defer close(c.ended)
	carry.ToGateway(c.device, e, c.id, c.room)
}

// close ends the carrier. The device stays.
func (c *carrier) close() {
	c.device.Close()
	<-c.ended
}

// gone reports whether the device is no longer read.
func (c *carrier) gone() bool {
	select {
	case <-c.ended:
		return true
	default:
		return false
	}
}

// fromGateways writes packets from gateways to the devices, until the endpoint is closed.
func (s *Set) fromGateways(e *geneve.Endpoint) error {
	err := carry.FromGateways(e, func(p *geneve.Packet) tun.Device {
		if c := (*s.carrying.Load())[p.Tunnel]; c != nil {
			return c.device
		}
		return nil // its link has just been removed
	})
	if err != nil {
		return fmt.Errorf("links: receive from gateways: %w", err)
	}
	return nil
}
