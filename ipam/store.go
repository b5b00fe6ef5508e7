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

	"culvert/ipam/durable"
)

// maxFile is more than maxGiven entries occupy.
const maxFile = 64 << 20

// Store is the file with the choices. Its methods read it again each time, so that processes can
// share it.
type Store struct {
	path string
	disk durable.Disk
}

// Open returns the Store at path. It reads and creates nothing.
func Open(path string) *Store {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target // otherwise a rename would replace the link
	}
	return &Store{path: path}
}

// Path returns the file's path.
func (s *Store) Path() string { return s.path }

// Read returns the content of the file; without a file, an empty Ledger. It needs no lock, because
// a write replaces the whole file. The error is ErrFile.
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
	// O_NONBLOCK: opening a FIFO must not block.
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

// Update passes the content of the file to fn, and returns when fn's changes are durable. No other
// Update of the file runs meanwhile. It creates the folder, mode 0700, if necessary. An error of fn
// is returned and changes nothing. Any other error is ErrFile: the file is then unchanged, or, if
// only syncing the folder failed, already changed. ctx limits the wait for the lock.
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
	err = s.disk.Replace(s.path, func(w io.Writer) error { _, err := w.Write(l.encode()); return err })
	if err != nil {
		return fmt.Errorf("%w: %w; nothing is given out until the file can be written", ErrFile, err)
	}
	return nil
}

// Claim marks the gateway towards peer as running, until the result is closed or the process dies.
// Several processes may hold the mark.
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

// lock locks the file for Updates, or the one that marks peer's gateway as running. The kernel
// frees the lock when the result is closed, at the latest with the process.
func (s *Store) lock(ctx context.Context, peer string, how int) (*os.File, error) {
	path := s.path + ".lock"
	if peer != "" {
		if err := checkName("peer", peer); err != nil {
			return nil, fmt.Errorf("ipam: %w", err)
		}
		path = s.path + "." + peer + ".lock"
	}
	if err := s.disk.MakeFolder(filepath.Dir(s.path)); err != nil {
		return nil, fmt.Errorf("%w: %w; make the folder writable for this process", ErrFile, err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		var there error
		if f, there = os.Open(path); there != nil { // enough for flock(2)
			return nil, fmt.Errorf("%w: %w; make the folder writable for this process", ErrFile, err)
		}
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
		return nil, fmt.Errorf("%w: %s is locked by another process: %w; fuser(1) names it", ErrFile, path,
			context.Cause(ctx))
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%w: lock %s: %w", ErrFile, path, err)
	}
	return f, nil
}
