package gateway

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"culvert/gateway/config"
	"culvert/gateway/control"
	"culvert/gateway/handover"
	"culvert/geneve"
	"culvert/integration/need"
	"culvert/nat/nattest"
)

// newHandPair is a pair whose rome can hand over, and has a session with milan.
func newHandPair(t testing.TB, edit ...func(rome *config.Config)) (p *pair, socket string) {
	t.Helper()
	folder := t.TempDir()
	socket = filepath.Join(folder, "rome.sock")
	p = newPair(t, func(rome, _ *config.Config) {
		rome.Control, rome.State, rome.Metrics = socket, folder, "127.0.0.1:0"
		for _, e := range edit {
			e(rome)
		}
	})
	p.there(t, 0)
	return p, socket
}

// there sends datagrams from rome until one has come to milan, and requires that its source U is
// unchanged.
func (p *pair) there(t testing.TB, number uint32) {
	t.Helper()
	p.rome.nodes[0].Send(nattest.IP{Source: "192.0.2.77", Destination: "10.61.1.7",
		Body: nattest.UDP{SourcePort: 4000, DestinationPort: 53, Payload: nattest.Payload(40, number)}}.Bytes())
	expect(t, p.milan.nodes[0], "10.72.0.0", "10.0.1.7")
}

// nextRome begins a take-over from rome in this process, with another Gateway.
func (p *pair) nextRome(t testing.TB, socket string, edit func(*config.Config)) (*Gateway, error) {
	t.Helper()
	log := logrus.New()
	log.SetOutput(io.Discard)
	return p.nextRomeLogging(t, socket, edit, log)
}

func (p *pair) nextRomeLogging(t testing.TB, socket string, edit func(*config.Config),
	log *logrus.Logger) (*Gateway, error) {
	t.Helper()
	c := *p.rome.config()
	if edit != nil {
		edit(&c)
	}
	return takeOver(t.Context(), socket, &c, Budget{}, log, geneve.Options{Listen: p.rome.endpoint.LocalAddr()})
}

// overlapped waits until a gateway that has taken over is itself ready to hand over.
func overlapped(t *testing.T, g *Gateway) {
	t.Helper()
	c := g.config()
	waitFor(t, "the end of the overlap", func() bool {
		talk, err := g.inspect.HandOver(control.TakeoverOptions{Protocol: handover.Version, Cluster: c.Cluster,
			Peer: c.Peer})
		if err == nil {
			talk(nil)
		}
		return err == nil
	})
}

// serve runs a gateway that has taken over until the end of the test.
func serve(t testing.TB, g *Gateway) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error("the gateway that has taken over:", err)
		}
	})
}

// TestHandOverLosesNothing sends all the time in both directions: each packet must arrive, with its
// usual ports. With a peer that only sends, only the hand-over tells the new process where the peer
// is.
func TestHandOverLosesNothing(t *testing.T) {
	t.Run("both send", func(t *testing.T) { testHandOverLosesNothing(t, false) })
	t.Run("the peer alone sends", func(t *testing.T) { testHandOverLosesNothing(t, true) })
}

func testHandOverLosesNothing(t *testing.T, one bool) {
	p, socket := newHandPair(t)
	const packets = 3000
	type way struct {
		from, to   *cluster
		send, seen [2]string
	}
	ways := []way{
		{p.milan, p.rome, [2]string{"10.0.1.5", "10.62.1.9"}, [2]string{"10.61.1.5", "10.0.1.9"}},
		{p.rome, p.milan, [2]string{"192.0.2.77", "10.61.1.7"}, [2]string{"10.72.0.0", "10.0.1.7"}},
	}
	if one {
		ways = ways[:1]
	}
	var g *Gateway
	defer func() {
		if t.Failed() {
			logDrops(t, "rome before", p.rome.Gateway)
			logDrops(t, "rome", g)
			logDrops(t, "milan", p.milan.Gateway)
			for _, c := range []*cluster{p.rome, p.milan} {
				t.Logf("node: %+v", c.nodes[0].Stats())
			}
		}
	}()
	var senders sync.WaitGroup
	begin := make(chan struct{})
	for _, w := range ways {
		senders.Go(func() {
			for i := range uint32(packets) {
				if i == packets/10 {
					begin <- struct{}{}
				}
				payload := binary.BigEndian.AppendUint32(nil, i)
				w.from.nodes[0].Send(nattest.IP{Source: w.send[0], Destination: w.send[1],
					Body: nattest.UDP{SourcePort: 4001, DestinationPort: 53, Payload: payload}}.Bytes())
				time.Sleep(200 * time.Microsecond) // the pace, which the sockets hold
			}
		})
	}
	var receivers sync.WaitGroup
	for _, w := range ways {
		receivers.Go(func() {
			came := make(map[uint32]bool)
			defer func() { // also when Receive ends this goroutine
				for i := range uint32(packets) {
					if !came[i] {
						t.Logf("%s > %s: packet %d has not come", w.send[0], w.send[1], i)
					}
				}
			}()
			for len(came) < packets {
				v, err := nattest.Check(w.to.nodes[0].Receive())
				if v.Source == w.to.config().Geneve.GatewayAddress.V4 { // it looks for a node that is silent
					continue
				}
				if err != nil || v.Source.String() != w.seen[0] || v.Destination.String() != w.seen[1] ||
					v.SourcePort != 4001 {
					t.Errorf("got %v:%d > %v, %v; %d of %d have come", v.Source, v.SourcePort, v.Destination, err,
						len(came), packets)
					return
				}
				n := binary.BigEndian.Uint32(v.Payload)
				if came[n] {
					t.Errorf("packet %d came twice", n)
				}
				came[n] = true
			}
		})
	}
	for range ways {
		<-begin
	}
	var err error
	g, err = p.nextRome(t, socket, nil)
	need.NoError(t, err)
	serve(t, g)
	senders.Wait()
	receivers.Wait()
	<-p.rome.life.Gone()
	if n := g.engine.Stats().Restored; n == 0 {
		t.Error("no connection was handed over")
	}
	// The process that ends may have accepted a connection at the last moment.
	awaits(t, func() bool {
		s, err := control.NewClient(socket).Status(t.Context())
		return err == nil && s.Peer == "milan"
	}, "the control socket")
}

// logDrops says what a gateway has dropped, and what its sockets have missed.
func logDrops(t *testing.T, name string, g *Gateway) {
	t.Helper()
	if g == nil {
		return
	}
	for key, n := range dropsOf(g) {
		if n > 0 {
			t.Logf("%s: %d packets %s dropped: %s", name, n, key.direction, key.reason)
		}
	}
	tunnel := g.wg.Stats()
	for socket, stats := range g.path.Sockets(&tunnel) {
		t.Logf("%s: the socket %s missed %d datagrams", name, socket, stats.Overflows)
	}
}

// TestHandOverKeepsThePort refuses to hand over to a gateway with another WireGuard port.
func TestHandOverKeepsThePort(t *testing.T) {
	p, socket := newHandPair(t)
	was, port := p.rome.wg.Port(), freePort(t)
	_, err := p.nextRome(t, socket, func(c *config.Config) { c.WireGuard.ListenPort = port })
	want := fmt.Sprintf("--takeover: wireguard.listenPort: the running gateway has %d, and this configuration %d; "+
		"restart it to change the port; the previous gateway goes on", was, port)
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	p.there(t, 1)
	g, err := p.nextRome(t, socket, func(c *config.Config) { c.WireGuard.ListenPort = was })
	need.NoError(t, err)
	serve(t, g)
	p.there(t, 2)
}

// TestHandOverToAnotherConfiguration hands over to a gateway that listens elsewhere.
func TestHandOverToAnotherConfiguration(t *testing.T) {
	p, socket := newHandPair(t)
	other := filepath.Join(t.TempDir(), "other.sock")
	g, err := p.nextRome(t, socket, func(c *config.Config) {
		c.Control, c.Metrics, c.State = other, "", ""
	})
	need.NoError(t, err)
	serve(t, g)
	p.there(t, 1)
	<-p.rome.life.Gone()
	overlapped(t, g)
	if _, err := control.NewClient(other).Status(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Error("the control socket before is still there:", err)
	}
}

// freePort looks from ports on.
var ports atomic.Uint32

func init() { ports.Store(rand.Uint32()) }

// freePort returns a UDP port that nobody uses, and that nobody gets who asks for any port, neither
// from the kernel (net.ipv4.ip_local_port_range) nor in another test of this package or of package
// main. So a test that gives the port up for a moment finds it free again.
func freePort(t testing.TB) uint16 {
	t.Helper()
	const first, count = 8 << 10, 8 << 10
	for range count {
		port := first + ports.Add(1)%count
		if c, err := net.ListenUDP("udp4", &net.UDPAddr{Port: int(port)}); err == nil {
			c.Close()
			return uint16(port)
		}
	}
	t.Fatal("no port is free")
	return 0
}

func TestHandOverIsRefused(t *testing.T) {
	p, socket := newHandPair(t)
	for _, tt := range []struct {
		name string
		ask  control.TakeoverOptions
		want string
	}{
		{"another version", control.TakeoverOptions{Protocol: 99, Cluster: "rome", Peer: "milan"},
			"by version 1 of the conversation, not 99"},
		{"another peer", control.TakeoverOptions{Protocol: 1, Cluster: "rome", Peer: "oslo"},
			"towards milan, not of rome towards oslo"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			conn, err := control.TakeOver(t.Context(), socket, tt.ask)
			if err == nil {
				conn.Close()
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
	// A configuration that cannot start changes nothing, nor does one whose peer does not know it.
	if _, err := p.nextRome(t, socket, func(c *config.Config) { c.Health = "192.0.2.1:1" }); err == nil ||
		!strings.Contains(err.Error(), "health") {
		t.Error(err)
	}
	p.there(t, 1)
}

// back is there in the opposite direction.
func (p *pair) back(t testing.TB) {
	t.Helper()
	p.milan.nodes[0].Send(nattest.IP{Source: "10.0.1.7", Destination: "10.72.0.0",
		Body: nattest.UDP{SourcePort: 53, DestinationPort: 4000, Payload: nattest.Payload(40, 9)}}.Bytes())
	expect(t, p.rome.nodes[0], "10.61.1.7", "192.0.2.77")
}

// lockedText is a log.
type lockedText struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lockedText) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lockedText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
