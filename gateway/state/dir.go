package state

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"culvert/ipam/durable"
)

const (
	lockFile        = "lock"
	identityFile    = "identity"
	connectionsFile = "connections"
	servicesFile    = "services"
	maxIdentity     = 64 << 10
)

// ErrInUse means that another process holds the folder.
var ErrInUse = errors.New("state: in use")

// Dir is the folder of a peering whose gateway is this process.
type Dir struct {
	path string
	lock *os.File
}

// Open locks the folder of the peering with peer below root, and creates it if necessary. The error
// is ErrInUse if another process holds it; any other error means that nothing can be saved there,
// or that another user may have written there. A read-only folder is opened too.
func Open(root, peer string) (*Dir, error) {
	d := &Dir{path: Path(root, peer)}
	made := disk.MakeFolder(d.path)
	if info, err := os.Stat(d.path); err == nil {
		if err := believable(d.path, info); err != nil {
			return nil, fmt.Errorf("state: %w", err)
		}
	}
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
			return nil, fmt.Errorf(
				"%w: %s belongs to the gateway that runs as %s; stop it, or give this one another folder", ErrInUse,
				d.path, holder(lock))
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

// Path returns the path of the folder of the peering with peer, below root.
func Path(root, peer string) string { return filepath.Join(root, peer) }

// Path returns the folder's path.
func (d *Dir) Path() string { return d.path }

// Close releases the folder.
func (d *Dir) Close() error { return d.lock.Close() }

// Identity returns the saved identity of cluster's previous gateway. The error is fs.ErrNotExist if
// there is none; otherwise it says why it is unusable.
func (d *Dir) Identity(cluster string) (Identity, error) {
	f, err := d.openKept(identityFile)
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

// KeepIdentity replaces the saved identity.
func (d *Dir) KeepIdentity(i *Identity) error {
	return disk.Replace(filepath.Join(d.path, identityFile), func(w io.Writer) error {
		_, err := w.Write(i.Encode())
		return err
	})
}

// Connections opens the saved connections, and returns the time at which they were true: the file's
// modification time. The error is fs.ErrNotExist if there are none.
func (d *Dir) Connections() (f io.ReadCloser, asOf time.Time, err error) {
	file, err := d.openKept(connectionsFile)
	if err != nil {
		return nil, asOf, err
	}
	info, err := file.Stat()
	if err != nil {
		file.Close()
		return nil, asOf, err
	}
	return file, info.ModTime(), nil
}

// openKept opens a file that only this process's user and root can have written.
func (d *Dir) openKept(name string) (*os.File, error) {
	f, err := d.open(name)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil {
		err = believable(f.Name(), info)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// KeepConnections replaces the saved connections by what fill writes, which was true at asOf; the
// zero Time means never. After an error the old ones stay.
func (d *Dir) KeepConnections(asOf time.Time, fill func(io.Writer) error) error {
	if asOf.IsZero() {
		asOf = time.Unix(0, 0) // otherwise the time of the file would be now
	}
	return disk.Replace(filepath.Join(d.path, connectionsFile), func(w io.Writer) error {
		if err := fill(w); err != nil {
			return err
		}
		return os.Chtimes(filepath.Join(d.path, connectionsFile+durable.Beside), asOf, asOf)
	})
}

// Services opens the saved Services. The error is fs.ErrNotExist if there are none.
func (d *Dir) Services() (io.ReadCloser, error) { return d.openKept(servicesFile) }

// KeepServices replaces the saved Services by what fill writes. After an error the old ones stay.
func (d *Dir) KeepServices(fill func(io.Writer) error) error {
	return disk.Replace(filepath.Join(d.path, servicesFile), fill)
}

// ForgetServices removes the saved Services.
func (d *Dir) ForgetServices() error { return os.Remove(filepath.Join(d.path, servicesFile)) }

// open opens a file of the folder. Anything may have replaced the file.
func (d *Dir) open(name string) (*os.File, error) {
	// O_NONBLOCK: opening a FIFO must not block.
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

// Wait calls do, which waits for the disk, once per file written. A program with one P replaces it
// before it opens a folder: a system call keeps its P until Go's monitor notices, up to 20 ms, and
// packets would wait as long.
var Wait = func(do func() error) error { return do() }

var disk = durable.Disk{Wait: func(do func() error) error { return Wait(do) }}
