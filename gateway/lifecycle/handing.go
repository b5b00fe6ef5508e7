package lifecycle

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/sirupsen/logrus"

	"culvert/gateway/control"
	"culvert/gateway/handover"
	"culvert/gateway/state"
	"culvert/gateway/wg"
)

// handing is the old process's side of a hand-over.
type handing struct {
	life  *Life
	line  *handover.Line
	next  int             // ID of the new process; 0 = unknown
	relay *handover.Relay // nil until it is made
	taken bool            // the new process has carried packets, and has a session with the peer

	process *process // next; nil = unknown
}

// run hands over. It returns nil if the other process carries the packets, and an error if this one
// does.
func (h *handing) run() (err error) {
	h.life.keeper.Leave()
	defer func() {
		if err != nil {
			h.goOn()
		}
		if h.relay != nil {
			h.relay.Close()
		}
	}()
	if err := h.offer(); err != nil {
		return err
	}
	for _, l := range h.life.tunnelSockets() {
		l.Lend(h.relay)
	}
	return h.cut()
}

// offer sends the sockets, and what the other process needs before it opens anything.
func (h *handing) offer() error {
	life := h.life
	c, _ := life.Current.Get()
	w := c.WireGuard
	identity := life.keeper.known()
	identity.Peer = state.Peer{PublicKey: w.PeerPublicKey.Base64(), Configured: w.Endpoint,
		Endpoint: life.path.WG.Endpoint()}
	offer := handover.Offer{Version: control.ReadVersion().String(), Identity: identity.Encode(),
		Local: life.path.WG.Local()}
	if s, err := life.path.WG.PeerStats(); err == nil {
		offer.Session = !s.LastHandshake.IsZero() && time.Since(s.LastHandshake) < wg.SessionLifetime
		offer.Answers = offer.Session && life.path.WG.Pings().RTT != 0
	}
	open := life.openFiles()
	if h.relay == nil {
		ours, theirs, err := handover.RelayPair()
		if err != nil {
			return err
		}
		h.relay = handover.NewRelay(ours)
		relay := handover.Opened{Socket: handover.Socket{Name: "relay"}, Descriptor: func() (int, error) {
			return theirs, nil
		}}
		open = append([]handover.Opened{relay}, open...)
	}
	return h.line.SendOffer(&offer, open)
}

// cut sends the connections, stops the packets, and lets the other process carry them. It returns
// an error if the other process does not.
func (h *handing) cut() error {
	life, table, end := h.life, h.life.table(), new(handover.Cut)
	if err := h.line.SendAll(table); err != nil {
		return err
	}
	stop := func() error {
		end.Stopped = handover.Monotonic()
		return h.stop()
	}
	if err := h.line.CutOver(table, stop, func() *handover.Cut {
		end.Spoke, end.Nodes, end.Paths = h.relay.Spoke(), life.stations(), life.narrowPaths()
		life.keepFiles(true) // from here on this process may be told to end while the other one carries packets
		return end
	}); err != nil {
		return err
	}
	h.taken = true
	switch _, _, err := h.line.Want(handover.KindDone, doneTime); {
	case err == nil, h.line.Shut():
	case !errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("the new process is gone: %w", err)
	case h.process.kill(): // it may carry packets, or hang: only one that has ended certainly does not
		return fmt.Errorf("the new process hung and was ended: %w", err)
	default:
		life.Log.Warn("the new process has not said that it carries packets, and cannot be ended from here")
	}
	h.drain()
	returned, lost := h.relay.Totals()
	life.Log.WithFields(logrus.Fields{"process": h.next, "decrypted": returned, "lost": lost}).Info("handed over")
	return nil
}

// stop sends out everything that was received, and then starts nothing more. On a busy machine,
// some packets are still inside wireguard-go then; they leave late.
func (h *handing) stop() error {
	life := h.life
	var parked []<-chan struct{}
	for _, l := range life.lent {
		parked = append(parked, l.conn.Stop(l.relay(h.relay)))
	}
	late := time.NewTimer(handover.ParkTime)
	defer late.Stop()
	for _, p := range parked {
		select {
		case <-p:
		case <-late.C:
			return fmt.Errorf("what was received has not left in %v", handover.ParkTime)
		}
	}
	h.drain()
	back := func(bufs [][]byte, offset int) {
		for _, b := range bufs {
			h.relay.Return(b[offset:])
		}
	}
	life.path.Divert(back)
	for _, l := range life.tunnelSockets() {
		l.Retire(h.relay) // the socket to nodes may still send the packets that are inside
	}
	return nil
}

// drain waits until wireguard-go holds no packets and nothing is left to decrypt.
func (h *handing) drain() {
	began := time.Now()
	before, moved := h.life.path.WG.Inside(), began
	for now := began; before > 0 || !h.relay.Empty(); now = time.Now() {
		if now.Sub(began) >= drainTime || h.relay.Empty() && now.Sub(moved) >= drainQuiet {
			return
		}
		time.Sleep(drainPoll)
		if n := h.life.path.WG.Inside(); n != before {
			before, moved = n, time.Now()
		}
	}
}

// goOn resumes carrying packets.
func (h *handing) goOn() {
	h.life.path.Divert(nil)
	h.life.keepFiles(false)
	h.life.keeper.Stay()
	for _, l := range h.life.lent {
		l.conn.Own()
	}
}

// renew starts a new session with the peer. WireGuard would repeat a lost handshake only after five
// seconds (WireGuard paper, Section 6.1: Rekey-Timeout), and the peer ignores one that comes too
// soon after the other process's.
func (life *Life) renew() {
	began, wait := time.Now(), greetTime
	for again := began; time.Since(began) < sessionPatience; time.Sleep(renewPoll) {
		if life.metSince(began) {
			return
		}
		if !time.Now().Before(again) {
			life.path.WG.Renew()
			again, wait = again.Add(wait), 2*wait
		}
	}
}

// metSince reports whether there is a session with the peer that is newer than since, or no peer.
func (life *Life) metSince(since time.Time) bool {
	s, err := life.path.WG.PeerStats()
	return err != nil || s.LastHandshake.After(since)
}
