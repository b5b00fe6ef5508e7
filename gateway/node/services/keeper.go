package services

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
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
)

// A keeper saves for the next run what is not in the configuration: the key for the choice of ports
// and endpoints, and connections.
type keeper struct {
	*state.Keeper
	key state.PortKey

	// of the last write; they belong to one goroutine at a time
	created  uint64
	services *Config
}

// openKeeper opens the folder of c and reads the key that an earlier run left there. It fails only
// if another process uses the folder.
func openKeeper(c *Config, log logrus.FieldLogger) (*keeper, error) {
	k := new(keeper)
	rand.Read(k.key[:])
	var err error
	if k.Keeper, err = state.OpenKeeper(c.State, c.Interface, log); err != nil {
		return nil, fmt.Errorf("services.state: %w", err)
	}
	if k.Dir == nil {
		return k, nil
	}
	before, err := k.Identity(c.Node)
	if err == nil {
		k.key = before.PortKey
		return k, nil
	}
	k.Write(func(d *state.Dir) error {
		return d.KeepIdentity(&state.Identity{Cluster: c.Node, PortKey: k.key})
	})
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
	if k.Dir == nil {
		return
	}
	restore := e.Restore(findLink, now)
	_, err := k.Restore(restore, e.Stats().MaxConnections)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	r := restore.End()
	if err != nil {
		k.Log.WithError(err).WithField("connections",
			r.Connections).Warn("services.state: connections of the previous run cannot be read")
		return
	}
	k.say(r)
}

// say logs the outcome of restoring the previous run's connections.
func (k *keeper) say(r nat.Restored) {
	entry := k.Log.WithFields(logrus.Fields{"connections": r.Connections, "clients": r.Clients})
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
	if k.Dir == nil {
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
func (k *keeper) stale(e *nat.Engine) bool { return e.Stats().Created != k.created }

// end saves everything once more and releases the folder. Packets have stopped.
func (k *keeper) end(s *Server) {
	k.writeServices(s, func() {})
	k.write(s.engine, s.now, func() {})
	k.Close()
}

// write saves all connections, and calls pause between them to let packets through.
func (k *keeper) write(e *nat.Engine, now func() nat.Time, pause func()) {
	created := e.Stats().Created
	if k.Write(func(d *state.Dir) error {
		return d.KeepConnections(time.Now(), func(w io.Writer) error {
			return e.Records(0, nameLink).Write(w, now(), pause)
		})
	}) == nil {
		k.created = created
	}
}
