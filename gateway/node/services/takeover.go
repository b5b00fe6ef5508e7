package services

import (
	"errors"
	"fmt"
	"net"
	"os"

	"culvert/gateway/handover"
	"culvert/gateway/node/services/steer"
	"culvert/gateway/state"
)

// A taking is the new process's side of a hand-over (see handOver); nil means that the Server takes
// over from nobody.
type taking struct {
	line     *handover.Line
	dir      *state.Dir
	identity state.Identity
	files    handover.Files
	page     string // the address of offerPage
}

// ask asks the process that holds the state folder of c to hand over.
func ask(c *Config) (_ *taking, err error) {
	conn, err := net.DialTimeout("unix", takeoverPath(state.Path(c.State, c.Interface)), handover.AskTime)
	if err != nil {
		return nil, err
	}
	t := &taking{line: handover.NewLine(conn.(*net.UnixConn))}
	defer func() {
		if err != nil {
			t.refuse(err)
		}
	}()
	offer, files, err := t.line.WantOffer()
	t.files = files
	if err != nil {
		return nil, err
	}
	for _, s := range offer.Sockets {
		if s.Name == offerPage {
			t.page = s.At
		}
	}
	for _, name := range []string{offerLock, offerDevice, offerListener} {
		if t.files[name] == nil {
			return nil, fmt.Errorf("%w: there is no %s", handover.ErrStrange, name)
		}
	}
	if t.identity, err = state.DecodeIdentity(offer.Identity); err != nil {
		return nil, err
	}
	if t.identity.Cluster != c.Node {
		return nil, fmt.Errorf("the process that runs is of node %s, and this one of %s", t.identity.Cluster, c.Node)
	}
	if t.dir = state.Adopt(c.State, c.Interface, t.files[offerLock]); t.dir == nil {
		return nil, errors.New("services.state: the process that runs has another folder")
	}
	t.files.Use(offerLock)
	return t, nil
}

// refuse ends the conversation: the old process continues.
func (t *taking) refuse(err error) {
	t.line.Refuse(err)
	t.line.Close()
	if t.dir != nil {
		t.dir.Close()
	}
	t.files.Close()
}

// use returns a file of the old process, nil if there is none; the caller owns it.
func (t *taking) use(name string) *os.File {
	if t == nil {
		return nil
	}
	return t.files.Use(name)
}

// listener is use for a socket that listens at an address.
func (t *taking) listener(name, address string) net.Listener {
	if t == nil || name == offerPage && t.page != address {
		return nil
	}
	l, _ := t.files.Listener(name) // without it, this process makes its own
	return l
}

// vip returns the device of the old process; nil: there is none.
func (t *taking) vip() (*steer.VIP, error) {
	f := t.use(offerVIP)
	if f == nil {
		return nil, nil
	}
	defer f.Close()
	fd, err := handover.Duplicate(f)
	if err != nil {
		return nil, fmt.Errorf("services: %s of the process before: %w", steer.VIPPrefix, err)
	}
	return steer.AdoptVIP(fd)
}

// done lets the old process end.
func (t *taking) done() {
	t.line.Send(handover.KindDone, nil, handover.CutTime)
	t.line.Close()
	t.files.Close()
}

// restore gives s the connections of the old process, waits until that has stopped, and lets it
// end.
func (t *taking) restore(s *Server) error {
	table := &handover.Table{Engine: s.engine, Now: s.now, Link: findLink}
	_, took, err := t.line.Restore(table, handover.KindStanding, handover.TalkTime)
	if err != nil {
		return err
	}
	s.keeper.say(took) // later records are of the same connections, or new ones
	if err := t.line.Send(handover.KindReady, nil, handover.AskTime); err != nil {
		return err
	}
	if _, _, err := t.line.Restore(table, handover.KindCut, handover.TalkTime); err != nil {
		return err
	}
	return t.line.Send(handover.KindForwarding, nil, handover.CutTime)
}

// openTakeover lets another process take over later. A process that has taken over continues with
// its predecessor's listener.
func (s *Server) openTakeover(t *taking) {
	if s.takeover = t.listener(offerListener, ""); s.takeover != nil || s.keeper.Dir == nil {
		return
	}
	var err error
	if s.takeover, err = listenTakeover(s.keeper.Dir); err != nil {
		s.takeover = nil
		s.log.WithError(err).Warn("no other process can take over without a gap")
	}
}
