// Package carry moves packets between TUN devices and gateways. A Hub has the devices, and one UDP
// socket. One goroutine receives for all devices; each device has another, which reads from it and
// sends. Each goroutine owns its buffers.
package carry

import (
	"errors"
	"net"
	"os"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/tun"

	"culvert/gateway/node/rtnl"
	"culvert/geneve"
	"culvert/geneve/udp"
)

const (
	headroom = 16 // bytes before each packet; the device wants 10 for a virtio header
	// MaxPacket is the maximum size of a packet in bytes, including one that a device has merged
	// from several.
	MaxPacket = 65535
)

// open creates or takes over the TUN device called name.
func open(name string, mtu int) (tun.Device, error) {
	fd, _, err := rtnl.OpenTUN(name, unix.IFF_VNET_HDR)
	if err != nil {
		return nil, err
	}
	device, err := tun.CreateTUNFromFile(os.NewFile(uintptr(fd), "/dev/net/tun"), mtu)
	if err != nil {
		return nil, err
	}
	go func() { // the device blocks until its up and down events are read
		for range device.Events() {
		}
	}()
	return device, nil
}

// toGateway sends what the machine routes to a device into the tunnel with an ID. It returns nil
// when the endpoint is closed. It returns the device's error when the device is closed or gone, or
// has a packet of more than room bytes. The device has split super-frames into packets of at most
// its MTU.
func toGateway(device tun.Device, e *geneve.Endpoint, id uint16, room int) error {
	sender := e.NewSender()
	packets, sizes := newPackets(device.BatchSize(), room), make([]int, device.BatchSize())
	for {
		n, err := device.Read(packets, sizes, headroom)
		for i := range n {
			// The endpoint counts what it drops.
			sender.Send(id, packets[i][headroom:headroom+sizes[i]])
		}
		if flushErr := sender.Flush(); errors.Is(flushErr, net.ErrClosed) {
			return nil
		}
		e.Poll()
		if err != nil && !errors.Is(err, tun.ErrTooManySegments) { // the rest of one super-frame is lost
			return err
		}
	}
}

// fromGateways gives the kernel what gateways send, until the endpoint is closed. device returns
// the destination of a packet; nil drops it. Consecutive packets for one device are written
// together, so that the device can merge those of one TCP stream.
func fromGateways(e *geneve.Endpoint, device func(p *geneve.Packet) tun.Device) error {
	receiver := e.NewReceiver()
	var packets, batch [][]byte
	var to tun.Device
	write := func() {
		if len(batch) > 0 {
			// If a device has gone, its reader finds out; other errors are about single packets
			// that the kernel refuses.
			to.Write(batch, headroom)
			batch = batch[:0]
		}
	}
	for {
		switch err := receiver.Fill(); {
		case err == nil, errors.Is(err, udp.ErrWoken):
		case errors.Is(err, net.ErrClosed):
			return nil
		default:
			return err
		}
		for p, ok := receiver.Next(); ok; p, ok = receiver.Next() {
			d := device(&p)
			if d == nil {
				continue
			}
			if packets == nil {
				packets = newPackets(d.BatchSize(), MaxPacket)
			}
			if d != to || len(batch) == min(len(packets), d.BatchSize()) {
				write()
				to = d
			}
			buffer := packets[len(batch)]
			batch = append(batch, buffer[:headroom+copy(buffer[headroom:], p.Data)])
		}
		write()
		to = nil
	}
}

// newPackets makes buffers that hold a packet of room bytes after the headroom. Only touched pages
// use memory.
func newPackets(n, room int) [][]byte {
	room += headroom
	slab := make([]byte, n*room)
	packets := make([][]byte, n)
	for i := range packets {
		packets[i], slab = slab[:room:room], slab[room:]
	}
	return packets
}
