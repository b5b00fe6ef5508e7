package gateway

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
	"culvert/gateway/state"
	"culvert/geneve"
	"culvert/nat"
)

const (
	// talkTime is how long the other process may take for what it has to do before the cut: this one
	// carries packets all the while.
	talkTime = 30 * time.Second
	// cutTime is how long it may take between Cut and Forwarding, in which nobody carries packets.
	cutTime = 500 * time.Millisecond
	// overlapTime is how long after the cut the peer's packets in the old session are decrypted, at most,
	// and doneTime how long the new process has to say that it needs no more of them.
	overlapTime = time.Second
	doneTime    = 1300 * time.Millisecond
	// parkTime is how long receivers may take to come to rest, drainTime packets to leave wireguard-go, and drainQuiet the next one: what
	// was discarded there never leaves.
	parkTime   = 100 * time.Millisecond
	drainTime  = 100 * time.Millisecond
	drainQuiet = 10 * time.Millisecond
	drainPoll  = 100 * time.Microsecond
	renewPoll  = 5 * time.Millisecond
	// stopPatience is how long a gateway that is told to end waits for a hand-over to end first.
	stopPatience, stopPoll = 10 * time.Second, 5 * time.Millisecond
	// recordsPause is how long records pause while packets are carried: see sweepPause.
	recordsPause = time.Millisecond
	// What had a packet while records were sent is sent again, until that took no longer than roundTime: so long does the rest take
	// while nobody carries packets. Where connections change faster than they are sent, maxRounds are enough.
	roundTime = 10 * time.Millisecond
	maxRounds = 5
	// batchTime is how long ago the time may be that a packet is given, which is that of its batch.
	batchTime = 200 * time.Millisecond
)

var (
	errHanding = errors.New("a hand-over to another process is under way; ask again when it has ended")
	errTaking  = errors.New("this gateway has only begun to take over from another process; ask again in some seconds")
)

// HandOver implements control.Source.
func (s source) HandOver(o control.TakeoverOptions) (func(*net.UnixConn), error) {
	g := s.g
	g.mu.Lock()
	c := g.config
	g.mu.Unlock()
	switch {
	case o.Protocol != handover.Version:
		return nil, fmt.Errorf("this gateway hands over by version %d of the conversation, not %d: restart it", handover.Version, o.Protocol)
	case o.Cluster != c.Cluster || o.Peer != c.Peer:
		return nil, fmt.Errorf("this is the gateway of cluster %s towards %s, not of %s towards %s; name the right socket by --takeover", c.Cluster, c.Peer, o.Cluster, o.Peer)
	case !g.ready.Load():
		return nil, errors.New("this gateway is starting or stopping")
	case g.taken.busy():
		return nil, errTaking
	case slices.ContainsFunc(g.lent, func(l lentSocket) bool { return l.socket == nil }):
		return nil, errors.New("this gateway's sockets are not the kernel's")
	case !g.handing.CompareAndSwap(false, true):
		return nil, errHanding
	}
	return func(conn *net.UnixConn) {
		if conn == nil {
			g.handing.Store(false)
			return
		}
		h := &handing{g: g, line: handover.NewLine(conn)}
		h.next = h.line.Peer()
		h.handOver()
	}, nil
}

// handOver returns nil when the other process carries the packets: then the gateway ends.
func (h *handing) handOver() error {
	g := h.g
	g.log.WithField("process", h.next).Info("handing over")
	err := h.run()
	if err != nil {
		h.line.Refuse(err)
	}
	h.line.Close()
	if err != nil {
		g.log.WithError(err).Warn("hand-over failed: this gateway goes on")
		if h.taken { // the peer has heard of another session
			g.renew()
		}
		g.handing.Store(false)
		return err
	}
	g.successor.Store(int64(h.next))
	close(g.gone)
	return nil
}

// finishHandOver waits until no hand-over is under way, and reports whether another process carries the packets then. Before the cut, the other
// process has no packets, and could do nothing but start anew when this one has ended.
func (g *Gateway) finishHandOver() bool {
	if !g.handing.Load() {
		return false
	}
	g.log.Info("stopping when the hand-over has ended")
	late, tick := time.NewTimer(stopPatience), time.NewTicker(stopPoll)
	defer late.Stop()
	defer tick.Stop()
	for g.handing.Load() {
		select {
		case <-g.gone:
			return true
		case <-late.C:
			return false
		case <-tick.C:
		}
	}
	return false
}

// Successor returns the process that has taken over; 0 = none has, or it is unknown.
func (g *Gateway) Successor() int { return int(g.successor.Load()) }

// ControlSocket returns where the gateway is asked; "" = nowhere.
func (g *Gateway) ControlSocket() string {
	if l, ok := g.listeners()["control"]; ok {
		return l.at
	}
	return ""
}

// handing is the old process's side of a hand-over.
type handing struct {
	g     *Gateway
	line  *handover.Line
	next  int             // the new process; 0 = unknown
	relay *handover.Relay // nil until it is made
	taken bool            // the new process has had the packets, and a session with the peer
}

// run returns nil when the other process carries the packets, and an error when this one does.
func (h *handing) run() (err error) {
	h.g.keeper.leave()
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
	for _, l := range h.g.tunnelSockets() {
		l.Lend(h.relay)
	}
	began := clock()
	if err := h.records(0, recordsPause, talkTime); err != nil {
		return err
	}
	if err := h.line.Send(handover.KindStanding, nil, talkTime); err != nil {
		return err
	}
	if _, _, err := h.line.Want(handover.KindReady, talkTime); err != nil {
		return err
	}
	for range maxRounds {
		again := clock()
		if err := h.records(began.Add(-batchTime), recordsPause, talkTime); err != nil {
			return err
		}
		if began = again; clock() < again.Add(roundTime) {
			break
		}
	}
	return h.cut(began)
}

// offer sends the sockets, and what the other process has to know before it opens anything.
func (h *handing) offer() error {
	g := h.g
	g.mu.Lock()
	w := g.config.WireGuard
	g.mu.Unlock()
	identity := state.Identity{Cluster: g.keeper.identity.Cluster, PortKey: g.keeper.identity.PortKey,
		Peer: state.Peer{PublicKey: w.PeerPublicKey.Base64(), Configured: w.Endpoint, Endpoint: g.wg.Endpoint()}}
	offer := handover.Offer{Version: ReadVersion().String(), Identity: identity.Encode(), Local: g.wg.Local()}
	if s, err := g.wg.PeerStats(); err == nil {
		offer.Session = !s.LastHandshake.IsZero() && time.Since(s.LastHandshake) < sessionTime
		offer.Answers = offer.Session && g.wg.Pings().RTT != 0
	}
	var fds []int
	defer func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
	if h.relay == nil {
		ours, theirs, err := relayPair()
		if err != nil {
			return err
		}
		h.relay = handover.NewRelay(ours)
		fds, offer.Sockets = append(fds, theirs), append(offer.Sockets, handover.Socket{Name: "relay"})
	}
	var open []handover.Socket // by the other process, too
	for _, o := range g.openFiles() {
		if o.file == nil {
			open = append(open, o.Socket)
			continue
		}
		fd, err := duplicate(o.file)
		if err != nil {
			return fmt.Errorf("%s: %w", o.Name, err)
		}
		fds = append(fds, fd)
		offer.Sockets = append(offer.Sockets, o.Socket)
	}
	offer.Sockets = append(offer.Sockets, open...)
	return h.line.SendJSON(handover.KindOffer, &offer, talkTime, fds...)
}

// sessionTime is how long a session lasts (WireGuard paper, Section 6.1: Reject-After-Time).
const sessionTime = 180 * time.Second

// records sends those of connections that had a packet since, in messages that take as long as within, and sleeps for pause now and then.
func (h *handing) records(since nat.Time, pause, within time.Duration) error {
	g := h.g
	g.mu.Lock()
	links := g.links
	g.mu.Unlock()
	return g.engine.Records(since, clock(), links.Name).Write(recordSender{h.line, within}, func() { time.Sleep(pause) })
}

// A recordSender sends what is written to it as one message.
type recordSender struct {
	line   *handover.Line
	within time.Duration
}

func (s recordSender) Write(b []byte) (int, error) {
	return len(b), s.line.Send(handover.KindRecords, b, s.within)
}

// cut stops, sends the rest, and lets the other process carry the packets, unless it does not.
func (h *handing) cut(began nat.Time) error {
	g := h.g
	stopped := monotonic()
	if err := h.stop(); err != nil {
		return err
	}
	if err := h.records(began.Add(-batchTime), 0, cutTime); err != nil {
		return err
	}
	end := handover.Cut{Stopped: stopped, Nodes: h.stations()}
	for link, r := range g.paths.narrow() {
		path := handover.Path{Size: r.Size, Way: uint8(r.Way), OneWay: r.OneWay}
		if link != nat.Tunnel {
			if path.Node = g.nodeName(link); path.Node == "" {
				continue // it has gone meanwhile, and "" is the tunnel
			}
		}
		end.Paths = append(end.Paths, path)
	}
	g.keepFiles(true) // from here on this process may be told to end while the other one carries packets
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
	case h.kill(): // it may carry packets, or hang: only one that has ended certainly does not
		return fmt.Errorf("the new process hung and was ended: %w", err)
	default:
		g.log.Warn("the new process has not said that it carries packets, and cannot be ended from here")
	}
	h.drain()
	returned, lost := h.relay.Totals()
	g.log.WithFields(logrus.Fields{"process": h.next, "decrypted": returned, "lost": lost}).Info("handed over")
	return nil
}

// stop has all that was received leave, and then leaves the sockets alone.
func (h *handing) stop() error {
	g := h.g
	var parked []<-chan struct{}
	for _, l := range g.lent {
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
	g.in.divert.Store(&back)
	for _, l := range g.lent {
		l.conn.Silence(h.relayOf(l))
	}
	return nil
}

// drain waits until wireguard-go has nothing and nothing is to be decrypted.
func (h *handing) drain() {
	began := time.Now()
	before, moved := h.g.wg.Inside(), began
	for now := began; before > 0 || !h.relay.Empty(); now = time.Now() {
		if now.Sub(began) >= drainTime || h.relay.Empty() && now.Sub(moved) >= drainQuiet {
			return
		}
		time.Sleep(drainPoll)
		if n := h.g.wg.Inside(); n != before {
			before, moved = n, time.Now()
		}
	}
}

// relayOf is for sockets of WireGuard.
func (h *handing) relayOf(l lentSocket) *handover.Relay {
	if l.name == "geneve" {
		return nil
	}
	return h.relay
}

// goOn carries packets as before.
func (h *handing) goOn() {
	h.g.in.divert.Store(nil)
	h.g.keepFiles(false)
	h.g.keeper.stay()
	for _, l := range h.g.lent {
		l.conn.Own()
	}
	h.g.wg.Confirm() // the peer sends to the new process's port, if that has been another and was heard
}

// renew makes a new session with the peer. WireGuard would repeat a lost handshake after five seconds (WireGuard paper, Section 6.1:
// Rekey-Timeout), and the peer ignores one so soon after that of the other process.
func (g *Gateway) renew() {
	began, wait := time.Now(), greetTime
	for again := began; time.Since(began) < sessionPatience; time.Sleep(renewPoll) {
		if s, err := g.wg.PeerStats(); err != nil || s.LastHandshake.After(began) {
			return
		}
		if !time.Now().Before(again) {
			g.wg.Renew()
			again, wait = again.Add(wait), 2*wait
		}
	}
}

func (h *handing) stations() (all []handover.Station) {
	for _, s := range h.g.endpoint.Stations() {
		all = append(all, handover.Station{Node: h.g.nodeName(nat.Link(s.ID)), MAC: s.MAC.String(), VXLAN: s.Encap == geneve.VXLAN, Local: s.Local})
	}
	return all
}

// kill ends the other process, if it is another and this one may.
func (h *handing) kill() bool {
	return h.next > 0 && h.next != os.Getpid() && unix.Kill(h.next, unix.SIGKILL) == nil
}

// monotonic is a time that processes of one machine share, in nanoseconds.
func monotonic() int64 {
	var now unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	return now.Nano()
}

// relayPair returns both ends of a Relay, the other process's as a descriptor.
func relayPair() (net.Conn, int, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, -1, os.NewSyscallError("socketpair", err)
	}
	f := os.NewFile(uintptr(pair[0]), "relay")
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		unix.Close(pair[1])
	}
	return conn, pair[1], err
}
