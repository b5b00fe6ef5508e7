package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"culvert/gateway/config"
	"culvert/gateway/control"
	"culvert/gateway/handover"
	"culvert/gateway/state"
)

const (
	// greetTime is the timeout of the first handshake. It doubles on each retry, because a new
	// handshake invalidates the answer to the old one. sessionPatience bounds all tries together.
	greetTime       = 300 * time.Millisecond
	sessionPatience = 5 * time.Second
	// A killed process closes its sockets before it is gone.
	endTime = 100 * time.Millisecond
	// stopTime limits the silence of the old process after it was told to stop, because it may have
	// exited.
	stopTime = 1200 * time.Millisecond
)

// Taking is the new process's side of a hand-over; see package handover. A gateway that takes over
// from none has a nil Taking.
type Taking struct {
	line     *handover.Line
	offer    handover.Offer
	identity state.Identity
	files    handover.Files
	before   *process
	relay    *handover.Relay
	session  chan struct{} // closed by met, when there is a session
	met      func()        // called when there is a session with the peer
	over     chan struct{} // closed by finish
	stopping bool          // the old process was told to stop, and will confirm it
	greeted  int64         // when this process asked for its session (handover.Monotonic); 0 = it has none
	talked   bool          // the peer may have a newer session with the old process than with this one
	forwards time.Time     // when the old process was told that this one forwards
}

// Ask asks the gateway that serves a control socket to hand over to a gateway with configuration c.
func Ask(ctx context.Context, socket string, c *config.Config) (*Taking, error) {
	asking, cancel := context.WithTimeout(ctx, handover.AskTime)
	defer cancel()
	conn, err := control.TakeOver(asking, socket, control.TakeoverOptions{Protocol: handover.Version,
		Cluster: c.Cluster, Peer: c.Peer})
	if err != nil {
		return nil, fmt.Errorf("--takeover: %w", err)
	}
	return newTaking(conn), nil
}

// AskOver takes over from a gateway in this process that hands over through the other ends of wire
// and relay.
func AskOver(wire handover.Wire, relay net.Conn) *Taking {
	t := newTaking(wire)
	t.relay = handover.NewRelay(relay)
	return t
}

func newTaking(conn handover.Wire) *Taking {
	t := &Taking{line: handover.NewLine(conn), session: make(chan struct{}), over: make(chan struct{})}
	t.met = sync.OnceFunc(func() { close(t.session) })
	return t
}

// Refuse tells the old process that err prevents the new gateway.
func (t *Taking) Refuse(err error) {
	t.line.Refuse(err)
	t.close()
}

// Take takes over with the gateway that begin makes for t; if the take-over fails, Take calls end
// to undo begin. alone is true if the old process has exited, so that the caller should start a
// gateway as if there had been none.
func (t *Taking) Take(ctx context.Context, c *config.Config, log *logrus.Logger, begin func() (*Life, error),
	end func()) (alone bool, err error) {
	if err = t.run(ctx, c, begin, end); err == nil {
		return false, nil
	}
	if ctx.Err() != nil { // the process is being stopped
		err = context.Cause(ctx)
	}
	t.line.Refuse(err)
	within := endTime
	if t.stopping && errors.Is(err, os.ErrDeadlineExceeded) && t.before.kill() {
		log.WithField("process", t.before.id).Warn("the previous gateway hung in the hand-over and was ended")
		within = stopTime // its memory is freed first
	}
	ended := t.before.ended(within)
	t.close()
	if ended && ctx.Err() == nil {
		log.WithError(err).Warn(
			"the previous gateway ended during the hand-over: this one starts as if there had been none")
		return true, nil
	}
	return false, fmt.Errorf("--takeover: %w; the previous gateway goes on", err)
}

// ended reports whether the old process has certainly exited.
func (t *Taking) ended() bool { return t.before.ended(endTime) }

func (t *Taking) run(ctx context.Context, c *config.Config, begin func() (*Life, error), end func()) (err error) {
	goOn := context.AfterFunc(ctx, t.line.Silence)
	defer goOn()
	if err := t.accept(c); err != nil {
		return err
	}
	life, err := begin()
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			end()
		}
	}()
	if _, err := t.restore(life, handover.KindStanding); err != nil {
		return err
	}
	if err := t.meetPeer(ctx, life); err != nil {
		return err
	}
	if !goOn() {
		return context.Cause(ctx)
	}
	if err := t.line.Send(handover.KindReady, nil, handover.CutTime); err != nil {
		return err
	}
	t.stopping = true
	return t.cut(life)
}

// restore gives the engine the records that arrive before a message of kind last, and returns that
// message.
func (t *Taking) restore(life *Life, last handover.Kind) ([]byte, error) {
	within := handover.AskTime
	if t.stopping {
		within = stopTime
	}
	body, took, err := t.line.Restore(life.table(), last, within)
	if err == nil && last == handover.KindStanding { // what comes later is of the same connections, or new
		life.keeper.took(took)
	}
	return body, err
}

// meetPeer makes a session with the peer. If it cannot, but the peer answers in the old process's
// session, there is no hand-over.
func (t *Taking) meetPeer(ctx context.Context, life *Life) error {
	if !t.offer.Session {
		return nil
	}
	late := time.NewTimer(sessionPatience)
	defer late.Stop()
	wait := greetTime
	again := time.NewTimer(wait)
	defer again.Stop()
	for {
		select {
		case <-t.session:
			t.greeted = t.relay.Spoke()
			return nil
		case <-again.C:
			life.path.WG.Renew()
			wait = 2 * wait
			again.Reset(wait)
		case <-late.C:
			if !t.offer.Answers {
				// the peer does not answer the old process either, or answers no pings: nothing
				// speaks against this process
				return nil
			}
			return fmt.Errorf("the peer does not answer this gateway's handshakes in %v, and has a session with the one before: compare wireguard.privateKeyFile, presharedKeyFile, peerPublicKey and endpoint with what that one has", sessionPatience)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// cut waits for the old process to stop, and continues in its place.
func (t *Taking) cut(life *Life) error {
	body, err := t.restore(life, handover.KindCut)
	if err != nil {
		return err
	}
	var end handover.Cut
	if err := handover.Decode(body, &end); err != nil {
		return err
	}
	if t.talked = end.Spoke > t.greeted; t.talked {
		life.path.WG.Renew() // the peer may have forgotten the session, so nothing is sent in it any more
	}
	life.meet(end.Nodes)
	life.expect(end.Paths)
	var mu sync.Mutex
	take := func(bufs [][]byte, offset int) {
		mu.Lock()
		defer mu.Unlock()
		life.path.Carry(bufs, offset)
	}
	life.path.Divert(take)
	t.forwards = time.Now()
	if err := t.line.Send(handover.KindForwarding, nil, handover.CutTime); err != nil && !t.ended() {
		return fmt.Errorf("the previous gateway has not waited: %w", err)
	}
	// What one socket receives, another one sends: all of them send before the first one receives.
	for _, l := range life.lent {
		l.conn.Stop(l.relay(t.relay))
	}
	for _, l := range life.lent {
		if l.name == "geneve" {
			l.conn.Own()
		} else {
			l.conn.Lead(t.relay)
		}
	}
	life.path.WG.Confirm()
	life.keepFiles(false)
	pause := time.Duration(handover.Monotonic() - end.Stopped)
	life.Log.WithFields(logrus.Fields{"process": t.line.Peer(), "was": t.offer.Version,
		"pause": pause.Round(10 * time.Microsecond).String()}).Info("taken over")
	return nil
}
