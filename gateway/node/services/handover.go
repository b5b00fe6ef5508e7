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
	"culvert/gateway/unixsocket"
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
	table := &handover.Table{Engine: s.engine, Now: s.now, Name: nameLink, Link: findLink}
	if err := line.SendAll(table); err != nil {
		return err
	}
	// From here on this process changes neither the routes and rules to the device nor the folder.
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing.Load() || !silence() {
		return errors.New("this process is stopping")
	}
	s.keeper.Leave()
	goOn := func(bool) {}
	err := line.CutOver(table, func() (err error) {
		goOn, err = s.park(handover.ParkTime) // nobody reads from the device
		return err
	}, func() *handover.Cut { return nil })
	goOn(err != nil)
	if err != nil {
		s.keeper.Stay()
		return err
	}
	s.handed = true
	line.Want(handover.KindDone, doneTime) // without it, nobody announces addresses for a moment
	return nil
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
