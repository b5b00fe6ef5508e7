package services

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"culvert/gateway/handover"
	"culvert/gateway/state"
	"culvert/gateway/sweep"
	"culvert/gateway/unixsocket"
	"culvert/nat"
)

const (
	// talkTime is how long the other process may take for each step before the cut, while this one serves.
	talkTime = 30 * time.Second
	// cutTime bounds the time between Cut and Forwarding, in which nobody serves; parkTime is how long the reader of the device may take to pause.
	cutTime  = 500 * time.Millisecond
	parkTime = 100 * time.Millisecond
	// doneTime is how long the new process may take to announce addresses before this one ends its announcements.
	doneTime = 2 * time.Second
	// Connections with a packet while records were sent are sent again, until a round takes no longer than roundTime, at most maxRounds times.
	roundTime = 10 * time.Millisecond
	maxRounds = 5
)

// Names of the descriptors for the new process (handover.Socket). Both versions must know them.
const (
	offerLock      = "lock"   // of the state folder
	offerDevice    = "device" // to read from, including the waiting packets
	offerKeepalive = "pulse"  // see keepalive.go; absent if no IPv4 address is announced
	offerListener  = "door"   // where the next process asks to take over
	offerPage      = "page"   // of services.metrics, with its address
)

// HandedOver is the error of a Run that has ended because another process serves instead.
type HandedOver struct{ Process int } // its ID; 0: unknown here, as in another container

func (h *HandedOver) Error() string { return "services: another process serves them" }

// takeoverPath is the socket where a process asks for a hand-over. Processes with another version of the protocol do not find it.
func takeoverPath(folder string) string {
	return filepath.Join(folder, fmt.Sprintf("takeover-%d.sock", handover.Version))
}

// listenTakeover listens for processes that want to take over. Whoever may use the state folder may connect.
func listenTakeover(dir *state.Dir) (net.Listener, error) {
	return unixsocket.Listen(takeoverPath(dir.Path()))
}

// serveTakeover hands over to a process that asks, until one has taken over or the listener is closed. When ctx is done, a hand-over that has not
// reached its cut ends.
func (s *Server) serveTakeover(ctx context.Context, gone chan<- *HandedOver) {
	if s.takeover == nil {
		return
	}
	for {
		conn, err := s.takeover.Accept()
		if err != nil {
			return
		}
		line := handover.NewLine(conn.(*net.UnixConn))
		next := &HandedOver{Process: line.Peer()}
		s.log.WithField("process", next.Process).Info("handing over")
		if err = s.handOver(ctx, line); err != nil {
			line.Refuse(err)
			s.log.WithError(err).Warn("hand-over failed: this process goes on")
		}
		line.Close()
		if err == nil {
			gone <- next
			return
		}
	}
}

// handOver returns nil once the other process serves.
func (s *Server) handOver(ctx context.Context, line *handover.Line) error {
	silence := context.AfterFunc(ctx, line.Silence)
	defer silence()
	if err := s.offer(line); err != nil {
		return err
	}
	began := s.now()
	if err := s.send(line, 0, sweep.Pause, talkTime); err != nil {
		return err
	}
	if err := line.Send(handover.KindStanding, nil, talkTime); err != nil {
		return err
	}
	if _, _, err := line.Want(handover.KindReady, talkTime); err != nil {
		return err
	}
	// From here on this process changes neither the routes and rules to the device nor the folder.
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing.Load() || !silence() {
		return errors.New("this process is stopping")
	}
	s.keeper.writing.Lock()
	defer s.keeper.writing.Unlock()
	for range maxRounds {
		again := s.now()
		if err := s.send(line, began, sweep.Pause, talkTime); err != nil {
			return err
		}
		if began = again; s.now() < again.Add(roundTime) {
			break
		}
	}
	goOn, err := s.park(parkTime)
	if err == nil {
		err = s.cut(line, began)
	}
	goOn(err != nil)
	if err != nil {
		s.keeper.dir.Sign() // the new process has
		return err
	}
	s.handed, s.keeper.given = true, true
	line.Want(handover.KindDone, doneTime) // without it, nobody announces addresses for a moment
	return nil
}

// cut sends the latest changes and lets the other process serve. Nobody reads from the device.
func (s *Server) cut(line *handover.Line, since nat.Time) error {
	if err := s.send(line, since, 0, cutTime); err != nil {
		return err
	}
	if err := line.Send(handover.KindCut, nil, cutTime); err != nil {
		return err
	}
	if k, err := line.Last(cutTime); err != nil || k != handover.KindForwarding {
		return errors.Join(err, fmt.Errorf("the new process does not serve in %v", cutTime))
	}
	return nil
}

// send sends the connections with a packet since.
func (s *Server) send(line *handover.Line, since nat.Time, pause, within time.Duration) error {
	return s.engine.Records(since, s.now(), nameLink).Write(recordSender{line, within}, func() { time.Sleep(pause) })
}

// A recordSender sends each Write as one message.
type recordSender struct {
	line   *handover.Line
	within time.Duration
}

func (r recordSender) Write(b []byte) (int, error) {
	return len(b), r.line.Send(handover.KindRecords, b, r.within)
}

// offer sends the open descriptors, and what the other process must know before it opens anything.
func (s *Server) offer(line *handover.Line) error {
	s.mu.Lock()
	node, keepalive := s.config.Node, s.steering.keepalive
	s.mu.Unlock()
	identity := state.Identity{Cluster: node, PortKey: s.keeper.key}
	offer := handover.Offer{Identity: identity.Encode()}
	var fds []int
	defer func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
	add := func(name, at string, duplicate func() (int, error)) error {
		fd, err := duplicate()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		fds, offer.Sockets = append(fds, fd), append(offer.Sockets, handover.Socket{Name: name, At: at})
		return nil
	}
	of := func(c syscall.Conn) func() (int, error) { return func() (int, error) { return handover.Duplicate(c) } }
	err := errors.Join(add(offerLock, "", of(s.keeper.dir.LockFile())), add(offerDevice, "", of(s.device)), add(offerListener, "", of(s.takeover.(*net.UnixListener))))
	if keepalive != nil {
		err = errors.Join(err, add(offerKeepalive, "", func() (int, error) { return unix.FcntlInt(uintptr(keepalive.descriptor), unix.F_DUPFD_CLOEXEC, 0) }))
	}
	if l, address := s.page.Socket(); l != nil {
		err = errors.Join(err, add(offerPage, address, of(l.(*net.TCPListener))))
	}
	if err != nil {
		return err
	}
	return line.SendJSON(handover.KindOffer, &offer, talkTime, fds...)
}

// Await waits until no process holds the state folder of c, or ctx is done: then it returns false.
func Await(ctx context.Context, c *Config) bool {
	look := time.NewTicker(awaitPause)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-look.C:
		}
		dir, err := state.Open(c.State, c.Interface)
		if err == nil {
			dir.Close()
			return true
		}
	}
}

// awaitPause bounds how long nobody serves after the previous process was killed.
const awaitPause = 20 * time.Millisecond
