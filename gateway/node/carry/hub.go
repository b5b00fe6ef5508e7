package carry

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/tun"

	"culvert/gateway/node/rtnl"
	"culvert/geneve"
	"culvert/geneve/udp"
)

// A Hub carries packets between devices and gateways by one UDP socket, which opens with the first
// device. Its methods are safe for concurrent use.
type Hub struct {
	listen   netip.AddrPort
	taken    func(packet []byte) bool
	failed   chan error
	endpoint atomic.Pointer[geneve.Endpoint]    // nil: there is no socket
	devices  atomic.Pointer[map[uint16]*Device] // by the ID of their tunnel

	mu        sync.Mutex // of changes
	receiving sync.WaitGroup
	lastID    uint16 // +checklocks:mu
}

// A Device is a TUN device whose packets a Hub carries.
type Device struct {
	Name   string
	ID     uint16 // of its tunnel
	tunnel geneve.Tunnel
	tun    tun.Device
	ended  chan struct{}
	err    error // of its reader, once that has ended
}

// NewHub returns a Hub whose socket will have an address. Packets from gateways that taken accepts
// go to no device; it may be nil.
func NewHub(listen netip.AddrPort, taken func(packet []byte) bool) *Hub {
	h := &Hub{listen: listen, taken: taken, failed: make(chan error, 1)}
	h.devices.Store(&map[uint16]*Device{})
	return h
}

// Add makes or takes over a device, and carries its packets by a tunnel, whose ID the Hub chooses.
// A packet of more than room bytes ends the device's reader.
func (h *Hub) Add(name string, mtu, room int, t geneve.Tunnel) (*Device, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e, err := h.open()
	if err != nil {
		return nil, err
	}
	before := *h.devices.Load()
	h.lastID++
	for h.lastID == 0 || before[h.lastID] != nil { // there are fewer devices than IDs
		h.lastID++
	}
	t.ID = h.lastID
	d := &Device{Name: name, ID: t.ID, tunnel: t, ended: make(chan struct{})}
	after := maps.Clone(before)
	after[t.ID] = d
	if err := apply(e, after); err != nil {
		return nil, err
	}
	if d.tun, err = open(name, mtu); err != nil {
		return nil, errors.Join(err, apply(e, before))
	}
	h.devices.Store(&after)
	go func() {
		defer close(d.ended)
		d.err = toGateway(d.tun, e, t.ID, room)
	}()
	return d, nil
}

// Change replaces the tunnel of a device. After an error, the former one stays.
func (h *Hub) Change(d *Device, t geneve.Tunnel) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	before := d.tunnel
	t.ID = d.ID
	d.tunnel = t
	err := apply(h.endpoint.Load(), *h.devices.Load())
	if err != nil {
		d.tunnel = before
	}
	return err
}

// Drop stops carrying a device's packets. The device goes, unless it outlives this process.
func (h *Hub) Drop(d *Device) {
	h.mu.Lock()
	defer h.mu.Unlock()
	after := maps.Clone(*h.devices.Load())
	delete(after, d.ID)
	h.devices.Store(&after)
	d.close()
	apply(h.endpoint.Load(), after) // some of what is there
}

// Close drops all devices, and closes the socket, so that others can use the port.
func (h *Hub) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, d := range *h.devices.Swap(&map[uint16]*Device{}) {
		d.close()
	}
	if e := h.endpoint.Swap(nil); e != nil {
		e.Close()
		h.receiving.Wait()
	}
}

// Failed has the error that ended the receiver of the socket, if any.
func (h *Hub) Failed() <-chan error { return h.failed }

// Devices returns the devices by the IDs of their tunnels.
func (h *Hub) Devices() map[uint16]*Device { return *h.devices.Load() }

// Endpoint returns the end of all tunnels; nil without a socket.
func (h *Hub) Endpoint() *geneve.Endpoint { return h.endpoint.Load() }

// Socket returns the counters of the socket; all zero without one.
func (h *Hub) Socket() udp.Stats {
	if e := h.endpoint.Load(); e != nil {
		return e.Stats().Socket
	}
	return udp.Stats{}
}

// open returns the endpoint, and opens its socket if there is none.
// +checklocks:h.mu
func (h *Hub) open() (*geneve.Endpoint, error) {
	if e := h.endpoint.Load(); e != nil {
		return e, nil
	}
	e, err := geneve.Listen(geneve.Options{Listen: h.listen})
	if errors.Is(err, unix.EADDRINUSE) {
		port := h.listen.Port()
		holder := rtnl.ListenerAt(unix.IPPROTO_UDP, netip.AddrPortFrom(netip.IPv6Unspecified(), port))
		holder = cmp.Or(holder, "a kernel's Geneve link or a process that this one may not see")
		return nil, fmt.Errorf("UDP port %d is in use by %s; stop it, or choose another port here and at the gateway: %w",
			port, holder, err)
	}
	if err != nil {
		return nil, err
	}
	h.endpoint.Store(e)
	h.receiving.Go(func() {
		err := fromGateways(e, func(p *geneve.Packet) tun.Device {
			if h.taken != nil && h.taken(p.Data) {
				return nil
			}
			if d := h.Devices()[p.Tunnel]; d != nil {
				return d.tun
			}
			return nil // it has just been dropped
		})
		if err != nil {
			h.failed <- fmt.Errorf("receive from gateways: %w", err) // its owner ends with it
		}
	})
	return e, nil
}

// apply makes the tunnels of devices those of an endpoint, which asks new gateways at once.
func apply(e *geneve.Endpoint, devices map[uint16]*Device) error {
	if e == nil {
		return nil
	}
	var all []geneve.Tunnel
	for _, d := range devices {
		all = append(all, d.tunnel)
	}
	if err := e.Apply(all); err != nil {
		return err
	}
	e.AskNew()
	return nil
}

// LogTrains tests whether trains of datagrams arrive at gateways, and logs changes. It is called
// about once a second.
func (h *Hub) LogTrains(log logrus.FieldLogger) {
	e := h.endpoint.Load()
	if e == nil {
		return
	}
	for _, change := range e.ProbeTrains() {
		log := log
		if d := h.Devices()[change.Tunnel]; d != nil {
			log = log.WithField("interface", d.Name)
		}
		if change.On {
			log.Info("trains arrive at the gateway again")
		} else {
			log.WithField("remedy", TrainRemedy).Warn(
				"UDP_SEGMENT trains do not arrive at the gateway: sending single datagrams, which is slower")
		}
	}
}

// TrainRemedy says what to do if trains to the gateway are lost, which is a known fault of some
// kernel versions.
const TrainRemedy = "update the kernels of this node and of the gateway's if they are 7.0 to 7.1.4, or turn tx-udp-segmentation of the network interface off"

// File is the open device.
func (d *Device) File() *os.File { return d.tun.File() }

// Ended is closed when the device is no longer read, because it is dropped, or Err says why.
func (d *Device) Ended() <-chan struct{} { return d.ended }

// Err is why the device's reader has ended; nil if the device is dropped, or was removed by others.
func (d *Device) Err() error {
	if errors.Is(d.err, os.ErrClosed) {
		return nil
	}
	return d.err
}

func (d *Device) close() {
	d.tun.Close()
	<-d.ended
}
