package sim

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"culvert/gateway"
	"culvert/gateway/config"
)

// move is a hand-over from a pod's gateway to another one in this process: the product's
// conversation, over a wire of the world.
type move struct {
	pod    *pod
	config *config.Config // of the new gateway
	own    *sockets       // likewise
	oldOwn *sockets
	wire   *wire // likewise
	old    *gateway.Gateway
	next   atomic.Pointer[gateway.Gateway]
	cancel context.CancelFunc
	taken  chan taken    // what the new one says in the end
	handed chan error    // and the old one
	over   chan struct{} // closed when both have

	// For the goroutine that calls run of the world.
	killed            bool // the new one was, before it ran
	newSaid, oldSaid  bool
	newError, oldFate error
	stopOld           func() error // the new gateway is in the old one's place
}

// taken is a gateway that has taken over, or why it has not.
type taken struct {
	gateway *gateway.Gateway
	err     error
}

// upgrade has another gateway take over, unless one does already. It returns what kills that one
// before it is done, or nil.
func (p *pod) upgrade(how byte) (end func()) {
	if p.stop == nil || p.moving != nil {
		return nil
	}
	m := &move{pod: p, config: p.config, taken: make(chan taken, 1), handed: make(chan error, 1),
		over: make(chan struct{})}
	if how&2 != 0 {
		m.config = p.variant(how)
	}
	p.moving = m
	own, open := p.opener(true)
	old := p.gateway
	m.old, m.oldOwn = old, p.own
	oldWire, newWire := newWires()
	oldRelay, newRelay := newRelays()
	own.relay, m.own, m.wire = newRelay, own, newWire
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	go func() {
		err := old.HandOverOver(oldWire, oldRelay)
		m.handed <- err
		p.w.after(0, m.hand)
	}()
	go func() {
		g, err := gateway.TakeOverOver(ctx, gateway.Over{Wire: newWire, Relay: newRelay, Open: open, Made: m.made},
			m.config, gateway.Budget{}, silent())
		m.taken <- taken{g, err}
		p.w.after(0, m.take)
	}()
	go m.keepPeers()
	if how&12 != 12 {
		return nil
	}
	return func() {
		if !m.newSaid {
			m.kill()
		}
	}
}

// endHandover ends a hand-over that is under way: the new gateway is killed, unless it has taken
// over.
func (p *pod) endHandover() {
	m := p.moving
	if m == nil {
		return
	}
	if !m.newSaid {
		m.kill()
	}
	m.take()
	m.hand()
}

// keepPeers sees to peers that come and go while sessions are made anew.
func (m *move) keepPeers() {
	tick := time.NewTicker(50 * time.Millisecond) // none goes sooner, but one that has begun a handshake
	defer tick.Stop()
	for {
		m.keep()
		select {
		case <-m.over:
			return
		case <-tick.C:
		}
	}
}

func (m *move) keep() {
	m.oldOwn.keepPeer()
	m.own.keepPeer()
}

func (m *move) made(g *gateway.Gateway) {
	reuseBuffers(g)
	m.next.Store(g)
	m.own.gateway.Store(g)
	m.own.keepPeer()
}

// kill is a signal to the new gateway that it cannot heed.
func (m *move) kill() {
	m.killed = true
	m.keep()
	m.wire.Close()
	m.own.relay.Close()
	m.cancel()
}

// take hears what the new gateway says, and puts it in the place of the old one if it has taken
// over.
func (m *move) take() {
	if m.newSaid {
		return
	}
	x, p := <-m.taken, m.pod
	m.newSaid, m.newError = true, x.err
	switch {
	case x.err != nil:
		if g := m.next.Load(); g != nil {
			takeBuffers(g)
		}
	case m.killed:
		m.newError = errors.New("killed")
		m.own.close()
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		m.keep()
		x.gateway.Run(ctx)
		takeBuffers(x.gateway)
	case p.w.dies > 0:
		m.newSaid = false
		m.outlive(x.gateway)
		return
	default:
		p.recordSaved()
		p.config, m.stopOld = m.config, p.stop
		p.run(x.gateway, m.own)
	}
	m.end()
}

// outlive has the new gateway run, and kills it after a while: the old one is to be there then.
func (m *move) outlive(next *gateway.Gateway) {
	p := m.pod
	old, own, stop := p.gateway, p.own, p.stop
	p.run(next, m.own)
	end := p.stop
	p.gateway, p.own, p.stop = old, own, stop
	p.w.after(p.w.dies, func() {
		m.kill()
		m.own.close()
		go func() { // it is gone for everybody, but its goroutines
			if err := end(); err == nil {
				takeBuffers(next)
			}
		}()
		own.lent += m.own.relay.packetsArrived.Load()
		p.w.survived++
		m.newSaid, m.newError = true, errors.New("killed after it had taken over")
		m.end()
	})
}

// hand hears what the old gateway says.
func (m *move) hand() {
	if !m.oldSaid {
		m.oldFate = <-m.handed
		m.oldSaid = true
		m.end()
	}
}

// end sees to it that one of both is there when both have said what became of it.
func (m *move) end() {
	if !m.newSaid || !m.oldSaid {
		return
	}
	p := m.pod
	p.moving = nil
	close(m.over)
	p.own.keepPeer()
	p.w.logEvent("%s hands over: %v; the new gateway: %v", p.config.Cluster, m.oldFate, m.newError)
	if (m.oldFate == nil) != (m.newError == nil) {
		p.w.fail("%s hands over: the old gateway says %v, and the new one %v", p.config.Cluster, m.oldFate, m.newError)
	}
	if m.stopOld == nil {
		return
	}
	p.w.moved++
	if err := m.stopOld(); err != nil {
		p.w.fail("%s stops after it has handed over: %v", p.config.Cluster, err)
	}
	takeBuffers(m.old)
}
