package gateway

import (
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"culvert/gateway/control"
	"culvert/gateway/handover"
)

// TestHandOverWhileTakingOver: a gateway that still gets packets from the one before hands nothing over. When it had done with that one, it
// would read the sockets again, beside the next one.
func TestHandOverWhileTakingOver(t *testing.T) {
	p, socket := newHandPair(t)
	g, err := p.nextRome(t, socket, nil)
	if err != nil {
		t.Fatal(err)
	}
	g.ready.Store(true) // as Run does before the one before has ended
	ask := control.TakeoverOptions{Protocol: handover.Version, Cluster: "rome", Peer: "milan"}
	if _, err := (source{g}).HandOver(ask); !errors.Is(err, errTaking) {
		t.Errorf("%v, want %v", err, errTaking)
	}
	serve(t, g)
	<-g.taken.over
	talk, err := source{g}.HandOver(ask)
	if err != nil {
		t.Fatal("then:", err)
	}
	talk(nil)
}

// TestNothingIsAppliedMeanwhile: the new process would not have it.
func TestNothingIsAppliedMeanwhile(t *testing.T) {
	p := newPair(t, nil)
	p.rome.mu.Lock()
	c := *p.rome.config
	p.rome.mu.Unlock()
	p.rome.handing.Store(true)
	if err := p.rome.Apply(&c); !errors.Is(err, errHanding) {
		t.Errorf("during a hand-over: %v, want %v", err, errHanding)
	}
	p.rome.handing.Store(false)
	if err := p.rome.Apply(&c); err != nil {
		t.Error("after it:", err)
	}
}

// TestEndAfterTheCut: a gateway that is told to end between Cut and Done leaves the control socket to the process that carries packets.
func TestEndAfterTheCut(t *testing.T) {
	p, socket := newHandPair(t)
	conn, err := control.TakeOver(t.Context(), socket, control.TakeoverOptions{Protocol: handover.Version, Cluster: "rome", Peer: "milan"})
	if err != nil {
		t.Fatal(err)
	}
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
	<-p.rome.gone
}

// TestPeerIsLookedAtMeanwhile: where the peer is, is noted while configurations are applied.
func TestPeerIsLookedAtMeanwhile(t *testing.T) {
	p, socket := newHandPair(t)
	g, err := p.nextRome(t, socket, nil) // it has a session, and nothing runs that looks
	if err != nil {
		t.Fatal(err)
	}
	c := *g.config
	var tasks sync.WaitGroup
	const times = 20
	tasks.Go(func() {
		for range times {
			g.keeper.look()
		}
	})
	for range times {
		if err := g.Apply(&c); err != nil {
			t.Error(err)
		}
	}
	tasks.Wait()
	if got := g.keeper.lastOf(&c.WireGuard); got != g.wg.Endpoint() {
		t.Errorf("the peer was at %v last, want %v", got, g.wg.Endpoint())
	}
	serve(t, g)
}
