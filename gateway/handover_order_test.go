package gateway

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"culvert/gateway/config"
	"culvert/gateway/config/configtest"
	"culvert/gateway/control"
	"culvert/gateway/handover"
	"culvert/gateway/lifecycle"
	"culvert/geneve"
	"culvert/integration/need"
)

// TestHandOverWhileTakingOver: a gateway that still gets packets from its predecessor refuses to
// hand over. Once the predecessor was done, it would read the sockets again, beside its successor.
func TestHandOverWhileTakingOver(t *testing.T) {
	p, socket := newHandPair(t)
	g, err := p.nextRome(t, socket, nil)
	need.NoError(t, err)
	g.ready.Store(true) // as Run does before the predecessor has ended
	ask := control.TakeoverOptions{Protocol: handover.Version, Cluster: "rome", Peer: "milan"}
	if _, err := g.inspect.HandOver(ask); !errors.Is(err, lifecycle.ErrTaking) {
		t.Errorf("%v, want %v", err, lifecycle.ErrTaking)
	}
	serve(t, g)
	overlapped(t, g)
	talk, err := g.inspect.HandOver(ask)
	if err != nil {
		t.Fatal("then:", err)
	}
	talk(nil)
}

// TestNothingIsAppliedMeanwhile: a configuration applied during a hand-over would not reach the new
// process.
func TestNothingIsAppliedMeanwhile(t *testing.T) {
	p := newPair(t, nil)
	c := *p.rome.config()
	waitFor(t, "a gateway that runs", p.rome.ready.Load)
	talk, err := p.rome.inspect.HandOver(control.TakeoverOptions{Protocol: handover.Version, Cluster: "rome",
		Peer: "milan"})
	need.NoError(t, err)
	if err := p.rome.Apply(&c); !errors.Is(err, lifecycle.ErrHanding) {
		t.Errorf("during a hand-over: %v, want %v", err, lifecycle.ErrHanding)
	}
	talk(nil)
	if err := p.rome.Apply(&c); err != nil {
		t.Error("after it:", err)
	}
	p.rome.applying.Lock()
	late := make(chan error, 1)
	go func() { late <- p.rome.Apply(&c) }()
	stacks := make([]byte, 1<<20)
	waitFor(t, "Apply to wait for the change before it", func() bool {
		for _, stack := range strings.Split(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
			if strings.Contains(stack, "[sync.Mutex.Lock") && strings.Contains(stack, "(*Gateway).Apply(") {
				return true
			}
		}
		return false
	})
	talk, err = p.rome.inspect.HandOver(control.TakeoverOptions{Protocol: handover.Version, Cluster: "rome",
		Peer: "milan"})
	p.rome.applying.Unlock()
	need.NoError(t, err)
	if err := <-late; !errors.Is(err, lifecycle.ErrHanding) {
		t.Errorf("a configuration that waited when the hand-over began: %v, want %v", err, lifecycle.ErrHanding)
	}
	talk(nil)
}

// TestEndAfterTheCut: a gateway that is stopped between Cut and Done leaves the control socket to
// the process that forwards.
func TestEndAfterTheCut(t *testing.T) {
	p, socket := newHandPair(t)
	conn, err := control.TakeOver(t.Context(), socket, control.TakeoverOptions{Protocol: handover.Version,
		Cluster: "rome", Peer: "milan"})
	need.NoError(t, err)
	f := &fakeNext{handover.NewLine(conn), t}
	defer f.Close()
	f.want(handover.KindOffer, handover.KindStanding)
	f.Send(handover.KindReady, nil, time.Second)
	f.want(handover.KindCut)
	f.Send(handover.KindForwarding, nil, time.Second)
	p.rome.stop()
	if _, err := os.Lstat(socket); err != nil {
		t.Error(err)
	}
	f.Send(handover.KindDone, nil, time.Second)
	<-p.rome.life.Gone()
}

// TestPeerIsLookedAtMeanwhile: the peer's address is recorded while configurations are applied.
func TestPeerIsLookedAtMeanwhile(t *testing.T) {
	p, socket := newHandPair(t)
	g, err := p.nextRome(t, socket, nil) // it has a session, and nothing runs that records the address
	need.NoError(t, err)
	c := *g.config()
	var tasks sync.WaitGroup
	const times = 20
	ended, end := context.WithCancel(t.Context())
	end()
	tasks.Go(func() {
		for range times {
			g.life.Keep(ended)
		}
	})
	for range times {
		if err := g.Apply(&c); err != nil {
			t.Error(err)
		}
	}
	tasks.Wait()
	if got := g.life.Peer(&c.WireGuard).Last; got != g.wg.Endpoint() {
		t.Errorf("the peer was at %v last, want %v", got, g.wg.Endpoint())
	}
	serve(t, g)
}

// TestHandOverKeepsAddressAsked: after a hand-over the peer still hears the gateway from the
// address that it sends to, not from the one that the kernel prefers.
func TestHandOverKeepsAddressAsked(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "milan.sock")
	rc := configtest.Cluster("rome", "milan", config.Client, "10.61.0.0/16", "10.71.0.0/16")
	mc := configtest.Cluster("milan", "rome", config.Server, "10.62.0.0/16", "10.72.0.0/16")
	rc.WireGuard.PeerPublicKey, mc.WireGuard.PeerPublicKey = mc.WireGuard.PrivateKey.Public(),
		rc.WireGuard.PrivateKey.Public()
	mc.Control = socket
	p := &pair{milan: start(t, mc, 20)}
	asked := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.9"), p.milan.wg.Port())
	rc.WireGuard.Endpoint = asked.String()
	p.rome = start(t, rc, 10)
	p.there(t, 0)
	p.back(t)
	next := *p.milan.config()
	log := logrus.New()
	log.SetOutput(io.Discard)
	g, err := takeOver(t.Context(), socket, &next, Budget{}, log, geneve.Options{Listen: p.milan.endpoint.LocalAddr()})
	need.NoError(t, err)
	serve(t, g)
	p.back(t)
	p.there(t, 1)
	overlapped(t, g)
	if at := p.rome.wg.Endpoint(); at != asked {
		t.Errorf("rome hears milan at %v, want %v", at, asked)
	}
}
