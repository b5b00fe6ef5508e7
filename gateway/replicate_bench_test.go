package gateway

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"culvert/gateway/config"
	"culvert/integration/need"
	"culvert/nat/nattest"
)

func largeTable(c *config.Config) { c.MaxConnections = 1 << 21 }

// received counts what comes to the first node of a cluster, until ctx ends.
func (cl *cluster) received(ctx context.Context, b *testing.B, tasks *sync.WaitGroup) *atomic.Int64 {
	n := new(atomic.Int64)
	tasks.Go(func() {
		for {
			select {
			case <-cl.nodes[0].Packets():
				n.Add(1)
			case <-ctx.Done():
				return
			}
		}
	})
	return n
}

// BenchmarkCopy has a standby copy a million connections while 100 Mb/s pass each way, and counts
// what of that is lost. Both gateways, the standby and the nodes share the machine.
func BenchmarkCopy(b *testing.B) {
	const million, size, rate = 1_000_000, 1340, 100e6 / 8 / 1340
	for b.Loop() {
		r := newReplicas(b, largeTable)
		active, standby := r.pods[0], r.pods[1]
		r.lead(active)
		(&pair{rome: active, milan: r.milan}).strangers(b, million)
		ctx, stop := context.WithCancel(context.Background())
		var tasks sync.WaitGroup
		var sent, arrived [2]*atomic.Int64
		sending, pause := context.WithCancel(ctx)
		for way, x := range []struct {
			from, to            *cluster
			source, destination string
		}{{active, r.milan, "10.0.1.5", "10.61.1.5"}, {r.milan, active, "10.0.1.5", "10.62.1.5"}} {
			arrived[way], sent[way] = x.to.received(ctx, b, &tasks), new(atomic.Int64)
			x.from.nodes[0].GatewayMAC()
			datagram := x.from.nodes[0].Encap(udpPacket(x.source, x.destination, nattest.Payload(size-28, 1)))
			tasks.Go(func() {
				tick := time.NewTicker(time.Millisecond)
				defer tick.Stop()
				for began := time.Now(); ; {
					select {
					case <-sending.Done():
						return
					case <-tick.C:
					}
					for due := int64(time.Since(began).Seconds() * rate); sent[way].Load() < due; sent[way].Add(1) {
						x.from.nodes[0].SendRaw(datagram)
					}
				}
			})
		}
		lost := func() (n int64) {
			for way := range sent {
				n += sent[way].Load() - arrived[way].Load()
			}
			return n
		}
		time.Sleep(2 * time.Second) // traffic warms up
		begun := time.Now()
		before := sent[0].Load() + sent[1].Load()
		standby.replicating.Follow(r.listen[0])
		whole, cancel := context.WithTimeout(ctx, time.Minute)
		need.NoError(b, standby.replicating.Whole(whole))
		cancel()
		took := time.Since(begun)
		meanwhile := sent[0].Load() + sent[1].Load() - before
		pause()
		time.Sleep(time.Second) // what is under way arrives
		b.ReportMetric(took.Seconds(), "s")
		b.ReportMetric(float64(lost()), "lost")
		b.ReportMetric(float64(meanwhile), "packets-meanwhile")
		if n := standby.engine.Stats().Connections; n < million {
			b.Errorf("%d connections were copied", n)
		}
		stop()
		tasks.Wait()
		active.stop()
		standby.stop()
		r.milan.stop()
	}
}

// BenchmarkBesideStandby compares what passes of one stream of trains with and without a standby,
// in turns. All share the machine, so new connections, each of which the standby takes into its
// table, are no part of it: TestKubeStandbyCost of integration has a process for each gateway.
func BenchmarkBesideStandby(b *testing.B) {
	const outstanding, lasts = 256, time.Second
	r := newReplicas(b)
	active, standby := r.pods[0], r.pods[1]
	r.lead(active)
	ctx, stop := context.WithCancel(context.Background())
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer stop()
	arrived := r.milan.received(ctx, b, &tasks)
	node := active.nodes[0]
	node.GatewayMAC()
	train := slices.Repeat([][]byte{udpPacket("10.0.1.5", "10.61.1.5", nattest.Payload(1312, 1))}, 32)
	rate := func() float64 {
		before, sent, stalled := arrived.Load(), int64(0), time.Now()
		began := time.Now()
		for time.Since(began) < lasts {
			if have := arrived.Load() - before; sent-have < outstanding {
				node.SendTrain(train...)
				sent += int64(len(train))
				stalled = time.Now()
			} else if time.Since(stalled) > 20*time.Millisecond { // lost
				before -= sent - have
			}
		}
		n := arrived.Load() - before
		return float64(n) / time.Since(began).Seconds()
	}
	var with, without []float64
	for b.Loop() {
		standby.replicating.Follow(r.listen[0])
		whole, cancel := context.WithTimeout(ctx, time.Minute)
		need.NoError(b, standby.replicating.Whole(whole))
		cancel()
		with = append(with, rate())
		standby.replicating.Follow(netip.AddrPort{})
		waitFor(b, "no standby", func() bool { return !active.replicating.Followed() })
		without = append(without, rate())
	}
	slices.Sort(with)
	slices.Sort(without)
	b.ReportMetric(with[len(with)/2]/without[len(without)/2], "ratio")
	b.ReportMetric(without[len(without)/2], "packets/s")
}
