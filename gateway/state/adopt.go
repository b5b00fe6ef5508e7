package state

import (
	"os"
	"path/filepath"
	"strconv"
)

// LockFile is what makes the folder this process's. Another process that gets it may Adopt the folder.
func (d *Dir) LockFile() *os.File { return d.lock }

// Adopt is Open with the lock of the process that has the folder; nil if the lock is another folder's. The lock stays held until both
// processes have let go of it.
func Adopt(root, peer string, lock *os.File) *Dir {
	d := &Dir{path: filepath.Join(root, peer), lock: lock}
	is, err := lock.Stat()
	there, e := os.Stat(filepath.Join(d.path, lockFile))
	if err != nil || e != nil || !os.SameFile(is, there) {
		return nil
	}
	d.Sign()
	return d
}

// Sign has the lock name this process. It fails, and does no harm, where the folder can only be read.
func (d *Dir) Sign() {
	d.lock.Truncate(0)
	d.lock.WriteAt(strconv.AppendInt(nil, int64(os.Getpid()), 10), 0)
}
