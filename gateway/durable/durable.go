// Package durable replaces files and makes folders such that a loss of power at any time leaves the old or the new one, whole.
package durable

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Beside is what the name of a file ends with that is not whole yet.
const Beside = ".new"

// Disk is where files are. The zero Disk is the operating system's.
type Disk struct {
	Fault func(step string) error // is told before each step of Replace, and may have it fail; nil = none does
	Sync  func(*os.File) error    // nil = (*os.File).Sync
}

// Replace puts what fill has written in the place of the file at path, with mode 0600, and returns once that is durable. After an error the
// file is what it was, or, if only syncing the folder failed, already the new one. One Replace of a file runs at a time.
func (d *Disk) Replace(path string, fill func(io.Writer) error) error {
	beside := path + Beside
	os.Remove(beside) // of a process that was killed
	if err := d.step("create"); err != nil {
		return err
	}
	f, err := os.OpenFile(beside, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	for _, s := range []struct {
		name string
		do   func() error
	}{
		{"write", func() error { return fill(f) }},
		{"sync", func() error { return d.sync(f) }},
		{"rename", func() error { return os.Rename(beside, path) }},
	} {
		if err := d.step(s.name); err != nil {
			os.Remove(beside)
			return err
		}
		if err := s.do(); err != nil {
			os.Remove(beside)
			return err
		}
	}
	if err := d.step("sync the folder"); err != nil {
		return err
	}
	return d.syncFolder(filepath.Dir(path))
}

// MakeFolder makes the folder at path, with mode 0700, and those above it that there are none of.
func (d *Disk) MakeFolder(path string) error {
	err := os.Mkdir(path, 0o700)
	if errors.Is(err, fs.ErrNotExist) {
		if err = d.MakeFolder(filepath.Dir(path)); err == nil {
			err = os.Mkdir(path, 0o700)
		}
	}
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return d.syncFolder(filepath.Dir(path))
}

func (d *Disk) step(name string) error {
	if d.Fault == nil {
		return nil
	}
	return d.Fault(name)
}

func (d *Disk) sync(f *os.File) error {
	if d.Sync != nil {
		return d.Sync(f)
	}
	return f.Sync()
}

// syncFolder makes the names in a folder durable.
func (d *Disk) syncFolder(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return d.sync(f)
}
