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
	"culvert/gateway/sweep"
	"culvert/nat"
	"culvert/nat/rules"
)

const (
	// Connections are written once per keepInterval while there are new ones. At most 1/keepShare
	// of the time is spent writing.
	keepInterval = time.Second
	keepMost     = 30 * time.Second
	keepShare    = 50

	// Read no more than fills the table, because the file's content is not trusted.
	maxRecord     = 160     // bytes, of TCP over IPv6 with large counters
	maxRecordRest = 8 << 20 // for clients of services, and for unused space in blocks
)

// A keeper saves for the next run what is not in the configuration: the key for the choice of ports
// and endpoints, and connections. Its zero value saves nothing.
type keeper struct {
	log logrus.FieldLogger
	dir *state.Dir // nil: nothing is saved
	key state.PortKey

	writing sync.Mutex
	// Another process now writes there. +checklocks:writing
	given bool
	// of the last write
	// +checklocks:writing
	created uint64
	// +checklocks:writing
	services *Config
	// +checklocks:writing
	broken bool
}

// openKeeper opens the folder of c and reads the key that an earlier run left there. It fails only
// if another process uses the folder; unusable content is logged and ignored.
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
		log.WithError(err).WithField("folder",
			dir.Path()).Warn("services.state: the saved state is unusable; connections of the previous run may end")
	}
	err = dir.KeepIdentity(&state.Identity{Cluster: c.Node, PortKey: k.key})
	k.writing.Lock()
	defer k.writing.Unlock()
	k.logFault(err)
	return k, nil
}

// The name of the engine's only link in records.
const recordedLink = "host"

func nameLink(l nat.Link) string {
	if l == rules.HostLink {
		return recordedLink
	}
	return ""
}

func findLink(name string) (nat.Link, bool) { return rules.HostLink, name == recordedLink }

// restore gives e the saved connections before e sees a packet, and logs the outcome.
func (k *keeper) restore(e *nat.Engine, now nat.Time) {
	if k.dir == nil {
		return
	}
	f, _, err := k.dir.Connections()
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
	if err != nil {
		k.log.WithError(err).WithField("connections",
			r.Connections).Warn("services.state: connections of the previous run cannot be read")
		return
	}
	k.say(r)
}

// say logs the outcome of restoring the previous run's connections.
func (k *keeper) say(r nat.Restored) {
	entry := k.log.WithFields(logrus.Fields{"connections": r.Connections, "clients": r.Clients})
	lost := r.Unbound + r.NoRoom + r.UnknownLink
	switch {
	case !r.Whole || lost > 0:
		entry.WithFields(logrus.Fields{"lost": lost, "damaged": r.Damaged + r.Foreign}).Warn(
			"connections of the previous run go on, but not all")
	default:
		entry.Info("connections of the previous run go on")
	}
}

// run saves connections regularly until ctx is done.
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
		pause := func() { time.Sleep(sweep.Pause) }
		k.writeServices(s, pause)
		if k.stale(s.engine) || !began.Before(due) {
			k.write(s.engine, s.now, pause)
			due = time.Now().Add(keepMost)
		}
		wait = min(max(wait, keepShare*time.Since(began)), keepMost)
		next.Reset(wait)
	}
}

// stale reports whether there are connections unknown to the last write.
func (k *keeper) stale(e *nat.Engine) bool {
	k.writing.Lock()
	defer k.writing.Unlock()
	return e.Stats().Created != k.created
}

// end saves everything once more and releases the folder. Packets have stopped.
func (k *keeper) end(s *Server) {
	if k.dir == nil {
		return
	}
	k.writeServices(s, func() {})
	k.write(s.engine, s.now, func() {})
	k.close()
}

// close releases the folder and leaves its content unchanged.
func (k *keeper) close() {
	if k.dir != nil {
		k.dir.Close()
		k.dir = nil
	}
}

// write saves all connections, and calls pause between them to let packets through.
func (k *keeper) write(e *nat.Engine, now func() nat.Time, pause func()) {
	k.writing.Lock()
	defer k.writing.Unlock()
	if k.given {
		return
	}
	created := e.Stats().Created
	err := k.dir.KeepConnections(time.Now(), func(w io.Writer) error {
		return e.Records(0, now(), nameLink).Write(w, pause)
	})
	if err == nil {
		k.created = created
	}
	k.logFault(err)
}

// logFault logs the first failed write, and the first successful one afterwards.
//
// +checklocks:k.writing
func (k *keeper) logFault(err error) {
	switch {
	case err != nil && !k.broken:
		k.log.WithError(err).Warn(
			"services.state: cannot be written: a restart would cost connections; make room, and the folder writable")
	case err == nil && k.broken:
		k.log.Info("services.state: is written again")
	}
	k.broken = err != nil
}
