package integration

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/device"

	"culvert/integration/need"
)

const (
	// longEnv makes the siege last a minute.
	longEnv   = "CULVERT_LONG"
	siegeTime = 10 * time.Second
	longSiege = time.Minute

	siegeRate     = 20_000 // datagrams a second to each socket
	siegeServices = 300
	siegeSYNs     = 100_000
	siegeScrapers = 1000
	siegePings    = 50 // a second
)

// TestMemorySiege attacks a gateway with a limit of 64 MiB in every way at once: services that
// remember their clients, the connection table, fragments, the metrics page and both sockets. The
// gateway must not be killed, and other traffic may lose one ping of a hundred.
func TestMemorySiege(t *testing.T) {
	inMemoryGroup(t, func(t *testing.T, group *memoryGroup) {
		c := newMilan(t)
		c.romeGateway.group = &group.controlGroup
		c.addRomeWith(stickyServices())
		c.milanGateway.ip("address add " + stranger + "/24 dev rome-gw")
		pingThrough(c.romePod, milanPodAtRome)
		if n := c.romeGateway.metric("culvert_connections_max"); n != 65_536 {
			t.Fatalf("room for %v connections: the limit of 64 MiB is not seen", n)
		}

		lasting := siegeTime
		if os.Getenv(longEnv) != "" {
			lasting = longSiege
		}
		floods := c.siege(t, lasting)
		serveDatagrams(c.milanPod)
		scraping := scrape(c.romeGateway, siegeScrapers)
		ping := make(chan string, 1)
		go func() {
			count := int(lasting.Seconds() * siegePings)
			out, err := c.romePod.try("", "ping", "-q", "-i", fmt.Sprint(1.0/siegePings), "-c", fmt.Sprint(count), "-W",
				"2", milanPodAtRome)
			ping <- fmt.Sprintf("%s (%v)", out, err)
		}()
		began := time.Now()
		var wait sync.WaitGroup
		for _, f := range floods {
			wait.Go(func() {
				if err := f.run(began, began.Add(lasting)); err != nil {
					t.Error(err)
				}
			})
		}
		wait.Wait()
		took := time.Since(began)
		out := <-ping
		scraping.end()
		if err := c.romeCulvert.running(); err != nil {
			t.Fatalf("%v; %v", err, group.use(t))
		}
		arrived := make(map[string]float64) // datagrams of the floods, by socket
		for _, f := range floods {
			t.Logf("%s: %d datagrams, %.0f a second", f.name, f.sent, float64(f.sent)/took.Seconds())
			switch f.from {
			case c.romeNode:
				arrived["geneve"] += float64(f.sent)
			case c.milanGateway:
				arrived["wireguard"] += float64(f.sent)
			}
		}
		t.Logf("%d connections of slow scrapers, which read %d bytes", scraping.dialled.Load(), scraping.read.Load())
		t.Logf("the gateway used %v of CPU time in %v",
			cpuTime(t, c.romeCulvert.cmd.Process.Pid).Round(time.Millisecond), took.Round(time.Millisecond))
		use := group.use(t)
		t.Logf("%v; %s", use, residentPeak(t, c.romeCulvert.cmd.Process.Pid))
		if use.killed != 0 {
			t.Error("a process of the group was killed")
		}
		eventually(t, "a scrape after the siege", func() error {
			_, err := c.romeGateway.get("/metrics")
			return err
		})
		after := readCounts(c.romeGateway)
		t.Log("of these:\n" + after.drops())
		n, room := after.metrics["culvert_connections"], after.metrics["culvert_connections_max"]
		t.Logf("%.0f connections of %.0f", n, room)
		if n < room/4 {
			t.Errorf("%.0f connections of %.0f: the table was not attacked", n, room)
		}

		sent, received := 0, 0
		for line := range strings.Lines(out) {
			fmt.Sscanf(line, "%d packets transmitted, %d received", &sent, &received)
		}
		// The kernel's receive buffers cannot be divided up. On a quiet machine they do not
		// overflow.
		lost, most := float64(sent-received), float64(sent)/100
		if lasting != longSiege {
			for socket, datagrams := range arrived {
				most += float64(sent) * after.overflow(socket) / datagrams
			}
			far := readCounts(c.milanGateway)
			for direction, socket := range map[string]string{"outbound": "geneve", "inbound": "wireguard"} {
				over := far.overflow(socket)
				most += float64(sent) * over / max(1, over+far.total("received", direction))
			}
		}
		t.Logf("%.0f of %d pings lost in %v", lost, sent, took.Round(time.Second))
		if sent == 0 || lost > most {
			t.Errorf("%.0f of %d pings lost, want at most %.0f:\n%s", lost, sent, most, out)
		}
	}, programs("ping", "ping"))
}

// cpuTime returns the CPU time that a process has used since it started.
func cpuTime(t *testing.T, pid int) (used time.Duration) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	need.NoError(t, err)
	const ticksPerSecond, userTime = 100, 11 // index behind the name, which may contain spaces
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	for _, field := range fields[userTime : userTime+2] { // and system time
		ticks, err := strconv.Atoi(field)
		need.NoError(t, err)
		used += time.Duration(ticks) * time.Second / ticksPerSecond
	}
	return used
}

// stickyServices are services that remember their clients.
func stickyServices() string {
	var b strings.Builder
	b.WriteString("nat:\n  services:\n")
	for i := range siegeServices {
		fmt.Fprintf(&b,
			"    - {name: sticky-%d, address: 10.70.1.%d, port: %d, protocol: tcp, affinity: clientIP, backends: [{address: %s, port: 8080}]}\n",
			i, i%250, 80+i/250, podAddress)
	}
	return b.String()
}

// siege returns the floods: siegeRate to each socket, in equal parts, and siegeSYNs through the
// tunnel.
func (c *clusters) siege(t *testing.T, lasting time.Duration) []*flood {
	const node = "172.18.0.9:6091"
	wireGuard, index := overhearSession(c.romeGateway, "192.0.2.7")
	mac := nodeMAC(c.romeNode)
	var floods []*flood
	add := func(from *peerHost, local, to string, kinds []flood) {
		for _, f := range kinds {
			f.from, f.local, f.to, f.rate = from, local, to, siegeRate/len(kinds)
			floods = append(floods, &f)
		}
	}
	add(c.romeNode, "", node, []flood{
		{name: "connections that are answered", size: 90, fill: vxlanFrames(romeVNI, mac, unix.IPPROTO_UDP, pods(),
			always(10, 61, 1, 5))},
		{name: "connections that are not", size: 90, fill: vxlanFrames(romeVNI, mac, unix.IPPROTO_UDP, within(10, 0),
			within(10, 61))},
		{name: "fragments", size: vxlanLen + 20 + 96, fill: inFragments(vxlanFrames(romeVNI, mac, unix.IPPROTO_UDP,
			sources(10_000), always(10, 61, 1, 5)))},
		{name: "garbage", size: 700, fill: garbage(8)},
	})
	add(c.milanGateway, stranger, wireGuard, []flood{
		{name: "forged data of the session", size: 1400, fill: message(device.MessageTransportType, index...)},
		{name: "forged keepalives of the session", size: device.MessageKeepaliveSize,
			fill: message(device.MessageTransportType, index...)},
		{name: "initiations", size: device.MessageInitiationSize, fill: initiations(t, c.romeKey.public)},
		{name: "WireGuard garbage", size: 700, fill: garbage(4)},
	})
	return append(floods, &flood{name: "SYNs to services", from: c.milanNode, to: "172.19.0.9:6091", size: 22 + 40,
		rate: int(siegeSYNs / lasting.Seconds()), fill: serviceSYNs(vxlanFrames(milanVNI, nodeMAC(c.milanNode),
			unix.IPPROTO_TCP, pods(), always(10, 72, 1, 0)))})
}

// pods goes through the addresses of a node's pods.
func pods() func() [4]byte {
	n := 0
	return func() [4]byte {
		n++
		return [4]byte{10, 0, 1, byte(6 + n%240)}
	}
}

// sources goes through count addresses of the pod CIDR.
func sources(count int) func() [4]byte {
	n := 0
	return func() [4]byte {
		n++
		i := n % count
		return [4]byte{10, 0, byte(16 + i>>8), byte(i)}
	}
}

// vxlanLen is the length of the headers before the packet in a VXLAN datagram.
const vxlanLen = 8 + 14

// inFragments turns packets into fragments, alternately first and later ones, that never complete a
// datagram.
func inFragments(fill func([]byte)) func([]byte) {
	n := 0
	return func(b []byte) {
		fill(b)
		n++
		ip := b[vxlanLen:]
		const more = 0x2000
		binary.BigEndian.PutUint16(ip[4:], uint16(n))
		binary.BigEndian.PutUint16(ip[6:], more|uint16(n%2*100))
		sumHeader(ip)
	}
}

// sumHeader writes the checksum of an IPv4 header without options.
func sumHeader(ip []byte) {
	ip[10], ip[11] = 0, 0
	binary.BigEndian.PutUint16(ip[10:], internetChecksum(ip[:20]))
}

// serviceSYNs turns packets into SYNs to each of the sticky services in turn, from 240 clients
// each.
func serviceSYNs(fill func([]byte)) func([]byte) {
	n := 0
	return func(b []byte) {
		fill(b)
		service := n / 240 % siegeServices
		n++
		ip := b[vxlanLen:]
		ip[19] = byte(service % 250)
		sumHeader(ip)
		tcp := ip[20:]
		binary.BigEndian.PutUint16(tcp[2:], uint16(80+service/250))
		tcp[12], tcp[13] = 5<<4, 2 // SYN
	}
}

// serveDatagrams answers every datagram to any port of the pod until the end of the test. The
// kernel's own errors are too few: it limits their rate.
func serveDatagrams(h *peerHost) {
	h.t.Helper()
	fd := -1
	err := h.do(func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
		return err
	})
	need.NoError(h.t, err)
	h.t.Cleanup(func() { unix.Shutdown(fd, unix.SHUT_RDWR); unix.Close(fd) })
	go func() {
		buffer := make([]byte, 1<<16)
		for {
			n, from, err := unix.Recvfrom(fd, buffer, 0)
			if err == unix.EINTR {
				continue
			}
			if err != nil || n == 0 {
				return
			}
			udp := buffer[20:n] // a raw socket also delivers the IP header
			if len(udp) < 8 {
				continue
			}
			answer := []byte{udp[2], udp[3], udp[0], udp[1], 0, 8, 0, 0}
			unix.Sendto(fd, answer, 0, from)
		}
	}()
}

// scrapers read a page byte by byte, and connect again when the connection ends.
type scrapers struct {
	stop          chan struct{}
	wait          sync.WaitGroup
	dialled, read atomic.Int64
}

const (
	scrapePace  = 200 * time.Millisecond // between two bytes
	scrapePause = 2 * time.Second        // between connections
)

// scrape starts n slow scrapers.
func scrape(h *peerHost, n int) *scrapers {
	s := &scrapers{stop: make(chan struct{})}
	for range n {
		s.wait.Go(func() {
			for {
				if conn, err := h.dial("tcp4", metricsAddress); err == nil {
					s.dialled.Add(1)
					s.slowly(conn)
					conn.Close()
				}
				select {
				case <-s.stop:
					return
				case <-time.After(scrapePause):
				}
			}
		})
	}
	return s
}

func (s *scrapers) slowly(conn net.Conn) {
	if _, err := conn.Write([]byte("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")); err != nil {
		return
	}
	for b := make([]byte, 1); ; {
		select {
		case <-s.stop:
			return
		case <-time.After(scrapePace):
		}
		conn.SetReadDeadline(time.Now().Add(scrapePace))
		n, err := conn.Read(b)
		s.read.Add(int64(n))
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
	}
}

func (s *scrapers) end() {
	close(s.stop)
	s.wait.Wait()
}
