package nat_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"culvert/nat"
	"culvert/nat/rules"
)

// clientPorts are as many as the default of `culvert node`.
func clientPorts(c *nat.Config) { c.Host.Ports.Last = c.Host.Ports.First + 4534 }

// Clients open connections to one endpoint for any length of time, at a rate that leaves no port
// free, and close each. None loses a SYN: at its share, a source takes a port of a connection that
// it has closed itself, whatever its share of the ports, although half of those that it tries have
// a sequence number that forbids it.
func TestShortConnectionsLoseNoSYN(t *testing.T) {
	const node, pod, outside = "172.18.0.2", "10.244.2.9", "198.51.100.9"
	for name, test := range map[string]struct {
		clients     []string
		rate, total int
	}{
		"one client, 400 a second":      {[]string{node}, 400, 12_000},
		"one client, 1,000 a second":    {[]string{node}, 1000, 20_000},
		"three clients, 1,000 a second": {[]string{node, pod, outside}, 1000, 20_000},
		"twelve clients, 4,000 a second": {[]string{node, pod, outside, "10.244.2.10", "10.244.2.11", "10.244.2.12",
			"10.244.2.13", "10.244.2.14", "10.244.2.15", "10.244.2.16", "10.244.2.17", "10.244.2.18"}, 4000, 40_000},
	} {
		t.Run(name, func(t *testing.T) {
			if testing.Short() {
				test.total /= 10
			}
			random := rand.New(rand.NewPCG(23, 4))
			e, now, lost := host(t, only(1), clientPorts), start, 0
			for i := range test.total {
				if now = start.Add(time.Duration(i) * time.Second / time.Duration(test.rate)); i%test.rate == 0 {
					for !e.Sweep(now) {
					}
				}
				client := test.clients[i%len(test.clients)]
				port := uint16(32768 + i/len(test.clients)%28232) // Linux's local ports
				if got, _ := connect(t, e, client, port, random.Uint32(), true, now); got == 0 {
					lost++
				}
			}
			if lost > 0 {
				t.Errorf("%d SYNs of %d dropped", lost, test.total)
			}
		})
	}
}

// A SYN finds no port if all connections that it tries have higher sequence numbers; when it is
// sent again, it tries others.
func TestSYNsSentAgainTryOthers(t *testing.T) {
	const client = "198.51.100.9"
	e := host(t, only(1), clientPorts)
	opened := 0
	for port := uint16(1024); ; port, opened = port+1, opened+1 {
		seq := uint32(1 << 20)
		if opened == 1000 { // the one that gives up its port
			seq = 1000
		}
		if got, why := connect(t, e, client, port, seq, true, start); got == 0 {
			if why != nat.ReasonPortShare {
				t.Fatalf("dropped for %v", why)
			}
			break
		}
	}
	sent := 0
	for got := uint16(0); got == 0; sent++ {
		if sent == 50 {
			t.Fatal("sent 50 times in vain")
		}
		got, _ = connect(t, e, client, 9000, 2000, true, start)
	}
	if sent == 1 {
		t.Error("the first one finds the port: this test tests nothing")
	}
}

// Restored connections give up their ports like those that were closed here.
func TestRestoredConnectionsLeaveTheirPorts(t *testing.T) {
	random := rand.New(rand.NewPCG(23, 5))
	e := host(t, only(1), clientPorts)
	for i := range 5000 {
		connect(t, e, "172.18.0.2", uint16(1024+i), random.Uint32(), true, start)
	}
	kept := write(e.Records(0, func(nat.Link) string { return "host" }), start)
	e = host(t, only(1), clientPorts)
	if got := read(e.Restore(func(string) (nat.Link, bool) { return rules.HostLink, true }, start),
		kept); got.Connections < 1000 {
		t.Fatalf("restored: %+v", got)
	}
	for i := range 5000 {
		if got, why := connect(t, e, "172.18.0.2", uint16(1024+i), random.Uint32(), true, start); got == 0 {
			t.Fatalf("connection %d: %v", i, why)
		}
	}
}
