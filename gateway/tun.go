package gateway

import (
	"os"
	"sync"

	"golang.zx2c4.com/wireguard/tun"

	"culvert/gateway/config"
)

// batchSize is how many packets wireguard-go moves at once: room for a Geneve
// super-frame of 47 segments and its neighbours. conn.IdealBatchSize, twice as many,
// costs twice the buffers of 64 KiB and gains nothing.
const batchSize = 64

// tunDevice is the tun.Device by which wireguard-go and the gateway exchange inner
// packets: its Read runs outbound, its Write inbound. Adaptation only.
type tunDevice struct {
	out    *outbound
	in     *inbound
	mtu    config.TunnelMTU
	events chan tun.Event
	once   sync.Once
}

func newTunDevice(out *outbound, in *inbound, mtu config.TunnelMTU) *tunDevice {
	return &tunDevice{out: out, in: in, mtu: mtu, events: make(chan tun.Event)}
}

// File returns nil: there is no kernel device.
func (d *tunDevice) File() *os.File { return nil }

// Read fills wireguard-go's buffers with packets for the peer; it blocks until
// there is one. Its only error is os.ErrClosed, after Close: any other would end
// the WireGuard device.
func (d *tunDevice) Read(bufs [][]byte, sizes []int, offset int) (int, error) {
	return d.out.read(bufs, sizes, offset)
}

// Write takes decrypted packets from the peer.
//
// borrowed: bufs belong to wireguard-go again when Write returns.
func (d *tunDevice) Write(bufs [][]byte, offset int) (int, error) {
	d.in.write(bufs, offset)
	d.in.window.take(len(bufs))
	return len(bufs), nil
}

// MTU is where WireGuard stops padding.
func (d *tunDevice) MTU() (int, error) { return int(d.mtu), nil }

// Name is the name in wireguard-go's messages.
func (d *tunDevice) Name() (string, error) { return "culvert", nil }

// Events never yields an event; it is closed by Close.
func (d *tunDevice) Events() <-chan tun.Event { return d.events }

// BatchSize is the most packets of one Read or Write.
func (d *tunDevice) BatchSize() int { return batchSize }

// Close ends Read. wireguard-go calls it once, and so may its owner.
func (d *tunDevice) Close() error {
	d.once.Do(func() {
		close(d.events)
		d.out.endpoint.Close()
	})
	return nil
}
