package sim

import (
	"sync"

	"golang.zx2c4.com/wireguard/device"

	"culvert/gateway"
)

// A gateway that starts takes 128 buffers of 64 KiB, and to clear new ones takes a seventh of the
// time of a schedule: those of gateways that have ended are used again.
var spare struct {
	sync.Mutex
	buffers []any
	records []record // of a world
}

// maxSpare is what a few gateways use.
const maxSpare = 1024

// reuseBuffers has a gateway take buffers of earlier ones.
func reuseBuffers(g *gateway.Gateway) {
	buffersOf(g).New = func() any {
		spare.Lock()
		defer spare.Unlock()
		if n := len(spare.buffers); n > 0 {
			b := spare.buffers[n-1]
			spare.buffers = spare.buffers[:n-1]
			return b
		}
		return new([device.MaxMessageSize]byte)
	}
}

// takeBuffers takes those of a gateway that has ended.
func takeBuffers(g *gateway.Gateway) {
	spare.Lock()
	defer spare.Unlock()
	pool := buffersOf(g)
	pool.New = nil
	for b := pool.Get(); b != nil && len(spare.buffers) < maxSpare; b = pool.Get() {
		spare.buffers = append(spare.buffers, b)
	}
	pool.New = func() any { return new([device.MaxMessageSize]byte) }
}

// release lets another world have the room for records. Nobody looks at w any more.
func (w *world) release() {
	w.mu.Lock()
	defer w.mu.Unlock()
	spare.records = w.log.all[:0]
	clear(w.log.all)
	w.log = ring{}
}

func buffersOf(g *gateway.Gateway) *sync.Pool {
	return privateAt[sync.Pool](g, "path", "WG", "device", "pool", "messageBuffers", "pool")
}
