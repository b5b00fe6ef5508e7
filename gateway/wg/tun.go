package wg

import (
	"os"
	"sync"

	"golang.zx2c4.com/wireguard/tun"

	"culvert/gateway/latency"
)

// stalledBatch times device.QueueStagedSize packets is what waits for a session.
const stalledBatch = 1

// BatchSize is how many packets wireguard-go moves at once: room for a Geneve super-frame of 47
// segments and its neighbours. conn.IdealBatchSize, twice as many, would double the buffers of 64
// KiB without a gain.
const BatchSize = 64

// tunDevice is the tun.Device by which wireguard-go and a Path exchange inner packets. It only
// adapts interfaces and enforces the windows.
type tunDevice struct {
	path   Path
	out    *window // packets that wireguard-go has not sent yet
	in     *window // packets that it has not decrypted yet
	passed *stageTimers
	bind   *bind
	sample latency.Sampler // of Read
	mtu    int
	events chan tun.Event
	once   sync.Once
}

func newTunDevice(path Path, b *bind, mtu int) *tunDevice {
	return &tunDevice{path: path, out: b.out, in: b.in, passed: &b.passed, bind: b, mtu: mtu,
		events: make(chan tun.Event)}
}

// File returns nil: there is no kernel device.
func (d *tunDevice) File() *os.File { return nil }

// Read fills wireguard-go's buffers with packets for the peer; it blocks until
// there is one.
func (d *tunDevice) Read(bufs [][]byte, sizes []int, offset int) (int, error) {
	if !d.out.wait() {
		// There is no session with the peer, or it is too slow: wireguard-go queues batches of any
		// size, so keep them small.
		bufs = bufs[:stalledBatch]
	}
	n, err := d.path.Read(bufs, sizes, offset)
	d.out.give(n)
	if n > 0 {
		d.bind.voice.read()
		d.passed.encrypt.enter(n, func(i int) uintptr { return bufferOf(bufs[i]) }, d.sample.Picks(n))
	}
	return n, err
}

// Write passes on decrypted packets from the peer.
//
// borrowed: bufs belong to wireguard-go again when Write returns.
func (d *tunDevice) Write(bufs [][]byte, offset int) (int, error) {
	d.bind.carried.Add(uint64(len(bufs)))
	d.passed.decrypt.leave(bufs)
	d.path.Write(bufs, offset)
	d.in.take(len(bufs))
	return len(bufs), nil
}

// MTU is the size up to which WireGuard pads.
func (d *tunDevice) MTU() (int, error) { return d.mtu, nil }

// Name is the name in wireguard-go's messages.
func (d *tunDevice) Name() (string, error) { return "culvert", nil }

// Events never yields an event; it is closed by Close.
func (d *tunDevice) Events() <-chan tun.Event { return d.events }

// BatchSize is the most packets of one Read or Write.
func (d *tunDevice) BatchSize() int { return BatchSize }

// Close ends Read. wireguard-go calls it once, and so may its owner.
func (d *tunDevice) Close() error {
	d.once.Do(func() {
		close(d.events)
		d.path.Close()
	})
	return nil
}
