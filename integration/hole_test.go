package integration

import (
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"culvert/integration/need"
)

const (
	// holeShare is the part of its rate that a stream keeps after a hole has opened: its packets
	// are smaller by a twelfth.
	holeShare = 0.8
	holeRuns  = 5 // seconds of which the median is taken
)

// TestHoleRate: a stream that fills a path fills it again soon after a hole has opened. The same
// stream through the reference gateway, logged beside it, stalls.
func TestHoleRate(t *testing.T) {
	need.Long(t, "a measurement of four minutes, which needs a quiet machine")
	isolated(t, func(t *testing.T) {
		for i, h := range holes {
			for j, gateway := range []string{"culvert", "reference"} {
				t.Run(h.way+", "+gateway, func(t *testing.T) {
					l := newFaultLab(t, string(rune('a'+2*i+j)))
					answering(l)
					if gateway == "culvert" {
						l.start(func(*faultLab) {})
					} else {
						l.startReference()
					}
					l.cutTrains(&h)
					c := l.newFlow(0, 1-h.into)
					defer c.close()
					c.control("cubic")
					before := c.rate(h.into)
					l.swallow(&h)
					began := time.Now()
					for again := 0.0; again < holeShare*before && time.Since(began) < pathTime; {
						again = c.second(h.into)
					}
					took := time.Since(began)
					after := c.rate(h.into)
					t.Logf("%.0f Mbit/s; %.1f s after the hole has opened %.0f, %.2f of it", before, took.Seconds(),
						after, after/before)
					if gateway == "culvert" && after < holeShare*before {
						t.Errorf("want %.2f of it", holeShare)
					}
				})
			}
		}
	}, programs("ping", "ping"), programs("nft", "nft"))
}

// control sets the congestion control of both ends. BBR, the default of some machines, mistakes the
// round trip of an empty path for that of a full one, and sends too little after every pause,
// whatever its cause.
func (c *tcpFlow) control(name string) {
	c.l.t.Helper()
	for _, end := range c.ends {
		raw, err := end.(syscall.Conn).SyscallConn()
		if err != nil {
			c.l.t.Fatal(err)
		}
		raw.Control(func(fd uintptr) {
			err = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, name)
		})
		if err != nil {
			c.l.t.Fatalf("congestion control %s: %v", name, err)
		}
	}
}

// rate returns how fast data arrive at an end, in Mbit/s.
func (c *tcpFlow) rate(end int) float64 {
	rates := make([]float64, holeRuns)
	for i := range rates {
		rates[i] = c.second(end)
	}
	return slices.Sorted(slices.Values(rates))[holeRuns/2]
}

func (c *tcpFlow) second(end int) float64 {
	began, had := time.Now(), c.delivered[end].Load()
	time.Sleep(time.Second) // the measured window
	return float64(c.delivered[end].Load()-had) * 8 / 1e6 / time.Since(began).Seconds()
}

// startReference starts the reference gateway in both clusters.
func (l *faultLab) startReference() {
	l.t.Helper()
	reference := []string{labBinary(os.Getenv(binaryEnv)), "reference"}
	l.gatewayBy(reference, l.milanGateway, l.milan, l.milanKey, l.milanPeer)
	l.gatewayBy(reference, l.gateway, l.rome, l.romeKey, l.romePeer)
	l.node.ip(l.script)
	eventually(l.t, "a ping through the reference gateway", func() error {
		// the reference does not translate sources that are not pods
		_, err := l.pod.try("", "ping", "-c", "1", "-W", "1", "10.61.1.5")
		return err
	})
}
