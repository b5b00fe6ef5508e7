package nat_test

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"culvert/nat"
	"culvert/nat/nattest"
	"culvert/nat/packet"
)

// One goroutine for each direction, while the configuration changes and counters are read: for the
// race detector; then the ledger must balance.
func TestConcurrency(t *testing.T) {
	e := engine(t, func(c *nat.Config) { c.MaxConnections = 200 })
	var work, watch sync.WaitGroup
	done := make(chan struct{})
	for _, in := range []nat.Link{node1, nat.Tunnel} {
		work.Add(1)
		go func() {
			defer work.Done()
			r := rand.New(rand.NewPCG(uint64(in), 1))
			buffer := make([]byte, 65536)
			var p packet.Packet
			var c packet.Cutter
			for i := range 20_000 {
				now := start.Add(time.Duration(i) * time.Millisecond)
				packet := udp("203.0.113.9", "10.71.3.9", uint16(2000+r.IntN(300)), 53)
				if in == nat.Tunnel {
					packet = udp("10.200.3.9", "10.70.0.0", 53, uint16(2000+r.IntN(300)))
				}
				if r.IntN(4) == 0 {
					packet.TTL = 1
				}
				packet.MF = r.IntN(10) == 0
				if packet.MF {
					packet.Body = nattest.Raw{Protocol: 17, Payload: make([]byte, 800)}
					packet.Offset = r.IntN(3) * 800
				}
				p.Parse(packet.Bytes())
				v := e.Process(&p, in, now)
				if v.Action == nat.Forward {
					c.Start(&p, v.SegmentSize, v.MTU)
					for c.Next(buffer) > 0 {
					}
				}
				e.AppendError(buffer[:0], &p, in, v, now)
				for range v.Held {
					e.Release(&p, buffer, in, now)
				}
			}
		}()
	}
	watch.Add(1)
	go func() {
		defer watch.Done()
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			default:
			}
			c := rome()
			c.MaxConnections = 200
			c.MTU = 1300 + i%40
			if err := e.Apply(c); err != nil {
				t.Error(err)
				return
			}
			e.Sweep(start.Add(time.Duration(i) * time.Millisecond))
			e.Stats()
			records(e, 0, start)
		}
	}()
	work.Wait()
	close(done)
	watch.Wait()
	ledger(t, e)
}
