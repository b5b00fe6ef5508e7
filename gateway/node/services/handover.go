package services

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"time"

	"culvert/gateway/handover"
	"culvert/gateway/state"
	"culvert/gateway/sweep"
	"culvert/gateway/unixsocket"
	"culvert/nat"
)

// doneTime is how long the new process may take to announce addresses before this one ends its
// announcements.
const doneTime = 2 * time.Second

// Names of the descriptors for the new process (handover.Socket). Both versions must know them.
const (
	offerLock     = "lock"   // of the state folder
	offerDevice   = "device" // to read from, including the waiting packets
	offerVIP      = "pulse"  // see steer.VIP; absent if no IPv4 address is announced
	offerListener = "door"   // where the next process asks to take over
	offerPage     = "page"   // of services.metrics, with its address
)

// HandedOver is the error of a Run that has ended because another process serves instead.
type HandedOver struct{ Process int } // its ID; 0: unknown here, as in another container

func (h *HandedOver) Error() string { return "services: another process serves them" }

// takeoverPath is the socket where a process asks for a hand-over. Processes with another version
// of the protocol do not find it.
func takeoverPath(folder string) string {
	return filepath.Join(folder, fmt.Sprintf("takeover-%d.sock", handover.Version))
}

// listenTakeover listens for processes that want to take over. Whoever may use the state folder may
// connect.
func listenTakeover(dir *state.Dir) (net.Listener, error) {
	return unixsocket.Listen(takeoverPath(dir.Path()))
}

// serveTakeover hands over to a process that asks, until one has taken over or the listener is
// closed. When ctx is done, a hand-over that has not reached its cut ends.
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
	if err := s.send(line, 0, sweep.Pause, handover.TalkTime); err != nil {
		return err
	}
	if err := line.Send(handover.KindStanding, nil, handover.TalkTime); err != nil {
		return err
	}
	if _, _, err := line.Want(handover.KindReady, handover.TalkTime); err != nil {
		return err
	}
	// From here on this process changes neither the routes and rules to the device nor the folder.
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing.Load() || !silence() {
		return errors.New("this process is stopping")
	}
	s.keeper.Leave()
	began, err := handover.CatchUp(s.now, began, func(since nat.Time) error {
		return s.send(line, since, sweep.Pause, handover.TalkTime)
	})
	if err == nil {
		var goOn func(bool)
		if goOn, err = s.park(handover.ParkTime); err == nil {
			err = s.cut(line, began)
		}
		goOn(err != nil)
	}
	if err != nil {
		s.keeper.Stay()
		return err
	}
	s.handed = true
	line.Want(handover.KindDone, doneTime) // without it, nobody announces addresses for a moment
	return nil
}

// cut sends the latest changes and lets the other process serve. Nobody reads from the device.
func (s *Server) cut(line *handover.Line, since nat.Time) error {
	if err := s.send(line, since, 0, handover.CutTime); err != nil {
		return err
	}
	if err := line.Send(handover.KindCut, nil, handover.CutTime); err != nil {
		return err
	}
	if k, err := line.Last(handover.CutTime); err != nil || k != handover.KindForwarding {
		return errors.Join(err, fmt.Errorf("the new process does not serve in %v", handover.CutTime))
	}
	return nil
}

// send sends the connections with a packet since.
func (s *Server) send(line *handover.Line, since nat.Time, pause, within time.Duration) error {
	w := line.Records(within)
	return s.engine.Records(since, nameLink).Write(w, s.now(), func() { w.Pause(pause) })
}

// offer sends the open descriptors, and what the other process must know before it opens anything.
func (s *Server) offer(line *handover.Line) error {
	s.mu.Lock()
	node, vip := s.config.Node, s.steering.VIP()
	s.mu.Unlock()
	identity := state.Identity{Cluster: node, PortKey: s.keeper.key}
	offer := handover.Offer{Identity: identity.Encode()}
	open := []handover.Opened{
		handover.Open(offerLock, "", s.keeper.Dir.LockFile()),
		handover.Open(offerDevice, "", s.device),
		handover.Open(offerListener, "", s.takeover.(*net.UnixListener)),
	}
	if vip != nil {
		open = append(open, handover.Opened{Socket: handover.Socket{Name: offerVIP}, Descriptor: vip.Duplicate})
	}
	if l, address := s.page.Socket(); l != nil {
		open = append(open, handover.Open(offerPage, address, l.(*net.TCPListener)))
	}
	return line.SendOffer(&offer, open)
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
