package ipam

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// maxFile is more than maxGiven entries take.
const maxFile = 64 << 20

// Store is the file that remembers. Its methods read it anew each time, so that processes
// may share it.
type Store struct {
	path string

	// Tests let steps of a write fail, of which fault is told beforehand, and watch sync.
	fault func(step string) error
	sync  func(*os.File) error
}

// Open returns the Store at path. It reads and makes nothing.
func Open(path string) *Store {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target // a rename would replace the link
	}
	return &Store{path, func(string) error { return nil }, (*os.File).Sync}
}

// Path returns where the file is.
func (s *Store) Path() string { return s.path }

// Read returns what the file holds, which is nothing if there is none. It needs no lock,
// because a write replaces the whole file. The error is ErrFile.
func (s *Store) Read() (*Ledger, error) {
	l := &Ledger{}
	text, err := readFile(s.path)
	if err == nil {
		if l, err = decode(text); err != nil {
			return nil, fmt.Errorf("%w: %s:%w; correct it or restore the file from a backup", ErrFile, s.path, err)
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w; make it a file of mode 0600 that this process owns", ErrFile, err)
	}
	l.release = "culvert ipam release --file " + s.path
	return l, nil
}

func readFile(path string) (string, error) {
	// O_NONBLOCK: opening a FIFO does not wait.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return "", err
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("%s is no ordinary file", path)
	case info.Size() > maxFile:
		return "", fmt.Errorf("%s is larger than %d MiB", path, maxFile>>20)
	}
	var text strings.Builder
	text.Grow(int(info.Size()))
	_, err = io.Copy(&text, io.LimitReader(f, maxFile))
	return text.String(), err
}

// Update gives fn what the file holds, and returns once what fn has changed is durable. No
// other Update of the file runs meanwhile. It makes the folder, mode 0700, if there is none.
// An error of fn is returned and changes nothing. Any other is ErrFile: the file then holds
// what it did, or, if only syncing the folder failed, already what fn made of it.
// Update waits for the lock no longer than ctx.
func (s *Store) Update(ctx context.Context, fn func(*Ledger) error) error {
	lock, err := s.lock(ctx, "", syscall.LOCK_EX)
	if err != nil {
		return err
	}
	defer lock.Close()
	l, err := s.Read()
	if err != nil {
		return err
	}
	if err := fn(l); err != nil || !l.changed {
		return err
	}
	if err := s.write(l.encode()); err != nil {
		return fmt.Errorf("%w: %w; nothing is given out until the file can be written", ErrFile, err)
	}
	return nil
}

// write replaces the file. Preconditions: the lock is held.
func (s *Store) write(text []byte) error {
	beside := s.path + ".new"
	os.Remove(beside) // of a process that was killed
	if err := s.fault("create"); err != nil {
		return err
	}
	f, err := os.OpenFile(beside, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if err = s.fault("write"); err == nil {
		_, err = f.Write(text)
	}
	if err == nil {
		err = s.fault("sync")
	}
	if err == nil {
		err = s.sync(f)
	}
	if err == nil {
		err = s.fault("rename")
	}
	if err == nil {
		err = os.Rename(beside, s.path)
	}
	if err != nil {
		os.Remove(beside)
		return err
	}
	if err := s.fault("sync the folder"); err != nil {
		return err
	}
	return s.syncFolder(filepath.Dir(s.path))
}

func (s *Store) makeFolder(path string) error {
	err := os.Mkdir(path, 0o700)
	if errors.Is(err, fs.ErrNotExist) {
		if err = s.makeFolder(filepath.Dir(path)); err == nil {
			err = os.Mkdir(path, 0o700)
		}
	}
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return s.syncFolder(filepath.Dir(path))
}

func (s *Store) syncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return s.sync(d)
}

// Claim marks the gateway towards peer as running, until the result is closed or the
// process dies. Several processes may hold the mark.
func (s *Store) Claim(ctx context.Context, peer string) (io.Closer, error) {
	return s.lock(ctx, peer, syscall.LOCK_SH)
}

// Exclude keeps the gateway towards peer from starting until the result is closed. The
// error is ErrRunning if it runs.
func (s *Store) Exclude(ctx context.Context, peer string) (io.Closer, error) {
	lock, err := s.lock(ctx, peer, syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, fmt.Errorf("%w: the one towards %s uses what was given for it; stop it first", ErrRunning, peer)
	}
	return lock, err
}

// lock locks the file of all Updates, or the one that says that peer's gateway runs. The
// kernel frees the lock when the result is closed, at the latest with the process.
func (s *Store) lock(ctx context.Context, peer string, how int) (*os.File, error) {
	path := s.path + ".lock"
	if peer != "" {
		if err := checkName("peer", peer); err != nil {
			return nil, fmt.Errorf("ipam: %w", err)
		}
		path = s.path + "." + peer + ".lock"
	}
	if err := s.makeFolder(filepath.Dir(s.path)); err != nil {
		return nil, fmt.Errorf("%w: %w; make the folder writable for this process", ErrFile, err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("%w: %w; make the folder writable for this process", ErrFile, err)
	}
	locked := make(chan error, 1)
	go func() {
		err := syscall.Flock(int(f.Fd()), how)
		for errors.Is(err, syscall.EINTR) {
			err = syscall.Flock(int(f.Fd()), how)
		}
		locked <- err
	}()
	select {
	case err = <-locked:
	case <-ctx.Done():
		go func() { <-locked; f.Close() }()
		return nil, fmt.Errorf("%w: %s is locked by another process: %w; fuser(1) names it", ErrFile, path, context.Cause(ctx))
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%w: lock %s: %w", ErrFile, path, err)
	}
	return f, nil
}
