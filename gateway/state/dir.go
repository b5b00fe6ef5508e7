package state

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"culvert/gateway/durable"
)

const (
	lockFile        = "lock"
	identityFile    = "identity"
	connectionsFile = "connections"
	maxIdentity     = 64 << 10
)

// ErrInUse is that another process has the folder.
var ErrInUse = errors.New("state: in use")

// Dir is the folder of a peering, of which this process is the gateway.
type Dir struct {
	path string
	lock *os.File
}

// Open takes the folder of the peering with peer below root, and makes it if there is none. The error is ErrInUse if another process has
// it; any other means that nothing can be kept there. A folder that can only be read is opened too.
func Open(root, peer string) (*Dir, error) {
	d := &Dir{path: filepath.Join(root, peer)}
	made := disk.MakeFolder(d.path)
	name := filepath.Join(d.path, lockFile)
	lock, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	readOnly := err != nil
	if readOnly {
		if made != nil {
			err = made
		}
		var e error
		if lock, e = d.open(lockFile); e != nil {
			return nil, fmt.Errorf("state: %w; make the folder writable for this process", err)
		}
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer lock.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: %s belongs to the gateway that runs as %s; stop it, or give this one another folder", ErrInUse, d.path, holder(lock))
		}
		return nil, fmt.Errorf("state: lock %s: %w; choose a folder on a file system that has locks", name, err)
	}
	d.lock = lock
	if !readOnly {
		d.Sign()
	}
	return d, nil
}

// holder names the process that wrote its ID into a lock.
func holder(lock *os.File) string {
	text := make([]byte, 20)
	n, _ := lock.ReadAt(text, 0)
	if pid, err := strconv.ParseUint(strings.TrimSpace(string(text[:n])), 10, 31); err == nil {
		return fmt.Sprintf("process %d", pid)
	}
	return "another process"
}

// Path returns where the folder is.
func (d *Dir) Path() string { return d.path }

// Close lets another process have the folder.
func (d *Dir) Close() error { return d.lock.Close() }

// Identity returns what is kept of the gateway of cluster before. It is fs.ErrNotExist if there was none; else the error says why what
// is there cannot be used.
func (d *Dir) Identity(cluster string) (Identity, error) {
	f, err := d.open(identityFile)
	if err != nil {
		return Identity{}, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxIdentity+1))
	if err != nil {
		return Identity{}, err
	}
	if len(text) > maxIdentity {
		return Identity{}, ErrDamaged
	}
	i, err := DecodeIdentity(text)
	if err == nil && i.Cluster != cluster {
		return Identity{}, ErrForeign
	}
	return i, err
}

// KeepIdentity replaces it.
func (d *Dir) KeepIdentity(i *Identity) error {
	return disk.Replace(filepath.Join(d.path, identityFile), func(w io.Writer) error {
		_, err := w.Write(i.Encode())
		return err
	})
}

// Connections opens what is kept of connections. It is fs.ErrNotExist if there is nothing.
func (d *Dir) Connections() (io.ReadCloser, error) { return d.open(connectionsFile) }

// KeepConnections replaces it by what fill writes. If that or anything else fails, what was kept stays.
func (d *Dir) KeepConnections(fill func(io.Writer) error) error {
	return disk.Replace(filepath.Join(d.path, connectionsFile), fill)
}

// open opens a file of the folder, which may have become anything.
func (d *Dir) open(name string) (*os.File, error) {
	// O_NONBLOCK: opening a FIFO does not wait.
	f, err := os.OpenFile(filepath.Join(d.path, name), os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		f.Close()
		return nil, errors.Join(err, fmt.Errorf("%s is no ordinary file: %w", f.Name(), fs.ErrInvalid))
	}
	return f, nil
}

var disk = durable.Disk{Sync: func(f *os.File) error { return apart(f.Sync) }}

// apart calls do, which waits for a disk, beside all else that the process does. Where Go code runs on one P, a system call keeps that until
// Go's monitor looks, which takes up to 20 ms, and packets would wait so long.
func apart(do func() error) error {
	if runtime.GOMAXPROCS(0) == 1 {
		runtime.GOMAXPROCS(2)
		defer runtime.GOMAXPROCS(1)
	}
	return do()
}
