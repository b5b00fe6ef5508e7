package state

import (
	"os"
	"path/filepath"
	"strconv"
)

// LockFile is the file whose lock reserves the folder for this process. A process that gets it may
// Adopt the folder.
func (d *Dir) LockFile() *os.File { return d.lock }

// Adopt is Open with the lock of the process that holds the folder. It returns nil if the lock
// belongs to another folder, or if Open would refuse the folder. The lock is held until both
// processes have released it.
func Adopt(root, peer string, lock *os.File) *Dir {
	d := &Dir{path: filepath.Join(root, peer), lock: lock}
	is, err := lock.Stat()
	there, e := os.Stat(filepath.Join(d.path, lockFile))
	if err != nil || e != nil || !os.SameFile(is, there) {
		return nil
	}
	if folder, err := os.Stat(d.path); err != nil || believable(d.path, folder) != nil {
		return nil
	}
	d.Sign()
	return d
}

// Sign writes this process's ID into the lock. On a read-only folder it fails without harm.
func (d *Dir) Sign() {
	d.lock.Truncate(0)
	d.lock.WriteAt(strconv.AppendInt(nil, int64(os.Getpid()), 10), 0)
}
