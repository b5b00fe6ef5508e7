package services

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"culvert/gateway/state"
	"culvert/nat"
	"culvert/nat/rules"
)

const (
	// Connections are written this often while there are new ones, and less often where that would take more of the time than a keepShare-th.
	keepInterval = time.Second
	keepMost     = 30 * time.Second
	keepShare    = 50

	// No more is read than fills the table: what is kept may be anything.
	maxRecord     = 160     // bytes, of TCP over IPv6 with large counters
	maxRecordRest = 8 << 20 // for clients of services, and for what blocks leave unused

	// The keeper sleeps so long after what is written at a time.
	keepPause = time.Millisecond
)

// A keeper keeps for the next run what this one knows and its configuration does not say: the key by which ports and endpoints are chosen, and
// connections. Its zero value keeps nothing.
type keeper struct {
	log logrus.FieldLogger
	dir *state.Dir // nil: nothing is kept
	key state.PortKey

	writing sync.Mutex
	// of the last write
	// +checklocks:writing
	created uint64
	// +checklocks:writing
	broken bool
}

// openKeeper takes the folder of c and reads the key that a run before this one has left there. It fails only if another process runs there:
// what cannot be used is said, and done without.
func openKeeper(c *Config, log logrus.FieldLogger) (*keeper, error) {
	k := &keeper{log: log}
	rand.Read(k.key[:])
	if c.State == "" {
		return k, nil
	}
	dir, err := state.Open(c.State, c.Interface)
	if errors.Is(err, state.ErrInUse) {
		return nil, fmt.Errorf("services.state: %w", err)
	}
	if err != nil {
		log.WithError(err).Warn("services.state: nothing can be kept: a restart will cost connections")
		return k, nil
	}
	k.dir = dir
	switch before, err := dir.Identity(c.Node); {
	case err == nil:
		k.key = before.PortKey
		return k, nil
	case !errors.Is(err, fs.ErrNotExist):
		log.WithError(err).WithField("folder", dir.Path()).Warn("services.state: what is there cannot be used: connections of the run before may end")
	}
	err = dir.KeepIdentity(&state.Identity{Cluster: c.Node, PortKey: k.key})
	k.writing.Lock()
	defer k.writing.Unlock()
	k.note(err)
	return k, nil
}

// The one link of the engine has a name in records.
const recordedLink = "host"

func nameLink(l nat.Link) string {
	if l == rules.HostLink {
		return recordedLink
	}
	return ""
}

func findLink(name string) (nat.Link, bool) { return rules.HostLink, name == recordedLink }

// restore gives e the connections that are kept, before it sees a packet, and says what has become of them.
func (k *keeper) restore(e *nat.Engine, now nat.Time) {
	if k.dir == nil {
		return
	}
	f, err := k.dir.Connections()
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var r nat.Restored
	if err == nil {
		defer f.Close()
		restore := e.Restore(findLink, now)
		_, err = io.Copy(restore, io.LimitReader(f, int64(e.Stats().MaxConnections)*maxRecord+maxRecordRest))
		r = restore.End()
	}
	entry := k.log.WithFields(logrus.Fields{"connections": r.Connections, "clients": r.Clients})
	lost := r.Unbound + r.NoRoom + r.UnknownLink
	switch {
	case err != nil:
		entry.WithError(err).Warn("services.state: connections of the run before cannot be read")
	case !r.Whole || lost > 0:
		entry.WithFields(logrus.Fields{"lost": lost, "damaged": r.Damaged + r.Foreign}).Warn("connections of the run before go on, but not all")
	default:
		entry.Info("connections of the run before go on")
	}
}

// run writes connections now and then until ctx is done.
func (k *keeper) run(ctx context.Context, s *Server) {
	if k.dir == nil {
		return
	}
	next := time.NewTimer(keepInterval)
	defer next.Stop()
	due := time.Now().Add(keepMost)
	for {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		}
		began := time.Now()
		wait := keepInterval
		if k.stale(s.engine) || !began.Before(due) {
			k.write(s.engine, s.now, func() { time.Sleep(keepPause) })
			wait = min(max(keepInterval, keepShare*time.Since(began)), keepMost)
			due = time.Now().Add(keepMost)
		}
		next.Reset(wait)
	}
}

// stale reports whether there are connections that the last write did not know.
func (k *keeper) stale(e *nat.Engine) bool {
	k.writing.Lock()
	defer k.writing.Unlock()
	return e.Stats().Created != k.created
}

// end writes everything once more and lets go of the folder. No packet moves any more.
func (k *keeper) end(s *Server) {
	if k.dir == nil {
		return
	}
	k.write(s.engine, s.now, func() {})
	k.close()
}

// close lets go of the folder and leaves all there as it is.
func (k *keeper) close() {
	if k.dir != nil {
		k.dir.Close()
		k.dir = nil
	}
}

// write writes all connections, and lets packets go between them by pause.
func (k *keeper) write(e *nat.Engine, now func() nat.Time, pause func()) {
	k.writing.Lock()
	defer k.writing.Unlock()
	created := e.Stats().Created
	err := k.dir.KeepConnections(func(w io.Writer) error {
		return e.Records(0, now(), nameLink).Write(w, pause)
	})
	if err == nil {
		k.created = created
	}
	k.note(err)
}

// note says that a write failed, if the one before did not.
//
// +checklocks:k.writing
func (k *keeper) note(err error) {
	switch {
	case err != nil && !k.broken:
		k.log.WithError(err).Warn("services.state: cannot be written: a restart would cost connections; make room, and the folder writable")
	case err == nil && k.broken:
		k.log.Info("services.state: is written again")
	}
	k.broken = err != nil
}
