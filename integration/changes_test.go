package integration

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"culvert/gateway"
	"culvert/gateway/config"
	"culvert/gateway/control"
	"culvert/integration/need"
	"culvert/nat/rules"
)

const (
	changesMappings    = 50_000
	changesServices    = 500
	changesNodes       = 5_000
	changesConnections = 300_000
	changesStreams     = 8   // of random blocks, each of which must come back
	changesIdle        = 500 // connections that are used before and after

	changesPace   = 50 * time.Millisecond // between two changes
	changesRounds = 12
	changesWindow = 5 * time.Second // of a round, once with changes and once without
	changesSettle = 2 * time.Second // in which the gateway completes a sweep of the table
	changesKeeps  = 0.95            // part of its rate that a stream keeps beside changes

	changesEnv = "CULVERT_CHANGING_GATEWAY" // the configuration of the gateway that this process is
)

// The host behind the mappings that do not change: rome's pod.
const (
	mappedExternal = "10.70.3.1"
	mappedAtMilan  = "10.72.3.1"
	mappedInternal = "192.168.77.7"
)

// TestChangesBesideStreams changes one of many mappings twenty times a second, for a minute in all.
// A stream must keep its rate, and no connection may end.
func TestChangesBesideStreams(t *testing.T) {
	if file := os.Getenv(changesEnv); file != "" {
		runChangingGateway(t, file)
		return
	}
	need.Long(t, "a measurement of four minutes, which needs a quiet machine")
	isolated(t, func(t *testing.T) {
		c, g := newChangingClusters(t)
		streams, idle := c.changesFlows(t)
		c.fillTable(t, g.client, changesConnections)
		c.sink()
		conn, err := c.romePod.dial("tcp4", net.JoinHostPort(milanPodAtRome, sinkPort))
		need.NoError(t, err)
		defer conn.Close()
		go func() {
			for block := bytes.Repeat([]byte{'x'}, 1<<17); ; {
				if _, err := conn.Write(block); err != nil {
					return
				}
			}
		}()

		var quiet, shares []float64
		cpu := map[bool]time.Duration{}
		window := func(changing bool) float64 {
			time.Sleep(changesSettle) // the stream settles
			before := g.cpu(t)
			if changing {
				g.change(t)
				defer g.rest(t)
			}
			from, had := time.Now(), sunk.Load()
			time.Sleep(changesWindow) // the measured window
			rate := float64(sunk.Load()-had) * 8 / 1e6 / time.Since(from).Seconds()
			cpu[changing] += g.cpu(t) - before
			return rate
		}
		quiet = append(quiet, window(false))
		for i := range changesRounds {
			changed := window(true)
			quiet = append(quiet, window(false))
			shares = append(shares, 2*changed/(quiet[i]+quiet[i+1]))
			if i%4 == 3 { // connections without an answer live two minutes
				c.fillTable(t, g.client, changesConnections)
			}
		}
		const lasted = changesRounds * changesWindow
		t.Logf("%d changes in %v; a stream of %.0f Mbit/s (%s) keeps %.3f of its rate (%s); %.3f of a core in all, %.3f without changes; %d MiB resident",
			g.changes, lasted, median(quiet), quarters(quiet), median(shares), quarters(shares),
			cpu[true].Seconds()/lasted.Seconds(), cpu[false].Seconds()/(lasted+changesWindow).Seconds(),
			g.resident(t)>>20)
		if want := int(lasted / changesPace * 95 / 100); g.changes < want {
			t.Errorf("%d changes, want %d: more keep the gateway too long", g.changes, want)
		}
		if median(shares) < changesKeeps {
			t.Errorf("the stream keeps %.3f of its rate, want %.2f", median(shares), changesKeeps)
		}
		for _, f := range streams {
			f.finish(t)
		}
		for i, conn := range idle {
			if err := echoed(conn); err != nil {
				t.Errorf("idle connection %d: %v", i, err)
			}
		}
		if n := c.romeGateway.metric(`culvert_connections_removed_total{reason="evicted"}`); n != 0 {
			t.Errorf("%.0f connections evicted", n)
		}
	}, programs("ping", "ping"))
}

// newChangingClusters makes two clusters. Of the many mappings, only one is in the file of rome's
// gateway, with one node.
func newChangingClusters(t *testing.T) (*clusters, *changingGateway) {
	t.Helper()
	c := newMilan(t)
	c.romeNode, c.romePod = newPeerHost(t, "rome-node"), newPeerHost(t, "rome-pod")
	join(c.romeGateway, c.romeNode, "172.18.0.9/24", "172.18.0.2/24", 1500)
	connectPod(c.romeNode, c.romePod)
	c.romeNode.ip(vxlanLink(romeVNI, "172.18.0.2", "172.18.0.9")...)
	c.romeNode.ip(internalAddress("10.80.0.2", romeInternal, "10.61.0.0/16", "10.71.0.0/16")...)
	c.romePod.ip("address add " + mappedInternal + "/32 dev lo")
	c.romeNode.ip("route add "+mappedInternal+"/32 via "+podAddress, "route add blackhole 172.24.0.0/13")
	c.romeGateway.ip("route add 172.24.0.0/13 via 172.18.0.2")

	dir := t.TempDir()
	text := new(strings.Builder)
	before, after, _ := strings.Cut(romeConfig, "network:")
	text.WriteString(before)
	underlay, internal, pod := netip.MustParseAddr("172.24.0.1"), netip.MustParseAddr("10.81.0.1"),
		netip.MustParseAddr("10.0.16.0")
	for i := 1; i < changesNodes; i++ {
		fmt.Fprintf(text, "    - {name: absent-%d, vni: %d, underlay: %s, address: %s, podCIDRs: [%s/32]}\n", i, 1000+i,
			underlay, internal, pod)
		underlay, internal, pod = underlay.Next(), internal.Next(), pod.Next()
	}
	client := control.NewClient(filepath.Join(dir, "rome.sock"))
	text.WriteString("network:" + strings.Replace(after, `control: ""`, "control: "+client.Path,
		1) + "nat:\n  maxConnections: 4000000\n  services:\n")
	for i := range changesServices {
		fmt.Fprintf(text,
			"    - {name: s%d, address: 10.70.%d.%d, port: 80, protocol: tcp, backends: [{address: %s, port: 8080}]}\n",
			i, 240+i>>8, i&255, podAddress)
	}
	for name, text := range map[string]string{"gateway.yaml": text.String(), "own.key": c.romeKey.private + "\n",
		"peer.pub": c.milanKey.public + "\n"} {
		need.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	own, err := os.Executable()
	need.NoError(t, err)
	g := &changingGateway{client: client, peerProcess: c.romeGateway.start(nil, "env", changesEnv+"="+filepath.Join(dir,
		"gateway.yaml"),
		own, "-test.run=^"+regexp.QuoteMeta(t.Name())+"$")}
	c.romeCulvert = g.peerProcess
	eventually(t, "rome's gateway", func() error {
		need.NoError(t, g.running())
		_, err := c.romeGateway.get("/readyz")
		return err
	})
	pingThrough(c.romePod, milanPodAtRome)
	return c, g
}

// changesFlows opens streams that carry data all the time, and idle connections; half of the latter
// go from rome, half to a mapped address in rome.
func (c *clusters) changesFlows(t *testing.T) (streams []*echoFlow, idle []net.Conn) {
	t.Helper()
	for _, way := range []struct {
		from, to *peerHost
		address  string
	}{{c.romePod, c.milanPod, milanPodAtRome}, {c.milanPod, c.romePod, mappedAtMilan}} {
		serveEcho(way.to)
		dial := func() net.Conn {
			conn, err := way.from.dial("tcp4", net.JoinHostPort(way.address, echoPort))
			need.NoError(t, err)
			return conn
		}
		for range changesStreams / 2 {
			f := &echoFlow{name: "stream to " + way.address, conn: dial(), pause: 10 * time.Millisecond,
				ended: make(chan error, 1)}
			streams = append(streams, f)
			seed := uint64(len(streams))
			go func() { f.ended <- f.run(seed) }()
			f.wait(t, 1)
		}
		for range changesIdle / 2 {
			conn := dial()
			t.Cleanup(func() { conn.Close() })
			need.NoError(t, echoed(conn))
			idle = append(idle, conn)
		}
	}
	return streams, idle
}

// echoed sends a word and checks that it comes back.
func echoed(conn net.Conn) error {
	const word = "there"
	conn.SetDeadline(time.Now().Add(startTimeout))
	if _, err := io.WriteString(conn, word); err != nil {
		return err
	}
	answer := make([]byte, len(word))
	if _, err := io.ReadFull(conn, answer); err != nil {
		return err
	}
	if string(answer) != word {
		return fmt.Errorf("%q came back as %q", word, answer)
	}
	return nil
}

// A changingGateway is a gateway process whose mappings arrive one by one, as they do under Liqo.
type changingGateway struct {
	*peerProcess
	client  *control.Client
	rests   int // how often rest has been called
	changes int
}

// change makes the gateway change a mapping every changesPace.
func (g *changingGateway) change(t *testing.T) {
	t.Helper()
	need.NoError(t, g.cmd.Process.Signal(unix.SIGUSR1))
}

// rest stops the changes, and adds up how many there were.
func (g *changingGateway) rest(t *testing.T) {
	t.Helper()
	need.NoError(t, g.cmd.Process.Signal(unix.SIGUSR2))
	eventually(t, "a gateway that rests", func() error {
		said := strings.Split(g.output(), changedSaid)[1:]
		if len(said) == g.rests {
			return errNotYet
		}
		g.rests++
		var n int
		_, err := fmt.Sscan(said[g.rests-1], &n)
		g.changes += n
		return err
	})
}

const changedSaid = "mappings changed: "

// runChangingGateway runs the gateway of file, with changesMappings more mappings, until it is told
// to stop. It changes mappings between a SIGUSR1 and the next SIGUSR2.
func runChangingGateway(t *testing.T, file string) {
	// The command sets the same.
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(50)
	ctx, stop := signal.NotifyContext(t.Context(), unix.SIGTERM)
	defer stop()
	told := make(chan os.Signal, 1)
	signal.Notify(told, unix.SIGUSR1, unix.SIGUSR2)
	c, err := config.Load(file)
	need.NoError(t, err)
	g, err := gateway.New(c, gateway.Budget{}, logrus.New())
	need.NoError(t, err)
	put := func(external, internal netip.Addr) {
		key := rules.Key{Kind: "IP", Namespace: "default", Name: external.String()}
		if err := g.Put(key, rules.Resource{Mapping: &rules.MappingRules{External: external, Internal: internal,
			Device: "rome-1"}}); err != nil {
			t.Error(err)
		}
	}
	put(netip.MustParseAddr(mappedExternal), netip.MustParseAddr(mappedInternal))
	changing := func(i int) {
		at := i % changesMappings
		put(netip.AddrFrom4([4]byte{10, 70, byte(4 + at>>8), byte(at)}),
			netip.AddrFrom4([4]byte{198, byte(18 + i>>16&1), byte(i >> 8), byte(i)}))
	}
	for i := range changesMappings {
		changing(i)
	}
	g.CommitRules()
	go changeMappings(ctx, told, changesMappings, func(i int) {
		changing(i)
		g.CommitRules()
	})
	if err := g.Run(ctx); err != nil {
		t.Error(err)
	}
}

// changeMappings calls change with consecutive numbers while told says so.
func changeMappings(ctx context.Context, told <-chan os.Signal, from int, change func(i int)) {
	tick := time.NewTicker(changesPace)
	defer tick.Stop()
	on, began := false, from
	for i := from; ; {
		select {
		case <-ctx.Done():
			return
		case s := <-told:
			if on = s == unix.SIGUSR1; on {
				began = i
			} else {
				fmt.Println(changedSaid, i-began)
			}
		case <-tick.C:
			if on {
				change(i)
				i++
			}
		}
	}
}
