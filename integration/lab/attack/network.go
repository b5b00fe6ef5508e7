package attack

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"time"

	"culvert/integration/lab"
	"culvert/integration/lab/probe"
	"culvert/integration/lab/step"
)

// attackNetwork pings from many addresses of a pod's network, which another pod answers: 50,000
// times within ten seconds, and then 730 times a second for the lifetime of such connections.
// Meanwhile the forger's own pod, one on another node and one in the other cluster use services.
// With CULVERT_LONG it continues for five minutes.
func (l *attacks) attackNetwork(ctx context.Context) (_ string, err error) {
	defer step.Catch(&err)
	const burst, burstRate, rate, least = 50_000, 6_000, 730, 20_000
	lasts := 10
	if os.Getenv("CULVERT_LONG") != "" {
		lasts = 300
	}
	p, e := l.Plan(), l.Pair("rome/pod1", "milan/pod1")
	attacker := l.At("rome/pod1")
	forge := func(count int, pause time.Duration) *probe.Flood {
		return &probe.Flood{From: attacker, Count: count, Packet: func(i int) []byte {
			if i%probe.FloodBurst == 0 {
				time.Sleep(pause) // keeps the rate
			}
			from, id := neighbour(attacker.Address, i)
			return probe.RawEcho(from, e.Target, id)
		}}
	}
	defer step.Must(l.ServeBackends(p, 0))()
	defer step.Must(l.ServeBackends(p, 1))()
	for n, tries := 0, 0; n < least; tries++ { // a busy kernel loses pings
		if tries == attempts {
			return "", fmt.Errorf(
				"%d connections at milan after %d times %d pings, want %d at least, or nothing is attacked", n, tries,
				burst, least)
		}
		step.Must(l.beside(ctx, []*probe.Flood{forge(burst, probe.FloodBurst*time.Second/burstRate)}))
		n, _ = step.Must2(l.connections(ctx, "milan/gateway"))
	}
	var innocents []*innocent
	for _, from := range []string{"rome/pod1", "rome/pod2", "milan/pod2"} {
		far := &p[1-p.Index(from)]
		in := newCalls(1, l.At(from), netip.AddrPortFrom(far.Seen(far.Balanced), lab.ServicePort), "")
		in.what, in.every, in.most = "connections of "+from, time.Duration(lasts)*time.Second/20, 0
		innocents = append(innocents, in)
	}
	return l.beside(ctx, []*probe.Flood{forge(lasts*rate, probe.FloodBurst*time.Second/rate)}, innocents...)
}

// neighbour returns an unused address of a's network, and the identifier of its n-th ping.
func neighbour(a netip.Addr, n int) (netip.Addr, uint16) {
	b := a.AsSlice()
	if a.Is6() {
		binary.BigEndian.PutUint32(b[12:], 0x10000+uint32(n%50_000))
		a, _ = netip.AddrFromSlice(b)
		return a, uint16(1 + n/50_000)
	}
	b[3] = byte(10 + n%240)
	a, _ = netip.AddrFromSlice(b)
	return a, uint16(1 + n/240)
}
