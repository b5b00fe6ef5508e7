package integration

import (
	"bytes"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/device"

	"culvert/integration/need"
)

const (
	innocentRuns = 25
	innocentWarm = 300 * time.Millisecond
	innocentTime = time.Second
	// innocentShare is the part of its throughput that a stream keeps beside an attack, compared
	// with as many harmless packets of the same sizes: receive buffers and CPUs cannot be divided
	// up.
	innocentShare = 0.9
)

// TestInnocentThroughput measures a stream beside each attack, at siegeRate, and right before or
// after it beside as many harmless packets. Gateways start anew each time, because connections of
// an attack stay in the table for two minutes and would slow the next one. The median of the pairs
// counts: from one pair to the next, a virtual machine may lose half of its CPU time to its host.
func TestInnocentThroughput(t *testing.T) {
	need.Long(t, "a measurement of sixteen minutes, which needs a quiet machine")
	for _, pair := range innocentPairs {
		t.Run(pair.name, func(t *testing.T) {
			isolated(t, func(t *testing.T) {
				c := newMilan(t)
				c.addRomeWith(stickyServices())
				c.milanGateway.ip("address add " + stranger + "/24 dev rome-gw")
				c.sink()
				var rates [2][]float64
				var shares []float64
				for run := range innocentRuns {
					var pairRates [2]float64
					for j := range 2 {
						i := (run + j) % 2 // attack and harmless packets take turns in coming first
						c.romeCulvert.stop()
						c.milanCulvert.stop()
						c.startMilan()
						c.startRomeWith(stickyServices())
						eventually(t, "a ping past the new gateway", func() error {
							_, err := c.romePod.try("", "ping", "-c", "1", "-W", "1", milanPodAtRome)
							return err
						})
						f := [2]func(*clusters, *session) *flood{pair.harmless, pair.attack}[i](c, c.overhear())
						f.rate = siegeRate
						pairRates[i] = c.innocentRun(t, f)
						rates[i] = append(rates[i], pairRates[i])
					}
					shares = append(shares, pairRates[1]/pairRates[0])
				}
				share := median(shares)
				t.Logf("%.0f Mbit/s (%.0f to %.0f), beside harmless packets %.0f (%.0f to %.0f): %.2f (%.2f to %.2f)",
					median(rates[1]), slices.Min(rates[1]), slices.Max(rates[1]), median(rates[0]),
					slices.Min(rates[0]), slices.Max(rates[0]),
					share, slices.Min(shares), slices.Max(shares))
				if share < innocentShare {
					t.Errorf("the stream keeps %.2f of its throughput, want %.2f", share, innocentShare)
				}
			}, programs("ping", "ping"))
		})
	}
}

// innocentPairs are attacks, each with harmless packets that look alike: packets of one connection
// whose far end does not answer.
var innocentPairs = []struct {
	name             string
	harmless, attack func(*clusters, *session) *flood
}{
	{"new connections of pods", fromRome(90, oneConnection), fromRome(90, toPods(within(10, 0), within(10, 61)))},
	{"new connections of U", fromRome(90, oneConnection), fromRome(90, toPods(within(11, 11), always(10, 61, 1, 5)))},
	{"one unknown source", fromRome(90, oneConnection),
		fromRome(90, toPods(always(11, 11, 11, 7), always(10, 61, 1, 5)))},
	{"fragments", fromRome(vxlanLen+20+96, oneConnection),
		fromRome(vxlanLen+20+96, func(mac net.HardwareAddr) func([]byte) {
			return inFragments(toPods(sources(10_000), always(10, 61, 1, 5))(mac))
		})},
	{"what errors answer", fromRome(90, oneConnection), fromRome(90, func(mac net.HardwareAddr) func([]byte) {
		return lastHop(toPods(sources(10_000), always(10, 61, 1, 5))(mac))
	})},
	{"SYNs to services", fromMilan(62, toRomePod), fromMilan(62, func(mac net.HardwareAddr) func([]byte) {
		return serviceSYNs(vxlanFrames(milanVNI, mac, unix.IPPROTO_TCP, pods(), always(10, 72, 1, 0)))
	})},
	{"forged data", fromMilan(vxlanLen+1340, toRomePod), func(c *clusters, s *session) *flood {
		return c.fromStranger(s, 1340+device.MessageTransportSize, message(device.MessageTransportType, s.index...))
	}},
	{"initiations", fromMilan(vxlanLen+device.MessageInitiationSize-device.MessageTransportSize, toRomePod),
		func(c *clusters, s *session) *flood {
			return c.fromStranger(s, device.MessageInitiationSize, initiations(c.romeGateway.t, c.romeKey.public))
		}},
}

func fromRome(size int, fill func(net.HardwareAddr) func([]byte)) func(*clusters, *session) *flood {
	return func(c *clusters, _ *session) *flood {
		return &flood{from: c.romeNode, to: "172.18.0.9:6091", size: size, fill: fill(nodeMAC(c.romeNode))}
	}
}

func fromMilan(size int, fill func(net.HardwareAddr) func([]byte)) func(*clusters, *session) *flood {
	return func(c *clusters, _ *session) *flood {
		return &flood{from: c.milanNode, to: "172.19.0.9:6091", size: size, fill: fill(nodeMAC(c.milanNode))}
	}
}

func (c *clusters) fromStranger(s *session, size int, fill func([]byte)) *flood {
	return &flood{from: c.milanGateway, local: stranger, to: s.to, size: size, fill: fill}
}

func toPods(from, to func() [4]byte) func(net.HardwareAddr) func([]byte) {
	return func(mac net.HardwareAddr) func([]byte) { return vxlanFrames(romeVNI, mac, unix.IPPROTO_UDP, from, to) }
}

func oneConnection(mac net.HardwareAddr) func([]byte) {
	return samePorts(toPods(always(10, 0, 1, 7), always(10, 61, 1, 5))(mac))
}

func toRomePod(mac net.HardwareAddr) func([]byte) {
	return samePorts(vxlanFrames(milanVNI, mac, unix.IPPROTO_UDP, always(10, 0, 1, 7), always(10, 62, 1, 5)))
}

// samePorts puts all datagrams into one connection, with a bad checksum, so that the far kernel
// drops them.
func samePorts(fill func([]byte)) func([]byte) {
	return func(b []byte) {
		fill(b)
		udp := b[vxlanLen+20:]
		copy(udp, []byte{0x27, 0x10, 0, 9, udp[4], udp[5], 0xba, 0xad})
	}
}

// lastHop gives packets a TTL that expires at the gateway.
func lastHop(fill func([]byte)) func([]byte) {
	return func(b []byte) {
		fill(b)
		b[vxlanLen+8] = 1
		sumHeader(b[vxlanLen:])
	}
}

const sinkPort = "5203"

// sunk counts the bytes that the sink has taken.
var sunk atomic.Int64

// sink reads streams in milan's pod until the end of the test.
func (c *clusters) sink() {
	c.milanPod.accept(c.milanPod.t, "tcp4", net.JoinHostPort(podAddress, sinkPort), func(conn net.Conn) {
		for buffer := make([]byte, 1<<17); ; {
			n, err := conn.Read(buffer)
			sunk.Add(int64(n))
			if err != nil {
				return
			}
		}
	})
}

// stream sends as much as it can from rome's pod to the sink until it is closed.
func (c *clusters) stream(t *testing.T) net.Conn {
	t.Helper()
	conn, err := c.romePod.dial("tcp4", net.JoinHostPort(milanPodAtRome, sinkPort))
	need.NoError(t, err)
	go func() {
		for block := bytes.Repeat([]byte{'x'}, 1<<17); ; {
			if _, err := conn.Write(block); err != nil {
				return
			}
		}
	}()
	return conn
}

// sinkRate waits for warm, and then measures the rate at the sink in Mbit/s for lasts. It calls
// meanwhile when the measurement begins.
func sinkRate(warm, lasts time.Duration, meanwhile func()) float64 {
	time.Sleep(warm) // the stream warms up
	from, had := time.Now(), sunk.Load()
	meanwhile()
	time.Sleep(lasts - time.Since(from)) // the measured window
	return float64(sunk.Load()-had) * 8 / 1e6 / time.Since(from).Seconds()
}

// innocentRun returns the throughput of a stream beside a flood, in Mbit/s.
func (c *clusters) innocentRun(t *testing.T, f *flood) float64 {
	t.Helper()
	defer c.stream(t).Close()
	began := time.Now()
	ended := make(chan error, 1)
	go func() { ended <- f.run(began, began.Add(innocentWarm+innocentTime)) }()
	rate := sinkRate(innocentWarm, innocentTime, func() {})
	need.NoError(t, <-ended)
	return rate
}

// A session is the address to which the peer sends its data messages, and their receiver index.
type session struct {
	to    string
	index []byte
}

// overhear makes the peer send something, and reads the session from it.
func (c *clusters) overhear() *session {
	said := make(chan struct{})
	go func() {
		defer close(said)
		c.romePod.try("", "ping", "-q", "-c", "20", "-i", "0.05", "-W", "1", milanPodAtRome)
	}()
	to, index := overhearSession(c.romeGateway, "192.0.2.7")
	<-said
	return &session{to, index}
}
