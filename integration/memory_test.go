package integration

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/device"
)

const (
	memoryCeiling  = 64 << 20
	memoryAim      = memoryCeiling / 4 * 3 // the rest is for what this test does not cover
	memoryGroupEnv = "CULVERT_PEER_GROUP"  // folder of the group, in the process inside the namespaces
	floodTime      = 5 * time.Second
	stranger       = "192.0.2.66" // an address of the link between the gateways
)

// TestMemoryCeiling floods both sockets of a gateway with a limit of 64 MiB, from its node, its
// peer and unknown senders. The gateway must not be killed, must keep its connections, and must
// count what it drops.
func TestMemoryCeiling(t *testing.T) {
	inMemoryGroup(t, func(t *testing.T, group *memoryGroup) {
		c := newMilan(t)
		c.romeGateway.group = &group.controlGroup
		c.addRome()
		c.milanGateway.ip("address add " + stranger + "/24 dev rome-gw")
		pingThrough(c.romePod, milanPodAtRome)
		const bytesPerConnection = 256
		if n := c.romeGateway.metric("culvert_connections_max"); n != memoryCeiling/4/bytesPerConnection {
			t.Errorf("room for %v connections, want what a quarter of %d bytes holds", n, memoryCeiling)
		}
		for _, socket := range []string{"geneve", "wireguard", "wireguard6"} {
			n := c.romeGateway.metric(fmt.Sprintf("culvert_socket_receive_buffer_bytes{socket=%q}", socket))
			if n > memoryCeiling/32 {
				t.Errorf("receive buffer of socket %s: %v bytes, want at most a 32nd of %d", socket, n, memoryCeiling)
			}
		}

		flows := c.echoFlows(t, 3)
		floods := c.floods(t)
		before := readCounts(c.romeGateway)
		progress := make([]int64, len(flows))
		for i, f := range flows {
			progress[i] = f.rounds.Load()
		}
		took := runFloods(t, floods)
		if err := c.romeCulvert.running(); err != nil {
			t.Fatalf("%v; %v", err, group.use(t))
		}
		// One flow may stall: where the flood takes half of its segments, TCP doubles its pause
		// after each loss (RFC 6298, Section 5.5).
		passed := map[*peerHost]int64{}
		for i, f := range flows {
			n := f.rounds.Load() - progress[i]
			t.Logf("%s: %d blocks came back during the flood", f.name, n)
			passed[f.from] += n
		}
		for _, from := range []*peerHost{c.romePod, c.milanPod} {
			if passed[from] == 0 {
				t.Errorf("%s: no block of any flow came back during the flood", from.name)
			}
		}
		for _, f := range flows {
			f.finish(t)
		}

		use := group.use(t)
		t.Logf("%v; %s", use, residentPeak(t, c.romeCulvert.cmd.Process.Pid))
		if use.killed != 0 || use.atLimit != 0 || use.peak > memoryAim {
			t.Errorf("%v, want at most %d MiB of %d", use, memoryAim>>20, memoryCeiling>>20)
		}
		for _, f := range floods {
			t.Logf("%s: %d datagrams", f.name, f.sent)
		}
		eventually(t, "accounts", func() error {
			return readCounts(c.romeGateway).account(before, floods, took)
		})
		t.Log("of these:\n" + readCounts(c.romeGateway).drops())
	}, programs("ping", "ping"))
}

// floods returns the floods of both sockets of rome's gateway.
func (c *clusters) floods(t *testing.T) []*flood {
	const node = "172.18.0.9:6091"
	wireGuard, index := overhearSession(c.romeGateway, "192.0.2.7")
	mac := nodeMAC(c.romeNode)
	fromNode := func(name string, size int, fill func([]byte)) *flood {
		return &flood{name: name, from: c.romeNode, to: node, size: size, fill: fill}
	}
	fromStranger := func(name string, size int, fill func([]byte)) *flood {
		return &flood{name: name, from: c.milanGateway, local: stranger, to: wireGuard, size: size, fill: fill}
	}
	return []*flood{
		fromNode("new flows", 1362, vxlanFrames(romeVNI, mac, unix.IPPROTO_UDP, within(10, 0), within(10, 61))),
		fromNode("pings of the gateway", 1000, vxlanFrames(romeVNI, mac, unix.IPPROTO_ICMP, always(10, 80, 0, 2),
			always(10, 80, 0, 4))),
		fromNode("garbage", 700, garbage(8)),
		{name: "super-frames", from: c.romePod, to: milanPodAtRome + ":9", size: 1200, train: true, fill: garbage()},
		{name: "peer's super-frames", from: c.milanPod, to: romePodAtMilan + ":9", size: 1200, train: true,
			fill: garbage()},
		fromStranger("forged data of the session", 1400, message(device.MessageTransportType, index...)),
		fromStranger("forged keepalives of the session", device.MessageKeepaliveSize,
			message(device.MessageTransportType, index...)),
		fromStranger("data of no session", 1400, message(device.MessageTransportType)),
		fromStranger("initiations", device.MessageInitiationSize, initiations(t, c.romeKey.public)),
		fromStranger("initiations to nobody", device.MessageInitiationSize, message(device.MessageInitiationType)),
		fromStranger("responses to nobody", device.MessageResponseSize, message(device.MessageResponseType)),
		fromStranger("cookies", device.MessageCookieReplySize, message(device.MessageCookieReplyType)),
		fromStranger("WireGuard garbage", 700, garbage(4)),
	}
}

// runFloods runs all floods at once and returns how long that took.
func runFloods(t *testing.T, floods []*flood) time.Duration {
	began := time.Now()
	var wait sync.WaitGroup
	for _, f := range floods {
		wait.Go(func() {
			if err := f.run(began, began.Add(floodTime)); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	return time.Since(began)
}
