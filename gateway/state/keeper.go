package state

import (
	"errors"
	"io"
	"io/fs"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
)

const (
	// The file may belong to a process with a larger table, or be damaged, so no more is read than
	// fits into the table.
	maxRecord     = 160     // bytes, of TCP over IPv6 with large counters
	maxRecordRest = 8 << 20 // for clients of services, and for unused space in blocks
)

// ErrLeft is the error of a Write to a folder that is not, or no longer, this process's.
var ErrLeft = errors.New("state: another process may own the folder")

// A Keeper writes to a folder what the next process needs. It logs the first write that fails, and
// the first that succeeds afterwards.
type Keeper struct {
	Dir *Dir // nil: nothing is kept
	Log logrus.FieldLogger

	mu       sync.Mutex    // held during a write
	left     bool          // +checklocks:mu
	broken   atomic.Bool   // the last write failed
	failures atomic.Uint64 // writes that failed
}

// OpenKeeper opens the folder of the peering with peer below root; "" means that nothing is kept.
// It fails only if another process uses the folder. A folder that cannot be used is logged.
func OpenKeeper(root, peer string, log logrus.FieldLogger) (*Keeper, error) {
	k := &Keeper{Log: log}
	if root == "" {
		return k, nil
	}
	dir, err := Open(root, peer)
	switch {
	case err == nil:
		k.Dir = dir
	case errors.Is(err, ErrInUse):
		return nil, err
	default:
		log.WithError(err).Warn("state: nothing can be kept: a restart will cost connections")
	}
	return k, nil
}

// Identity is Dir.Identity, and logs one that cannot be used.
func (k *Keeper) Identity(cluster string) (Identity, error) {
	i, err := k.Dir.Identity(cluster)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		k.Log.WithError(err).WithField("folder", k.Dir.Path()).Warn(
			"state: the identity there cannot be used: a new one takes its place")
	}
	return i, err
}

// Restore copies the saved connections into a table for at most this many. It returns the time at
// which they were true. The error is fs.ErrNotExist if there are none.
func (k *Keeper) Restore(table io.Writer, most int) (asOf time.Time, err error) {
	f, asOf, err := k.Dir.Connections()
	if err != nil {
		return asOf, err
	}
	defer f.Close()
	_, err = io.Copy(table, io.LimitReader(f, int64(most)*maxRecord+maxRecordRest))
	return asOf, err
}

// Write calls write. It counts its error, and logs that if the previous write succeeded.
func (k *Keeper) Write(write func(*Dir) error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.Dir == nil || k.left {
		return ErrLeft
	}
	err := write(k.Dir)
	if err != nil {
		k.failures.Add(1)
	}
	switch failed := k.broken.Swap(err != nil); {
	case err != nil && !failed:
		k.Log.WithError(err).Warn(
			"state: cannot be written: a restart would cost connections; make room, and the folder writable")
	case err == nil && failed:
		k.Log.Info("state: is written again")
	}
	return err
}

// Broken reports whether the last write failed.
func (k *Keeper) Broken() bool { return k.broken.Load() }

// Failures returns how many writes failed.
func (k *Keeper) Failures() uint64 { return k.failures.Load() }

// Leave waits for the write in progress, and allows no other until Stay is called, because another
// process may own the folder.
func (k *Keeper) Leave() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.left = true
}

// Stay ends Leave: the folder is still this process's.
func (k *Keeper) Stay() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.left && k.Dir != nil {
		k.Dir.Sign()
	}
	k.left = false
}

// Close unlocks the folder and changes nothing in it.
func (k *Keeper) Close() {
	if k.Dir != nil {
		k.Dir.Close()
	}
}
