package gateway

import (
	"context"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"culvert/gateway/role"
	"culvert/nat/nattest"
)

// TestSwitches: replicas forward in turns, beside traffic and looks at their status. After each
// switch a connection that needs its record goes on, by the port that it had from the first
// replica.
func TestSwitches(t *testing.T) {
	switches := 10
	if os.Getenv("CULVERT_LONG") != "" {
		switches = 100
	}
	r := newReplicas(t)
	udp := func(source, destination string, from, to uint16) nattest.IP {
		return nattest.IP{Source: source, Destination: destination, Body: nattest.UDP{SourcePort: from,
			DestinationPort: to, Payload: []byte("x")}}
	}
	active, standby := 0, 1
	r.lead(r.pods[active])
	port := r.send(r.pods[active], r.milan, 0, 0, udp("172.18.0.10", "10.61.1.5", 4000, 53), "10.72.0.0",
		"10.0.1.5").SourcePort
	var forwards atomic.Pointer[cluster]
	noise, stop := context.WithCancel(context.Background())
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer stop()
	tasks.Go(func() { // connections of another node, of which each is new
		for n := uint16(0); noise.Err() == nil; n++ {
			if cl := forwards.Load(); cl != nil {
				cl.nodes[1].Send(udp("172.18.0.11", "10.61.3.9", 1024+n%1024, 53).Bytes())
			}
			r.milan.nodes[1].Drain()
			time.Sleep(100 * time.Microsecond) // the pace of the noise
		}
	})
	tasks.Go(func() {
		for noise.Err() == nil {
			for _, cl := range r.pods {
				cl.inspect.Status()
				cl.Signs()
			}
			time.Sleep(time.Millisecond) // the pace of the looks
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute+time.Duration(switches)*5*time.Second)
	defer cancel()
	for i := range switches {
		old, next := r.pods[active], r.pods[standby]
		old.nodes[1].GatewayMAC() // while it answers
		forwards.Store(old)
		next.replicating.Follow(r.listen[active])
		if err := next.replicating.Whole(ctx); err != nil {
			t.Fatalf("switch %d: no copy: %v", i, err)
		}
		old.Become(role.Standby)
		if err := old.replicating.Flush(ctx); err != nil {
			t.Fatalf("switch %d: %v", i, err)
		}
		began := time.Now()
		r.lead(next)
		if took := time.Since(began); took > 4*time.Second {
			t.Errorf("switch %d: no session for %v", i, took)
		}
		v := r.send(r.milan, next, 0, 0, udp("10.0.1.5", "10.72.0.0", 53, port), "10.61.1.5", "172.18.0.10")
		if v.DestinationPort != 4000 {
			t.Errorf("switch %d: the answer came to port %d, want 4000", i, v.DestinationPort)
		}
		active, standby = standby, active
	}
	if n := r.pods[active].engine.Stats().Connections; n < 2 {
		t.Errorf("%d connections beside traffic", n)
	}
}
