// Package carry moves packets between TUN devices and a geneve.Endpoint. Each way has a goroutine of its own, which owns its buffers.
package carry

import (
	"errors"
	"net"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/tun"

	"culvert/geneve"
	"culvert/geneve/udp"
)

const (
	headroom = 16 // bytes before each packet; the device wants 10 for a virtio header
	// MaxPacket is the size in bytes of the largest packet, also of one that a device merges from several.
	MaxPacket = 65535
)

// Open makes or takes over the TUN device of a name.
func Open(name string, mtu int) (tun.Device, error) {
	device, err := tun.CreateTUN(name, mtu)
	if err != nil {
		return nil, err
	}
	go func() { // the device tells when it goes up and down, and waits to be heard
		for range device.Events() {
		}
	}()
	return device, nil
}

// Persist lets a device outlive this process.
func Persist(device tun.Device) error {
	return unix.IoctlSetInt(int(device.File().Fd()), unix.TUNSETPERSIST, 1)
}

// ToGateway sends what the machine routes to a device to the tunnel of an ID. It returns nil when the endpoint is closed, and the device's error
// when that is closed or gone, or has a packet of more than room bytes. The device has split super-frames into packets of at most its MTU.
func ToGateway(device tun.Device, e *geneve.Endpoint, id uint16, room int) error {
	sender := e.NewSender()
	packets, sizes := newPackets(device.BatchSize(), room), make([]int, device.BatchSize())
	for {
		n, err := device.Read(packets, sizes, headroom)
		for i := range n {
			// What is dropped here the endpoint counts.
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

// FromGateways gives the kernel what gateways send, until the endpoint is closed. device returns where a packet of a tunnel goes; nil is nowhere.
// Consecutive packets of one device are written together, so that it can merge those of one TCP stream.
func FromGateways(e *geneve.Endpoint, device func(p *geneve.Packet) tun.Device) error {
	receiver := e.NewReceiver()
	var packets, batch [][]byte
	var to tun.Device
	write := func() {
		if len(batch) > 0 {
			// A device that has gone is found by its reader; other errors are about single packets that the kernel refuses.
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

// newPackets makes buffers that hold a packet of room bytes after the headroom. Only touched pages use memory.
func newPackets(n, room int) [][]byte {
	room += headroom
	slab := make([]byte, n*room)
	packets := make([][]byte, n)
	for i := range packets {
		packets[i], slab = slab[:room:room], slab[room:]
	}
	return packets
}
