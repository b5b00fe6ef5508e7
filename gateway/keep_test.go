package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"golang.zx2c4.com/wireguard/device"

	"culvert/gateway/config"
	"culvert/gateway/config/configtest"
	"culvert/gateway/seats"
	"culvert/gateway/state"
	"culvert/geneve"
	"culvert/integration/need"
	"culvert/nat/nattest"
)

// A keepingPair is two gateways with state folders, and clients of rome outside all CIDRs: one
// behind each node, with the same source port, so that only one of them keeps its port.
type keepingPair struct {
	*pair
	t             *testing.T
	rc, mc        *config.Config
	first, second uint16 // source ports that milan sees
}

const (
	keptClient = "172.18.0.10"
	keptPort   = 4000
)

func newKeepingPair(t *testing.T) *keepingPair {
	k := &keepingPair{t: t}
	k.pair = newPair(t, func(rc, mc *config.Config) {
		rc.State, mc.State = t.TempDir(), t.TempDir()
		k.rc, k.mc = rc, mc
		mc.WireGuard.ListenPort = freePort(t) // rome expects milan at this port
	})
	k.first, k.second = k.ask(0), k.ask(1)
	if k.first != keptPort || k.second == keptPort {
		t.Fatalf("ports of U: %d and %d", k.first, k.second)
	}
	return k
}

// ask sends a datagram of the client behind one of rome's nodes and returns the source port that
// milan sees.
func (k *keepingPair) ask(node int) uint16 {
	k.t.Helper()
	k.rome.nodes[node].Send(udpPacket(keptClient, "10.61.1.5", []byte("question")))
	v := expect(k.t, k.milan.nodes[0], "10.72.0.0", "10.0.1.5")
	return v.SourcePort
}

// answer sends a datagram from milan to a port of U and expects it at one of rome's nodes.
func (k *keepingPair) answer(port uint16, node int) {
	k.t.Helper()
	k.milan.nodes[0].Send(nattest.IP{Source: "10.0.1.5", Destination: "10.72.0.0",
		Body: nattest.UDP{SourcePort: 53, DestinationPort: port, Payload: []byte("answer")}}.Bytes())
	if v := expect(k.t, k.rome.nodes[node], "10.61.1.5", keptClient); v.DestinationPort != keptPort {
		k.t.Errorf("the client behind node %d got its answer at port %d", node, v.DestinationPort)
	}
}

// restart restarts the gateway with configuration c, and waits until both have a session, without
// sending a packet.
func (k *keepingPair) restart(at **cluster, c *config.Config, net byte) {
	k.t.Helper()
	(*at).stop()
	time.Sleep(2 * device.HandshakeInitationRate) // within this time after a handshake, the peer accepts no other
	began := time.Now()
	*at = start(k.t, c, net)
	for _, g := range []*cluster{k.rome, k.milan} {
		left := time.Until(began.Add(10 * time.Second)) // a peer notices after 15 s that its session is dead
		need.Eventually(k.t, left, "a handshake", func() error {
			s, err := g.wg.PeerStats()
			need.NoError(k.t, err)
			if !s.LastHandshake.After(began) {
				return fmt.Errorf("the last one was at %v", s.LastHandshake)
			}
			return nil
		})
	}
}

// TestRestartKeepsConnections: after a restart, the far end of a translated connection may speak
// first, and two clients with the same port keep their translated ports. Without its folder a
// gateway knows neither, and a server waits until its peer notices.
func TestRestartKeepsConnections(t *testing.T) {
	k := newKeepingPair(t)
	for range 2 { // restored connections are saved again
		k.restart(&k.rome, k.rc, 10)
		k.answer(k.second, 1)
		k.answer(k.first, 0)
	}
	k.restart(&k.milan, k.mc, 20)
	k.answer(k.first, 0)
	// The second one first: without the records, it would keep its own port.
	if second, first := k.ask(1), k.ask(0); first != k.first || second != k.second {
		t.Errorf("ports of U %d and %d, before %d and %d", first, second, k.first, k.second)
	}
	if n := k.rome.engine.Stats().Restored; n != 2 {
		t.Errorf("%d connections restored, want 2", n)
	}
}

// TestKilledKeepsPorts: if a gateway is killed before it has written its connections, the next one
// still has the key, and chooses the same port for a client in mid-stream.
func TestKilledKeepsPorts(t *testing.T) {
	k := newKeepingPair(t)
	folder := t.TempDir()
	copyState(t, k.rc.State, folder) // the state that a kill would leave
	k.rc.State = folder
	k.restart(&k.rome, k.rc, 10)
	if first, second := k.ask(0), k.ask(1); first != k.first || second != k.second {
		t.Errorf("ports of U %d and %d, before %d and %d", first, second, k.first, k.second)
	}
}

// TestRestoreWaitsForNodes: a gateway that learns its nodes later, as under Liqo, restores nothing
// before that, and does not overwrite the records.
func TestRestoreWaitsForNodes(t *testing.T) {
	k := newKeepingPair(t)
	k.rome.stop()
	c := *k.rc
	c.Geneve.Nodes = nil
	log, _ := listeningLog()
	g, err := newGateway(&c, Budget{}, log, geneve.Options{Listen: netip.MustParseAddrPort("127.0.0.1:0")})
	need.NoError(t, err)
	defer g.life.Close()
	defer g.close()
	g.life.Save()
	if n := g.engine.Stats().Restored; n != 0 {
		t.Errorf("%d connections restored without a node", n)
	}
	for range 2 { // restored only once
		need.NoError(t, g.Apply(k.rc))
		if n := g.engine.Stats().Restored; n != 2 {
			t.Errorf("%d connections restored, want 2", n)
		}
	}
}

func TestFolderOfOneGateway(t *testing.T) {
	c := configtest.Cluster("rome", "milan", config.Server, "10.61.0.0/16", "10.71.0.0/16")
	c.WireGuard.PeerPublicKey = c.WireGuard.PrivateKey.Public()
	c.State = t.TempDir()
	log, _ := listeningLog()
	cl := open(t, c, 10, log, nil)
	_, err := newGateway(c, Budget{}, log, geneve.Options{Listen: netip.MustParseAddrPort("127.0.0.1:0")})
	if want := fmt.Sprintf("as process %d; stop it", os.Getpid()); !errors.Is(err, state.ErrInUse) ||
		!strings.Contains(err.Error(), want) {
		t.Errorf("a second one: %v, want one that names %q", err, want)
	}
	cl.close()
	cl.life.Close()
}

func listeningLog() (*logrus.Logger, *bytes.Buffer) {
	log, text := logrus.New(), new(bytes.Buffer)
	log.SetOutput(text)
	return log, text
}

// TestWhatIsKeptMayBeAnything: neither the absence of the folder nor any content keeps a gateway
// from starting. It uses what it can, and reports the rest in a log line and a metric.
func TestWhatIsKeptMayBeAnything(t *testing.T) {
	k := newKeepingPair(t)
	k.rome.stop()
	kept := os.DirFS(k.rc.State)
	connections, err := fs.ReadFile(kept, "milan/connections")
	need.NoError(t, err)
	damaged := slices.Clone(connections)
	damaged[len(damaged)/2] ^= 1
	newer := slices.Clone(connections)
	newer[4]++
	recorded := map[string][]byte{} // by an earlier version
	for _, file := range []string{"connections", "identity"} {
		recorded[file], err = os.ReadFile(filepath.Join("testdata/recorded/milan", file))
		need.NoError(t, err)
	}
	for name, test := range map[string]struct {
		files    map[string][]byte
		restored uint64
		line     string // "" = none
		metric   string
	}{
		"nothing": {map[string][]byte{"connections": nil, "identity": nil}, 0, "", ""},
		"whole": {nil, 2, `"state: connections of the previous gateway are restored"`,
			`reason="damaged-block"} 0`},
		"recorded": {recorded, 2, `"state: connections of the previous gateway are restored"`, ""},
		"damaged identity": {map[string][]byte{"identity": []byte("junk")}, 2,
			"the identity there cannot be used", ""},
		"newer identity": {map[string][]byte{
			"identity": []byte("culvert state, version 2, CRC-32C 00000000\n{}")}, 2, "of a newer version", ""},
		"another's identity": {map[string][]byte{"identity": (&state.Identity{Cluster: "paris"}).Encode()}, 0,
			"of another gateway", ""},
		"damaged connections": {map[string][]byte{"connections": damaged}, 0, "damaged-block 1, the end is missing",
			`reason="damaged-block"} 1`},
		"connections cut short": {map[string][]byte{"connections": connections[:100]}, 0,
			"damaged-block 1, the end is missing", `reason="damaged-block"} 1`},
		"connections, then junk": {map[string][]byte{"connections": append(slices.Clone(connections), "junk"...)}, 2,
			"not all: damaged-block 1", `reason="damaged-block"} 1`},
		"empty connections": {map[string][]byte{"connections": {}}, 0, "not all: the end is missing", ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := *k.rc
			c.State = t.TempDir()
			need.NoError(t, os.CopyFS(c.State, kept))
			for file, text := range test.files {
				path := filepath.Join(c.State, "milan", file)
				need.NoError(t, os.Remove(path))
				if text == nil {
					continue
				}
				need.NoError(t, os.WriteFile(path, text, 0o600))
			}
			log, text := listeningLog()
			cl := open(t, &c, 30, log, nil)
			defer cl.life.Close()
			defer cl.close()
			if n := cl.engine.Stats().Restored; n != test.restored {
				t.Errorf("%d connections restored, want %d", n, test.restored)
			}
			if lines := strings.Count(text.String(), "state: "); test.line == "" && lines > 0 ||
				!strings.Contains(text.String(), test.line) {
				t.Errorf("log %s, want %q", text, test.line)
			}
			if page := string(cl.inspect.Metrics(seats.New(nil), 0)); !strings.Contains(page, test.metric) {
				t.Errorf("no %s in\n%s", test.metric, page)
			}
		})
	}
}

// TestWithoutFolder: if nothing can be saved, from the start or later, a gateway says so once and
// continues.
func TestWithoutFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	need.NoError(t, os.WriteFile(file, nil, 0o600))
	c := configtest.Cluster("rome", "milan", config.Server, "10.61.0.0/16", "10.71.0.0/16")
	c.WireGuard.PeerPublicKey, c.State = c.WireGuard.PrivateKey.Public(), file
	log, text := listeningLog()
	cl := open(t, c, 10, log, nil)
	cl.life.End()
	cl.close()
	if !strings.Contains(text.String(), "state: nothing can be kept") {
		t.Errorf("below a file: %s", text)
	}

	c.State = t.TempDir()
	log, text = listeningLog()
	cl = open(t, c, 11, log, nil)
	defer cl.close()
	cl.life.Save()
	need.NoError(t, os.RemoveAll(c.State))
	cl.life.Save()
	cl.life.Save()
	if n := strings.Count(text.String(), "state: cannot be written"); n != 1 {
		t.Errorf("said %d times, want once: %s", n, text)
	}
	if page := string(cl.inspect.Metrics(seats.New(nil), 0)); !strings.Contains(page,
		"culvert_state_save_failures_total 2\n") {
		t.Error("the metric does not count 2 failures")
	}
	need.NoError(t, os.MkdirAll(filepath.Join(c.State, "milan"), 0o700))
	cl.life.End()
	if !strings.Contains(text.String(), "state: is written again") {
		t.Errorf("then %s", text)
	}
}
