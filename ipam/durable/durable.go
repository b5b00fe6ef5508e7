// Package durable replaces files and makes folders such that after a power loss either the old or
// the new one is there, complete.
package durable

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Beside is the suffix of a file that is still being written.
const Beside = ".new"

// Disk is where files are stored. The zero Disk uses the operating system.
type Disk struct {
	Fault func(step string) error // called before each step of Replace, which fails with its error; nil = never
	Sync  func(*os.File) error    // nil = (*os.File).Sync
	// Wait calls its argument, the part of Replace that waits for the disk, once per Replace; nil =
	// call it directly.
	Wait func(func() error) error
}

// Replace replaces the file at path by what fill writes, with mode 0600, and returns when that is
// durable. After an error the file is unchanged or, if only syncing the folder failed, already
// replaced. Only one Replace of a file may run at a time.
func (d *Disk) Replace(path string, fill func(io.Writer) error) error {
	beside := path + Beside
	os.Remove(beside) // left by a killed process
	if err := d.step("create"); err != nil {
		return err
	}
	f, err := os.OpenFile(beside, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if err = d.step("write"); err == nil {
		err = fill(f)
	}
	if err != nil {
		os.Remove(beside)
		return err
	}
	replace := func() error { return d.replace(f, path) }
	if d.Wait != nil {
		return d.Wait(replace)
	}
	return replace()
}

// replace renames a written file to path, and returns when that is durable.
func (d *Disk) replace(f *os.File, path string) error {
	for _, s := range []struct {
		name string
		do   func() error
	}{
		{"sync", func() error { return d.sync(f) }},
		{"rename", func() error { return os.Rename(f.Name(), path) }},
	} {
		err := d.step(s.name)
		if err == nil {
			err = s.do()
		}
		if err != nil {
			os.Remove(f.Name())
			return err
		}
	}
	if err := d.step("sync the folder"); err != nil {
		return err
	}
	return d.syncFolder(filepath.Dir(path))
}

// MakeFolder makes the folder at path, with mode 0700, and missing ones above it.
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
