package integration

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/ipv4"
	"golang.zx2c4.com/wireguard/device"
)

const (
	strangerRate  = 20_000  // datagrams a second at each socket
	strangerCount = 150_000 // at each socket
)

// TestStrangersFlood floods both sockets of a gateway from unknown senders, at a steady rate, with
// datagrams that look like messages. Pings between pods must be answered during the flood and after
// it.
func TestStrangersFlood(t *testing.T) {
	isolated(t, func(t *testing.T) {
		c := newVXLANClusters(t)
		c.milanGateway.ip("address add " + stranger + "/24 dev rome-gw")
		c.romeNode.ip("address add 172.18.0.66/24 dev rome-gw")
		pingThrough(c.romePod, milanPodAtRome)
		wireGuard, index := overhearSession(c.romeGateway, "192.0.2.7")

		floods := []*flood{
			{name: "WireGuard messages", from: c.milanGateway, local: stranger, to: wireGuard,
				size: device.MessageInitiationSize, fill: inTurn(
					initiations(t, c.romeKey.public),
					message(device.MessageInitiationType),
					message(device.MessageTransportType),
					message(device.MessageTransportType, index...),
					garbage(9))},
			{name: "frames of nobody", from: c.romeNode, local: "172.18.0.66", to: "172.18.0.9:6091", size: 700,
				fill: inTurn(
					garbage(8, 0, 0, 0, 0x70, 0, 1), garbage(0, 0, 0x65, 0x58, 0x70, 0, 1), garbage())},
		}
		overflows := func() (n float64) {
			for _, socket := range []string{"geneve", "wireguard"} {
				n += c.romeGateway.metric(fmt.Sprintf("culvert_socket_overflows_total{socket=%q}", socket))
			}
			return n
		}
		before, lostBefore, began := overflows(), backlogDrops(t), time.Now()
		var wait sync.WaitGroup
		for _, f := range floods {
			wait.Go(func() {
				took, err := f.steady(strangerCount, strangerRate)
				if err != nil {
					t.Error(err)
				}
				t.Logf("%s: %d in %v, %.0f a second", f.name, f.sent, took, float64(f.sent)/took.Seconds())
			})
		}
		// A hundredth may be lost: strangers and pods share the kernel's receive buffers.
		const interval = 50 * time.Millisecond
		c.pings(t, interval, int(strangerCount/strangerRate*time.Second/interval), 100)
		wait.Wait()
		c.pings(t, 200*time.Millisecond, 5, 0)
		t.Logf("%v datagrams were lost at full receive buffers", overflows()-before)
		counted := c.romeGateway.metric(`culvert_dropped_packets_total{direction="outbound",reason="unknown-node"}`)
		if int(counted) < strangerCount-int(overflows()-before+backlogDrops(t)-lostBefore) {
			t.Errorf("%v frames of nobody counted of %d", counted, strangerCount)
		}
		// The log may have five lines about strangers at once, and one more each 10 s.
		most := 6 + int(time.Since(began)/(10*time.Second))
		if log := c.romeCulvert.output(); strings.Count(log, "cause=stranger-") > most ||
			strings.Count(log, "\n") > most+5 {
			t.Errorf("the flood writes the log:\n%s", log)
		}
	}, programs("ping", "ping"))
}

// pings sends count pings from a pod of rome to one of milan, and fails unless all are answered, or
// all but one in lossOf if that is not 0.
func (c *clusters) pings(t *testing.T, interval time.Duration, count, lossOf int) {
	t.Helper()
	out, err := c.romePod.try("", "ping", "-q", "-W", "1", "-i", fmt.Sprint(interval.Seconds()), "-c",
		fmt.Sprint(count), milanPodAtRome)
	if err != nil {
		t.Error(err)
		return
	}
	received, may := 0, 0
	if lossOf > 0 {
		may = count / lossOf
	}
	if _, after, ok := strings.Cut(out, "packets transmitted, "); ok {
		fmt.Sscan(after, &received)
	}
	if received < count-may {
		t.Errorf("%d of %d pings came back:\n%s", received, count, out)
	}
}

// inTurn returns a function that fills datagrams with each of fills in turn.
func inTurn(fills ...func([]byte)) func([]byte) {
	next := 0
	return func(b []byte) {
		fills[next%len(fills)](b)
		next++
	}
}

// steady sends count datagrams, evenly, at rate a second.
func (f *flood) steady(count, rate int) (took time.Duration, err error) {
	var conn net.Conn
	err = f.from.do(func() (err error) {
		dialer := net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(f.local)}}
		conn, err = dialer.Dial("udp4", f.to)
		return err
	})
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	socket := ipv4.NewPacketConn(conn.(*net.UDPConn))
	messages := make([]ipv4.Message, floodBatch)
	for i := range messages {
		messages[i].Buffers = [][]byte{make([]byte, f.size)}
	}
	began := time.Now()
	for pace := newPace(began, rate); f.sent < count; {
		pace.wait()
		for i := range messages {
			f.fill(messages[i].Buffers[0])
		}
		n, err := socket.WriteBatch(messages, 0)
		if err != nil && !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, syscall.ENOBUFS) {
			return 0, fmt.Errorf("flood of %s: %w", f.name, err)
		}
		f.sent += max(n, 0)
	}
	return time.Since(began), nil
}
