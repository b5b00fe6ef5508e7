package lifecycle

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"culvert/gateway/control"
	"culvert/gateway/handover"
	"culvert/gateway/path"
	"culvert/gateway/state"
	"culvert/gateway/sweep"
	"culvert/gateway/wg"
	"culvert/nat"
)

const (
	// talkTime limits how long the other process may take before the cut, while this one still carries packets.
	talkTime = 30 * time.Second
	// cutTime limits the time between Cut and Forwarding, in which no process carries packets.
	cutTime = 500 * time.Millisecond
	// overlapTime is how long after the cut the old process decrypts the peer's packets of the old session, and would
	// continue if the new process died. doneTime is how long it waits for the new process to confirm the end, which a
	// busy machine may delay.
	overlapTime = time.Second
	doneTime    = 1600 * time.Millisecond
	// parkTime limits how long receivers take to stop, drainTime how long packets take to leave wireguard-go, and
	// drainQuiet how long the next one takes, because a packet that was discarded there never leaves.
	parkTime   = 100 * time.Millisecond
	drainTime  = 100 * time.Millisecond
	drainQuiet = 10 * time.Millisecond
	drainPoll  = 100 * time.Microsecond
	renewPoll  = 5 * time.Millisecond
	// stopPatience is how long a gateway that is told to stop waits for the end of a hand-over.
	stopPatience, stopPoll = 10 * time.Second, 5 * time.Millisecond
	// Connections that had a packet while records were sent are sent again, until a round takes no longer than
	// roundTime. The last round, in which no process carries packets, then takes about as long. If connections change
	// faster than they are sent, it ends after maxRounds.
	roundTime = 10 * time.Millisecond
	maxRounds = 5
	// A packet is stamped with its batch's time, which may be up to batchTime old.
	batchTime = 200 * time.Millisecond
)

// Errors for callers while processes change.
var (
	ErrHanding = errors.New("a hand-over to another process is under way; ask again when it has ended")
	ErrTaking  = errors.New("this gateway has only begun to take over from another process; ask again in some seconds")
)

// HandOver implements control.Source.
func (life *Life) HandOver(o control.TakeoverOptions) (func(*net.UnixConn), error) {
	c, _ := life.Current.Get()
	switch {
	case o.Protocol != handover.Version:
		return nil, fmt.Errorf("this gateway hands over by version %d of the conversation, not %d: restart it", handover.Version, o.Protocol)
	case o.Cluster != c.Cluster || o.Peer != c.Peer:
		return nil, fmt.Errorf("this is the gateway of cluster %s towards %s, not of %s towards %s; name the right socket by --takeover", c.Cluster, c.Peer, o.Cluster, o.Peer)
	case c.Elected:
		return nil, errors.New("this gateway has replicas, of which another one takes over: end this one")
	case !life.Ready():
		return nil, errors.New("this gateway is starting or stopping")
	case life.taken.busy():
		return nil, ErrTaking
	case slices.ContainsFunc(life.lent, func(l lentSocket) bool { return l.socket == nil }):
		return nil, errors.New("this gateway's sockets are not the kernel's")
	case !life.handing.CompareAndSwap(false, true):
		return nil, ErrHanding
	}
	return func(conn *net.UnixConn) {
		if conn == nil {
			life.handing.Store(false)
			return
		}
		h := &handing{life: life, line: handover.NewLine(conn)}
		h.next = h.line.Peer()
		h.process = processOf(h.next)
		defer h.process.close()
		h.handOver()
	}, nil
}

// HandOverOver is HandOver to a gateway in this process that takes over through the other ends of wire and relay. It
// closes both. It returns nil when the other gateway carries the packets; on an error this gateway continues.
func (life *Life) HandOverOver(wire handover.Wire, relay net.Conn) error {
	h := &handing{life: life, line: handover.NewLine(wire), relay: handover.NewRelay(relay)}
	err := ErrHanding
	switch {
	case life.taken.busy():
		err = ErrTaking
	case life.Ready() && life.handing.CompareAndSwap(false, true):
		return h.handOver()
	}
	h.line.Refuse(err)
	h.line.Close()
	h.relay.Close()
	return err
}

// handOver returns nil when the other process carries the packets; this gateway must then stop.
func (h *handing) handOver() error {
	life := h.life
	life.Applying.Lock() // waits for the change in progress; from now on none is applied
	life.Log.WithField("process", h.next).Info("handing over")
	life.Applying.Unlock()
	err := h.run()
	if err != nil {
		h.line.Refuse(err)
	}
	h.line.Close()
	if err != nil {
		life.Log.WithError(err).Warn("hand-over failed: this gateway goes on")
		if h.taken { // the peer knows another session
			life.renew()
		}
		life.handing.Store(false)
		return err
	}
	life.successor.Store(int64(h.next))
	close(life.gone)
	return nil
}

// Finish waits for the end of a hand-over, and reports whether another process carries the packets then. Before the
// cut the other process has no packets; if this one ended, it could only start afresh.
func (life *Life) Finish() bool {
	if !life.handing.Load() {
		return false
	}
	life.Log.Info("stopping when the hand-over has ended")
	late, tick := time.NewTimer(stopPatience), time.NewTicker(stopPoll)
	defer late.Stop()
	defer tick.Stop()
	for life.handing.Load() {
		select {
		case <-life.gone:
			return true
		case <-late.C:
			return false
		case <-tick.C:
		}
	}
	return false
}

// handing is the old process's side of a hand-over.
type handing struct {
	life  *Life
	line  *handover.Line
	next  int             // ID of the new process; 0 = unknown
	relay *handover.Relay // nil until it is made
	taken bool            // the new process has had the packets, and a session with the peer

	process *process // next; nil = unknown
}

// run returns nil if the other process carries the packets, and an error if this one does.
func (h *handing) run() (err error) {
	h.life.keeper.leave()
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
	began := path.Now()
	if err := h.records(0, sweep.Pause, talkTime); err != nil {
		return err
	}
	if err := h.line.Send(handover.KindStanding, nil, talkTime); err != nil {
		return err
	}
	if _, _, err := h.line.Want(handover.KindReady, talkTime); err != nil {
		return err
	}
	for range maxRounds {
		again := path.Now()
		if err := h.records(began.Add(-batchTime), sweep.Pause, talkTime); err != nil {
			return err
		}
		if began = again; path.Now() < again.Add(roundTime) {
			break
		}
	}
	return h.cut(began)
}

// offer sends the sockets, and what the other process needs before it opens anything.
func (h *handing) offer() error {
	life := h.life
	c, _ := life.Current.Get()
	w := c.WireGuard
	identity := state.Identity{Cluster: life.keeper.identity.Cluster, PortKey: life.keeper.identity.PortKey,
		Peer: state.Peer{PublicKey: w.PeerPublicKey.Base64(), Configured: w.Endpoint, Endpoint: life.path.WG.Endpoint()}}
	offer := handover.Offer{Version: control.ReadVersion().String(), Identity: identity.Encode(), Local: life.path.WG.Local()}
	if s, err := life.path.WG.PeerStats(); err == nil {
		offer.Session = !s.LastHandshake.IsZero() && time.Since(s.LastHandshake) < wg.SessionLifetime
		offer.Answers = offer.Session && life.path.WG.Pings().RTT != 0
	}
	var fds []int
	defer func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
	if h.relay == nil {
		ours, theirs, err := handover.RelayPair()
		if err != nil {
			return err
		}
		h.relay = handover.NewRelay(ours)
		fds, offer.Sockets = append(fds, theirs), append(offer.Sockets, handover.Socket{Name: "relay"})
	}
	var open []handover.Socket // by the other process, too
	for _, o := range life.openFiles() {
		if o.file == nil {
			open = append(open, o.Socket)
			continue
		}
		fd, err := handover.Duplicate(o.file)
		if err != nil {
			return fmt.Errorf("%s: %w", o.Name, err)
		}
		fds = append(fds, fd)
		offer.Sockets = append(offer.Sockets, o.Socket)
	}
	offer.Sockets = append(offer.Sockets, open...)
	return h.line.SendJSON(handover.KindOffer, &offer, talkTime, fds...)
}

// records sends the records of connections that had a packet since, with a limit of within for each message, and
// sleeps for pause between slices.
func (h *handing) records(since nat.Time, pause, within time.Duration) error {
	life := h.life
	_, links := life.Current.Get()
	return life.path.Engine.Records(since, path.Now(), links.Name).Write(recordSender{h.line, within}, func() { time.Sleep(pause) })
}

// A recordSender sends each Write as one message.
type recordSender struct {
	line   *handover.Line
	within time.Duration
}

func (s recordSender) Write(b []byte) (int, error) {
	return len(b), s.line.Send(handover.KindRecords, b, s.within)
}

// cut stops the packets, sends the rest, and lets the other process carry them. It returns an error if the other
// process does not.
func (h *handing) cut(began nat.Time) error {
	life := h.life
	stopped := handover.Monotonic()
	if err := h.stop(); err != nil {
		return err
	}
	if err := h.records(began.Add(-batchTime), 0, cutTime); err != nil {
		return err
	}
	end := handover.Cut{Stopped: stopped, Nodes: life.stations(), Paths: life.narrowPaths()}
	life.keepFiles(true) // from here on this process may be told to end while the other one carries packets
	if err := h.line.SendJSON(handover.KindCut, &end, cutTime); err != nil {
		return err
	}
	if k, err := h.line.Last(cutTime); err != nil || k != handover.KindForwarding {
		return errors.Join(err, fmt.Errorf("the new process does not forward in %v", cutTime))
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

// stop sends out everything that was received, and then no longer uses the sockets.
func (h *handing) stop() error {
	life := h.life
	var parked []<-chan struct{}
	for _, l := range life.lent {
		parked = append(parked, l.conn.Stop(h.relayOf(l)))
	}
	late := time.NewTimer(parkTime)
	defer late.Stop()
	for _, p := range parked {
		select {
		case <-p:
		case <-late.C:
			return fmt.Errorf("what was received has not left in %v", parkTime)
		}
	}
	h.drain()
	back := func(bufs [][]byte, offset int) {
		for _, b := range bufs {
			h.relay.Return(b[offset:])
		}
	}
	life.path.Divert(back)
	for _, l := range life.lent {
		l.conn.Silence(h.relayOf(l))
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

// relayOf returns the relay for a socket of WireGuard, nil for another one.
func (h *handing) relayOf(l lentSocket) *handover.Relay {
	if l.name == "geneve" {
		return nil
	}
	return h.relay
}

// goOn resumes carrying packets.
func (h *handing) goOn() {
	h.life.path.Divert(nil)
	h.life.keepFiles(false)
	h.life.keeper.stay()
	for _, l := range h.life.lent {
		l.conn.Own()
	}
	h.life.path.WG.Confirm() // if the new process used another port and the peer heard it, the peer sends there
}

// renew starts a new session with the peer. WireGuard would repeat a lost handshake only after five seconds
// (WireGuard paper, Section 6.1: Rekey-Timeout), and the peer ignores one that comes too soon after the other
// process's.
func (life *Life) renew() {
	began, wait := time.Now(), greetTime
	for again := began; time.Since(began) < sessionPatience; time.Sleep(renewPoll) {
		if s, err := life.path.WG.PeerStats(); err != nil || s.LastHandshake.After(began) {
			return
		}
		if !time.Now().Before(again) {
			life.path.WG.Renew()
			again, wait = again.Add(wait), 2*wait
		}
	}
}
